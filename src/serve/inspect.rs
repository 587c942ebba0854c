//! `/v1/inspect`: the inspection of a model on a text, measured by [`crate::inspect`].

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, parse, wrong};
use super::http::to_large_json;
use super::limits::{
    INSPECTION, MAX_CONTINUATION, MAX_INSPECTED, MAX_INSPECTED_WEIGHTS, MAX_SHOWN_WEIGHTS, MAX_TOP_LOGPROBS,
};
use super::loaded_model::LoadedModel;
use super::prompt::prompt;
use crate::config::ModelConfig;
use crate::inspect::{
    Answer, Attribution, HeadSelection, Lens, ModelPart, NamedScores, Prompt, PromptAttention, Reading,
    TokenPredictions, TokenProbability, generate_greedily, scores_on,
};
use crate::model::Gpt;
use crate::tokenizer::{DecodeStream, Tokenizer};

/// A request to `/v1/inspect`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "InspectRequest", extend("required" = ["prompt"]))]
pub(super) struct InspectFields {
    /// A text or a list of token ids: at most 2048 tokens, within the context.
    #[schemars(extend("oneOf" = [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]))]
    prompt: Value,
    /// [from, to], without to: the tokens whose `attention` and `lens` are returned. By default all.
    #[schemars(with = "[usize; 2]")]
    range: Value,
    /// The only layer of `attention` and `patterns`, counted from 0. By default all.
    layer: Option<usize>,
    /// The only head of each layer, counted from 0. By default all.
    head: Option<usize>,
    /// Return the attention weights of each token for itself and the tokens before it.
    attention: bool,
    /// Return the scores of each head on this text, and the pattern that fits it best.
    patterns: bool,
    /// Return the predictions of the model if it ended after each layer.
    lens: bool,
    /// Attribute the likeliest prediction after this token, counted from 0, to the parts of the model.
    attribution: Option<usize>,
    /// Heads to switch off, as [layer, head].
    #[schemars(with = "Vec<[usize; 2]>")]
    ablate: Vec<Value>,
    /// The number of likeliest tokens of each prediction.
    #[serde(default = "five")]
    #[schemars(range(max = MAX_TOP_LOGPROBS))]
    top: usize,
    /// The number of tokens to generate greedily after the prompt, by the model and without the heads.
    #[schemars(range(max = MAX_CONTINUATION))]
    max_tokens: usize,
}

fn five() -> usize {
    5
}

pub(super) struct InspectRequest {
    prompt: Vec<u32>,
    /// The tokens whose weights and predictions are shown.
    range: Range<usize>,
    /// The heads whose weights and patterns are shown.
    selection: HeadSelection,
    /// Ablated heads, as (layer, head).
    ablate: Vec<(usize, usize)>,
    fields: InspectFields,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Inspection<'a> {
    #[schemars(extend("enum" = ["inspection"]))]
    object: &'static str,
    model: &'a str,
    ids: &'a [u32],
    tokens: &'a [String],
    range: [usize; 2],
    #[serde(flatten)]
    whole: ReadingBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    ablation: Option<AblationBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<AttentionBody<'a>>,
    /// [layer][head]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Vec<Value>>")]
    patterns: Option<Vec<Vec<NamedScores>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Value>", extend("items" = {"type": "object", "properties": {
        "position": {"type": "integer"}, "stages": {"type": "array"},
    }}))]
    lens: Option<Vec<TokenPredictions>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value", extend("type" = "object", "properties" = {
        "position": {"type": "integer"}, "answer": {}, "difference": {"type": "number"}, "terms": {"type": "array"},
    }))]
    attribution: Option<Attribution>,
}

/// The losses and predictions of a model on the text, with or without some heads.
#[derive(Serialize, JsonSchema)]
struct ReadingBody {
    /// The mean loss of the prompt's tokens after the first, nats per token; null for a single token.
    loss: Option<f64>,
    /// The loss of each token; null for the first.
    losses: Vec<Option<f64>>,
    /// The likeliest next tokens, likeliest first.
    #[schemars(with = "Vec<Value>", extend("items" = {"type": "object", "properties": {
        "id": {"type": "integer"}, "token": {"type": "string"}, "probability": {"type": "number"},
    }}))]
    next: Vec<TokenProbability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation: Option<Continuation>,
}

#[derive(Serialize, JsonSchema)]
struct Continuation {
    ids: Vec<u32>,
    tokens: Vec<String>,
    text: String,
}

/// The model with heads ablated.
#[derive(Serialize, JsonSchema)]
struct AblationBody<'a> {
    heads: &'a [(usize, usize)],
    #[serde(flatten)]
    read: ReadingBody,
}

#[derive(Serialize, JsonSchema)]
struct AttentionBody<'a> {
    layers: [usize; 2],
    heads: [usize; 2],
    /// [layer][head][query][key], keys up to the query.
    weights: Vec<Vec<Vec<&'a [f32]>>>,
}

impl InspectRequest {
    pub(super) fn read(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let config = &model.config;
        let fields: InspectFields = parse(fields, &last_head(config))?;
        let prompt = tokens("prompt", &fields.prompt, model)?;
        check_position("attribution", fields.attribution, prompt.len())?;
        let selection = HeadSelection::new(fields.layer, fields.head, config);
        let request = Self {
            range: range(&fields.range, prompt.len())?,
            selection: selection.expect("the layer and the head were checked"),
            ablate: heads(&fields.ablate, config)?,
            prompt,
            fields,
        };
        request.check_size(config)?;
        Ok(request)
    }

    /// The number of weights in the response.
    fn n_shown(&self) -> usize {
        let HeadSelection { layers, heads } = &self.selection;
        let pairs: usize = self.range.clone().map(|query| query + 1).sum();
        if self.fields.attention { layers.len() * heads.len() * pairs } else { 0 }
    }

    /// The memory for the response, and for what is computed.
    pub(super) fn n_bytes(&self, config: &ModelConfig) -> usize {
        let is_recorded = self.fields.attention || self.fields.patterns;
        let recorded = if is_recorded { recorded_bytes(config, self.prompt.len()) } else { 0 };
        INSPECTION + recorded + PER_WEIGHT * self.n_shown()
    }

    /// Rejects a request whose weights exceed the memory or the response limit.
    fn check_size(&self, config: &ModelConfig) -> Result<(), ApiError> {
        let shown = self.n_shown();
        if self.fields.attention || self.fields.patterns {
            check_weights(config, self.prompt.len())?;
        }
        if shown > MAX_SHOWN_WEIGHTS {
            let message = format!(
                "`range` and heads are {shown} weights; a response has at most {MAX_SHOWN_WEIGHTS}: \
                                   choose a `layer`, a `head`, or a shorter `range`"
            );
            return Err(ApiError::field("range", message));
        }
        Ok(())
    }

    /// The response, as JSON.
    pub(super) fn answer(&self, hosted: &LoadedModel, model: &Gpt) -> Result<String, ApiError> {
        let tokenizer = &hosted.tokenizer;
        let prompt = Prompt::of_ids(self.prompt.clone(), tokenizer);
        let parts: Vec<ModelPart> = self.ablate.iter().map(|&(layer, head)| ModelPart::Head { layer, head }).collect();
        let &InspectFields { attention, patterns, lens, attribution, top, .. } = &self.fields;
        let recorded =
            (attention || patterns).then(|| PromptAttention::new(model, &prompt, &self.selection, &[])).transpose()?;
        let lens = lens.then(|| Lens::new(model, tokenizer, &prompt, top.max(1))).transpose()?;
        let attribute = |position| {
            let answer = Answer::likeliest(model, tokenizer, &prompt, position)?;
            Attribution::new(model, &prompt, position, answer, None)
        };
        let inspection = Inspection {
            object: "inspection",
            model: &hosted.name,
            ids: &prompt.ids,
            tokens: &prompt.texts,
            range: [self.range.start, self.range.end],
            whole: self.reading(model, hosted, &prompt, &[])?,
            ablation: match &*parts {
                [] => None,
                parts => Some(AblationBody { heads: &self.ablate, read: self.reading(model, hosted, &prompt, parts)? }),
            },
            attention: recorded.as_ref().filter(|_| attention).map(|recorded| self.weights(recorded)),
            patterns: recorded.as_ref().filter(|_| patterns).map(scores_on),
            lens: lens.map(|lens| lens.positions[self.range.clone()].to_vec()),
            attribution: attribution.map(attribute).transpose()?,
        };
        Ok(to_large_json(&inspection, PER_WEIGHT * self.n_shown()))
    }

    fn reading(
        &self,
        model: &Gpt,
        hosted: &LoadedModel,
        prompt: &Prompt,
        parts: &[ModelPart],
    ) -> Result<ReadingBody, ApiError> {
        let tokenizer = &hosted.tokenizer;
        let reading = Reading::new(model, tokenizer, prompt, parts, self.fields.top)?;
        let continuation = match self.fields.max_tokens {
            0 => None,
            n => {
                let written = generate_greedily(model, tokenizer, prompt, parts, &hosted.stop_token_ids, n)?;
                Some(Continuation::new(written, prompt, tokenizer))
            }
        };
        let losses = std::iter::once(None).chain(reading.losses.iter().copied().map(Some)).collect();
        Ok(ReadingBody { loss: reading.loss(), losses, next: reading.next, continuation })
    }

    fn weights<'a>(&self, attention: &'a PromptAttention) -> AttentionBody<'a> {
        let HeadSelection { layers, heads } = &self.selection;
        let row = |layer, head, query| &attention.recording.row(layer, head, query)[..=query];
        AttentionBody {
            layers: [layers.start, layers.end],
            heads: [heads.start, heads.end],
            weights: self
                .selection
                .map(|layer, head| self.range.clone().map(|query| row(layer, head, query)).collect()),
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

/// The bytes of an attention weight in JSON.
const PER_WEIGHT: usize = 14;

/// The memory for recording the attention of a text: its weights, and copies of them while they are computed.
pub(super) fn recorded_bytes(config: &ModelConfig, n_tokens: usize) -> usize {
    4 * size_of::<f32>() * config.n_layers * config.n_heads * n_tokens * n_tokens
}

/// Rejects a text with more attention weights than the server holds.
pub(super) fn check_weights(config: &ModelConfig, n_tokens: usize) -> Result<(), ApiError> {
    let n = config.n_layers * config.n_heads * n_tokens * n_tokens;
    if n <= MAX_INSPECTED_WEIGHTS {
        return Ok(());
    }
    let message = format!(
        "`prompt` has {n_tokens} tokens, for which this model has {n} attention weights; the limit is \
         {MAX_INSPECTED_WEIGHTS}: send a shorter text"
    );
    Err(ApiError::field("prompt", message))
}

/// The highest layer and head, as limits of these fields.
pub(super) fn last_head(config: &ModelConfig) -> [(&'static str, usize); 2] {
    [("layer", config.n_layers.saturating_sub(1)), ("head", config.n_heads.saturating_sub(1))]
}

/// Rejects a position that is not in a text of `n` tokens.
pub(super) fn check_position(name: &str, position: Option<usize>, n: usize) -> Result<(), ApiError> {
    match position {
        Some(at) if at >= n => Err(wrong(name, &at.into(), &format!("a whole number from 0 to {}", n - 1))),
        _ => Ok(()),
    }
}

/// A field with a text to inspect, of at most [`MAX_INSPECTED`] tokens.
pub(super) fn tokens(name: &str, value: &Value, model: &LoadedModel) -> Result<Vec<u32>, ApiError> {
    let tokens = prompt(name, value, model, "a string or a list of token ids")?.tokens;
    if tokens.len() > MAX_INSPECTED {
        let message = format!("`{name}` has {} tokens; at most {MAX_INSPECTED} can be inspected", tokens.len());
        return Err(ApiError::too_long(name, message));
    }
    Ok(tokens.to_vec())
}

/// The field `range`: `[from, to]`, excluding `to`; by default the whole prompt of `n` tokens.
fn range(value: &Value, n: usize) -> Result<Range<usize>, ApiError> {
    if value.is_null() {
        return Ok(0..n);
    }
    match serde_json::from_value::<[usize; 2]>(value.clone()) {
        Ok([from, to]) if from < to && to <= n => Ok(from..to),
        _ => Err(wrong("range", value, &format!("two positions [from, to], from below to, to at most {n}"))),
    }
}

/// The field `ablate`: a list of `[layer, head]`.
fn heads(list: &[Value], config: &ModelConfig) -> Result<Vec<(usize, usize)>, ApiError> {
    let ModelConfig { n_layers, n_heads, .. } = *config;
    let is_there = |&(layer, head): &(usize, usize)| layer < n_layers && head < n_heads;
    let value = Value::from(list);
    let heads: Option<Vec<_>> = serde_json::from_value(value.clone()).ok();
    let mut heads = heads.filter(|heads| heads.iter().all(is_there)).ok_or_else(|| {
        wrong("ablate", &value, &format!("a list of [layer, head], layers below {n_layers}, heads below {n_heads}"))
    })?;
    heads.sort_unstable();
    heads.dedup();
    Ok(heads)
}
