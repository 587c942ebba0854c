//! The tensors of other projects' files: their names, and the columns of our parameters that they hold.
//!
//! A family gives the names, one table per naming scheme; paths and shapes of ours are those of [`Parameter`].
//! [`super::convert`] reads and writes by the layout, so that reading is the inverse of writing.

#![allow(clippy::single_range_in_vec_init, reason = "columns are ranges, most often one")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Family;
use tinderbox_model::config::ModelConfig;
use tinderbox_model::{Parameter, Role};

/// The naming scheme of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// That of the transformers library, in safetensors files.
    Hf,
    /// That of llama.cpp, in GGUF files.
    Gguf,
}

/// One of their tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignTensor {
    /// Its name.
    pub name: String,
    /// The sizes of its dimensions, in PyTorch's order: the last is contiguous. GGUF lists them in reverse.
    pub shape: Vec<usize>,
    /// The columns of ours that it holds. Columns of several parameters follow one another along its first dimension.
    /// Empty for a bias of zeros that we do not have.
    pub columns: Vec<Columns>,
    /// Added to our values, and subtracted from theirs.
    pub offset: f32,
}

/// Columns of one of our parameters, a matrix `[in, out]`, or elements of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The parameter's path, such as `blocks.3.attention.qkv.weight`.
    pub path: String,
    /// The parameter's shape.
    pub shape: Vec<usize>,
    /// The indices of the columns, in order.
    pub ranges: Vec<Range<usize>>,
    /// Whether their tensor is transposed: `[out, in]`.
    pub transposed: bool,
}

impl Columns {
    /// The number of values.
    pub fn n_numbers(&self) -> usize {
        let n_rows: usize = self.shape[..self.shape.len() - 1].iter().product();
        n_rows * self.ranges.iter().map(ExactSizeIterator::len).sum::<usize>()
    }

    /// Whether they are the whole parameter, unchanged.
    pub fn are_whole(&self) -> bool {
        !self.transposed && self.ranges == [0..*self.shape.last().expect("a parameter is a vector or a matrix")]
    }
}

/// The tensors of a model with `vocab_size` token embedding rows.
///
/// # Panics
/// If the family does not support `config`, or this naming does not cover the family.
pub fn layout(family: &Family, naming: Naming, config: &ModelConfig, vocab_size: usize) -> Vec<ForeignTensor> {
    let (names, has_tied_output) = match (naming, &family.gguf) {
        (Naming::Hf, _) => (&family.hf.tensors, false),
        (Naming::Gguf, Some(gguf)) => (&gguf.tensors, gguf.has_tied_output && config.tie_embeddings),
        (Naming::Gguf, None) => unreachable!("llama.cpp does not know {family}"),
    };
    let ours: BTreeSet<String> = Parameter::all(config, vocab_size).map(|parameter| parameter.path).collect();
    let theirs = family.with_biases(config);
    let outside = Parameter::outside_blocks(&theirs, vocab_size).into_iter().flatten();
    let outside = outside.map(|parameter| (String::new(), parameter));
    let inside = (0..config.n_layers).flat_map(|layer| {
        Parameter::of_block(&theirs, layer).into_iter().map(move |parameter| (layer.to_string(), parameter))
    });
    let mut tensors = Vec::new();
    for (layer, parameter) in outside.chain(inside) {
        let mut add = |name: &str, ranges: Vec<Range<usize>>| {
            let suffix = if parameter.is_bias() { "bias" } else { "weight" };
            let offset = if names.norms_less_one && parameter.role.is_norm() { -1.0 } else { 0.0 };
            let transposed = parameter.is_linear() && !(names.is_conv && parameter.role != Role::Output);
            let n_columns = ranges.iter().map(ExactSizeIterator::len).sum();
            let shape = match parameter.shape[..] {
                [n_rows, _] if transposed => vec![n_columns, n_rows],
                [n_rows, _] => vec![n_rows, n_columns],
                _ => vec![n_columns],
            };
            let Parameter { path, shape: of, .. } = parameter.clone();
            let columns: Vec<Columns> =
                ours.contains(&path).then_some(Columns { path, shape: of, ranges, transposed }).into_iter().collect();
            let name = format!("{}.{suffix}", name.replace("{}", &layer));
            match tensors.last_mut().filter(|last: &&mut ForeignTensor| last.name == name) {
                // One tensor for both projections of a gated MLP: the gate comes first, while it follows in ours.
                Some(last) => {
                    last.shape[0] += shape[0];
                    last.columns.splice(0..0, columns);
                }
                None => tensors.push(ForeignTensor { name, shape, columns, offset }),
            }
        };
        let all = || vec![0..*parameter.shape.last().expect("a parameter is a vector or a matrix")];
        match parameter.role {
            Role::Qkv(widths) => {
                names.qkv.columns(widths, config.head_dim).into_iter().for_each(|(name, ranges)| add(name, ranges));
            }
            role => add(names.name(role), all()),
        }
        if has_tied_output && parameter.role == Role::TokenEmbedding {
            add(names.name(Role::Output), all());
        }
    }
    tensors
}

/// The parameters that `layout` covers, with their shapes.
pub fn parameters(layout: &[ForeignTensor]) -> BTreeMap<String, Vec<usize>> {
    let columns = layout.iter().flat_map(|tensor| &tensor.columns);
    columns.map(|columns| (columns.path.clone(), columns.shape.clone())).collect()
}

/// The names of a family's layers in a naming scheme, without `.weight` or `.bias`, with `{}` for the index of the
/// block.
#[derive(Clone, Copy)]
pub(crate) struct TensorNames {
    pub(crate) qkv: QkvNames,
    /// The layers that are named differently in `others`.
    pub(crate) own: &'static [(Role, &'static str)],
    /// All other layers that the family, or one like it, may have.
    pub(crate) others: &'static [(Role, &'static str)],
    /// Whether the linear layers of the blocks are GPT-2's `Conv1D`, whose matrices are `[in, out]`, like ours.
    pub(crate) is_conv: bool,
    /// Whether the scales of norms are kept less 1. Adding it is exact for numbers of 16 bits, as they are published.
    pub(crate) norms_less_one: bool,
}

impl TensorNames {
    /// The name of a layer other than the projection to queries, keys and values.
    pub(crate) fn name(&self, role: Role) -> &'static str {
        let mut names = self.own.iter().chain(self.others);
        names.find(|(other, _)| *other == role).expect("a family names all its layers").1
    }
}

/// The names of the projections to queries, keys and values, and the order of their columns.
#[derive(Clone, Copy)]
pub(crate) enum QkvNames {
    /// One layer: all queries, all keys, all values.
    Fused(&'static str),
    /// One layer: queries, keys and values of the first head, then those of the second, and so on.
    ByHead(&'static str),
    /// Three layers.
    Separate([&'static str; 3]),
    /// Three layers, with the two halves of each head's queries and keys interleaved: the order of pairwise `RoPE`.
    Interleaved([&'static str; 3]),
}

impl QkvNames {
    /// The layers, and the columns of our fused projection that they hold; `widths` are those of queries, keys and
    /// values.
    fn columns(self, [q, k, v]: [usize; 3], head_dim: usize) -> Vec<(&'static str, Vec<Range<usize>>)> {
        let all = [0..q, q..q + k, q + k..q + k + v];
        let half = head_dim / 2;
        let interleaved = |columns: Range<usize>| -> Vec<Range<usize>> {
            let heads = columns.step_by(head_dim);
            heads.flat_map(|at| (at..at + half).flat_map(|i| [i..i + 1, i + half..i + half + 1])).collect()
        };
        let of_head = |head: usize| all.clone().map(|of| of.start + head * head_dim..of.start + (head + 1) * head_dim);
        match self {
            Self::Fused(name) => vec![(name, vec![0..q + k + v])],
            Self::ByHead(name) => vec![(name, (0..q / head_dim).flat_map(of_head).collect())],
            Self::Separate(names) => names.into_iter().zip(all.map(|of| vec![of])).collect(),
            Self::Interleaved(names) => {
                let [q, k, v] = all;
                names.into_iter().zip([interleaved(q), interleaved(k), vec![v]]).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests::configs;

    /// The names and shapes of the tensors of the last block and outside the blocks.
    fn gguf_names(family: &str) -> String {
        let has_name =
            |(family_of, config): &(&Family, ModelConfig)| family_of.name() == family && !config.tie_embeddings;
        let (family, config) = configs().into_iter().find(has_name).expect("there is a config of the family");
        let tensors = layout(family, Naming::Gguf, &config, 37);
        let lines = tensors.iter().filter(|tensor| !tensor.name.contains(".0.")).map(|tensor| {
            let zeros = if tensor.columns.is_empty() { " zeros" } else { "" };
            format!("{} {:?}{zeros}\n", tensor.name, tensor.shape)
        });
        lines.collect()
    }

    #[test]
    fn gguf_names_match_llama_cpp() {
        insta::assert_snapshot!(gguf_names("gpt2"), @r"
        token_embd.weight [37, 24]
        position_embd.weight [8, 24]
        output_norm.weight [24]
        output_norm.bias [24] zeros
        output.weight [37, 24]
        blk.1.attn_norm.weight [24]
        blk.1.attn_norm.bias [24] zeros
        blk.1.attn_qkv.weight [72, 24]
        blk.1.attn_qkv.bias [72] zeros
        blk.1.attn_output.weight [24, 24]
        blk.1.attn_output.bias [24] zeros
        blk.1.ffn_norm.weight [24]
        blk.1.ffn_norm.bias [24] zeros
        blk.1.ffn_up.weight [40, 24]
        blk.1.ffn_up.bias [40] zeros
        blk.1.ffn_down.weight [24, 40]
        blk.1.ffn_down.bias [24] zeros
        ");
        insta::assert_snapshot!(gguf_names("qwen2"), @r"
        token_embd.weight [37, 24]
        output_norm.weight [24]
        output.weight [37, 24]
        blk.1.attn_norm.weight [24]
        blk.1.attn_q.weight [40, 24]
        blk.1.attn_k.weight [20, 24]
        blk.1.attn_v.weight [20, 24]
        blk.1.attn_q.bias [40]
        blk.1.attn_k.bias [20]
        blk.1.attn_v.bias [20]
        blk.1.attn_output.weight [24, 40]
        blk.1.ffn_norm.weight [24]
        blk.1.ffn_up.weight [40, 24]
        blk.1.ffn_gate.weight [40, 24]
        blk.1.ffn_down.weight [24, 40]
        ");
    }
}
