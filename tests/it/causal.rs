//! Causal attention on backends without their own kernels: its results, and the memory it keeps.

use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox::config::{MlpKind, ModelConfig, NormKind, PositionKind};
use tinderbox::model::Gpt;
use tinderbox::model::attention::{causal_mask, scaled_dot_product_attention};
use tinderbox::plan::{Operations, pass_memory};
use tinderbox_kernels::{self as kernels, CausalAttention, Dropout, DropoutKey, MatmulPrecision, SelfAttention};

use crate::allocations::live_bytes;
use crate::devices::{ndarray, wgpu};
use crate::fixtures::{expect_close, host};

const DROPOUT: Dropout =
    Dropout { probability: 0.3, key: DropoutKey { seed: 1, step: 2, micro_step: 3, first_row: 0 }, site: 4 };

/// Pseudorandom numbers between -1 and 1.
fn numbers<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let numbers = (0..shape.iter().product::<usize>() as u32).map(|i| {
        let bits = (i ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        let bits = (bits ^ (bits >> 15)).wrapping_mul(0xC2B2_AE35);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_data(TensorData::new(numbers.collect(), shape), device)
}

/// The output and the gradients of queries, keys and values, with names.
fn run(
    device: &Device,
    [b, h, h_kv, t, s, d]: [usize; 6],
    f: impl FnOnce([Tensor<4>; 3]) -> Tensor<4>,
) -> Vec<(&'static str, Vec<f32>)> {
    let device = device.clone().autodiff();
    let shapes = [[b, h, t, d], [b, h_kv, s, d], [b, h_kv, s, d]];
    let inputs = [1, 2, 3].map(|i| numbers(shapes[i - 1], i as u32, &device).require_grad());
    let out = f(inputs.clone());
    let asked = numbers([b, h, t, d], 4, &device);
    let gradients = (out.clone() * asked).sum().backward();
    let of_inputs = inputs.map(|x| host(x.grad(&gradients).expect("it has a gradient")));
    let parts = std::iter::once(host(out)).chain(of_inputs);
    ["output", "of queries", "of keys", "of values"].into_iter().zip(parts).collect()
}

/// Compares blocked attention on `device` with explicit attention on a CPU, with the same dropout mask.
fn check(device: &Device, shape: [usize; 6], n_queries: usize, window: Option<usize>, dropout: Option<Dropout>) {
    let [b, h, _, t, s, d] = shape;
    let kept = dropout.map(|dropout| {
        let whole = kernels::dropout(Tensor::<4>::ones([b, h, t, s], device), dropout);
        TensorData::new(host(whole), [b, h, t, s])
    });
    let want = run(&Device::flex(), shape, |[q, k, v]| {
        let device = q.device();
        let (k, v) = (kernels::repeat_kv(k, h), kernels::repeat_kv(v, h));
        let mask = kernels::unseen(s - t..s, s, window, &device);
        let (out, weights) = scaled_dot_product_attention(q, k, v.clone(), Some(mask));
        match kept {
            Some(kept) => (weights * Tensor::from_data(kept, &device)).matmul(v),
            None => out,
        }
    });
    let most_bytes = n_queries * b * h * s * size_of::<f32>();
    let attention = CausalAttention { scale: kernels::attention_scale(d), window, dropout };
    let got = run(device, shape, |[q, k, v]| kernels::causal_attention_in_blocks(q, k, v, attention, most_bytes));
    for ((part, got), (_, want)) in got.iter().zip(&want) {
        let what = format!("{part} of {shape:?}, {n_queries} queries, {window:?}, {dropout:?}");
        expect_close(&what, got, want, 1e-5);
    }
}

#[test]
fn ndarray_attends_in_blocks_as_flex_does_in_the_open() {
    for shape in [[2, 4, 2, 9, 9, 6], [1, 3, 1, 4, 11, 5], [2, 2, 2, 1, 1, 8], [1, 2, 2, 40, 40, 8]] {
        for (window, dropout) in [(None, None), (None, Some(DROPOUT)), (Some(5), None), (Some(5), Some(DROPOUT))] {
            for n_queries in [1, 4, 40] {
                check(&ndarray(), shape, n_queries, window, dropout);
            }
        }
    }
}

#[test]
fn a_gpu_attends_in_blocks_as_flex_does_in_the_open() {
    let Some(device) = wgpu() else { return };
    check(&device, [2, 4, 2, 9, 9, 6], 9, None, None);
    check(&device, [2, 4, 2, 9, 12, 6], 5, None, Some(DROPOUT));
    check(&device, [2, 4, 2, 9, 12, 6], 5, Some(4), Some(DROPOUT));
}

/// Bytes that `f` leaves allocated while its result is held.
fn kept<T>(f: impl FnOnce() -> T + Send) -> f64 {
    // On one thread, whose allocations are counted.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a thread can be started").install(|| {
        let before = live_bytes();
        let held = f();
        let kept = live_bytes() - before;
        drop(held);
        kept as f64
    })
}

#[test]
fn no_map_of_weights_waits_for_the_backward_pass() {
    const N_HEADS: usize = 4;
    const T: usize = 512;
    const MAP: usize = T * T * size_of::<f32>();
    let kept = |attend: fn(Tensor<3>) -> Tensor<3>| {
        let qkv = numbers([1, T, 3 * N_HEADS * 4], 1, &ndarray().autodiff()).require_grad();
        kept(|| attend(qkv)) / MAP as f64
    };
    let ours = kept(|qkv| {
        let attention = SelfAttention {
            n_heads: N_HEADS,
            n_kv_heads: N_HEADS,
            norm: None,
            rotation: None,
            scale: 0.5,
            window: None,
            dropout: Some(DROPOUT),
        };
        kernels::self_attention(qkv, attention)
    });
    // An implementation that saves its weights saves those of each head, several times.
    let in_the_open = kept(|qkv| {
        let mask = causal_mask(T, T, &qkv.device());
        let [q, k, v] = kernels::split_heads(qkv, N_HEADS, N_HEADS);
        let (out, _) = scaled_dot_product_attention(q, k, v, Some(mask));
        kernels::merge_heads(out)
    });
    assert!(in_the_open > 2.0 * N_HEADS as f64, "{in_the_open}");
    // For each head 512 positions of 12 numbers, and twice 4 of the output.
    assert!(ours < 0.3, "{ours}");
}

#[test]
fn what_a_model_keeps_is_what_is_planned() {
    let plain = ModelConfig {
        context_length: 64,
        d_model: 64,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 4,
        d_ff: 128,
        ..ModelConfig::default()
    }
    .with_derived();
    let modern = ModelConfig {
        n_kv_heads: 2,
        position: PositionKind::Rope,
        norm: NormKind::RmsNorm,
        mlp: MlpKind::Swiglu,
        qk_norm: true,
        bias: false,
        ..plain.clone()
    }
    .with_derived();
    let dropping = ModelConfig { dropout: 0.2, ..plain.clone() };
    let foreign = ModelConfig { head_dim: 24, parallel_residual: true, ..modern.clone() };
    for config in [plain, modern, dropping, foreign] {
        let planned = pass_memory(&config, 40, 16, Operations::Composed).saved.total();
        let device = ndarray().autodiff();
        let gpt = Gpt::new(&config, 40, 1, &device);
        let tokens = Tensor::<2, Int>::zeros([16, 64], &device);
        let kept = kept(|| gpt.loss(tokens.clone(), tokens, MatmulPrecision::F32, Some(DROPOUT.key)));
        let ratio = planned / kept; // 0.976 to 0.990
        assert!((0.95..1.02).contains(&ratio), "{planned} bytes planned, {kept} kept");
    }
}
