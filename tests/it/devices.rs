//! The same numbers on every backend. Without a GPU, Mesa's lavapipe acts as one; shapes are tiny, because it compiles
//! each kernel for half a second.

use burn::tensor::Device;
use tinderbox::config::GenerateConfig;
use tinderbox::device::{self, DeviceSpec};
use tinderbox::generate::Generator;
use tinderbox::run::Trained;
use tinderbox::train::{Start, Summary};

use crate::fixtures::{Place, largest_difference};
use crate::parity::check_gpt;

/// The wgpu device; `None` without an adapter, unless `TINDERBOX_REQUIRE_WGPU` is set.
pub fn wgpu() -> Option<Device> {
    let spec: DeviceSpec = "wgpu".parse().expect("a device");
    match device::open(&spec) {
        Ok(open) => Some(open.device),
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
            // The sizes of the fixtures above, whose kernels are compiled already; validation is in whole batches.
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
            "model.dropout=0.0",
        ];
        place.train(name, place.config(&overrides), Start::New, None).expect("the run trains")
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
