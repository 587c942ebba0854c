//! Chat templates for models without one. Their roles become new tokens.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{TokenizerConfig, TokenizerKind};
use crate::run::{Checkpoint, Located, RunDir, RunError, TrainState, layout};
use tinderbox_model::LazyTensor;
use tinderbox_model::tokenizer::Tokenizer;

/// A chat template for a base model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ChatFormat {
    /// That of Qwen, SmolLM2 and many others.
    Chatml,
    /// That of Llama 3, without its first token.
    Llama3,
    /// That of Gemma, whose only roles are the user and the model.
    Gemma,
    /// That of Zephyr and `TinyLlama`, with one token for each role.
    Zephyr,
}

impl ChatFormat {
    /// The template in Jinja, which need not mark answers, and its tokens. The last token ends an answer.
    fn parts(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Chatml => (
                "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' \
                 + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
                &["<|im_start|>", "<|im_end|>"],
            ),
            Self::Llama3 => (
                "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + \
                 message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ \
                 '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
                &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            ),
            Self::Gemma => (
                "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for \
                 message in messages %}{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = \
                 message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + \
                 '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
                &["<start_of_turn>", "<end_of_turn>"],
            ),
            Self::Zephyr => (
                "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '</s>\n' }}{% \
                 endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
                &["<|system|>", "<|user|>", "<|assistant|>", "</s>"],
            ),
        }
    }

    /// The one whose tokens a tokenizer has, as base models of Gemma, Llama 3 and Qwen do; otherwise the commonest.
    pub fn suiting(tokenizer: &Tokenizer) -> Self {
        let known = tokenizer.added_tokens();
        let is_known = |token: &&str| known.iter().any(|(_, it)| it == token);
        let mut all = [Self::Chatml, Self::Llama3, Self::Gemma, Self::Zephyr].into_iter();
        all.find(|format| format.parts().1.iter().all(is_known)).unwrap_or(Self::Chatml)
    }

    /// The ids of its tokens, in ascending order.
    pub fn ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let (_, tokens) = self.parts();
        let added = tokenizer.added_tokens().into_iter().filter(|(_, token)| tokens.contains(&&**token));
        let mut ids: Vec<u32> = added.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Writes the model of a checkpoint as the run `root`, with this chat template. Tokens that its tokenizer lacks are
    /// added, and their vectors are at first the mean of all. The end of an answer then ends a text, too; the previous
    /// end-of-text tokens still do.
    pub fn give(self, of: &Located, root: &Path) -> Result<RunDir, RunError> {
        RunDir::check_new(root, false)?; // before the weights are read
        let mut config = of.run.config()?;
        let old = of.run.tokenizer()?;
        let (template, tokens) = self.parts();
        let tokenizer = old.with_chat_template(template, tokens, tokens[tokens.len() - 1])?;
        let Checkpoint { mut model, state, .. } = Checkpoint::read(&of.checkpoint)?;
        let (n_old, n_new) = (old.n_ids(), tokenizer.n_ids());
        let n_rows = model.get("token_embedding.weight").map_or(0, |tensor| tensor.shape()[0]).max(n_new);
        for (path, is_by_column) in [("token_embedding.weight", false), ("output.weight", true), ("output.bias", true)]
        {
            if let Some(tensor) = model.remove(path) {
                model.insert(path.to_owned(), extended(tensor, is_by_column, n_old..n_new, n_rows));
            }
        }
        config.model.vocab_size = (n_rows > n_new).then_some(n_rows);
        config.tokenizer = TokenizerConfig {
            kind: TokenizerKind::File,
            end_of_text: true,
            path: Some(root.join(layout::TOKENIZER)),
            ..TokenizerConfig::default()
        };
        let stop_token_ids = &mut config.generate.stop_token_ids;
        stop_token_ids.extend(old.end_of_text());
        stop_token_ids.retain(|id| Some(*id) != tokenizer.end_of_text());
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        let state = TrainState {
            tokenizer_crc32c: Some(crc32c::crc32c(tokenizer.to_json().as_bytes())),
            ..TrainState::starting_from(&of.checkpoint, state)
        };
        let checkpoint = Checkpoint { model, optimizer: BTreeMap::new(), state };
        RunDir::create_with(root, false, &config.of_model(), &tokenizer, &checkpoint)
    }
}

/// A matrix with one row, or column, for each token, or a vector, with `n` of them. Those of the `new` tokens are the mean
/// of those before, and others that are added are zero.
#[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
fn extended(tensor: LazyTensor, is_by_column: bool, new: std::ops::Range<usize>, n: usize) -> LazyTensor {
    let old_shape = tensor.shape().to_vec();
    let [n_outer, n_old, n_inner] = match (&old_shape[..], is_by_column) {
        ([n_old, width], false) => [1, *n_old, *width],
        ([width, n_old], true) => [*width, *n_old, 1],
        (shape, _) => [1, shape[0], 1],
    };
    let shape = match old_shape.len() {
        1 => vec![n],
        _ if is_by_column => vec![n_outer, n],
        _ => vec![n, n_inner],
    };
    LazyTensor::computed(shape, move |sink| {
        let old = tensor.read()?.values;
        let mut values = vec![0.0; n_outer * n * n_inner];
        for (old, values) in old.chunks_exact(n_old * n_inner).zip(values.chunks_exact_mut(n * n_inner)) {
            values[..old.len()].copy_from_slice(old);
            for i in 0..n_inner {
                let sum: f64 = (0..new.start).map(|token| f64::from(old[token * n_inner + i])).sum();
                for token in new.clone() {
                    values[token * n_inner + i] = (sum / new.start as f64) as f32;
                }
            }
        }
        sink(&values)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_suits_known_tokens() {
        use ChatFormat::{Chatml, Gemma, Llama3, Zephyr};
        let plain = Tokenizer::byte();
        assert_eq!(ChatFormat::suiting(&plain), Chatml);
        for format in [Chatml, Llama3, Gemma, Zephyr] {
            let (_, tokens) = format.parts();
            let with = |tokens: &[&str]| plain.with_chat_template("", tokens, tokens[0]).expect("tokens can be added");
            assert_eq!(ChatFormat::suiting(&with(tokens)), format);
            assert_eq!(ChatFormat::suiting(&with(&tokens[1..])), Chatml, "not all of them");
        }
    }

    #[test]
    fn new_tokens_get_mean_embedding() {
        let tensor = |shape: &[usize], values: &[f32]| {
            let values = values.to_vec();
            LazyTensor::computed(shape.to_vec(), move |sink| sink(&values))
        };
        let read = |tensor: LazyTensor| {
            (tensor.shape().to_vec(), tensor.read().expect("a tensor in memory can be read").values)
        };
        let rows = extended(tensor(&[2, 2], &[1.0, 2.0, 3.0, 6.0]), false, 2..3, 3);
        assert_eq!(read(rows), (vec![3, 2], vec![1.0, 2.0, 3.0, 6.0, 2.0, 4.0]));
        let columns = extended(tensor(&[2, 2], &[1.0, 3.0, 2.0, 6.0]), true, 2..3, 4);
        assert_eq!(read(columns), (vec![2, 4], vec![1.0, 3.0, 2.0, 0.0, 2.0, 6.0, 4.0, 0.0]));
        // A row that was padding becomes that of a token.
        let padded = extended(tensor(&[3, 1], &[1.0, 3.0, 9.0]), false, 2..3, 3);
        assert_eq!(read(padded), (vec![3, 1], vec![1.0, 3.0, 2.0]));
        assert_eq!(read(extended(tensor(&[2], &[1.0, 3.0]), true, 2..3, 3)), (vec![3], vec![1.0, 3.0, 2.0]));
    }
}
