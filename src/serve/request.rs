//! Requests for text: the valid values of their fields, and the requested texts.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::calls::Tools;
use super::chat;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::format;
use super::hosted::Hosted;
use super::limits::{
    MAX_BIAS, MAX_CHOICES, MAX_SHOWN_SCORES, MAX_STOP, MAX_STOPS, MAX_TEXT, MAX_TOKENS, MAX_TOP_LOGPROBS,
};
use super::responses::{self, ResponseRequest};
use crate::config::GenerateConfig;
use crate::format::cut_in_the_middle;
use crate::generate::Guide;
use crate::model::OrderedJson;
use crate::tokenizer::Tokenizer;

/// A request to `/v1/completions`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["prompt"]))]
#[allow(dead_code, reason = "`prompt` is read first, and some fields have only one valid value")]
pub(super) struct CompletionRequest {
    /// A text, a list of tokens, or a list of either.
    #[schemars(extend("anyOf" = [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    ]))]
    prompt: Value,
    /// The most tokens that are written.
    #[schemars(range(max = MAX_TOKENS))]
    max_tokens: usize,
    /// Whether texts begin with their prompts, with log-probabilities if there are any.
    echo: bool,
    /// The log-probability of each token, and of so many of the likeliest at its position: the model's own, before
    /// temperature and bias.
    #[schemars(range(max = MAX_TOP_LOGPROBS))]
    logprobs: Option<usize>,
    /// Not supported.
    #[schemars(extend("type" = "integer", "enum" = [1]))]
    best_of: Option<f64>,
    /// Not supported.
    suffix: (),
    #[serde(flatten)]
    sampling: Sampling,
}

/// A request to `/v1/chat/completions`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["messages"]))]
#[allow(dead_code, reason = "some fields are read first, and some have only values that change nothing")]
pub(super) struct ChatRequest {
    #[schemars(extend("type" = "array", "minItems" = 1, "items" = {"$ref": "#/components/schemas/Message"}))]
    messages: Value,
    /// The most tokens that are written; by default as many as the context holds.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    max_tokens: Option<usize>,
    /// The newer name of `max_tokens`, which it takes precedence over.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    max_completion_tokens: Option<usize>,
    /// Whether each token has its log-probability.
    logprobs: bool,
    /// Only with logprobs: of how many of the likeliest tokens at its position.
    #[schemars(range(max = MAX_TOP_LOGPROBS))]
    top_logprobs: Option<usize>,
    /// Functions that the model may call, with a template that has tools.
    #[schemars(extend("type" = "array", "items" = {"type": "object", "required": ["type", "function"]}))]
    tools: Value,
    /// Whether the model calls none of the tools, any (auto), one (required), or the one that is named.
    #[schemars(extend("anyOf" = [{"type": "string", "enum": ["none", "auto", "required"]}, {"type": "object"}]))]
    tool_choice: Value,
    /// Changes nothing: the model decides how many calls it writes.
    parallel_tool_calls: Option<bool>,
    /// Whether the prompt ends where the answer begins, as it does by default, and not with the last message.
    add_generation_prompt: Option<bool>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[schemars(extend("type" = "object"))]
    chat_template_kwargs: Value,
    #[serde(flatten)]
    sampling: Sampling,
}

/// The fields shared by both kinds of requests.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
#[allow(dead_code, reason = "some fields have only one valid value")]
struct Sampling {
    /// How many texts of each prompt; at most 1024 in a request.
    #[schemars(range(min = 1, max = MAX_CHOICES))]
    n: usize,
    /// Divides the logits; 0 always takes the likeliest token.
    #[schemars(range(min = 0, max = 2))]
    temperature: f64,
    /// Only the likeliest tokens that together have this probability are drawn.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: f64,
    /// Only this many of the likeliest tokens are drawn; 0: all. At most the vocabulary.
    top_k: usize,
    /// Only tokens with at least this fraction of the likeliest one's probability are drawn.
    #[schemars(range(min = 0, max = 1))]
    min_p: f64,
    /// Above 1 makes tokens that already occur less likely.
    #[schemars(range(max = 10), extend("exclusiveMinimum" = 0))]
    repetition_penalty: f64,
    /// The text ends before any of these.
    #[schemars(extend("anyOf" = [
        {"type": "string", "minLength": 1, "maxLength": MAX_STOP},
        {"type": "array", "maxItems": MAX_STOPS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP}},
    ]))]
    stop: Value,
    /// Tokens that end the text, besides the model's own; they are not part of it.
    #[schemars(extend("type" = "array", "maxItems" = MAX_STOPS, "items" = {"type": "integer", "minimum": 0}))]
    stop_token_ids: Value,
    /// The tokens that end a text are not drawn before so many others.
    #[schemars(range(max = MAX_TOKENS))]
    min_tokens: usize,
    /// Whether the tokens that end a text are never drawn.
    ignore_eos: bool,
    /// The same seed writes the same text; by default, and with -1, another one each time.
    #[schemars(range(min = -1, max = i64::MAX))]
    seed: i64,
    /// Added to the logits of tokens, by token id.
    #[schemars(extend(
        "type" = "object",
        "additionalProperties" = {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    ))]
    logit_bias: Value,
    /// The form of the text: `{"type": "text"}`, `{"type": "json_object"}`, or
    /// `{"type": "json_schema", "json_schema": {"schema": ...}}`.
    #[schemars(extend("type" = "object"))]
    response_format: Value,
    /// Whether the texts come as server-sent events while they are written.
    stream: bool,
    /// Only with stream: whether a last event says how many tokens were read and written.
    #[schemars(with = "StreamOptions")]
    stream_options: Value,
    /// Changes nothing.
    user: Option<String>,
    /// Changes nothing.
    #[schemars(extend("type" = "object"))]
    metadata: Value,
    /// Subtracted from the logits of the tokens that were already written.
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: f64,
    /// Subtracted from the logit of a token as often as it was already written.
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: f64,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StreamOptions {
    include_usage: bool,
}

impl Default for CompletionRequest {
    fn default() -> Self {
        Self {
            prompt: Value::Null,
            max_tokens: 16,
            echo: false,
            logprobs: None,
            best_of: None,
            suffix: (),
            sampling: Sampling::default(),
        }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            n: 1,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop: Value::Null,
            stop_token_ids: Value::Null,
            min_tokens: 0,
            ignore_eos: false,
            seed: -1,
            logit_bias: Value::Null,
            response_format: Value::Null,
            stream: false,
            stream_options: Value::Null,
            user: None,
            metadata: Value::Null,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// A text to be continued.
#[derive(Clone, Debug)]
pub(super) struct EncodedPrompt {
    pub(super) tokens: Arc<[u32]>,
    /// Its text, without a BOS token added by the tokenizer.
    pub(super) text: Arc<str>,
}

impl EncodedPrompt {
    /// The number of tokens that can be written after it within the context; at least 1.
    fn room(&self, model: &Hosted) -> usize {
        (model.context_length() - self.tokens.len() + 1).min(MAX_TOKENS)
    }
}

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// That of `/v1/completions`.
    Completion,
    /// That of `/v1/chat/completions`.
    Chat,
    /// That of `/v1/responses`, which have one text.
    Response,
}

/// A request for texts.
#[allow(clippy::struct_excessive_bools, reason = "each is a field of a request")]
#[derive(Clone, Debug)]
pub(super) struct TextRequest {
    pub(super) shape: Shape,
    pub(super) prompts: Vec<EncodedPrompt>,
    /// The number of texts per prompt.
    pub(super) n: usize,
    /// Whether texts begin with their prompts.
    pub(super) echo: bool,
    /// The number of most probable tokens with each token's log-probability; `None` for no log-probabilities.
    pub(super) n_top: Option<usize>,
    pub(super) config: Arc<GenerateConfig>,
    /// Logit biases, by token.
    pub(super) bias: Arc<[(u32, f32)]>,
    /// Allows the next tokens of each text; `None` if all are.
    pub(super) guide: Option<Guide>,
    /// Whether calls are taken out of the texts.
    pub(super) has_tools: bool,
    /// The fields that the response repeats.
    pub(super) repeated: Value,
    pub(super) stream: bool,
    /// Whether a stream ends with the numbers of tokens read and generated.
    pub(super) include_usage: bool,
}

impl TextRequest {
    /// Reads a request to `/v1/completions`.
    pub(super) fn completion(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let prompts = prompts("prompt", &mut fields, model)?;
        let guide = format::guide("response_format", fields.take_ordered("response_format").as_ref(), model)?;
        let request: CompletionRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
        let CompletionRequest { max_tokens, echo, logprobs, sampling, .. } = request;
        let request = sampling.request(model, Shape::Completion, prompts, max_tokens, echo, logprobs)?;
        Ok(Self { guide, ..request })
    }

    /// Reads a request to `/v1/chat/completions`.
    pub(super) fn chat(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let (text, tools) = rendered(&mut fields, model)?;
        let prompt = chat::prompt("messages", text, model)?;
        let form = format::guide("response_format", fields.take_ordered("response_format").as_ref(), model)?;
        let call = tools.as_ref().map(|tools| tools.guide(model)).transpose()?.flatten();
        if form.is_some() && call.is_some() {
            return Err(ApiError::field(
                "response_format",
                "a text that must be a call cannot have a `response_format`",
            ));
        }
        let request: ChatRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
        let ChatRequest { max_tokens, max_completion_tokens, logprobs, top_logprobs, sampling, .. } = request;
        let max_tokens = max_completion_tokens.or(max_tokens);
        let max_tokens = max_tokens.unwrap_or_else(|| prompt.room(model));
        if top_logprobs.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` = true"));
        }
        let n_top = logprobs.then(|| top_logprobs.unwrap_or(0));
        let request = sampling.request(model, Shape::Chat, vec![prompt], max_tokens, false, n_top)?;
        Ok(Self { guide: form.or(call), has_tools: tools.is_some(), ..request })
    }

    /// Reads a request to `/v1/responses`.
    pub(super) fn response(mut fields: Fields, model: &Hosted) -> Result<Self, ApiError> {
        let (input, instructions) = (fields.take("input"), fields.text("instructions")?);
        let messages = responses::messages(input.as_ref(), instructions.clone())?;
        let prompt = chat::prompt("input", chat::rendered("input", messages, true, None, None, model)?, model)?;
        let text = fields.take_ordered("text");
        let text = text.unwrap_or(OrderedJson::Object(Vec::new()));
        if text.entries().is_none() {
            return Err(ApiError::field("text", "`text` must be an object with a `format`"));
        }
        let guide = format::guide("text", text.get("format"), model)?;
        let request: ResponseRequest = fields.parse(&[])?;
        let repeated = responses::repeated(&request, instructions.as_deref());
        let ResponseRequest { max_output_tokens, temperature, top_p, seed, stream, .. } = request;
        let max_tokens = max_output_tokens.unwrap_or_else(|| prompt.room(model));
        let (temperature, top_p, seed) = (temperature.unwrap_or(1.0), top_p.unwrap_or(1.0), seed.unwrap_or(-1));
        let sampling = Sampling { temperature, top_p, seed, stream, ..Sampling::default() };
        let request = sampling.request(model, Shape::Response, vec![prompt], max_tokens, false, None)?;
        Ok(Self { guide, repeated, ..request })
    }

    /// Rejects a request whose response could have too many log-probabilities.
    fn check_size(&self) -> Result<(), ApiError> {
        let Some(n_top) = self.n_top else { return Ok(()) };
        let n_echoed: usize = if self.echo { self.prompts.iter().map(|prompt| prompt.tokens.len()).sum() } else { 0 };
        let n_tokens = n_echoed * self.n + self.config.max_new_tokens * self.n_choices();
        let n_scores = n_tokens * (n_top + 1);
        if n_scores <= MAX_SHOWN_SCORES {
            return Ok(());
        }
        let message = format!(
            "up to {n_tokens} tokens with {} log-probabilities each are more than the {MAX_SHOWN_SCORES} that a response \
             may have; ask for fewer, or in several requests",
            n_top + 1,
        );
        Err(ApiError::field("logprobs", message))
    }

    /// The number of requested texts.
    pub(super) fn n_choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The prompt of a text.
    pub(super) fn prompt(&self, choice: usize) -> &EncodedPrompt {
        &self.prompts[choice / self.n]
    }
}

impl Sampling {
    fn request(
        self,
        model: &Hosted,
        shape: Shape,
        prompts: Vec<EncodedPrompt>,
        max_new_tokens: usize,
        echo: bool,
        n_top: Option<usize>,
    ) -> Result<TextRequest, ApiError> {
        let Self { n, temperature, top_p, top_k, min_p, repetition_penalty, stream, .. } = self;
        let (presence_penalty, frequency_penalty) = (self.presence_penalty, self.frequency_penalty);
        let mut stop_token_ids = model.stop_token_ids.clone();
        stop_token_ids.extend(stop_tokens(&self.stop_token_ids, &model.tokenizer)?);
        let config = Arc::new(GenerateConfig {
            max_new_tokens,
            num_samples: n,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            stop: stops(&self.stop)?,
            stop_token_ids,
            min_new_tokens: if self.ignore_eos { max_new_tokens } else { self.min_tokens },
            seed: self.seed.try_into().unwrap_or_else(|_| super::random()),
            speculate: 0,
        });
        let bias = bias(&self.logit_bias, &model.tokenizer)?;
        let include_usage = include_usage(self.stream_options, stream)?;
        let n_choices = prompts.len() * n;
        if n_choices > MAX_CHOICES {
            let message =
                format!("`n` texts of each prompt are {n_choices} texts; a request may ask for {MAX_CHOICES}");
            return Err(ApiError::field("n", message));
        }
        let (guide, has_tools, repeated) = (None, false, Value::Null);
        let request = TextRequest {
            shape,
            prompts,
            n,
            echo,
            n_top,
            config,
            bias,
            guide,
            has_tools,
            repeated,
            stream,
            include_usage,
        };
        request.check_size()?;
        Ok(request)
    }
}

/// The text that the chat template makes of the fields of a chat, and the tools in them.
fn rendered(fields: &mut Fields, model: &Hosted) -> Result<(String, Option<Tools>), ApiError> {
    let (messages, variables) = (fields.take("messages"), fields.take_ordered("chat_template_kwargs"));
    let tools = Tools::read(fields.take_ordered("tools"), fields.take("tool_choice"), model)?;
    let messages = chat::messages(messages.as_ref())?;
    let to_answer = fields.truth("add_generation_prompt")?.unwrap_or(true);
    let text = chat::rendered("messages", messages, to_answer, variables, tools.as_ref(), model)?;
    Ok((text, tools))
}

/// Reads a request to `/apply-template`, with the fields of a chat: the text of the prompt, however long it is.
pub(super) fn rendered_chat(mut fields: Fields, model: &Hosted) -> Result<String, ApiError> {
    let (text, _) = rendered(&mut fields, model)?;
    let _: ChatRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
    Ok(text)
}

fn stops(value: &Value) -> Result<Vec<String>, ApiError> {
    let rule = format!("a string or a list of at most {MAX_STOPS} strings, of 1 to {MAX_STOP} bytes each");
    let stops: Option<Vec<String>> = match value {
        Value::Null => Some(Vec::new()),
        Value::String(stop) => Some(vec![stop.clone()]),
        Value::Array(stops) => stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let is_good =
        |stops: &Vec<String>| stops.len() <= MAX_STOPS && stops.iter().all(|stop| (1..=MAX_STOP).contains(&stop.len()));
    stops.filter(is_good).ok_or_else(|| wrong("stop", value, &rule))
}

fn stop_tokens(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) if list.len() <= MAX_STOPS => tokens("stop_token_ids", list, tokenizer),
        other => Err(wrong("stop_token_ids", other, &format!("a list of at most {MAX_STOPS} token ids"))),
    }
}

fn bias(value: &Value, tokenizer: &Tokenizer) -> Result<Arc<[(u32, f32)]>, ApiError> {
    if value.is_null() {
        return Ok(Arc::default());
    }
    let n_ids = tokenizer.vocab_size();
    let entry = |(token, bias): (&String, &Value)| {
        let token: u32 = token.parse().ok().filter(|token| (*token as usize) < n_ids)?;
        #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
        let bias = bias.as_f64().filter(|bias| bias.abs() <= MAX_BIAS)? as f32;
        Some((token, bias))
    };
    let entries: Option<Arc<[_]>> = value.as_object().and_then(|entries| entries.iter().map(entry).collect());
    let rule = format!("an object of token ids, below {n_ids}, with numbers from -{MAX_BIAS} to {MAX_BIAS}");
    entries.ok_or_else(|| wrong("logit_bias", value, &rule))
}

fn include_usage(value: Value, stream: bool) -> Result<bool, ApiError> {
    match value {
        Value::Null => Ok(false),
        _ if !stream => Err(ApiError::field("stream_options", "`stream_options` needs `stream` = true")),
        Value::Object(options) => Ok(Fields::from_object(options).parse::<StreamOptions>(&[])?.include_usage),
        other => Err(wrong("stream_options", &other, "an object")),
    }
}

/// The prompts in a field: a string, a list of token ids, or a list of either.
pub(super) fn prompts(name: &str, fields: &mut Fields, model: &Hosted) -> Result<Vec<EncodedPrompt>, ApiError> {
    let rule = "a string, a list of strings, a list of token ids, or a list of such lists";
    let Some(value) = fields.take(name) else {
        return Err(ApiError::field(name, format!("there is no `{name}`: it must be {rule}")));
    };
    let prompts: Vec<EncodedPrompt> = match &value {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => {
            if list.len() > MAX_CHOICES {
                let message = format!("`{name}` has {} texts; a request may have {MAX_CHOICES}", list.len());
                return Err(ApiError::field(name, message));
            }
            list.iter().map(|value| prompt(name, value, model, rule)).collect::<Result<_, _>>()?
        }
        value => vec![prompt(name, value, model, rule)?],
    };
    Ok(prompts)
}

/// A field with a non-empty text or list of token ids that fits the context.
pub(super) fn prompt(name: &str, value: &Value, model: &Hosted, rule: &str) -> Result<EncodedPrompt, ApiError> {
    let tokenizer = &model.tokenizer;
    let (tokens, text) = match value {
        Value::String(text) => {
            check_text(name, text)?;
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
    Ok(EncodedPrompt { tokens: tokens.into(), text: text.into() })
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

/// Rejects a text that is too long to be split into tokens.
pub(super) fn check_text(name: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    let message = format!("`{name}` has a text of {} bytes; a text may have {MAX_TEXT}", text.len());
    Err(ApiError::field(name, message))
}

pub(super) fn check_prompt(name: &str, tokens: &[u32], model: &Hosted) -> Result<(), ApiError> {
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
