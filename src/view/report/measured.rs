//! Measures a run's best weights: every head on the validation split, and the attention of all heads on a few words.

use std::error::Error;
use std::ops::RangeInclusive;

use burn::tensor::Device;

use crate::data::{Corpus, OpenOptions, Split, Tokens, batch};
use crate::inspect::{HeadSelection, InspectError, N_WINDOWS, Prompt, PromptDetails, ScoredHeads};
use crate::model::Gpt;
use crate::run::{self, Checkpoint, RunDir};
use crate::tokenizer::Tokenizer;

/// The fewest and the most tokens of the words, so that their maps fit the page.
const PROMPT_TOKENS: RangeInclusive<usize> = 8..=40;

/// The largest size of their section in MiB, if fewer tokens can reduce it: a large model has many numbers per token.
const MOST_MIB: usize = 2;

/// The number of tokens of the validation split that are searched for the start of a line.
const SEARCHED_TOKENS: usize = 4096;

/// The longest window on which heads are measured in a run that was trained on records.
const RECORD_TOKENS: usize = 256;

/// The measurements of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub step: u64,
    pub heads: ScoredHeads,
    /// The attention on some words of the validation split; `None` if it is empty.
    pub attention: Option<PromptDetails>,
}

/// Measures the best checkpoint of a run.
pub(super) fn measure(run: &RunDir, device: &Device) -> Result<Measured, Box<dyn Error>> {
    let checkpoint = run.best()?;
    let state = Checkpoint::read_state(&checkpoint)?;
    let config = run.config()?;
    let tokenizer = run.tokenizer_of_model(&config)?;
    Checkpoint::check_shapes(&checkpoint, &config.model, tokenizer.vocab_size())?;
    let model = Gpt::zeros(&config.model, tokenizer.vocab_size(), device);
    let model = Checkpoint::load_model(&checkpoint, model)?;
    let corpus = Corpus::open(&config, OpenOptions::earlier(&tokenizer, &state.text_sha256))?;
    let step = state.step as u64;
    let logged = run::head_metrics(run, ScoredHeads::from_json)?.remove(&step); // the same numbers
    let heads = if let Some(heads) = logged {
        heads
    } else {
        // Records are short beside the context of a model that was made for long texts.
        let most = if corpus.records.is_some() { RECORD_TOKENS } else { usize::MAX };
        let windows = batch::spread_tokens(&corpus.val, config.model.context_length.min(most), N_WINDOWS)?;
        ScoredHeads::measure(&model, &windows)?
    };
    Ok(Measured { step, heads, attention: attention(&model, &tokenizer, &corpus.val)? })
}

fn attention(model: &Gpt, tokenizer: &Tokenizer, text: &Split) -> Result<Option<PromptDetails>, InspectError> {
    let config = model.config();
    let selection = HeadSelection::new(None, None, config)?;
    let is_small = |n: &usize| crate::view::attention_mib(config, &selection, *n) <= MOST_MIB;
    let most = PROMPT_TOKENS.rev().find(is_small);
    let n_tokens = most.unwrap_or(*PROMPT_TOKENS.start());
    let Some(tokens) = text.texts().find(|tokens| !tokens.is_empty()) else {
        return Ok(None);
    };
    let words = some_words(tokens, tokenizer, config.context_length.min(n_tokens));
    // Text that the tokenizer does not round-trip is no reason to fail.
    let Ok(prompt) = Prompt::read(&words, tokenizer, config.context_length) else {
        return Ok(None);
    };
    PromptDetails::new(model, tokenizer, &prompt, &selection).map(Some)
}

/// At most `n` tokens from the first line that starts in `tokens`, or else from their start, without a partial word.
fn some_words(tokens: &Tokens, tokenizer: &Tokenizer, n: usize) -> String {
    let mut ids = vec![0; tokens.len().min(SEARCHED_TOKENS)];
    tokens.read(0, &mut ids);
    let ids: Vec<u32> = ids.into_iter().map(i32::cast_unsigned).collect();
    let is_break = |id: u32| tokenizer.piece(id).ends_with('\n');
    let is_start = |at: &usize| is_break(ids[at - 1]) && !is_break(ids[*at]);
    let last_start = ids.len().saturating_sub(n);
    let start = (1..last_start.max(1)).find(is_start).unwrap_or(0);
    let end = (start + n).min(ids.len());
    let text = tokenizer.decode(&ids[start..end]);
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).trim();
    let next = ids.get(end).map(|&id| tokenizer.piece(id));
    let is_cut = next.is_some_and(|next| !next.starts_with(char::is_whitespace));
    match text.rfind(char::is_whitespace) {
        Some(at) if is_cut && at >= text.len() / 2 => text[..at].trim_end().to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, n: usize) -> String {
        let tokenizer = Tokenizer::byte();
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let tokens = Tokens::from_ids(&ids, text.len() as u64);
        some_words(&tokens, &tokenizer, n)
    }

    #[test]
    fn words_begin_with_a_line_and_end_with_a_word() {
        let text = "and end.\n\n\nThe bank of the river was wide and long.\nMore of it.";
        assert_eq!(words(text, 20), "The bank of the");
        assert_eq!(words(text, 15), "The bank of the");
        assert_eq!(words(text, 14), "The bank of");
    }

    #[test]
    fn any_text_has_some_words() {
        assert_eq!(words("no line ends here at all", 12), "no line ends");
        assert_eq!(words("short", 12), "short");
        assert_eq!(words("oneverylongwordindeed", 8), "oneveryl");
        assert_eq!(words("a\nb", 12), "a\nb");
        assert_eq!(words("", 12), "");
        let cut_in_a_character = words("éééééééé", 5);
        assert_eq!(cut_in_a_character, "éé");
    }
}
