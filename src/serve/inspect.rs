//! `/v1/inspect`: the inspection of a model on a text, measured by [`crate::inspect`].

use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::hosted::Hosted;
use super::limits::{MAX_INSPECTED, MAX_INSPECTED_WEIGHTS, MAX_SHOWN_WEIGHTS, MAX_TOP_LOGPROBS, MAX_WRITTEN_INSIDE};
use super::request::prompt;
use crate::config::ModelConfig;
use crate::inspect::{
    Answer, Attribution, Guess, HeadSelection, Lens, NamedScores, Part, Prompt, PromptAttention, Reading,
    TokenPredictions, scores_on, write_on,
};
use crate::model::Gpt;
use crate::tokenizer::{DecodeStream, Tokenizer};

/// The default number of most probable next tokens to show.
const DEFAULT_TOP: usize = 5;

/// A request for inspection.
#[derive(Debug)]
pub(super) struct InspectRequest {
    prompt: Vec<u32>,
    /// The tokens whose weights and predictions are shown.
    range: Range<usize>,
    /// The heads whose weights and patterns are shown.
    selection: HeadSelection,
    attention: bool,
    patterns: bool,
    lens: bool,
    /// The token whose prediction is attributed.
    attribution: Option<usize>,
    /// Ablated heads, as (layer, head).
    ablate: Vec<(usize, usize)>,
    n_top: usize,
    /// The number of tokens to generate.
    n_tokens: usize,
}

/// The response.
#[derive(Serialize)]
struct Inspection<'a> {
    object: &'static str,
    model: &'a str,
    ids: &'a [u32],
    tokens: &'a [String],
    range: [usize; 2],
    #[serde(flatten)]
    whole: Read,
    #[serde(skip_serializing_if = "Option::is_none")]
    ablation: Option<Ablation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<Attention<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patterns: Option<Vec<Vec<NamedScores>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lens: Option<Vec<TokenPredictions>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribution: Option<Attribution>,
}

/// The losses and predictions of a model on the text, perhaps with heads ablated.
#[derive(Serialize)]
struct Read {
    /// The mean loss, in nats per token; null for a single token.
    loss: Option<f64>,
    /// The loss of each token; null for the first.
    losses: Vec<Option<f64>>,
    next: Vec<Guess>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation: Option<Continuation>,
}

#[derive(Serialize)]
struct Continuation {
    ids: Vec<u32>,
    tokens: Vec<String>,
    text: String,
}

/// The model with heads ablated.
#[derive(Serialize)]
struct Ablation<'a> {
    heads: &'a [(usize, usize)],
    #[serde(flatten)]
    read: Read,
}

/// `weights[layer][head][query]` has a number for each token up to the query.
#[derive(Serialize)]
struct Attention<'a> {
    layers: [usize; 2],
    heads: [usize; 2],
    weights: Vec<Vec<Vec<&'a [f32]>>>,
}

impl InspectRequest {
    /// Reads a request to `/v1/inspect`.
    pub(super) fn read(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let prompt = tokens("prompt", &mut fields, model)?;
        let config = &model.config;
        let [layer, head] = [("layer", config.n_layers), ("head", config.n_heads)]
            .map(|(name, n)| fields.size(name, 0..=n.saturating_sub(1)));
        let selection = HeadSelection::new(layer?, head?, config).expect("within the model");
        let request = Self {
            range: range(&mut fields, prompt.len())?,
            selection,
            attention: fields.flag("attention")?.unwrap_or(false),
            patterns: fields.flag("patterns")?.unwrap_or(false),
            lens: fields.flag("lens")?.unwrap_or(false),
            attribution: fields.size("attribution", 0..=prompt.len() - 1)?,
            ablate: heads(&mut fields, config)?,
            n_top: fields.size("top", 0..=MAX_TOP_LOGPROBS)?.unwrap_or(DEFAULT_TOP),
            n_tokens: fields.size("max_tokens", 0..=MAX_WRITTEN_INSIDE)?.unwrap_or(0),
            prompt,
        };
        fields.finish()?;
        request.check_size(config)?;
        Ok(request)
    }

    /// Rejects a request whose weights exceed the memory or the response limit.
    fn check_size(&self, config: &ModelConfig) -> Result<(), ApiError> {
        let HeadSelection { layers, heads } = &self.selection;
        let pairs: usize = self.range.clone().map(|query| query + 1).sum();
        let shown = layers.len() * heads.len() * pairs;
        if self.attention || self.patterns {
            check_weights(config, self.prompt.len())?;
        }
        if self.attention && shown > MAX_SHOWN_WEIGHTS {
            let message = format!(
                "`range` and heads are {shown} weights; a response has at most {MAX_SHOWN_WEIGHTS}: \
                                   choose a `layer`, a `head`, or a shorter `range`"
            );
            return Err(ApiError::field("range", message));
        }
        Ok(())
    }

    /// The response, as JSON.
    pub(super) fn answer(&self, hosted: &Hosted, model: &Gpt) -> Result<String, ApiError> {
        let tokenizer = &hosted.tokenizer;
        let prompt = Prompt::of_ids(self.prompt.clone(), tokenizer);
        let parts: Vec<Part> = self.ablate.iter().map(|&(layer, head)| Part::Head { layer, head }).collect();
        let attention = match self.attention || self.patterns {
            true => Some(PromptAttention::new(model, &prompt, &self.selection, &[])?),
            false => None,
        };
        let lens = match self.lens {
            true => Some(Lens::new(model, tokenizer, &prompt, self.n_top.max(1))?.positions),
            false => None,
        };
        let inspection = Inspection {
            object: "inspection",
            model: &hosted.name,
            ids: &prompt.ids,
            tokens: &prompt.texts,
            range: [self.range.start, self.range.end],
            whole: self.reading(model, tokenizer, &prompt, &[])?,
            ablation: match &*parts {
                [] => None,
                parts => Some(Ablation { heads: &self.ablate, read: self.reading(model, tokenizer, &prompt, parts)? }),
            },
            attention: attention.as_ref().filter(|_| self.attention).map(|attention| self.weights(attention)),
            patterns: attention.as_ref().filter(|_| self.patterns).map(scores_on),
            lens: lens.map(|positions| positions[self.range.clone()].to_vec()),
            attribution: match self.attribution {
                None => None,
                Some(position) => {
                    let answer = Answer::likeliest(model, tokenizer, &prompt, position)?;
                    Some(Attribution::new(model, &prompt, position, answer, None)?)
                }
            },
        };
        Ok(serde_json::to_string(&inspection).expect("plain data"))
    }

    fn reading(&self, model: &Gpt, tokenizer: &Tokenizer, prompt: &Prompt, parts: &[Part]) -> Result<Read, ApiError> {
        let reading = Reading::new(model, tokenizer, prompt, parts, self.n_top)?;
        let continuation = match self.n_tokens {
            0 => None,
            n => Some(Continuation::new(write_on(model, tokenizer, prompt, parts, n)?, prompt, tokenizer)),
        };
        let losses = std::iter::once(None).chain(reading.losses.iter().copied().map(Some)).collect();
        Ok(Read { loss: reading.loss(), losses, next: reading.next, continuation })
    }

    fn weights<'a>(&self, attention: &'a PromptAttention) -> Attention<'a> {
        let HeadSelection { layers, heads } = &self.selection;
        let row = |layer, head, query| &attention.recording.row(layer, head, query)[..=query];
        let of_head = |layer, head| self.range.clone().map(|query| row(layer, head, query)).collect();
        let of_layer = |layer| heads.clone().map(|head| of_head(layer, head)).collect();
        Attention {
            layers: [layers.start, layers.end],
            heads: [heads.start, heads.end],
            weights: layers.clone().map(of_layer).collect(),
        }
    }
}

impl Continuation {
    fn new(ids: Vec<u32>, prompt: &Prompt, tokenizer: &Tokenizer) -> Self {
        let mut stream = DecodeStream::after(tokenizer, &prompt.ids);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        Self { tokens: ids.iter().map(|id| tokenizer.piece(*id)).collect(), ids, text }
    }
}

/// Rejects a text for which the model has more weights than may be held.
pub(super) fn check_weights(config: &ModelConfig, n_tokens: usize) -> Result<(), ApiError> {
    let n = config.n_layers * config.n_heads * n_tokens * n_tokens;
    match n > MAX_INSPECTED_WEIGHTS {
        true => Err(ApiError::field(
            "prompt",
            format!(
                "`prompt` has {n_tokens} tokens, of which this model has {n} weights; at most {MAX_INSPECTED_WEIGHTS} \
                 are looked at: give it a shorter text"
            ),
        )),
        false => Ok(()),
    }
}

/// A field with a text to inspect, of at most [`MAX_INSPECTED`] tokens.
pub(super) fn tokens(name: &str, fields: &mut Fields, model: &Hosted) -> Result<Vec<u32>, ApiError> {
    let rule = "a string or a list of token ids";
    let value = fields.take(name);
    let value = value.ok_or_else(|| ApiError::field(name, format!("there is no `{name}`: it must be {rule}")))?;
    let tokens: Arc<[u32]> = prompt(name, &value, model, rule)?.tokens;
    match tokens.len() {
        n if n > MAX_INSPECTED => {
            let message = format!("`{name}` has {n} tokens; texts of at most {MAX_INSPECTED} are looked into");
            Err(ApiError::too_long(name, message))
        }
        _ => Ok(tokens.to_vec()),
    }
}

/// The field `range`: `[from, to]`, excluding `to`; by default the whole prompt of `n` tokens.
fn range(fields: &mut Fields, n: usize) -> Result<Range<usize>, ApiError> {
    let Some(value) = fields.take("range") else { return Ok(0..n) };
    let ends: Option<Vec<usize>> =
        value.as_array().and_then(|ends| ends.iter().map(|end| usize::try_from(end.as_u64()?).ok()).collect());
    match ends.as_deref() {
        Some([from, to]) if from < to && *to <= n => Ok(*from..*to),
        _ => Err(wrong("range", &value, &format!("two positions [from, to], from below to, to at most {n}"))),
    }
}

/// The field `ablate`: a list of `[layer, head]`.
fn heads(fields: &mut Fields, config: &ModelConfig) -> Result<Vec<(usize, usize)>, ApiError> {
    let Some(value) = fields.take("ablate") else { return Ok(Vec::new()) };
    let ModelConfig { n_layers, n_heads, .. } = *config;
    let head = |value: &Value| {
        let (layer, head): (usize, usize) = serde_json::from_value(value.clone()).ok()?;
        (layer < n_layers && head < n_heads).then_some((layer, head))
    };
    let heads: Option<Vec<(usize, usize)>> = value.as_array().and_then(|heads| heads.iter().map(head).collect());
    let mut heads = heads.ok_or_else(|| {
        wrong("ablate", &value, &format!("a list of [layer, head], layers below {n_layers}, heads below {n_heads}"))
    })?;
    heads.sort_unstable();
    heads.dedup();
    Ok(heads)
}
