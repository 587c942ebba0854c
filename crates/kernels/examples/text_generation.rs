//! Compares a transformer built from burn's modules, as in burn's `text-generation` example, with one that uses the
//! operations of this crate on the same weights. The outputs agree, and a training step takes a fraction of the time.
//!
//!     cargo run --release -p tinderbox-kernels --example text_generation

use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask};
use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox_kernels::mlp::{Layer, Mlp};
use tinderbox_kernels::{self as kernels, Activation, MatmulPrecision, SelfAttention};

const BATCH: usize = 8;
const SEQ_LEN: usize = 128;
const D_MODEL: usize = 256;
const N_HEADS: usize = 8;
const N_LAYERS: usize = 4;

/// A pre-norm transformer block.
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    mlp: PositionWiseFeedForward,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(D_MODEL).init(device),
            attention: MultiHeadAttentionConfig::new(D_MODEL, N_HEADS).with_dropout(0.0).init(device),
            mlp_norm: LayerNormConfig::new(D_MODEL).init(device),
            mlp: PositionWiseFeedForwardConfig::new(D_MODEL, 4 * D_MODEL).with_dropout(0.0).init(device),
        }
    }

    /// The block computed by burn's modules.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, t, _] = x.dims();
        let mask = generate_autoregressive_mask(b, t, &x.device());
        let input = MhaInput::self_attn(self.attention_norm.forward(x.clone())).mask_attn(mask);
        let x = x + self.attention.forward(input).context; // [B, T, C]
        x.clone() + self.mlp.forward(self.mlp_norm.forward(x)) // [B, T, C]
    }

    /// The block computed by the operations of this crate.
    fn fused_forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normed = layer_norm(&self.attention_norm, x.clone());
        let MultiHeadAttention { query, key, value, output, .. } = &self.attention;
        let qkv = [query, key, value].map(|projection| linear(projection, normed.clone()));
        let attention = SelfAttention {
            n_heads: N_HEADS,
            n_kv_heads: N_HEADS,
            norm: None,
            rotation: None,
            scale: kernels::attention_scale(D_MODEL / N_HEADS),
            softcap: None,
            window: None,
            dropout: None,
            lengths: None,
        };
        let heads = kernels::self_attention(Tensor::cat(qkv.into(), 2), attention); // [B, T, C]
        let x = x + linear(output, heads);
        let mlp = Mlp {
            up: layer(&self.mlp.linear_inner),
            gate: None,
            down: layer(&self.mlp.linear_outer),
            activation: Activation::Gelu,
            precision: MatmulPrecision::F32,
        };
        x.clone() + kernels::mlp(layer_norm(&self.mlp_norm, x), mlp) // [B, T, C]
    }
}

fn layer_norm(norm: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    let bias = norm.beta.as_ref().map(Param::val);
    kernels::layer_norm(x, norm.gamma.val(), bias, 1e-5)
}

fn layer(linear: &Linear) -> Layer {
    Layer { weight: linear.weight.val(), bias: linear.bias.as_ref().map(Param::val) }
}

fn linear(linear: &Linear, x: Tensor<3>) -> Tensor<3> {
    let Layer { weight, bias } = layer(linear);
    kernels::linear(x, weight, bias, MatmulPrecision::F32)
}

/// The output of all blocks, and the median time of a forward and backward pass.
fn run(blocks: &[Block], x: &Tensor<3>, forward: fn(&Block, Tensor<3>) -> Tensor<3>) -> (Tensor<3>, Duration) {
    let pass = || blocks.iter().fold(x.clone(), |x, block| forward(block, x));
    let mut times: Vec<Duration> = (0..7)
        .map(|_| {
            let start = Instant::now();
            let _gradients = pass().powf_scalar(2.0).mean().backward();
            start.elapsed()
        })
        .collect();
    times.sort();
    (pass().inner(), times[times.len() / 2])
}

fn main() {
    let device = Device::flex().autodiff();
    let blocks: Vec<Block> = (0..N_LAYERS).map(|_| Block::new(&device)).collect();
    let x = Tensor::random([BATCH, SEQ_LEN, D_MODEL], Distribution::Normal(0.0, 1.0), &device);

    let (burn, burn_time) = run(&blocks, &x, Block::forward);
    let (fused, fused_time) = run(&blocks, &x, Block::fused_forward);

    let difference: f32 = (burn - fused).abs().max().into_scalar();
    let ratio = burn_time.as_secs_f64() / fused_time.as_secs_f64();
    println!("burn's modules   {burn_time:8.1?} a forward and backward pass");
    println!("these operations {fused_time:8.1?}, {ratio:.2} times as fast");
    println!("outputs agree to {difference:.1e}");
}
