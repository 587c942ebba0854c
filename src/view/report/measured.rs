//! Measures a run's best weights: every head on the validation split, and the attention of all heads on those of its
//! words that show most.

use std::error::Error;
use std::ops::RangeInclusive;

use burn::tensor::Device;

use crate::data::{Corpus, OpenOptions, Split, Tokens, batch};
use crate::inspect::{
    FirstHead, HeadEvidence, HeadSelection, InspectError, N_WINDOWS, Prompt, PromptAttention, PromptDetails,
    ScoredHeads,
};
use crate::model::Gpt;
use crate::run::{self, Checkpoint, RunDir};
use crate::tokenizer::Tokenizer;
use crate::view::html::attention::attention_mib;
use crate::view::svg::plot::spread;

/// The fewest and the most tokens of the words, so that their maps fit the page.
const PROMPT_TOKENS: RangeInclusive<usize> = 8..=40;

/// The largest size of their section in MiB, if fewer tokens can reduce it: a large model has many numbers per token.
const MOST_MIB: usize = 4;

/// The number of tokens of the validation split that are searched for starts of lines.
const SEARCHED_TOKENS: usize = 4096;

/// The number and the length of the windows in a run that was trained on records: these are short beside the context of
/// a pretrained model, which is also much larger than one that is trained from nothing.
const RECORD_WINDOWS: usize = 8;
const RECORD_TOKENS: usize = 64;

/// The number of lines that are read to find the one that shows most.
const N_CANDIDATES: usize = 12;

#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub step: u64,
    pub heads: ScoredHeads,
    /// The main targets of each head on the windows of its scores, `[L][H]`.
    pub evidence: Vec<Vec<HeadEvidence>>,
    /// The attention on some words of the validation split; `None` if the split is empty.
    pub attention: Option<PromptDetails>,
}

pub(super) fn measure(run: &RunDir, device: &Device, goes_on: &dyn Fn() -> bool) -> Result<Measured, Box<dyn Error>> {
    let checkpoint = run.best()?;
    let state = Checkpoint::read_state(&checkpoint)?;
    let config = run.config()?;
    let tokenizer = run.tokenizer_of_model(&config)?;
    Checkpoint::check_shapes(&checkpoint, &config.model, tokenizer.vocab_size())?;
    let model = Gpt::zeros(&config.model, tokenizer.vocab_size(), device);
    let model = Checkpoint::load_model(&checkpoint, model)?;
    let corpus = Corpus::open(&config, OpenOptions::earlier(&tokenizer, &state.text_sha256))?;
    let step = state.step as u64;
    let logged = run::head_metrics(run)?.remove(&step); // the same numbers
    let (length, n) = match corpus.records {
        Some(_) => (config.model.context_length.min(RECORD_TOKENS), RECORD_WINDOWS),
        None => (config.model.context_length, N_WINDOWS),
    };
    let windows = batch::spread_tokens(&corpus.val, length, n)?;
    let heads = logged.map_or_else(|| ScoredHeads::measure(&model, &windows, goes_on), Ok)?;
    let evidence = HeadEvidence::measure(&model, &tokenizer, &windows, goes_on)?;
    Ok(Measured { step, heads, evidence, attention: attention(&model, &tokenizer, &corpus.val)? })
}

fn attention(model: &Gpt, tokenizer: &Tokenizer, text: &Split) -> Result<Option<PromptDetails>, InspectError> {
    let config = model.config();
    let selection = HeadSelection::new(None, None, config)?;
    let is_small = |n: &usize| attention_mib(config, &selection, *n) <= MOST_MIB;
    let most = PROMPT_TOKENS.rev().find(is_small);
    let n_tokens = most.unwrap_or(*PROMPT_TOKENS.start());
    let Some(tokens) = text.texts().find(|tokens| !tokens.is_empty()) else { return Ok(None) };
    let mut best: Option<(f64, Prompt)> = None;
    for words in candidates(tokens, tokenizer, config.context_length.min(n_tokens)) {
        // Text that the tokenizer does not round-trip is no reason to fail.
        let Ok(prompt) = Prompt::read(&words, tokenizer, config.context_length) else { continue };
        let attention = PromptAttention::new(model, &prompt, &selection, &[])?;
        let pull = FirstHead::of(&attention, tokenizer, None).map_or(0.0, |first| first.pull);
        if best.as_ref().is_none_or(|(most, _)| pull > *most) {
            best = Some((pull, prompt));
        }
    }
    best.map(|(_, prompt)| PromptDetails::new(model, tokenizer, &prompt, &selection)).transpose()
}

/// The first words of lines that start in `tokens`, or else the first of all: each of at most `n` tokens, without a
/// partial word, and of one text.
fn candidates(tokens: &Tokens, tokenizer: &Tokenizer, n: usize) -> Vec<String> {
    let mut ids = vec![0; tokens.len().min(SEARCHED_TOKENS)];
    tokens.read(0, &mut ids);
    let ids: Vec<u32> = ids.into_iter().map(i32::cast_unsigned).collect();
    let added: Vec<u32> = tokenizer.added_tokens().into_iter().map(|(id, _)| id).collect();
    let is_break = |id: u32| added.contains(&id) || tokenizer.piece(id).ends_with('\n');
    let is_start = |at: &usize| is_break(ids[at - 1]) && !is_break(ids[*at]);
    let last_start = ids.len().saturating_sub(n);
    let mut starts: Vec<usize> = (1..last_start.max(1)).filter(is_start).collect();
    if starts.is_empty() {
        starts.push(ids.iter().position(|id| !added.contains(id)).unwrap_or(0));
    }
    let words = |at: usize| {
        let start = starts[at];
        let length = ids[start..].iter().take(n).take_while(|id| !added.contains(id)).count();
        whole_words(&ids[start..start + length], ids.get(start + length), tokenizer)
    };
    spread(starts.len(), N_CANDIDATES).into_iter().map(words).filter(|words| !words.is_empty()).collect()
}

/// The text of these tokens up to the last whole word, given the token after them.
fn whole_words(ids: &[u32], next: Option<&u32>, tokenizer: &Tokenizer) -> String {
    let text = tokenizer.decode(ids);
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).trim();
    let is_cut = next.is_some_and(|&next| !tokenizer.piece(next).starts_with(char::is_whitespace));
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
        candidates(&tokens, &tokenizer, n).into_iter().next().unwrap_or_default()
    }

    #[test]
    fn candidates_spread_and_stay_in_one_text() {
        let tokenizer = Tokenizer::byte().with_end_of_text();
        let lines: Vec<u32> = (0..40).flat_map(|i| [10, 65 + i % 26, 66, 67]).collect();
        let of = |ids: &[u32]| candidates(&Tokens::from_ids(ids, ids.len() as u64), &tokenizer, 3);
        let found = of(&lines);
        assert_eq!((found.len(), &*found[0]), (N_CANDIDATES, "ABC"));
        // a b <|endoftext|> c d e f: the end of a text is neither in the words nor what they begin with.
        assert_eq!(of(&[97, 98, 256, 99, 100, 101, 102]), ["cde"]);
        assert_eq!(of(&[256, 99, 100]), ["cd"]);
    }

    #[test]
    fn candidates_start_lines_and_end_words() {
        let text = "and end.\n\n\nThe bank of the river was wide and long.\nMore of it.";
        assert_eq!(words(text, 20), "The bank of the");
        assert_eq!(words(text, 15), "The bank of the");
        assert_eq!(words(text, 14), "The bank of");
    }

    #[test]
    fn any_text_has_candidates() {
        assert_eq!(words("no line ends here at all", 12), "no line ends");
        assert_eq!(words("short", 12), "short");
        assert_eq!(words("oneverylongwordindeed", 8), "oneveryl");
        assert_eq!(words("a\nb", 12), "a\nb");
        assert_eq!(words("", 12), "");
        let cut_in_a_character = words("éééééééé", 5);
        assert_eq!(cut_in_a_character, "éé");
    }
}
