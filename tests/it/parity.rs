//! The same numbers as PyTorch, from the same weights: outputs, losses, every gradient.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use tinderbox::config::ModelConfig;
use tinderbox::model::attention::{MultiHeadAttention, MultiHeadAttentionConfig, scaled_dot_product_attention};
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::model::probe::{Point, Probe, Site};
use tinderbox::model::{Gpt, Linear};
use tinderbox::optimizer::Gradients;
use tinderbox_kernels::MatmulPrecision;

use crate::devices::ndarray;
use crate::fixtures::{Fixture, TOLERANCE, expect_close, host};

const GPTS: [&str; 10] =
    ["gpt2", "nanogpt", "llama", "qwen", "relu_squared", "mixed", "quickstart", "odd", "softcap", "residuals"];

#[derive(serde::Deserialize)]
struct GptFixture {
    model: ModelConfig,
    vocab_size: usize,
}

pub fn gpt(name: &str, device: &Device) -> (Gpt, Fixture) {
    let text = std::fs::read_to_string(format!("tests/fixtures/gpt/{name}.json")).expect("the fixture exists");
    let GptFixture { model, vocab_size } = serde_json::from_str(&text).expect("a model config");
    let fixture = Fixture::read(&format!("gpt/{name}"));
    let gpt = Gpt::zeros(&model.with_derived(), vocab_size, device);
    let gpt = parameters::assign(gpt, |path, shape| {
        let name = format!("weights.{path}");
        assert_eq!(fixture.shape(&name), shape, "{name}");
        let (shape, values) = (shape.to_vec(), fixture.values(&name).to_vec());
        Some(HostTensor { shape, values })
    });
    (gpt.expect("every weight is there"), fixture)
}

#[test]
fn models_equal_pytorch() {
    for device in [Device::flex(), ndarray()] {
        for name in GPTS {
            check_gpt(name, &device);
        }
    }
}

/// Compares one model with its fixture on a device.
pub fn check_gpt(name: &str, device: &Device) {
    let (gpt, fixture) = gpt(name, &device.clone().autodiff());
    let gradients = checked_gradients(&gpt, &fixture);
    for (path, gradient) in gradients.iter() {
        let expected = fixture.values(&format!("grads.{path}"));
        expect_close(&format!("{name}: gradient of {path}"), &host(gradient.clone()), expected, TOLERANCE);
    }
    assert_eq!(gradients.iter().count(), fixture.names("grads.").count(), "{name}: gradients of all parameters");
}

/// Compares logits and loss with a fixture; returns the gradients.
pub fn checked_gradients(gpt: &Gpt, fixture: &Fixture) -> Gradients {
    let device = gpt.device();
    let tokens = || fixture.int::<2>("tokens", &device);
    fixture.expect("logits", gpt.forward(tokens()));
    let loss = gpt.loss(tokens(), None, fixture.int::<2>("targets", &device), MatmulPrecision::F32, None);
    fixture.expect("loss", loss.clone());
    Gradients::take(gpt, loss.backward())
}

#[derive(Default)]
struct Weights(BTreeMap<usize, Vec<f32>>);

impl Probe for Weights {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if let (Point::Weights, Some(block_idx)) = (site.point, site.block_idx) {
            self.0.insert(block_idx, host(value.clone()));
        }
        value
    }
}

#[test]
fn probe_sees_attention_weights_of_pytorch_and_changes_nothing() {
    for name in GPTS {
        let device = Device::flex();
        let (gpt, fixture) = gpt(name, &device);
        let mut seen = Weights::default();
        fixture.expect("logits", gpt.forward_with(fixture.int("tokens", &device), None, &mut seen));
        for (block_idx, weights) in seen.0 {
            let expected = fixture.values(&format!("attention_weights.{block_idx}"));
            expect_close(&format!("{name}: weights of block {block_idx}"), &weights, expected, TOLERANCE);
        }
    }
}

#[test]
fn scaled_dot_product_attention_equals_pytorch() {
    for name in ["unmasked", "masked", "masked_per_head", "causal", "causal_cached"] {
        let device = Device::flex().autodiff();
        let fixture = Fixture::read(&format!("attention/{name}"));
        let input = |name| fixture.float::<4>(name, &device).require_grad();
        let (q, k, v) = (input("q"), input("k"), input("v"));
        let mask = fixture.has("mask").then(|| fixture.mask("mask", &device));
        let (output, weights) = scaled_dot_product_attention(q.clone(), k.clone(), v.clone(), mask);
        fixture.expect("output", output.clone());
        fixture.expect("attention_weights", weights);
        let backward = (output * fixture.float("cotangent", &device)).sum().backward();
        for (name, input) in [("grads.q", q), ("grads.k", k), ("grads.v", v)] {
            fixture.expect(name, input.grad(&backward).expect("it has a gradient"));
        }
    }
}

fn multi_head(fixture: &Fixture, causal: bool, device: &Device) -> MultiHeadAttention {
    let config = MultiHeadAttentionConfig { causal, ..MultiHeadAttentionConfig::new(12, 3) };
    let mut attention = config.init(device);
    let linear = |name: &str| {
        let bias = fixture.float(&format!("weights.{name}.bias"), device);
        Linear::new(fixture.float(&format!("weights.{name}.weight"), device), Some(bias))
    };
    attention.qkv = linear("qkv");
    attention.output = linear("output");
    attention
}

#[test]
fn multi_head_attention_equals_pytorch() {
    for name in ["causal", "bidirectional", "cross"] {
        let device = Device::flex().autodiff();
        let fixture = Fixture::read(&format!("attention/multi_head_{name}"));
        let attention = multi_head(&fixture, name == "causal", &device);
        let x = fixture.float::<3>("x", &device).require_grad();
        let context = fixture.has("context").then(|| fixture.float::<3>("context", &device).require_grad());
        let (output, weights) = attention.attend(x.clone(), context.clone());
        fixture.expect("output", output.clone());
        fixture.expect("attention_weights", weights);
        let backward = (output * fixture.float("cotangent", &device)).sum().backward();
        fixture.expect("grads.x", x.grad(&backward).expect("it has a gradient"));
        if let Some(context) = context {
            fixture.expect("grads.context", context.grad(&backward).expect("it has a gradient"));
        }
        let gradients = Gradients::take(&attention, backward);
        assert_eq!(gradients.iter().count(), 4);
        for (path, gradient) in gradients.iter() {
            let expected = fixture.values(&format!("grads.{path}"));
            expect_close(path, &host(gradient.clone()), expected, TOLERANCE);
        }
    }
}
