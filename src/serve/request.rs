//! Requests for text: the valid values of their fields, and the requested texts.

use std::sync::Arc;

use serde_json::Value;

use super::chat;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::hosted::Hosted;
use super::limits::{MAX_CHOICES, MAX_STOPS, MAX_TOKENS, MAX_TOP_LOGPROBS};
use crate::config::GenerateConfig;
use crate::format::cut_in_the_middle;
use crate::tokenizer::Tokenizer;

/// The default `max_tokens` of `/v1/completions`, OpenAI's.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A text to be continued.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) tokens: Arc<[u32]>,
    /// Its text, without a BOS token added by the tokenizer.
    pub(super) text: Arc<str>,
}

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// That of `/v1/completions`.
    Completion,
    /// That of `/v1/chat/completions`.
    Chat,
}

/// A request for texts.
#[derive(Clone, Debug)]
pub(super) struct TextRequest {
    pub(super) shape: Shape,
    pub(super) prompts: Vec<Prompt>,
    /// The number of texts per prompt.
    pub(super) n: usize,
    /// Whether texts begin with their prompts.
    pub(super) echo: bool,
    /// The number of most probable tokens with each token's log-probability; `None` for no log-probabilities.
    pub(super) n_top: Option<usize>,
    pub(super) config: Arc<GenerateConfig>,
    /// Logit biases, by token.
    pub(super) bias: Arc<[(u32, f32)]>,
    pub(super) stream: bool,
    /// Whether a stream ends with the numbers of tokens read and generated.
    pub(super) include_usage: bool,
}

/// The model that a request names; `None` if it names none.
pub(super) fn model_name(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    fields.text("model")
}

impl TextRequest {
    /// Reads a request to `/v1/completions`.
    pub(super) fn completion(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let prompts = prompts(&mut fields, model)?;
        let max_tokens = fields.size("max_tokens", 0..=MAX_TOKENS)?.unwrap_or(DEFAULT_MAX_TOKENS);
        let echo = fields.flag("echo")?.unwrap_or(false);
        let n_top = fields.size("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        fields.only("suffix", &Value::Null)?;
        fields.only("best_of", &1.into())?;
        let common = Common::take(&mut fields, model, max_tokens)?;
        fields.finish()?;
        common.of(Shape::Completion, prompts, echo, n_top)
    }

    /// Reads a request to `/v1/chat/completions`.
    pub(super) fn chat(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let messages = fields.take("messages");
        let text = chat::prompt(&model.chat_template, messages.as_ref(), &model.name)?;
        let tokens = model.tokenizer.encode(&text).map_err(|error| ApiError::field("messages", error.to_string()))?;
        check_prompt("messages", &tokens, model)?;
        let max_tokens = fields.size("max_tokens", 1..=MAX_TOKENS)?;
        let max_tokens = fields.size("max_completion_tokens", 1..=MAX_TOKENS)?.or(max_tokens);
        let max_tokens = max_tokens.unwrap_or(model.context_length() - tokens.len() + 1).min(MAX_TOKENS);
        let with_logprobs = fields.flag("logprobs")?.unwrap_or(false);
        let n_top = fields.size("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
        if n_top.is_some() && !with_logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` = true"));
        }
        let n_top = with_logprobs.then(|| n_top.unwrap_or(0));
        fields.only("response_format", &serde_json::json!({"type": "text"}))?;
        let common = Common::take(&mut fields, model, max_tokens)?;
        fields.finish()?;
        let prompt = Prompt { tokens: tokens.into(), text: text.into() };
        common.of(Shape::Chat, vec![prompt], false, n_top)
    }

    /// The number of requested texts.
    pub(super) fn n_choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The prompt of a text.
    pub(super) fn prompt(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.n]
    }
}

/// The fields shared by both kinds of requests.
struct Common {
    n: usize,
    config: GenerateConfig,
    bias: Arc<[(u32, f32)]>,
    stream: bool,
    include_usage: bool,
}

impl Common {
    fn take(fields: &mut Fields, model: &Hosted, max_new_tokens: usize) -> Result<Self, ApiError> {
        let n = fields.size("n", 1..=MAX_CHOICES)?.unwrap_or(1);
        let config = GenerateConfig {
            max_new_tokens,
            num_samples: n,
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
            top_k: fields.size("top_k", 0..=model.tokenizer.vocab_size())?.unwrap_or(0),
            top_p: fields.positive("top_p", 1.0)?.unwrap_or(1.0),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
            repetition_penalty: fields.positive("repetition_penalty", 10.0)?.unwrap_or(1.0),
            stop: stops(fields)?,
            seed: fields.count("seed", 0..=i64::MAX as u64)?.unwrap_or_else(super::random),
        };
        let bias = bias(fields, &model.tokenizer)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = include_usage(fields, stream)?;
        fields.text("user")?; // has no effect
        fields.only("presence_penalty", &0.into())?;
        fields.only("frequency_penalty", &0.into())?;
        Ok(Self { n, config, bias, stream, include_usage })
    }

    fn of(self, shape: Shape, prompts: Vec<Prompt>, echo: bool, n_top: Option<usize>) -> Result<TextRequest, ApiError> {
        let Self { n, config, bias, stream, include_usage } = self;
        let n_choices = prompts.len() * n;
        if n_choices > MAX_CHOICES {
            let message =
                format!("`n` texts of each prompt are {n_choices} texts; a request may ask for {MAX_CHOICES}");
            return Err(ApiError::field("n", message));
        }
        let config = Arc::new(config);
        Ok(TextRequest { shape, prompts, n, echo, n_top, config, bias, stream, include_usage })
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let rule = format!("a string or a list of at most {MAX_STOPS} strings, none of them empty");
    let Some(value) = fields.take("stop") else { return Ok(Vec::new()) };
    let stops: Option<Vec<String>> = match &value {
        Value::String(stop) => Some(vec![stop.clone()]),
        Value::Array(stops) => stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let is_good = |stops: &Vec<String>| stops.len() <= MAX_STOPS && stops.iter().all(|stop| !stop.is_empty());
    stops.filter(is_good).ok_or_else(|| wrong("stop", &value, &rule))
}

fn bias(fields: &mut Fields, tokenizer: &Tokenizer) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Arc::default()) };
    let n_ids = tokenizer.vocab_size();
    let entry = |(token, bias): (&String, &Value)| {
        let token: u32 = token.parse().ok().filter(|token| (*token as usize) < n_ids)?;
        #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))? as f32;
        Some((token, bias))
    };
    let entries: Option<Arc<[_]>> = value.as_object().and_then(|entries| entries.iter().map(entry).collect());
    let rule = format!("an object of token ids, below {n_ids}, with numbers from -100 to 100");
    entries.ok_or_else(|| wrong("logit_bias", &value, &rule))
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "`stream_options` needs `stream` = true"));
    }
    let Value::Object(options) = value else { return Err(wrong("stream_options", &value, "an object")) };
    let mut options = Fields::of(options);
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.finish()?;
    Ok(include_usage)
}

/// The prompts of a request: a string, a list of token ids, or a list of either.
fn prompts(fields: &mut Fields, model: &Hosted) -> Result<Vec<Prompt>, ApiError> {
    let rule = "a string, a list of strings, a list of token ids, or a list of such lists";
    let Some(value) = fields.take("prompt") else {
        return Err(ApiError::field("prompt", format!("there is no `prompt`: it must be {rule}")));
    };
    let prompts: Vec<Prompt> = match &value {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => {
            if list.len() > MAX_CHOICES {
                let message = format!("`prompt` has {} prompts; a request may have {MAX_CHOICES}", list.len());
                return Err(ApiError::field("prompt", message));
            }
            list.iter().map(|value| prompt("prompt", value, model, rule)).collect::<Result<_, _>>()?
        }
        value => vec![prompt("prompt", value, model, rule)?],
    };
    Ok(prompts)
}

/// A field with a non-empty text or list of token ids that fits the context.
pub(super) fn prompt(name: &str, value: &Value, model: &Hosted, rule: &str) -> Result<Prompt, ApiError> {
    let tokenizer = &model.tokenizer;
    let (tokens, text) = match value {
        Value::String(text) => {
            let tokens = tokenizer.encode_prompt(text);
            (tokens.map_err(|error| ApiError::field(name, error.to_string()))?, text.clone())
        }
        Value::Array(list) => {
            let tokens = tokens(name, list, tokenizer)?;
            let text = tokenizer.decode(&tokens);
            (tokens, text)
        }
        other => return Err(wrong(name, other, rule)),
    };
    check_prompt(name, &tokens, model)?;
    Ok(Prompt { tokens: tokens.into(), text: text.into() })
}

/// The token ids in a request.
pub(super) fn tokens(name: &str, list: &[Value], tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let n_ids = tokenizer.vocab_size();
    let token = |value: &Value| {
        let token = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_ids);
        token.ok_or_else(|| {
            let value = cut_in_the_middle(&value.to_string(), 100);
            ApiError::field(name, format!("`{name}` has the token {value}; tokens are whole numbers below {n_ids}"))
        })
    };
    list.iter().map(token).collect()
}

fn check_prompt(name: &str, tokens: &[u32], model: &Hosted) -> Result<(), ApiError> {
    let most = model.context_length();
    match tokens.len() {
        0 => Err(ApiError::field(name, format!("`{name}` is empty: it must have at least one token"))),
        n if n > most => {
            let message = format!("`{name}` has {n} tokens, and the context of `{}` holds {most}", model.name);
            Err(ApiError::too_long(name, message))
        }
        _ => Ok(()),
    }
}
