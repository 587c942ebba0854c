//! The same numbers on every backend. Without a GPU, Mesa's lavapipe acts as one; shapes are tiny, because it compiles
//! each kernel for half a second.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use tinderbox::config::{Config, GenerateConfig};
use tinderbox::data::{Split, Tokens};
use tinderbox::device::{self, DeviceSpec, Launches, OpenDevice};
use tinderbox::generate::Generator;
use tinderbox::model::Gpt;
use tinderbox::run::Trained;
use tinderbox::train::{Start, Summary, Trainer};

use crate::fixtures::{Place, largest_difference};
use crate::parity::check_gpt;

/// The wgpu device; `None` without an adapter, unless `TINDERBOX_REQUIRE_WGPU` is set.
pub fn wgpu() -> Option<Device> {
    open_wgpu().map(|open| open.device)
}

/// Waits until no other test uses the GPU, which one may count the kernels of. The turn ends with the test's thread.
fn take_turn() {
    static GPU: Mutex<()> = Mutex::new(());
    thread_local!(static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) });
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| GPU.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

fn open_wgpu() -> Option<OpenDevice> {
    take_turn();
    let spec: DeviceSpec = "wgpu".parse().expect("a device");
    match device::open(&spec) {
        Ok(open) => Some(open),
        Err(error) => {
            crate::skip(&error.to_string(), "TINDERBOX_REQUIRE_WGPU");
            None
        }
    }
}

/// The CPU backend without our kernels.
pub fn ndarray() -> Device {
    let spec: DeviceSpec = "ndarray".parse().expect("a device");
    device::open(&spec).expect("it is compiled in").device
}

#[test]
fn gpu_repeats_pytorch_logits_losses_and_gradients() {
    let Some(device) = wgpu() else { return };
    check_gpt("nanogpt", &device);
    check_gpt("qwen", &device);
}

/// A tiny config of the sizes of the fixtures above, whose kernels are compiled already; validation is in whole batches.
fn tiny(place: &Place, overrides: &[&str]) -> Config {
    let sizes = [
        "model.context_length=10",
        "model.n_heads=4",
        "model.d_ff=24",
        "train.batch_size=2",
        "data.val_fraction=0.0797",
        // Options of GPT-NeoX that those fixtures lack.
        "model.position=rope",
        "model.rotary_fraction=0.5",
        "model.parallel_residual=true",
        "model.bias=true",
    ];
    place.config(&[&sizes[..], overrides].concat())
}

/// An upload ends the batch of kernels that is submitted at once, 32 of them.
#[test]
fn gpu_steps_upload_only_their_batch() {
    let Some(device) = open_wgpu() else { return };
    let config = tiny(&Place::new(), &["model.dropout=0.1"]);
    let model = Gpt::new(&config.model, 11, 1, &device.device.clone().autodiff());
    let mut trainer = Trainer::new(model, &config, Split::from(Tokens::made_up(50, 11)));
    let mut step = || trainer.step().wait().expect("the GPU computes");
    step();
    step();
    // A step in which a kernel is still tried out has more.
    let counts = (0..3).map(|_| device::count_launches(&device, &mut step).1.expect("a GPU"));
    let Launches { kernels, submits } = counts.min_by_key(|counts| counts.submits).expect("three steps");
    let submits = submits.expect("wgpu counts them");
    assert!(kernels > 50, "{kernels} kernels");
    // The tables of rotation, the batch, and what is read back; on a busy machine some batches are submitted half full.
    assert!(submits <= kernels / 16 + 4, "{submits} submits of {kernels} kernels");
}

/// Twenty steps from the same seed, and then the same checkpoint on each device.
#[test]
fn gpu_trains_like_flex() {
    if wgpu().is_none() {
        return;
    }
    let place = Place::new();
    let run = |name: &str| {
        let overrides = [
            &format!("train.device={name}"),
            "train.max_steps=20",
            "train.log_interval=1",
            "train.eval_interval=0",
            "train.sample_tokens=0",
            "optimizer.learning_rate=3e-3",
            "model.dropout=0.0",
        ];
        place.train(name, tiny(&place, &overrides), Start::New, None).expect("the run trains")
    };
    let ((flex, flex_losses), (other, losses)) = (run("flex"), run("wgpu"));
    assert_eq!(losses.len(), 20);
    let apart = largest_difference(&losses, &flex_losses);
    assert!(apart < 1e-3, "losses are {apart} apart: {losses:?} and {flex_losses:?}");
    let val_loss = |summary: &Summary| summary.val_loss.expect("the run was evaluated");
    assert!((val_loss(&other) - val_loss(&flex)).abs() < 1e-3);

    let generate = |on: &str| {
        let opened = Trained::open(&place.path("wgpu"), Some(&on.parse().expect("a device"))).expect("a run");
        let greedy = GenerateConfig { temperature: 0.0, max_new_tokens: 24, ..GenerateConfig::default() };
        let generator = Generator::new(&opened.model, &opened.tokenizer, &greedy, "The cat", 0).expect("a prompt");
        generator.collect::<Result<String, _>>().expect("the model generates")
    };
    assert_eq!(generate("flex"), generate("wgpu"), "the same checkpoint on either device");
}
