//! Test inputs, and assertions that compare results.

use burn::tensor::{Device, Tensor, TensorData};

use crate::dropout::{Dropout, DropoutKey};

/// Dropout of three elements in ten.
pub(crate) const DROPOUT: Dropout =
    Dropout { probability: 0.3, key: DropoutKey { seed: 1, step: 2, micro_step: 3, first_row: 0 }, site: 4 };

/// Pseudo-random scalars between -2 and 2, the same in every run.
pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
    (0..n)
        .map(|i| {
            let bits = (i as u32 ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
            let bits = (bits ^ (bits >> 15)).wrapping_mul(0xC2B2_AE35);
            (bits >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

pub(crate) fn constant<const D: usize>(shape: [usize; D], seed: u32) -> Tensor<D> {
    let values = noise(shape.iter().product(), seed);
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
}

/// The inputs of an operation for which gradients are computed.
#[derive(Default)]
pub(crate) struct Leaves(Vec<Tensor<1>>);

impl Leaves {
    /// Adds a leaf filled with [`noise`], whose seed is the number of leaves.
    pub(crate) fn next<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let leaf = constant([shape.iter().product()], self.0.len() as u32 + 1).require_grad();
        self.0.push(leaf.clone());
        leaf.reshape(shape)
    }
}

/// The output of `f` and the gradients of its leaves, where the gradient of the output is [`noise`].
pub(crate) fn output_and_gradients<const D: usize>(f: impl FnOnce(&mut Leaves) -> Tensor<D>) -> Vec<Vec<f32>> {
    output_and_gradients_by(f, |out| (out.clone() * constant(out.dims(), 9)).sum())
}

/// The output of `f`, and the gradients of a `loss` of this output with respect to the leaves that have one.
pub(crate) fn output_and_gradients_by<const D: usize>(
    f: impl FnOnce(&mut Leaves) -> Tensor<D>,
    loss: impl FnOnce(Tensor<D>) -> Tensor<1>,
) -> Vec<Vec<f32>> {
    let mut leaves = Leaves::default();
    let out = f(&mut leaves);
    let gradients = loss(out.clone()).backward();
    for (seed, leaf) in (1..).zip(&leaves.0) {
        let n = leaf.dims()[0];
        assert!(scalars(leaf.clone()) == noise(n, seed), "an operation changed its input {seed}, which is shared");
    }
    let gradients = leaves.0.into_iter().filter_map(|leaf| leaf.grad(&gradients).map(scalars));
    std::iter::once(scalars(out)).chain(gradients).collect()
}

pub(crate) fn scalars<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_to_vec().expect("f32")
}

/// Asserts that each part agrees to within 2e-6 of its largest absolute value.
pub(crate) fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    assert_within(got, want, 2e-6, what);
}

/// Asserts that each part agrees to within this share of its largest absolute value.
pub(crate) fn assert_within(got: &[Vec<f32>], want: &[Vec<f32>], share: f32, what: &str) {
    let error = largest_error(got, want);
    assert!(error <= share, "{what}: off by {error:e}, more than {share:e}");
}

/// The largest error of the parts, each relative to the part's largest absolute value. NaN is the largest of all.
pub(crate) fn largest_error(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len(), "parts");
    let of_part = |(got, want): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(got.len(), want.len(), "scalars of a part");
        let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let errors = got.iter().zip(want).map(|(got, want)| (got - want).abs());
        let error = errors.max_by(f32::total_cmp).unwrap_or_default();
        if error == 0.0 { 0.0 } else { error / largest }
    };
    got.iter().zip(want).map(of_part).max_by(f32::total_cmp).unwrap_or_default()
}

/// Asserts that `f` returns the same bits on one, two and three threads.
pub(crate) fn assert_threads_change_nothing(what: &str, f: impl Fn() -> Vec<Vec<f32>> + Sync) {
    let [one, two, three] = [1, 2, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let got = pool.expect("the system starts threads").install(&f);
        got.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(one == two && one == three, "{what}: threads change bytes");
}
