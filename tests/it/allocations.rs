//! Counts allocations per thread: generation allocates nothing, saving little; other tests measure what training keeps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Param;
use burn::tensor::{Device, Int, Tensor};
use tinderbox::config::{
    MatmulPrecision, MlpKind, ModelConfig, NormKind, OptimizerConfig, OptimizerKind, PositionKind,
};
use tinderbox::generate::engine::{Decoder, Engine, Precision};
use tinderbox::model::{Gpt, LazyTensor, Role, parameters};
use tinderbox::optimizer::{Gradients, MuonConfig, Optimizer};
use tinderbox::plan::{Operations, pass_memory};
use tinderbox::run::{Checkpoint, TrainState};
use tinderbox_kernels::DropoutKey;

use crate::devices::ndarray;
use crate::inference::{in_threads, wide};
use crate::optimizers::{Matrix, parameter};
use crate::properties::lively;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Bytes that the thread holds, allocated and not freed, and the most it ever held.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST_HELD: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
// SAFETY: everything is done by the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The counter of an exiting thread may already be gone.
        ALLOCATIONS.try_with(|n| n.set(n.get() + 1)).ok();
        hold(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-layout.size().cast_signed());
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    // Not counted as a second copy, since the system grows large blocks in place.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.try_with(|n| n.set(n.get() + 1)).ok();
        hold(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn hold(bytes: isize) {
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if let Ok(held) = held {
        MOST_HELD.try_with(|most| most.set(most.get().max(held))).ok();
    }
}

/// Bytes that this thread allocated and did not free, minus those that it freed for other threads.
pub fn live_bytes() -> isize {
    HELD.get()
}

/// The most bytes that this thread held in `f` beyond what it held before.
pub fn most_held<T>(f: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    MOST_HELD.set(before);
    let out = f();
    ((MOST_HELD.get() - before).cast_unsigned(), out)
}

pub fn allocations() -> usize {
    ALLOCATIONS.get()
}

#[test]
fn checkpoints_are_written_and_read_tensor_by_tensor() {
    let device = Device::flex().autodiff();
    let config = ModelConfig { context_length: 16, n_layers: 8, ..ModelConfig::default() };
    let gpt = lively(&config, 1, &device);
    let tensors = parameters::lazy(&gpt);
    let n_bytes: usize = tensors.values().map(LazyTensor::n_bytes).sum();
    let largest = tensors.values().map(LazyTensor::n_bytes).max();
    let largest = largest.expect("a model has parameters");
    assert!(n_bytes > 20 * largest, "{n_bytes} in parts of {largest}");
    let some = 128 * 1024; // a buffer, all tensor names

    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path().join("step-000000");
    let saved = Checkpoint { model: tensors.clone(), optimizer: tensors, state: TrainState::default() };
    let (most, ()) = most_held(|| saved.write(&dir).expect("the checkpoint can be written"));
    assert!(most < some, "{most} of {}", 2 * n_bytes);

    let zeros = Gpt::zeros(&config, gpt.vocab_size(), &device);
    let (most, loaded) = most_held(|| Checkpoint::load_model(&dir, zeros).expect("the weights fit the model"));
    assert!(most < 2 * largest + some, "{most} of {n_bytes}");
    assert_eq!(parameters::read(&loaded), parameters::read(&gpt));
}

#[test]
fn decoding_allocates_nothing() {
    in_threads(1, || {
        for (kind, precision) in (0..3).flat_map(|kind| Precision::ALL.map(|one| (kind, one))) {
            let gpt = lively(&wide(kind), 1, &Device::flex());
            let mut decoder = Decoder::new(Arc::new(Engine::new(gpt, precision)), 3, 150);
            let mut read = || {
                decoder.truncate(1, 0);
                decoder.prefill(1, &[2; 140]);
                decoder.copy(1, 2);
                for _ in 0..9 {
                    decoder.decode(&[None, Some(1), Some(3)]);
                }
            };
            read(); // threads may set up state that they keep
            let before = allocations();
            read();
            assert_eq!(allocations() - before, 0, "{precision}");
        }
    });
}

#[test]
fn muon_update_holds_planned_bytes() {
    let device = Device::flex().autodiff();
    let shapes: [([usize; 2], &[usize]); 5] = [
        ([128, 128], &[128]),
        ([128, 352], &[352]),
        ([352, 128], &[128]),
        ([96, 800], &[800]),
        ([128, 384], &[128, 128, 128]),
    ];
    for ((shape, widths), normuon_beta2) in shapes.into_iter().flat_map(|it| [(it, 0.0), (it, 0.95)]) {
        let muon = MuonConfig { normuon_beta2, ..MuonConfig::default() };
        let config = OptimizerConfig { kind: OptimizerKind::Muon, muon, ..OptimizerConfig::default() };
        let role = widths.try_into().map_or(Role::Up, Role::Qkv);
        let row = parameter("weight".to_owned(), shape.to_vec(), role);
        // A new thread has no panel buffers yet.
        let held = in_threads(1, || {
            let mut optimizer = Optimizer::new(&config, [row.clone()], MatmulPrecision::F32);
            let gradient = Tensor::<1>::ones([shape[0] * shape[1]], &Device::flex());
            let gradients = Gradients::from_named(BTreeMap::from([("weight".to_owned(), gradient)]));
            let matrix = Matrix { weight: Param::from_tensor(Tensor::zeros(shape, &device)) };
            most_held(|| optimizer.step(matrix, gradients, 1e-3, 0)).0
        });
        let momentum = 4 * shape[0] * shape[1];
        let planned = config.temporary_bytes(&row, true) + momentum as f64;
        let ratio = held as f64 / planned;
        assert!((0.85..1.05).contains(&ratio), "{shape:?}, {normuon_beta2}: {held} bytes, {planned} planned");
    }
}

/// Bytes that `f` leaves allocated while its result is held.
fn kept<T>(f: impl FnOnce() -> T + Send) -> f64 {
    // On one thread, whose allocations are counted.
    in_threads(1, || {
        let before = live_bytes();
        let held = f();
        let kept = live_bytes() - before;
        drop(held);
        kept as f64
    })
}

#[test]
fn training_pass_saves_planned_bytes() {
    let plain = ModelConfig { context_length: 64, d_model: 64, n_layers: 2, d_ff: 128, ..ModelConfig::default() };
    let plain = ModelConfig { n_heads: 4, n_kv_heads: 4, ..plain }.with_derived();
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
        let kept = kept(|| {
            gpt.loss(
                tokens.clone(),
                None,
                tokens,
                MatmulPrecision::F32,
                Some(DropoutKey { seed: 1, step: 2, micro_step: 3, first_row: 0 }),
            )
        });
        let ratio = planned / kept; // 0.976 to 0.990
        assert!((0.95..1.02).contains(&ratio), "{planned} bytes planned, {kept} kept");
    }
}
