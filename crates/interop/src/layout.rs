//! The tensors of other projects' files: their names, and the parts of our parameters that they correspond to.
//!
//! There is one table per naming scheme. [`super::convert`] reads and writes by it, so that reading is the inverse of
//! writing.

#![allow(clippy::single_range_in_vec_init, reason = "columns are ranges, most often one")]

use std::collections::BTreeMap;
use std::ops::Range;

use super::Family;
use tinderbox_train::config::{ModelConfig, NormKind, PositionKind};

/// The naming scheme of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// That of the transformers library, in safetensors files.
    Hf,
    /// That of llama.cpp, in GGUF files.
    Gguf,
}

/// One of their tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The sizes of its dimensions, in PyTorch's order: the last is contiguous. GGUF lists them in reverse.
    pub shape: Vec<usize>,
    /// The corresponding part of ours; `None` for zeros, a bias that they need and we do not have.
    pub part: Option<Part>,
}

/// Columns of one of our parameters, a matrix `[in, out]`, or elements of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The parameter's name, such as `blocks.3.attention.qkv.weight`.
    pub parameter: String,
    /// The parameter's shape.
    pub shape: Vec<usize>,
    /// Its columns, in order.
    pub columns: Vec<Range<usize>>,
    /// Whether their tensor is transposed: `[out, in]`.
    pub transposed: bool,
}

impl Part {
    /// Whether it is the whole parameter, unchanged.
    pub fn is_whole(&self) -> bool {
        !self.transposed && self.columns == [0..*self.shape.last().expect("a vector or a matrix")]
    }
}

/// The tensors of a model with `vocab_size` token embedding rows.
///
/// # Panics
/// If `config` has obstacles to the family, or this naming does not cover the family.
pub fn layout(family: Family, naming: Naming, config: &ModelConfig, vocab_size: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    let (outside, inside): (Vec<_>, Vec<_>) = table(family, naming).partition(|row| !row.0.contains("{}"));
    let mut add = |row: &Row, layer: &str| {
        let Row(theirs, ours, columns) = row;
        let Some(module) = Module::of(ours, config, vocab_size) else { return };
        let (theirs, ours) = (theirs.replace("{}", layer), ours.replace("{}", layer));
        let columns = columns.of(config, module.n_columns());
        // GPT-2's Conv1D layers have matrices like ours.
        let is_conv = (family, naming) == (Family::Gpt2, Naming::Hf) && ours != "output";
        let transposed = module.is_linear && !is_conv;
        entries.push(weight(&theirs, &ours, &module, &columns, transposed));
        if module.has_bias || has_bias(family, &ours) {
            entries.push(bias(&theirs, &ours, &module, columns));
        }
    };
    for row in &outside {
        add(row, "");
    }
    for layer in 0..config.n_layers {
        for row in &inside {
            add(row, &layer.to_string());
        }
    }
    if (family, naming, config.tie_embeddings) == (Family::GptNeox, Naming::Gguf, true) {
        // llama.cpp supports tied embeddings in every family but this one.
        let module = Module::of("token_embedding", config, vocab_size).expect("every model has one");
        entries.push(weight("output", "token_embedding", &module, &[0..config.d_model], false));
    }
    entries
}

/// The parameters that `layout` covers, with their shapes.
pub fn parameters(layout: &[Entry]) -> BTreeMap<String, Vec<usize>> {
    let parts = layout.iter().filter_map(|entry| entry.part.as_ref());
    parts.map(|part| (part.parameter.clone(), part.shape.clone())).collect()
}

fn weight(theirs: &str, ours: &str, module: &Module, columns: &[Range<usize>], transposed: bool) -> Entry {
    let n_columns = columns.iter().map(ExactSizeIterator::len).sum();
    let shape = match module.shape[..] {
        [n_rows, _] if transposed => vec![n_columns, n_rows],
        [n_rows, _] => vec![n_rows, n_columns],
        _ => vec![n_columns],
    };
    let (parameter, of) = (format!("{ours}.weight"), module.shape.clone());
    let part = Part { parameter, shape: of, columns: columns.to_vec(), transposed };
    Entry { name: format!("{theirs}.weight"), shape, part: Some(part) }
}

fn bias(theirs: &str, ours: &str, module: &Module, columns: Vec<Range<usize>>) -> Entry {
    let shape = vec![columns.iter().map(ExactSizeIterator::len).sum()];
    let (parameter, of) = (format!("{ours}.bias"), vec![module.n_columns()]);
    let part = Part { parameter, shape: of, columns, transposed: false };
    Entry { name: format!("{theirs}.bias"), shape, part: module.has_bias.then_some(part) }
}

/// Whether a family requires this bias, so that zeros stand in for one that we do not have.
fn has_bias(family: Family, ours: &str) -> bool {
    let never = ["token_embedding", "position_embedding", "output"].contains(&ours);
    let is_projection = ours.ends_with("attention.qkv");
    family.is_gpt() && !never && !(family == Family::GptNeo && is_projection)
}

/// One of our modules.
struct Module {
    /// The shape of its weight.
    shape: Vec<usize>,
    has_bias: bool,
    /// Whether its weight is a matrix `[in, out]`.
    is_linear: bool,
}

impl Module {
    /// The module with this name, with `{}` for the layer; `None` if the model has none.
    fn of(name: &str, config: &ModelConfig, vocab_size: usize) -> Option<Self> {
        let ModelConfig { d_model, d_ff, head_dim, n_heads, n_kv_heads, bias, qkv_bias, .. } = *config;
        let table = |n_rows| Self { shape: vec![n_rows, d_model], has_bias: false, is_linear: false };
        let norm = |n, has_bias| Self { shape: vec![n], has_bias, is_linear: false };
        let linear = |n_in, n_out, has_bias| Self { shape: vec![n_in, n_out], has_bias, is_linear: true };
        match name.strip_prefix("blocks.{}.").unwrap_or(name) {
            "token_embedding" => Some(table(vocab_size)),
            "position_embedding" => (config.position == PositionKind::Learned).then(|| table(config.context_length)),
            "attention_norm" | "mlp_norm" | "norm" => Some(norm(d_model, bias && config.norm == NormKind::LayerNorm)),
            "attention.q_norm" | "attention.k_norm" => config.qk_norm.then(|| norm(head_dim, false)),
            "attention.qkv" => Some(linear(d_model, (n_heads + 2 * n_kv_heads) * head_dim, qkv_bias)),
            "attention.output" => Some(linear(n_heads * head_dim, d_model, bias)),
            "mlp.gate" => config.is_gated().then(|| linear(d_model, d_ff, bias)),
            "mlp.expand" => Some(linear(d_model, d_ff, bias)),
            "mlp.contract" => Some(linear(d_ff, d_model, bias)),
            "output" => (!config.tie_embeddings).then(|| linear(d_model, vocab_size, false)),
            other => unreachable!("the tables name no module `{other}`"),
        }
    }

    fn n_columns(&self) -> usize {
        *self.shape.last().expect("a vector or a matrix")
    }
}

/// Columns of one of our modules.
#[derive(Clone, Copy)]
enum Columns {
    All,
    /// The queries.
    Q,
    /// The keys.
    K,
    /// The values.
    V,
    /// The queries, with the two halves of each head interleaved: the order of pairwise `RoPE`.
    PairedQ,
    /// The keys, interleaved in the same way.
    PairedK,
    /// Queries, keys and values of the first head, then those of the second, and so on.
    ByHead,
}

impl Columns {
    /// `n` is the number of all columns.
    fn of(self, config: &ModelConfig, n: usize) -> Vec<Range<usize>> {
        let ModelConfig { n_heads, n_kv_heads, head_dim, .. } = *config;
        let head = |first: usize, head: usize| first + head * head_dim..first + (head + 1) * head_dim;
        let (k, v) = (n_heads * head_dim, (n_heads + n_kv_heads) * head_dim);
        let half = head_dim / 2;
        let paired = |columns: Range<usize>| -> Vec<Range<usize>> {
            let heads = columns.step_by(head_dim);
            heads.flat_map(|at| (at..at + half).flat_map(|i| [i..i + 1, i + half..i + half + 1])).collect()
        };
        match self {
            Self::All => vec![0..n],
            Self::Q => vec![0..k],
            Self::K => vec![k..v],
            Self::V => vec![v..n],
            Self::PairedQ => paired(0..k),
            Self::PairedK => paired(k..v),
            Self::ByHead => (0..n_heads).flat_map(|i| [head(0, i), head(k, i), head(v, i)]).collect(),
        }
    }
}

/// One of their modules, the module of ours that it is a part of, and the columns of that part. `{}` is the layer.
#[derive(Clone, Copy)]
struct Row(&'static str, &'static str, Columns);

fn table(family: Family, naming: Naming) -> impl Iterator<Item = Row> {
    use Family::{Arcee, Gpt2, GptNeo, GptNeox, Llama, Mistral, Qwen2, Qwen3};
    let (common, attention) = match (naming, family) {
        (Naming::Hf, Gpt2) => (HF_GPT2, None),
        (Naming::Hf, GptNeox) => (HF_GPT_NEOX, None),
        (Naming::Hf, GptNeo) => (HF_GPT_NEO, None),
        (Naming::Hf, Llama | Mistral | Qwen2 | Qwen3 | Arcee) => (HF_LLAMA, None),
        (Naming::Gguf, Gpt2 | GptNeox) => (GGUF, Some(GGUF_FUSED)),
        (Naming::Gguf, Qwen2 | Qwen3) => (GGUF, Some(GGUF_HALVES)),
        (Naming::Gguf, Llama | Mistral | Arcee) => (GGUF, Some(GGUF_PAIRS)),
        (Naming::Gguf, GptNeo) => unreachable!("llama.cpp does not know GPT-Neo"),
    };
    common.iter().chain(attention.into_iter().flatten()).copied()
}

const HF_GPT2: &[Row] = &[
    Row("transformer.wte", "token_embedding", Columns::All),
    Row("transformer.wpe", "position_embedding", Columns::All),
    Row("transformer.h.{}.ln_1", "blocks.{}.attention_norm", Columns::All),
    Row("transformer.h.{}.attn.c_attn", "blocks.{}.attention.qkv", Columns::All),
    Row("transformer.h.{}.attn.c_proj", "blocks.{}.attention.output", Columns::All),
    Row("transformer.h.{}.ln_2", "blocks.{}.mlp_norm", Columns::All),
    Row("transformer.h.{}.mlp.c_fc", "blocks.{}.mlp.expand", Columns::All),
    Row("transformer.h.{}.mlp.c_proj", "blocks.{}.mlp.contract", Columns::All),
    Row("transformer.ln_f", "norm", Columns::All),
    Row("lm_head", "output", Columns::All),
];

const HF_GPT_NEO: &[Row] = &[
    Row("transformer.wte", "token_embedding", Columns::All),
    Row("transformer.wpe", "position_embedding", Columns::All),
    Row("transformer.h.{}.ln_1", "blocks.{}.attention_norm", Columns::All),
    Row("transformer.h.{}.attn.attention.q_proj", "blocks.{}.attention.qkv", Columns::Q),
    Row("transformer.h.{}.attn.attention.k_proj", "blocks.{}.attention.qkv", Columns::K),
    Row("transformer.h.{}.attn.attention.v_proj", "blocks.{}.attention.qkv", Columns::V),
    Row("transformer.h.{}.attn.attention.out_proj", "blocks.{}.attention.output", Columns::All),
    Row("transformer.h.{}.ln_2", "blocks.{}.mlp_norm", Columns::All),
    Row("transformer.h.{}.mlp.c_fc", "blocks.{}.mlp.expand", Columns::All),
    Row("transformer.h.{}.mlp.c_proj", "blocks.{}.mlp.contract", Columns::All),
    Row("transformer.ln_f", "norm", Columns::All),
    Row("lm_head", "output", Columns::All),
];

const HF_GPT_NEOX: &[Row] = &[
    Row("gpt_neox.embed_in", "token_embedding", Columns::All),
    Row("gpt_neox.layers.{}.input_layernorm", "blocks.{}.attention_norm", Columns::All),
    Row("gpt_neox.layers.{}.attention.query_key_value", "blocks.{}.attention.qkv", Columns::ByHead),
    Row("gpt_neox.layers.{}.attention.dense", "blocks.{}.attention.output", Columns::All),
    Row("gpt_neox.layers.{}.post_attention_layernorm", "blocks.{}.mlp_norm", Columns::All),
    Row("gpt_neox.layers.{}.mlp.dense_h_to_4h", "blocks.{}.mlp.expand", Columns::All),
    Row("gpt_neox.layers.{}.mlp.dense_4h_to_h", "blocks.{}.mlp.contract", Columns::All),
    Row("gpt_neox.final_layer_norm", "norm", Columns::All),
    Row("embed_out", "output", Columns::All),
];

const HF_LLAMA: &[Row] = &[
    Row("model.embed_tokens", "token_embedding", Columns::All),
    Row("model.layers.{}.input_layernorm", "blocks.{}.attention_norm", Columns::All),
    Row("model.layers.{}.self_attn.q_proj", "blocks.{}.attention.qkv", Columns::Q),
    Row("model.layers.{}.self_attn.k_proj", "blocks.{}.attention.qkv", Columns::K),
    Row("model.layers.{}.self_attn.v_proj", "blocks.{}.attention.qkv", Columns::V),
    Row("model.layers.{}.self_attn.q_norm", "blocks.{}.attention.q_norm", Columns::All),
    Row("model.layers.{}.self_attn.k_norm", "blocks.{}.attention.k_norm", Columns::All),
    Row("model.layers.{}.self_attn.o_proj", "blocks.{}.attention.output", Columns::All),
    Row("model.layers.{}.post_attention_layernorm", "blocks.{}.mlp_norm", Columns::All),
    Row("model.layers.{}.mlp.gate_proj", "blocks.{}.mlp.gate", Columns::All),
    Row("model.layers.{}.mlp.up_proj", "blocks.{}.mlp.expand", Columns::All),
    Row("model.layers.{}.mlp.down_proj", "blocks.{}.mlp.contract", Columns::All),
    Row("model.norm", "norm", Columns::All),
    Row("lm_head", "output", Columns::All),
];

/// Every family, except for queries, keys and values.
const GGUF: &[Row] = &[
    Row("token_embd", "token_embedding", Columns::All),
    Row("position_embd", "position_embedding", Columns::All),
    Row("blk.{}.attn_norm", "blocks.{}.attention_norm", Columns::All),
    Row("blk.{}.attn_q_norm", "blocks.{}.attention.q_norm", Columns::All),
    Row("blk.{}.attn_k_norm", "blocks.{}.attention.k_norm", Columns::All),
    Row("blk.{}.attn_output", "blocks.{}.attention.output", Columns::All),
    Row("blk.{}.ffn_norm", "blocks.{}.mlp_norm", Columns::All),
    Row("blk.{}.ffn_gate", "blocks.{}.mlp.gate", Columns::All),
    Row("blk.{}.ffn_up", "blocks.{}.mlp.expand", Columns::All),
    Row("blk.{}.ffn_down", "blocks.{}.mlp.contract", Columns::All),
    Row("output_norm", "norm", Columns::All),
    Row("output", "output", Columns::All),
];

const GGUF_FUSED: &[Row] = &[Row("blk.{}.attn_qkv", "blocks.{}.attention.qkv", Columns::All)];

const GGUF_HALVES: &[Row] = &[
    Row("blk.{}.attn_q", "blocks.{}.attention.qkv", Columns::Q),
    Row("blk.{}.attn_k", "blocks.{}.attention.qkv", Columns::K),
    Row("blk.{}.attn_v", "blocks.{}.attention.qkv", Columns::V),
];

/// In these families llama.cpp rotates adjacent pairs rather than halves.
const GGUF_PAIRS: &[Row] = &[
    Row("blk.{}.attn_q", "blocks.{}.attention.qkv", Columns::PairedQ),
    Row("blk.{}.attn_k", "blocks.{}.attention.qkv", Columns::PairedK),
    Row("blk.{}.attn_v", "blocks.{}.attention.qkv", Columns::V),
];

#[cfg(test)]
mod tests {
    use super::super::tests::configs;
    use super::*;

    /// The names and shapes of the tensors of the last block and outside the blocks.
    fn names(family: Family, naming: Naming) -> String {
        let (_, config) = configs().into_iter().find(|(it, config)| *it == family && !config.tie_embeddings).unwrap();
        let entries = layout(family, naming, &config, 37);
        let lines = entries.iter().filter(|entry| !entry.name.contains(".0.")).map(|entry| {
            let zeros = if entry.part.is_none() { " zeros" } else { "" };
            format!("{} {:?}{zeros}\n", entry.name, entry.shape)
        });
        lines.collect()
    }

    #[test]
    fn names_are_those_of_transformers() {
        insta::assert_snapshot!(names(Family::Gpt2, Naming::Hf), @r"
        transformer.wte.weight [37, 24]
        transformer.wpe.weight [8, 24]
        transformer.ln_f.weight [24]
        transformer.ln_f.bias [24]
        lm_head.weight [37, 24]
        transformer.h.1.ln_1.weight [24]
        transformer.h.1.ln_1.bias [24]
        transformer.h.1.attn.c_attn.weight [24, 72]
        transformer.h.1.attn.c_attn.bias [72]
        transformer.h.1.attn.c_proj.weight [24, 24]
        transformer.h.1.attn.c_proj.bias [24]
        transformer.h.1.ln_2.weight [24]
        transformer.h.1.ln_2.bias [24]
        transformer.h.1.mlp.c_fc.weight [24, 40]
        transformer.h.1.mlp.c_fc.bias [40]
        transformer.h.1.mlp.c_proj.weight [40, 24]
        transformer.h.1.mlp.c_proj.bias [24]
        ");
        insta::assert_snapshot!(names(Family::Qwen3, Naming::Hf), @r"
        model.embed_tokens.weight [37, 24]
        model.norm.weight [24]
        lm_head.weight [37, 24]
        model.layers.1.input_layernorm.weight [24]
        model.layers.1.self_attn.q_proj.weight [40, 24]
        model.layers.1.self_attn.k_proj.weight [20, 24]
        model.layers.1.self_attn.v_proj.weight [20, 24]
        model.layers.1.self_attn.q_norm.weight [10]
        model.layers.1.self_attn.k_norm.weight [10]
        model.layers.1.self_attn.o_proj.weight [24, 40]
        model.layers.1.post_attention_layernorm.weight [24]
        model.layers.1.mlp.gate_proj.weight [40, 24]
        model.layers.1.mlp.up_proj.weight [40, 24]
        model.layers.1.mlp.down_proj.weight [24, 40]
        ");
        insta::assert_snapshot!(names(Family::Arcee, Naming::Hf), @r"
        model.embed_tokens.weight [37, 24]
        model.norm.weight [24]
        lm_head.weight [37, 24]
        model.layers.1.input_layernorm.weight [24]
        model.layers.1.self_attn.q_proj.weight [40, 24]
        model.layers.1.self_attn.q_proj.bias [40]
        model.layers.1.self_attn.k_proj.weight [20, 24]
        model.layers.1.self_attn.k_proj.bias [20]
        model.layers.1.self_attn.v_proj.weight [20, 24]
        model.layers.1.self_attn.v_proj.bias [20]
        model.layers.1.self_attn.o_proj.weight [24, 40]
        model.layers.1.self_attn.o_proj.bias [24]
        model.layers.1.post_attention_layernorm.weight [24]
        model.layers.1.mlp.up_proj.weight [40, 24]
        model.layers.1.mlp.up_proj.bias [40]
        model.layers.1.mlp.down_proj.weight [24, 40]
        model.layers.1.mlp.down_proj.bias [24]
        ");
        insta::assert_snapshot!(names(Family::GptNeox, Naming::Hf), @r"
        gpt_neox.embed_in.weight [37, 24]
        gpt_neox.final_layer_norm.weight [24]
        gpt_neox.final_layer_norm.bias [24]
        embed_out.weight [37, 24]
        gpt_neox.layers.1.input_layernorm.weight [24]
        gpt_neox.layers.1.input_layernorm.bias [24]
        gpt_neox.layers.1.attention.query_key_value.weight [72, 24]
        gpt_neox.layers.1.attention.query_key_value.bias [72]
        gpt_neox.layers.1.attention.dense.weight [24, 24]
        gpt_neox.layers.1.attention.dense.bias [24]
        gpt_neox.layers.1.post_attention_layernorm.weight [24]
        gpt_neox.layers.1.post_attention_layernorm.bias [24]
        gpt_neox.layers.1.mlp.dense_h_to_4h.weight [40, 24]
        gpt_neox.layers.1.mlp.dense_h_to_4h.bias [40]
        gpt_neox.layers.1.mlp.dense_4h_to_h.weight [24, 40]
        gpt_neox.layers.1.mlp.dense_4h_to_h.bias [24]
        ");
        insta::assert_snapshot!(names(Family::GptNeo, Naming::Hf), @r"
        transformer.wte.weight [37, 24]
        transformer.wpe.weight [8, 24]
        transformer.ln_f.weight [24]
        transformer.ln_f.bias [24]
        lm_head.weight [37, 24]
        transformer.h.1.ln_1.weight [24]
        transformer.h.1.ln_1.bias [24]
        transformer.h.1.attn.attention.q_proj.weight [24, 24]
        transformer.h.1.attn.attention.k_proj.weight [24, 24]
        transformer.h.1.attn.attention.v_proj.weight [24, 24]
        transformer.h.1.attn.attention.out_proj.weight [24, 24]
        transformer.h.1.attn.attention.out_proj.bias [24]
        transformer.h.1.ln_2.weight [24]
        transformer.h.1.ln_2.bias [24]
        transformer.h.1.mlp.c_fc.weight [40, 24]
        transformer.h.1.mlp.c_fc.bias [40]
        transformer.h.1.mlp.c_proj.weight [24, 40]
        transformer.h.1.mlp.c_proj.bias [24]
        ");
    }

    #[test]
    fn names_are_those_of_llama_cpp() {
        insta::assert_snapshot!(names(Family::Gpt2, Naming::Gguf), @r"
        token_embd.weight [37, 24]
        position_embd.weight [8, 24]
        output_norm.weight [24]
        output_norm.bias [24]
        output.weight [37, 24]
        blk.1.attn_norm.weight [24]
        blk.1.attn_norm.bias [24]
        blk.1.attn_output.weight [24, 24]
        blk.1.attn_output.bias [24]
        blk.1.ffn_norm.weight [24]
        blk.1.ffn_norm.bias [24]
        blk.1.ffn_up.weight [40, 24]
        blk.1.ffn_up.bias [40]
        blk.1.ffn_down.weight [24, 40]
        blk.1.ffn_down.bias [24]
        blk.1.attn_qkv.weight [72, 24]
        blk.1.attn_qkv.bias [72]
        ");
        insta::assert_snapshot!(names(Family::Qwen2, Naming::Gguf), @r"
        token_embd.weight [37, 24]
        output_norm.weight [24]
        output.weight [37, 24]
        blk.1.attn_norm.weight [24]
        blk.1.attn_output.weight [24, 40]
        blk.1.ffn_norm.weight [24]
        blk.1.ffn_gate.weight [40, 24]
        blk.1.ffn_up.weight [40, 24]
        blk.1.ffn_down.weight [24, 40]
        blk.1.attn_q.weight [40, 24]
        blk.1.attn_q.bias [40]
        blk.1.attn_k.weight [20, 24]
        blk.1.attn_k.bias [20]
        blk.1.attn_v.weight [20, 24]
        blk.1.attn_v.bias [20]
        ");
    }
}
