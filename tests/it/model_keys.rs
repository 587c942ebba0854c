//! What single keys of `[model]` do, where there is no other implementation to compare with: windows, scales, widths,
//! rows.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use tinderbox::config::{Config, ModelConfig, PositionKind};
use tinderbox::generate::engine::{Decoder, Engine, Precision};
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::model::probe::NoProbe;
use tinderbox::model::{Gpt, Pass};
use tinderbox::train::Start;
use tinderbox_kernels::{self as kernels, MatmulPrecision};

use crate::fixtures::{expect_close, host};
use crate::properties::{VOCAB_SIZE, lively, tensor, tokens};
use crate::runs::Place;

fn small() -> ModelConfig {
    ModelConfig {
        context_length: 24,
        d_model: 16,
        n_layers: 1,
        n_heads: 4,
        n_kv_heads: 2,
        d_ff: 20,
        position: PositionKind::Rope,
        ..ModelConfig::default()
    }
    .with_derived()
}

/// The logits after each token: fused, token by token with a cache, and by the engine.
fn all_logits(gpt: &Gpt, tokens: &[i32]) -> [Vec<f32>; 3] {
    let device = gpt.device();
    let mut cache = gpt.kv_cache(1);
    let steps = tokens.iter().map(|token| gpt.forward_cached(tensor(&[*token], &device), &mut cache));
    let cached = Tensor::cat(steps.collect(), 1);
    let mut decoder = Decoder::new(Arc::new(Engine::new(gpt.clone(), Precision::F32)), 1, tokens.len());
    let engine = tokens.iter().flat_map(|token| {
        decoder.decode(&[Some(*token as u32)]);
        decoder.logits(0).to_vec()
    });
    [host(gpt.forward(tensor(tokens, &device))), host(cached), engine.collect()]
}

#[test]
fn a_token_reaches_as_far_as_the_window_and_no_further() {
    const AT: usize = 3;
    for window in [1, 2, 7, 16, 17] {
        let gpt = lively(&ModelConfig { attention_window: vec![window], ..small() }, 3, &Device::flex());
        let one = tokens(24, 1);
        let mut other = one.clone();
        other[AT] = (other[AT] + 1) % VOCAB_SIZE as i32;
        for (one, other) in all_logits(&gpt, &one).into_iter().zip(all_logits(&gpt, &other)) {
            for (at, (one, other)) in one.chunks(VOCAB_SIZE).zip(other.chunks(VOCAB_SIZE)).enumerate() {
                let is_reached = (AT..AT + window).contains(&at);
                assert_eq!(one != other, is_reached, "position {at}, a window of {window}");
            }
        }
    }
}

#[test]
fn windows_go_round_the_layers() {
    let config = ModelConfig { n_layers: 5, attention_window: vec![0, 7], ..small() };
    let windows = (0..5).map(|layer| config.attention_window_of(layer));
    assert_eq!(windows.collect::<Vec<_>>(), [None, Some(7), None, Some(7), None]);
    assert_eq!(small().attention_window_of(3), None);
}

#[test]
fn in_parallel_both_layers_of_a_block_read_what_comes_in() {
    let config = ModelConfig { position: PositionKind::Learned, parallel_residual: true, ..small() };
    let gpt = lively(&config, 2, &Device::flex());
    let block = &gpt.blocks[0];
    let x = Tensor::<3>::from_data([[[0.5; 16], [-0.25; 16]]], &gpt.device());
    let x = x * gpt.token_embedding.weight().narrow(0, 0, 1).unsqueeze();
    let mut probe = NoProbe;
    let mut pass = Pass::new(&mut probe, MatmulPrecision::F32, None);
    let attended = block.attention.forward(block.attention_norm.forward(x.clone()), None, None, &mut pass);
    let processed = block.mlp.forward(block.mlp_norm.forward(x.clone()), &mut pass);
    let out = block.forward(x.clone(), None, None, &mut pass);
    expect_close("the block", &host(out), &host(x + attended + processed), 1e-5);
}

/// The model of `config` with the parameters of `gpt`, each edited by `edit`.
fn with_parameters(config: &ModelConfig, gpt: &Gpt, edit: impl Fn(&str, HostTensor) -> HostTensor) -> Gpt {
    let values = parameters::read(gpt);
    let zeros = Gpt::zeros(config, VOCAB_SIZE, &gpt.device());
    parameters::assign(zeros, |path, _| Some(edit(path, values[path].clone()))).expect("the same shapes")
}

fn expect_same_logits(one: &Gpt, other: &Gpt) {
    let all = tokens(24, 1);
    for (one, other) in all_logits(one, &all).into_iter().zip(all_logits(other, &all)) {
        expect_close("logits", &one, &other, 1e-4);
    }
}

/// With queries four times as long, a quarter of the scale gives the same result.
#[test]
fn the_scale_is_a_factor_of_the_scores() {
    let gpt = lively(&small(), 5, &Device::flex());
    let config = ModelConfig { attention_scale: Some(0.5 / 4.0), ..small() };
    let longer = with_parameters(&config, &gpt, |path, mut tensor| {
        if path.ends_with("attention.qkv.weight") {
            tensor.values.chunks_mut(32).for_each(|row| row[..16].iter_mut().for_each(|x| *x *= 4.0));
        }
        tensor
    });
    expect_same_logits(&longer, &gpt);
}

/// Zeros at the end of each half of a head stay zeros, and add nothing to the scores.
#[test]
fn heads_may_be_wider_than_their_share_of_the_model() {
    let plain = ModelConfig { position: PositionKind::Learned, ..small() };
    let gpt = lively(&plain, 5, &Device::flex());
    let config = ModelConfig { head_dim: 7, attention_scale: Some(0.5), ..plain };
    let wider = with_parameters(&config, &gpt, |path, tensor| match path.rsplit_once("attention.") {
        Some((_, "qkv.weight")) => {
            let values = tensor.values.chunks(4).flat_map(|head| [head, &[0.0; 3]].concat());
            HostTensor { values: values.collect(), shape: vec![16, 8 * 7] }
        }
        Some((_, "output.weight")) => {
            let values = tensor.values.chunks(4 * 16).flat_map(|head| [head, &[0.0; 3 * 16]].concat());
            HostTensor { values: values.collect(), shape: vec![4 * 7, 16] }
        }
        _ => tensor,
    });
    expect_same_logits(&wider, &gpt);
}

#[test]
fn a_soft_cap_bends_the_logits_of_every_path_and_the_loss() {
    const CAP: f32 = 1.5;
    let gpt = lively(&small(), 5, &Device::flex());
    let config = ModelConfig { logit_softcap: Some(f64::from(CAP)), ..small() };
    let capped = with_parameters(&config, &gpt, |_, tensor| tensor);
    let all = tokens(24, 1);
    for (plain, capped) in all_logits(&gpt, &all).into_iter().zip(all_logits(&capped, &all)) {
        let bent: Vec<f32> = plain.iter().map(|x| CAP * (x / CAP).tanh()).collect();
        expect_close("logits", &capped, &bent, 1e-4);
        assert!(plain.iter().any(|x| x.abs() > CAP) && capped.iter().all(|x| x.abs() <= CAP));
    }
    let (input, target) = (tensor(&all[..23], &gpt.device()), tensor(&all[1..], &gpt.device()));
    let logits = capped.forward(input.clone()).reshape([23, VOCAB_SIZE]);
    let expected = kernels::cross_entropy_of_logits(logits, target.clone().reshape([23]));
    let loss = capped.loss(input, target, MatmulPrecision::F32, None);
    expect_close("the loss", &host(loss), &host(expected), 1e-5);
}

/// A config saved before these keys existed.
#[test]
fn a_run_without_the_keys_goes_on_as_one_with_them() {
    let place = Place::new();
    let train = |run: &str, config: Config, start, stop| place.train(run, config, start, stop).expect("trains");
    let config = place.config(&["model.bias=true", "model.norm=rms_norm", "train.max_steps=4"]);
    for run in ["new", "old"] {
        train(run, config.clone(), Start::New, Some(2));
    }
    let path = place.path("old/config.toml");
    let saved = std::fs::read_to_string(&path).expect("saved");
    let new = ["head_dim", "rope_", "rotary_", "norm_eps", "qkv_bias", "parallel_", "attention_"];
    let is_old = |line: &&str| !new.iter().any(|key| line.starts_with(key));
    let old: Vec<&str> = saved.lines().filter(is_old).collect();
    assert_eq!(old.len() + 7, saved.lines().count(), "{saved}");
    std::fs::write(&path, old.join("\n")).expect("written");
    for run in ["new", "old"] {
        train(run, config.clone(), Start::Resume, None);
    }
    let weights = |run: &str| std::fs::read(place.path(&format!("{run}/checkpoints/step-000004/model.safetensors")));
    assert!(weights("new").expect("saved") == weights("old").expect("saved"));
    assert_eq!(std::fs::read_to_string(path).expect("saved"), saved);
}
