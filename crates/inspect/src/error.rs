use burn::tensor::TensorReadError;

use tinderbox_model::probe::Site;
use tinderbox_model::tokenizer::TokenizerError;

/// An error of inspecting a model.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InspectError {
    #[error("the measurement was interrupted")]
    Stopped,
    #[error("the prompt is empty\n  hint: give the model a text to read, such as --prompt \"The\"")]
    EmptyPrompt,
    #[error("the prompt cannot be read by this model")]
    Prompt(#[source] TokenizerError),
    /// `of` has `n` of them.
    #[error("there is no {what} {index}: {of} has {n}, counted from 0\n  hint: the last one is {}", .n - 1)]
    OutOfRange { what: &'static str, index: usize, of: &'static str, n: usize },
    #[error(
        "`{0}` is not in the part of the prompt that the model reads\n  \
         hint: name a part of it, or a token by its position, counted from 0"
    )]
    NotInPrompt(String),
    #[error(
        "the word `{word}` is not in the part of the prompt `{prompt}` that the model reads\n  \
         hint: every prompt must contain it; spell it as in the prompts"
    )]
    NoSuchWord { word: String, prompt: String },
    #[error(
        "there is nothing to compare `{0}` with\n  \
         hint: give --prompt twice or more, or another word of the prompt with --context"
    )]
    NothingToCompare(String),
    #[error("a map needs three different tokens, and the text has {0}\n  hint: choose a longer text with --text")]
    TooFewTokens(usize),
    #[error("`{text}` is not a token of this model")]
    NotAToken { text: String, source: TokenizerError },
    #[error(
        "`{text}` is {n_tokens} tokens for this model, not one\n  \
         hint: a prediction is a single token; leave out the flag to take the likeliest"
    )]
    NotOneToken { text: String, n_tokens: usize },
    #[error(
        "the logit of `{0}` would be compared with itself\n  \
         hint: name two different tokens with --answer and --against"
    )]
    SameAnswers(String),
    #[error(
        "the prompt has {prompt} tokens and the one to patch from has {from}\n  \
         hint: values are patched into the same position, so both need the same number of tokens"
    )]
    UnequalLengths { prompt: usize, from: usize },
    #[error(
        "the two prompts are the same up to token {0}: there is no difference to trace\n  \
         hint: choose a later token with --token, or change one of the texts"
    )]
    SamePast(usize),
    #[error(
        "the difference of the two logits is {0} after both prompts: there is nothing to trace\n  \
         hint: name other tokens with --answer and --against"
    )]
    SameDifference(f64),
    #[error(
        "the page would hold {mib} MiB of numbers; the limit is {limit_mib} MiB\n  \
         hint: choose one layer or head with --layer and --head, or give a shorter prompt"
    )]
    PageTooLarge { mib: usize, limit_mib: usize },
    #[error(
        "the model's numbers at `{0}` are not finite\n  \
         hint: its weights are damaged; use another of the run's `checkpoints/step-N`"
    )]
    NotFinite(Site),
    #[error("the device failed\n  hint: try --device cpu")]
    Device(#[from] TensorReadError),
}
