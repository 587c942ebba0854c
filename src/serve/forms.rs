//! The fields of requests for completions, in OpenAI's three forms.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::limits::{MAX_BIAS, MAX_SEQUENCES, MAX_STOP, MAX_STOPS, MAX_TOKENS, MAX_TOP_LOGPROBS};

/// A request to `/v1/completions`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["prompt"]))]
#[allow(dead_code, reason = "some fields have only one valid value")]
pub(super) struct CompletionRequest {
    /// A text, a list of tokens, or a list of either.
    #[schemars(extend("anyOf" = [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    ]))]
    pub(super) prompt: Value,
    /// The maximum number of tokens to generate.
    #[serde(default = "sixteen")]
    #[schemars(range(max = MAX_TOKENS))]
    pub(super) max_tokens: usize,
    /// Begin each completion with its prompt, and with the prompt's log-probabilities if requested.
    pub(super) echo: bool,
    /// Return the log-probability of each token and of this many of the likeliest at its position: the model's own,
    /// before temperature and bias.
    #[schemars(range(max = MAX_TOP_LOGPROBS))]
    pub(super) logprobs: Option<usize>,
    /// Not supported.
    #[schemars(extend("type" = "integer", "enum" = [1]))]
    best_of: Option<f64>,
    /// Not supported.
    suffix: (),
    #[serde(flatten)]
    pub(super) sampling: Sampling,
}

/// A request to `/v1/chat/completions`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["messages"]))]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
pub(super) struct ChatRequest {
    #[schemars(extend("type" = "array", "minItems" = 1, "items" = {"$ref": "#/components/schemas/Message"}))]
    pub(super) messages: Value,
    /// The maximum number of tokens to generate; by default as many as the context holds.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    pub(super) max_tokens: Option<usize>,
    /// The newer name of `max_tokens`; takes precedence over it.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    pub(super) max_completion_tokens: Option<usize>,
    /// Return the log-probability of each token.
    pub(super) logprobs: bool,
    /// Only with logprobs: return that of this many of the likeliest tokens at each position.
    #[schemars(range(max = MAX_TOP_LOGPROBS))]
    pub(super) top_logprobs: Option<usize>,
    /// Functions that the model may call, for a template that supports tools.
    #[schemars(extend("items" = {"type": "object", "required": ["type", "function"]}))]
    pub(super) tools: Vec<Value>,
    /// Which tools the model calls: none, any (auto), at least one (required), or the named one.
    #[schemars(extend("anyOf" = [{"type": "string", "enum": ["none", "auto", "required"]}, {"type": "object"}]))]
    pub(super) tool_choice: Value,
    /// If false, the completion ends with its first tool call.
    pub(super) parallel_tool_calls: Option<bool>,
    /// Not supported.
    #[schemars(extend("type" = "string", "enum" = ["none", "auto"]))]
    function_call: Value,
    /// Not supported, except for an empty list: use `tools`.
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    functions: Value,
    /// The variable `reasoning_effort` of the model's chat template, which may have none.
    pub(super) reasoning_effort: Option<String>,
    /// Not supported.
    #[schemars(extend("type" = "string", "enum" = ["medium"]))]
    verbosity: Value,
    /// Ignored: it changes no completion.
    prediction: Map<String, Value>,
    /// Not supported: responses are text.
    #[schemars(extend("type" = "array", "enum" = [["text"]]))]
    modalities: Value,
    /// Not supported.
    #[schemars(extend("type" = "boolean", "enum" = [false]))]
    store: Value,
    /// End the prompt where the answer begins, the default, and not with the last message.
    pub(super) add_generation_prompt: Option<bool>,
    /// End the prompt with the text of the last message, which the completion continues.
    pub(super) continue_final_message: bool,
    /// Variables of the model's chat template, such as `enable_thinking`.
    pub(super) chat_template_kwargs: Map<String, Value>,
    #[serde(flatten)]
    pub(super) sampling: Sampling,
}

/// A request to `/v1/responses`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["input"]))]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
pub(super) struct ResponseRequest {
    /// A text, or messages of texts.
    #[schemars(extend("anyOf" = [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]))]
    pub(super) input: Value,
    /// A system message before the input.
    pub(super) instructions: Option<String>,
    /// The maximum number of tokens to generate; by default as many as the context holds.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    pub(super) max_output_tokens: Option<usize>,
    /// The format of the response, in its `format`.
    #[schemars(extend("type" = "object"))]
    pub(super) text: Value,
    /// Its `effort` is the variable `reasoning_effort` of the model's chat template, which may have none.
    #[schemars(extend("type" = "object"))]
    pub(super) reasoning: Value,
    /// Ignored: no response is stored.
    store: Option<bool>,
    /// Not supported.
    #[schemars(extend("type" = "boolean", "enum" = [false]))]
    background: Value,
    /// Not supported.
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    include: Value,
    /// Not supported.
    #[schemars(extend("type" = "integer", "enum" = [0]))]
    top_logprobs: Value,
    /// Returned with the response.
    pub(super) metadata: Map<String, Value>,
    /// Not supported, except for an empty list.
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    tools: Value,
    /// Not supported, except for values that choose no tool.
    #[schemars(extend("type" = "string", "enum" = ["none", "auto"]))]
    tool_choice: Value,
    /// Ignored: there are no tools.
    parallel_tool_calls: Option<bool>,
    /// Ignored: there are no tools.
    max_tool_calls: Option<usize>,
    /// Not supported.
    #[schemars(extend("type" = "string", "enum" = ["disabled"]))]
    truncation: Value,
    /// Not supported.
    previous_response_id: (),
    #[serde(flatten)]
    pub(super) common: Common,
}

/// The fields of completions and chats.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(dead_code, reason = "`metadata` changes nothing")]
pub(super) struct Sampling {
    /// The number of completions of each prompt; at most 1024 in a request.
    #[serde(default = "one::<usize>")]
    #[schemars(range(min = 1, max = MAX_SEQUENCES))]
    pub(super) n: usize,
    /// Sample only from this many of the likeliest tokens; 0: from all. At most the vocabulary.
    pub(super) top_k: usize,
    /// Sample only tokens with at least this fraction of the likeliest one's probability.
    #[schemars(range(min = 0, max = 1))]
    pub(super) min_p: f64,
    /// Above 1 makes tokens that already occur less likely.
    #[serde(default = "one::<f64>")]
    #[schemars(range(max = 10), extend("exclusiveMinimum" = 0))]
    pub(super) repetition_penalty: f64,
    /// End the completion before any of these strings.
    #[schemars(extend("anyOf" = [
        {"type": "string", "minLength": 1, "maxLength": MAX_STOP},
        {"type": "array", "maxItems": MAX_STOPS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP}},
    ]))]
    pub(super) stop: Value,
    /// Tokens that end the completion, besides the model's own; they are not part of it.
    #[schemars(extend("maxItems" = MAX_STOPS, "items" = {"type": "integer", "minimum": 0}))]
    pub(super) stop_token_ids: Vec<Value>,
    /// The number of tokens to generate before a token may end the completion.
    #[schemars(range(max = MAX_TOKENS))]
    pub(super) min_tokens: usize,
    /// Never sample tokens that end the completion.
    pub(super) ignore_eos: bool,
    /// Added to the logits of tokens, by token id.
    #[schemars(extend("additionalProperties" = {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}))]
    pub(super) logit_bias: Map<String, Value>,
    /// The format of the completion: `{"type": "text"}`, `{"type": "json_object"}`, or
    /// `{"type": "json_schema", "json_schema": {"schema": ...}}`.
    #[schemars(extend("type" = "object"))]
    pub(super) response_format: Value,
    /// Ignored.
    pub(super) metadata: Map<String, Value>,
    /// Subtracted once from the logit of each token generated before.
    #[schemars(range(min = -2, max = 2))]
    pub(super) presence_penalty: f64,
    /// Subtracted from the logit of a token for each time it was generated before.
    #[schemars(range(min = -2, max = 2))]
    pub(super) frequency_penalty: f64,
    #[serde(flatten)]
    pub(super) common: Common,
}

/// The fields of all three forms.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
pub(super) struct Common {
    /// Divides the logits; 0 always takes the likeliest token.
    #[serde(default = "one::<f64>")]
    #[schemars(range(min = 0, max = 2))]
    pub(super) temperature: f64,
    /// Sample only from the likeliest tokens that together have this probability; 0 always takes the likeliest token.
    #[serde(default = "one::<f64>")]
    #[schemars(range(min = 0, max = 1))]
    pub(super) top_p: f64,
    /// The same seed generates the same completion; by default, and with -1, it is another one each time.
    #[serde(default = "minus_one")]
    #[schemars(range(min = -1, max = i64::MAX))]
    pub(super) seed: i64,
    /// Send the response as server-sent events while it is generated.
    pub(super) stream: bool,
    /// Only with stream: end with an event that counts the tokens of the prompt and of the completion.
    #[schemars(with = "StreamOptions")]
    pub(super) stream_options: Option<StreamOptions>,
    /// Ignored.
    user: Option<String>,
    /// Ignored.
    safety_identifier: Option<String>,
    /// Ignored: what prompts have in common is found without a key.
    prompt_cache_key: Option<String>,
    /// Ignored, as is the key.
    prompt_cache_retention: Option<String>,
    /// Ignored, as is the key.
    prompt_cache_options: Map<String, Value>,
    /// Not supported, except for values that choose nothing.
    #[schemars(extend("type" = "string", "enum" = ["auto", "default"]))]
    service_tier: Value,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

fn minus_one() -> i64 {
    -1
}

fn sixteen() -> usize {
    16
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StreamOptions {
    /// Ignored by `/v1/responses`, whose last event always counts them.
    pub(super) include_usage: bool,
    /// Not supported.
    pub(super) include_obfuscation: bool,
}
