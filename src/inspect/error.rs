//! What can go wrong when someone looks inside a model.

use std::io;
use std::path::PathBuf;

use burn::tensor::TensorReadError;

use super::Prompt;
use crate::model::probe::Site;
use crate::tokenizer::TokenizerError;

/// What can go wrong when someone looks inside a model.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// There is nothing to look at.
    #[error("the prompt is empty\n  hint: give the model a text to read, such as --prompt \"The\"")]
    EmptyPrompt,
    /// The prompt cannot be read by this model.
    #[error("the prompt cannot be read by this model")]
    Prompt(#[source] TokenizerError),
    /// A layer that the model does not have.
    #[error(
        "there is no layer {layer}: the model has {n_layers}, counted from 0\n  hint: the last one is {}",
        .n_layers - 1
    )]
    NoSuchLayer {
        /// Which one was asked for.
        layer: usize,
        /// How many there are.
        n_layers: usize,
    },
    /// A head that the model's layers do not have.
    #[error(
        "there is no head {head}: each layer of the model has {n_heads}, counted from 0\n  hint: the last \
         one is {}",
        .n_heads - 1
    )]
    NoSuchHead {
        /// Which one was asked for.
        head: usize,
        /// How many there are.
        n_heads: usize,
    },
    /// A token that the prompt does not have.
    #[error(
        "there is no token {token}: the prompt has {n_tokens}, counted from 0\n  hint: the last one is {}",
        .n_tokens - 1
    )]
    NoSuchToken {
        /// Which one was asked for.
        token: usize,
        /// How many there are.
        n_tokens: usize,
    },
    /// A text that is nowhere in the prompt.
    #[error(
        "`{0}` is not in what the model reads of the prompt\n  hint: name a part of it, or a token by its \
         position, counted from 0"
    )]
    NotInPrompt(String),
    /// A word that is not in one of several prompts.
    #[error(
        "the word `{word}` is not in what the model reads of the prompt `{prompt}`\n  hint: it has to stand in \
         every prompt; write it as it stands there"
    )]
    NoSuchWord {
        /// The word.
        word: String,
        /// What the model reads of the prompt.
        prompt: String,
    },
    /// A word in a single prompt.
    #[error(
        "there is nothing to compare `{0}` with\n  hint: give --prompt twice or more, or another word of the \
         prompt with --context"
    )]
    NothingToCompare(String),
    /// A text that is to be one token, with characters that the tokenizer does not know.
    #[error("`{text}` is no token of this model")]
    NotAToken {
        /// The text.
        text: String,
        /// Why it cannot be read.
        #[source]
        source: TokenizerError,
    },
    /// A text that is to be one token, and is none or several.
    #[error(
        "`{text}` is {n_tokens} tokens for this model, and one is asked for\n  hint: a prediction is of a single \
         token; leave it out to take the likeliest"
    )]
    NotOneToken {
        /// The text.
        text: String,
        /// How many tokens it is.
        n_tokens: usize,
    },
    /// An answer that would be compared with itself.
    #[error(
        "the logit of `{0}` would be compared with itself\n  hint: name two different tokens with --answer and \
         --against"
    )]
    SameAnswers(String),
    /// Two prompts that are to be compared token by token and have not as many tokens.
    #[error(
        "the prompt has {prompt} tokens and the one to patch from has {from}\n  hint: values are taken over from \
         the same position, so both need as many: lengthen one of them"
    )]
    UnequalLengths {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the other.
        from: usize,
    },
    /// Two prompts between which there is no difference where it is looked for.
    #[error(
        "the two prompts are the same up to token {0}: there is no difference to trace\n  hint: look at a later \
         token with --token, or change one of the texts"
    )]
    SamePast(usize),
    /// Two prompts after which the logits that are compared are as far apart.
    #[error(
        "the difference of the two logits is {0} after both prompts: there is nothing to trace\n  hint: name other \
         tokens with --answer and --against"
    )]
    SameDifference(f64),
    /// The annotations, or the text beside them, cannot be read.
    #[error(
        "cannot read `{}`: {source}\n  hint: annotations are a file like data/stories.jsonl, with their text \
         beside them under the same name, as data/stories.txt", path.display()
    )]
    ReadAnnotations {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of the annotations is not what it should be.
    #[error(
        "line {line} of the annotations `{}` cannot be used: {problem}\n  hint: data/README.md describes the \
         format", path.display()
    )]
    Annotations {
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Places in a text mean nothing to this tokenizer.
    #[error(
        "the tokens of this model are not parts of the text, so that no place in it is known to them\n  hint: use \
         a run whose tokenizer is of kind char, byte or bpe"
    )]
    TokensWithoutPlaces,
    /// Nothing that was annotated can be asked of this model.
    #[error(
        "none of what is annotated in the validation split fits the context of {context_length} tokens\n  hint: \
         use a run with a longer model.context_length"
    )]
    NothingToAsk {
        /// How many tokens the model sees.
        context_length: usize,
    },
    /// A page of HTML that is too large for a browser.
    #[error(
        "the page would hold {mib} MiB of numbers, and {limit_mib} MiB is the most\n  hint: choose one layer or head \
         with --layer and --head, or give a shorter prompt"
    )]
    PageTooLarge {
        /// How large it would be.
        mib: usize,
        /// How large it may be.
        limit_mib: usize,
    },
    /// What the model computes is not a number.
    #[error(
        "the model's numbers at `{0}` are not finite\n  hint: its weights are damaged; use another of the \
         run's `checkpoints/step-N`"
    )]
    NotFinite(Site),
    /// The device did not give its numbers back.
    #[error("the device failed\n  hint: try --device cpu")]
    Device(#[source] TensorReadError),
}

impl InspectError {
    /// That `word` is not in `prompt`.
    #[must_use]
    pub fn no_word(word: &str, prompt: &Prompt) -> Self {
        Self::NoSuchWord { word: word.to_owned(), prompt: prompt.whole_pieces().concat() }
    }

    /// Checks a layer that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_layers`.
    pub fn check_layer(layer: usize, n_layers: usize) -> Result<(), Self> {
        match layer < n_layers {
            true => Ok(()),
            false => Err(Self::NoSuchLayer { layer, n_layers }),
        }
    }

    /// Checks a head that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_heads`.
    pub fn check_head(head: usize, n_heads: usize) -> Result<(), Self> {
        match head < n_heads {
            true => Ok(()),
            false => Err(Self::NoSuchHead { head, n_heads }),
        }
    }
    /// Checks a token that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_tokens`.
    pub fn check_token(token: usize, n_tokens: usize) -> Result<(), Self> {
        match token < n_tokens {
            true => Ok(()),
            false => Err(Self::NoSuchToken { token, n_tokens }),
        }
    }
}
