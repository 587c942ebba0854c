//! The worked numbers of five texts on attention, computed by the library's own functions.
//!
//! Expected values are recomputed in double precision from what a text gives; where the text prints something else, the
//! test says so. Each module is a text, and a program of the same name in `examples/` prints its numbers;
//! `docs/worked-numbers.md` has all of them side by side.

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use tinderbox::inspect::strongest;
use tinderbox::model::Linear;
use tinderbox::model::attention::steps::{masked, parameter_free_self_attention, scaled, scores, weights};
use tinderbox::model::attention::{
    MultiHeadAttention, MultiHeadAttentionConfig, causal_mask, scaled_dot_product_attention,
};

use crate::examples::numbers::{matrix, normal, values};

/// The numbers have six decimals; this allows for rounding of the last, and for single precision.
const TOLERANCE: f32 = 2e-6;

fn expect<const N: usize, const R: usize, const C: usize>(what: &str, got: &Tensor<N>, want: [[f32; C]; R]) {
    assert_eq!(got.dims()[N - 2..], [R, C], "shape of {what}");
    let got = values(got.clone());
    assert_eq!(got.len(), R * C, "size of {what}");
    for (i, (got, want)) in got.iter().zip(want.as_flattened()).enumerate() {
        let close = (got - want).abs() <= TOLERANCE; // false for NaN
        assert!(close, "{what}[{}, {}] is {got}, not {want}", i / C, i % C);
    }
}

fn expect_same<const N: usize>(what: &str, got: Tensor<N>, want: Tensor<N>) {
    assert_eq!(got.dims(), want.dims(), "shape of {what}");
    for (got, want) in values(got).iter().zip(values(want)) {
        assert!((got - want).abs() < 1e-5, "{what}: {got}, not {want}");
    }
}

fn expect_rows_to_sum_to_one<const N: usize>(weights: Tensor<N>) {
    let sums = values(weights.sum_dim(N - 1));
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{sums:?}");
}

/// The complete formula for matrices: output and weights, each with two leading dimensions.
fn attend(q: &Tensor<2>, k: &Tensor<2>, v: &Tensor<2>) -> (Tensor<4>, Tensor<4>) {
    let [q, k, v] = [q, k, v].map(|x| x.clone().unsqueeze::<4>());
    scaled_dot_product_attention(q, k, v, None)
}

mod soft_lookup {
    //! The lesson "L03 - Self-Attention: The Search Engine of Language".

    use super::*;

    /// "it" over animal, street and because. The lesson's formulas divide by 1.41 and print 7.09 and 4.96.
    #[test]
    fn it_attends_to_the_animal() {
        let q = matrix([[3.0, 1.0]]);
        let k = matrix([[3.0, 1.0], [1.0, 4.0], [1.5, 0.5]]);
        let v = matrix([[2.0, 1.5], [0.5, 0.3], [-0.5, 1.2]]);
        let raw = scores(q.clone(), k.clone());
        expect("scores", &raw, [[10.0, 7.0, 5.0]]);
        let scaled = scaled(raw, 2);
        expect("scaled", &scaled, [[7.071068, 4.949748, 3.535534]]);
        let step_by_step = weights(scaled);
        let context = step_by_step.clone().matmul(v.clone());
        let at_once = attend(&q, &k, &v);
        for weights in [step_by_step.unsqueeze(), at_once.1] {
            expect("weights", &weights, [[0.870310, 0.104327, 0.025364]]);
        }
        for context in [context.unsqueeze(), at_once.0] {
            expect("context", &context, [[1.780101, 1.367199]]);
        }
    }

    /// Printed without errors.
    #[test]
    fn three_tokens_of_four_dimensions_attend_to_each_other() {
        let q = matrix([[3.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]);
        let v = matrix([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]);
        let scaled = scaled(scores(q.clone(), q.clone()), 4);
        let expected = [[5.0, 3.5, 4.0], [3.5, 8.5, 5.0], [4.0, 5.0, 4.0]];
        expect("scaled", &scaled, expected);
        let (output, weights) = attend(&q, &q, &v);
        let expected = [[0.628532, 0.140244, 0.231224], [0.006498, 0.964380, 0.029122], [0.211942, 0.576117, 0.211942]];
        expect("weights", &weights, expected);
        let expected = [[0.744144, 0.255856, 0.0, 0.0], [0.021059, 0.978941, 0.0, 0.0], [0.317912, 0.682088, 0.0, 0.0]];
        expect("output", &output, expected);
    }

    /// The numbers are printed correctly, but the lesson's conclusion, that scaling makes a model look at alignment,
    /// does not follow from them.
    #[test]
    fn a_long_misaligned_key_beats_a_short_aligned_one_scaled_or_not() {
        let raw = scores(matrix([[3.0, 1.0]]), matrix([[1.5, 0.5], [4.5, 1.5], [1.0, 4.0]]));
        expect("scores", &raw, [[5.0, 15.0, 7.0]]);
        let after = values(scaled(raw, 2));
        assert!(after[2] > after[0] && (after[2] / after[0] - 1.4).abs() < 1e-6);
    }

    /// The matrix is PyTorch's draw of seed 42, with four decimals; the queries are printed with four.
    #[test]
    fn a_matrix_makes_queries_of_bank_river_and_loan() {
        let embeddings = matrix([[0.5, 0.3, 0.8, 0.2], [0.2, 0.9, 0.1, 0.3], [0.8, 0.1, 0.4, 0.7]]);
        let w_q = matrix([
            [1.9269, 1.4873, 0.9007, -2.1055],
            [0.6784, -1.2345, -0.0431, -1.6047],
            [-0.7521, 1.6487, -0.3925, -1.4036],
            [-0.7279, -0.5594, -0.7688, 0.7624],
        ]);
        let printed = [
            [0.2098, 0.7902, -0.0152, -1.2523],
            [0.3512, -0.4083, -0.0643, -0.8885],
            [0.3995, 0.6671, 0.0105, -0.9363],
        ];
        let queries = values(embeddings.matmul(w_q * 0.5));
        for (ours, printed) in queries.iter().zip(printed.as_flattened()) {
            assert!((ours - printed).abs() < 1e-4, "{ours} is not {printed}");
        }
    }
}

mod the_cat_sat {
    //! The lesson "Self-Attention Deep Dive", whose printed tables have errors.

    use super::*;

    fn q() -> Tensor<2> {
        matrix([[0.5, 0.2], [0.1, 0.8], [0.3, 0.4]])
    }

    fn k() -> Tensor<2> {
        matrix([[0.6, 0.1], [0.2, 0.9], [0.4, 0.3]])
    }

    /// Of the nine printed scores, 0.23, 0.27, 0.38, 0.34 and 0.34 are not the products of these queries and keys; the
    /// printed weights of cat, 0.28, 0.50 and 0.22, are not the softmax of any scores there.
    #[test]
    fn scores_and_weights_without_scaling() {
        let scores = scores(q(), k());
        let expected = [[0.32, 0.28, 0.26], [0.14, 0.74, 0.28], [0.22, 0.42, 0.24]];
        expect("scores", &scores, expected);
        let weights = weights(scores);
        let expected = [[0.344524, 0.331015, 0.324461], [0.251737, 0.458696, 0.289567], [0.308489, 0.376790, 0.314721]];
        expect("weights", &weights, expected);
        let cat = strongest(&values(weights)[3..6], 3);
        assert_eq!([cat[0].0, cat[1].0], [1, 2], "itself, then sat: {cat:?}");
    }

    /// The lesson prints neither: its example ends with the weights and leaves out its second step.
    #[test]
    fn outputs_and_scaled_weights() {
        let v = matrix([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
        let output = weights(scores(q(), k())).matmul(v.clone());
        let expected = [[0.668985, 0.655476], [0.541304, 0.748263], [0.623210, 0.691511]];
        expect("output", &output, expected);
        let expected = [[0.341230, 0.331714, 0.327056], [0.275291, 0.420772, 0.303937], [0.315841, 0.363820, 0.320339]];
        expect("scaled weights", &attend(&q(), &k(), &v).1, expected);
    }

    /// Its first exercise: a hundred tokens, `d_k` = 64.
    #[test]
    fn shapes_of_a_hundred_tokens() {
        let [q, k, v] = [1, 2, 3].map(|seed| normal([100, 64], seed));
        let (output, weights) = attend(&q, &k, &v);
        assert_eq!((output.dims(), weights.dims()), ([1, 1, 100, 64], [1, 1, 100, 100]));
    }

    #[test]
    fn reordered_words_give_reordered_outputs_unless_the_future_is_hidden() {
        let device = Device::flex();
        let order: Tensor<1, Int> = Tensor::from_ints([3, 0, 4, 1, 2], &device);
        let x = normal([2, 5, 12], 1);
        let reordered = x.clone().select(1, order.clone());

        let both_ways = attention(12, 3, false);
        let (one, other) = (both_ways.attend(x.clone(), None), both_ways.attend(reordered, None));
        let expected = one.0.select(1, order.clone());
        expect_same("output", other.0, expected);
        let expected = one.1.select(2, order.clone()).select(3, order.clone());
        expect_same("weights", other.1, expected);

        let causal = attention(12, 3, true);
        let one = causal.attend(x.clone(), None).0.select(1, order.clone());
        let other = causal.attend(x.select(1, order), None).0;
        let largest = values((one - other).abs().max());
        assert!(largest[0] > 0.1, "a causal one knows what came first");
    }

    #[test]
    fn one_module_takes_texts_of_any_length() {
        for causal in [false, true] {
            let attention = attention(12, 3, causal);
            let long = normal([1, 33, 12], 1);
            let of_long = attention.attend(long.clone(), None).0;
            for n in [1, 2, 7, 32] {
                let (output, weights) = attention.attend(long.clone().narrow(1, 0, n), None);
                assert_eq!((output.dims(), weights.dims()), ([1, n, 12], [1, 3, n, n]));
                expect_rows_to_sum_to_one(weights);
                if causal {
                    expect_same("its beginning", output, of_long.clone().narrow(1, 0, n));
                }
            }
        }
    }
}

/// Random weights, large enough for heads to differ.
fn attention(d_model: usize, n_heads: usize, causal: bool) -> MultiHeadAttention {
    let config = MultiHeadAttentionConfig { causal, ..MultiHeadAttentionConfig::new(d_model, n_heads) };
    let mut attention = config.init(&Device::flex());
    let draw = |n: usize, seed| {
        let weight = normal([d_model, n * d_model], seed);
        scaled(weight, d_model)
    };
    attention.qkv = Linear::new(draw(3, 11), Some(normal([3 * d_model], 13) * 0.3));
    attention.output = Linear::new(draw(1, 12), Some(Tensor::zeros([d_model], &Device::flex())));
    attention
}

mod many_heads {
    //! A textbook's section on the Transformer's attention; it prints programs, and few numbers.

    use super::*;
    use crate::examples::many_heads as example;

    /// A score is a sum of `d_k` products of variance 1. The slides on the engine of transformers print 107.4
    /// and 1.074 for a draw at 100; the tutorial on self-attention has "typically 40 to 100" for scores at 64,
    /// whose standard deviation is 8.
    #[test]
    fn scores_of_random_vectors_spread_by_the_root_of_their_dimension_and_scaled_by_one() {
        for d_k in [8, 64, 100, 512] {
            // Independent pairs: four standard errors of the variance are below the tenth that is allowed.
            let raw = scores(normal([4096, 1, d_k], 1), normal([4096, 1, d_k], 2));
            let variance = |scores: Tensor<3>| values(scores.reshape([-1]).var(0))[0];
            let before = variance(raw.clone()) / d_k as f32;
            let after = variance(scaled(raw, d_k));
            assert!((before - 1.0).abs() < 0.1, "{before} times {d_k}");
            assert!((after - 1.0).abs() < 0.1, "{after} at {d_k}");
        }
    }

    /// "The max probability is essentially 1.0", and hardly any gradient gets through.
    #[test]
    fn an_unscaled_softmax_of_512_dimensions_is_saturated() {
        let raw = scores(normal([400, 1, 512], 1), normal([400, 10, 512], 2));
        let cotangent = normal([400, 1, 10], 3).autodiff();
        let median = |x: Tensor<3>| {
            let mut largest = values(x.max_dim(2));
            largest.sort_by(f32::total_cmp);
            largest[largest.len() / 2]
        };
        let look = |scores: Tensor<3>| {
            let scores = scores.autodiff().require_grad();
            let weights = weights(scores.clone());
            let backward = (weights.clone() * cotangent.clone()).sum().backward();
            let gradient = scores.grad(&backward).expect("it has a gradient");
            (median(weights.inner()), median(gradient.abs()))
        };
        let (largest, gradient) = look(raw.clone());
        assert!(largest > 0.999 && gradient < 1e-3, "{largest}, {gradient}");
        let (largest, gradient) = look(scaled(raw, 512));
        assert!(largest < 0.5 && gradient > 0.05, "{largest}, {gradient}");
    }

    /// As many outputs as queries, each as long as the values. For the comparison with PyTorch, masks and gradients
    /// included, see `parity::scaled_dot_product_attention_is_pytorchs`.
    #[test]
    fn four_queries_over_six_keys_with_values_of_another_length() {
        let q = normal([2, 1, 4, 32], 1);
        let (k, v) = (normal([2, 1, 6, 32], 2), normal([2, 1, 6, 64], 3));
        let (output, weights) = scaled_dot_product_attention(q, k, v, None);
        assert_eq!((output.dims(), weights.dims()), ([2, 1, 4, 64], [2, 1, 4, 6]));
        expect_rows_to_sum_to_one(weights);
    }

    #[test]
    fn parameters_at_128_dimensions() {
        let module = MultiHeadAttentionConfig::new(128, 4).init(&Device::flex());
        let parts = [&module.qkv, &module.output].map(Module::num_params);
        assert_eq!(parts, [49_536, 16_512]);
        assert_eq!(module.num_params(), 66_048);
    }

    #[test]
    fn four_heads_look_both_ways_or_back_only() {
        let x = normal([2, 10, 128], 1);
        for causal in [false, true] {
            let (output, weights) = attention(128, 4, causal).attend(x.clone(), None);
            assert_eq!((output.dims(), weights.dims()), ([2, 10, 128], [2, 4, 10, 10]));
            expect_rows_to_sum_to_one(weights.clone());
            let weights = values(weights);
            let is_future = |at: usize| at % 10 > at / 10 % 10;
            let mut future = weights.iter().enumerate().filter(|(at, _)| is_future(*at));
            assert!(future.all(|(_, weight)| (*weight == 0.0) == causal));
            let mut past = weights.iter().enumerate().filter(|(at, _)| !is_future(*at));
            assert!(past.all(|(_, weight)| *weight > 0.0));
        }
    }

    /// One fused projection equals three separate ones, and parallel heads equal heads computed one by one. For the
    /// comparison with PyTorch, see `parity::multi_head_attention_is_pytorchs_causal_bidirectional_and_cross`.
    #[test]
    fn several_heads_are_single_ones_with_projections_of_their_own() {
        let x = normal([5, 12], 1);
        for causal in [false, true] {
            let attention = attention(12, 3, causal);
            let bias = attention.qkv.bias().expect("has one");
            let project = |part: usize, head: usize| {
                let start = 12 * part + 4 * head;
                let weight = attention.qkv.weight().narrow(1, start, 4);
                x.clone().matmul(weight) + bias.clone().narrow(0, start, 4).unsqueeze()
            };
            let head = |head: usize| {
                let [q, k, v] = [0, 1, 2].map(|part| project(part, head)); // each [5, 4]
                let mut scores = scaled(scores(q, k), 4);
                if causal {
                    scores = masked(scores, causal_mask(5, 5, &Device::flex()).reshape([5, 5]));
                }
                weights(scores).matmul(v)
            };
            let heads = Tensor::cat((0..3).map(head).collect(), 1); // [5, 12]
            let one_by_one = attention.output.forward(heads);
            let at_once = attention.attend(x.clone().unsqueeze(), None).0;
            expect_same("output", at_once, one_by_one.unsqueeze());
        }
    }

    #[test]
    fn cross_attention_asks_one_sequence_of_another() {
        let attention = attention(12, 3, false);
        let (x, context) = (normal([2, 4, 12], 1), normal([2, 7, 12], 2));
        let (output, weights) = attention.attend(x.clone(), Some(context.clone()));
        assert_eq!((output.dims(), weights.dims()), ([2, 4, 12], [2, 3, 4, 7]));
        expect_rows_to_sum_to_one(weights);
        let (reversed, _) = attention.attend(x.clone(), Some(context.flip([1])));
        expect_same("the order of what answers", reversed, output);
        let (itself, _) = attention.attend(x.clone(), Some(x.clone()));
        expect_same("of itself", itself, attention.attend(x, None).0);
    }

    /// Megabytes of one layer of four heads, as in the section's last program, which puts one head over 128,000 tokens
    /// at about 62 GB, while it is 65.5.
    #[test]
    fn weights_take_memory_by_the_square_of_the_text() {
        let megabytes = |n_heads, n_tokens| format!("{:.2}", example::megabytes(n_heads, n_tokens));
        let found = [64, 128, 256, 512, 1024, 2048].map(|n_tokens| megabytes(4, n_tokens));
        assert_eq!(found, ["0.07", "0.26", "1.05", "4.19", "16.78", "67.11"]);
        assert_eq!(megabytes(1, 128_000), "65536.00");
    }
}

mod your_journey {
    //! The slides "The Engine of Transformers: Building Scaled Dot-Product Attention".

    use super::*;

    /// "Your journey starts with one step", from chapter 3 of Raschka's "Build a Large Language Model (From Scratch)".
    fn inputs() -> Tensor<2> {
        matrix([
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ])
    }

    fn journey(all: Tensor<2>) -> Tensor<2> {
        all.narrow(0, 1, 1)
    }

    /// The slides print the scores 14.5, 25.1, 24.8, 14.3, 8.6 and 17.6, and the weights of those below, of which they
    /// truncate 0.2264 to 0.22.
    #[test]
    fn journey_attends_by_learned_queries_keys_and_values() {
        let w_q = matrix([[0.296112, 0.516562], [0.251671, 0.688557], [0.073972, 0.866522]]);
        let w_k = matrix([[0.136580, 0.102479], [0.184056, 0.726447], [0.315254, 0.687107]]);
        let w_v = matrix([[0.075635, 0.196638], [0.316412, 0.401740], [0.118568, 0.827395]]);
        let [q, k, v] = [w_q, w_k, w_v].map(|w| inputs().matmul(w));
        let raw = scores(q.clone(), k.clone());
        let expected = [[1.270483, 1.852384, 1.811107, 1.079517, 0.557731, 1.543971]];
        expect("scores", &journey(raw.clone()), expected);
        let (context, at_once) = attend(&q, &k, &v);
        let expected = [[0.150020, 0.226384, 0.219872, 0.131070, 0.090629, 0.182026]];
        for weights in [weights(scaled(raw, 2)), at_once.reshape([6, 6])] {
            expect("weights", &journey(weights), expected);
        }
        let context = context.reshape([6, 2]);
        expect("context", &journey(context), [[0.306100, 0.821030]]);

        let printed = matrix([[14.5, 25.1, 24.8, 14.3, 8.6, 17.6]]);
        let of_printed = values(weights(scaled(printed, 2)));
        assert!(of_printed[1] > 0.5 && of_printed[0] < 0.001, "a slip");
    }

    #[test]
    fn journey_attends_without_trainable_weights() {
        let raw = scores(inputs(), inputs());
        let expected = [[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865]];
        expect("scores", &journey(raw), expected);
        let (context, weights) = parameter_free_self_attention(inputs());
        let expected = [[0.138548, 0.237891, 0.233274, 0.123992, 0.108182, 0.158114]];
        expect("weights", &journey(weights), expected);
        let expected = [[0.441866, 0.651482, 0.568309]];
        expect("context", &journey(context), expected);
    }
}

mod masks_and_patterns {
    //! "Self-Attention Mechanism", tutorial 3 of the Transformers course at `AITutorials.site`.

    use super::*;

    /// Each map is the softmax of its logarithms; with positions as values, the output says where tokens look. The
    /// uniform map is printed with 0.33, so that its rows sum to 0.99.
    #[test]
    fn four_sample_maps_are_diagonal_uniform_focused_and_local() {
        let look = |map: Tensor<2>| {
            let [n, _] = map.dims();
            let weights = weights(map.log());
            expect_rows_to_sum_to_one(weights.clone());
            let positions = matrix([[0.0], [1.0], [2.0], [3.0]]).narrow(0, 0, n);
            (weights.clone(), weights.matmul(positions))
        };
        let diagonal = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]];
        let (weights, places) = look(matrix(diagonal));
        expect("diagonal", &weights, diagonal);
        expect("where it looks", &places, [[0.15], [1.0], [1.85]]);

        let (weights, places) = look(matrix([[0.33; 3]; 3]));
        expect("uniform", &weights, [[1.0 / 3.0; 3]; 3]);
        expect("where it looks", &places, [[1.0]; 3]);

        let focused = [[0.05, 0.90, 0.05], [0.10, 0.10, 0.80], [0.85, 0.10, 0.05]];
        let (weights, places) = look(matrix(focused));
        expect("focused", &weights, focused);
        expect("where it looks", &places, [[1.0], [1.7], [0.2]]);

        let local = [[0.7, 0.2, 0.1, 0.0], [0.2, 0.5, 0.2, 0.1], [0.1, 0.2, 0.5, 0.2], [0.0, 0.1, 0.2, 0.7]];
        let (weights, places) = look(matrix(local));
        expect("local", &weights, local);
        expect("where it looks", &places, [[0.4], [1.2], [1.8], [2.6]]);
        assert!(values(weights)[3] == 0.0, "minus infinity weighs nothing");
    }

    fn mask() -> Tensor<2, Bool> {
        causal_mask(4, 4, &Device::flex()).reshape([4, 4])
    }

    /// Scaled scores of four random tokens; keys from `changed` on are different.
    fn four_tokens(changed: usize) -> Tensor<2> {
        let (q, k) = (normal([4, 64], 1), normal([4, 64], 2));
        let mut k = values(k);
        k[64 * changed..].iter_mut().for_each(|x| *x *= -2.0);
        let k = Tensor::<1>::from_floats(&*k, &Device::flex()).reshape([4, 64]);
        scaled(scores(q, k), 64)
    }

    /// The tutorial expects "about 0.33" three times in the third row of random scores, which requires equal scores.
    #[test]
    fn masked_before_the_softmax_the_future_neither_weighs_nor_matters() {
        let before = |scores| weights(masked(scores, mask()));
        let unchanged = before(four_tokens(4));
        expect_rows_to_sum_to_one(unchanged.clone());
        let first = unchanged.clone().narrow(0, 0, 1);
        expect("the first row", &first, [[1.0, 0.0, 0.0, 0.0]]);
        for changed in 1..4 {
            let earlier = |weights: Tensor<2>| values(weights.narrow(0, 0, changed));
            let other = before(four_tokens(changed));
            assert_eq!(earlier(unchanged.clone()), earlier(other));
        }
        let third = before(matrix([[0.5; 4]; 4])).narrow(0, 2, 1);
        let expected = [[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0]];
        expect("the third row of equal scores", &third, expected);
    }

    /// What the tutorial warns of, and worse: what is left still depends on what was masked.
    #[test]
    fn masked_after_the_softmax_rows_fall_short_of_one_and_the_future_shows() {
        let after = |scores| weights(scores).mask_fill(mask(), 0.0);
        let sums = values(after(four_tokens(4)).sum_dim(1));
        assert!(sums[..3].iter().all(|sum| *sum < 0.99), "{sums:?}");
        let [one, other] = [4, 3].map(|changed| values(after(four_tokens(changed)))[0]);
        assert!((one - other).abs() > 0.01, "{one} and {other}");
    }
}
