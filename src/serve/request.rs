//! Requests for completions, in which the fields of OpenAI's forms are checked and turned into settings of sequences.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::calls::Tools;
use super::chat;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::format;
use super::forms::{ChatRequest, Common, CompletionRequest, ResponseRequest, Sampling, StreamOptions};
use super::ids::{random, unix_s};
use super::limits::{MAX_BIAS, MAX_SEQUENCES, MAX_SHOWN_SCORES, MAX_STOP, MAX_STOPS};
use super::loaded_model::LoadedModel;
use super::prompt::{EncodedPrompt, prompts, tokens};
use super::scheduler::Settings;
use crate::config::GenerateConfig;
use crate::tokenizer::Tokenizer;

/// The form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// That of `/v1/completions`.
    Completion,
    /// That of `/v1/chat/completions`.
    Chat,
    /// That of `/v1/responses`, which have one completion.
    Response,
}

/// A request for completions.
#[allow(clippy::struct_excessive_bools, reason = "each is a field of a request")]
#[derive(Clone, Debug)]
pub(super) struct GenerateRequest {
    pub(super) form: Form,
    /// The id of the response.
    pub(super) id: String,
    pub(super) created_unix_s: u64,
    /// The name of the model.
    pub(super) model: String,
    pub(super) prompts: Vec<EncodedPrompt>,
    /// The number of completions per prompt.
    pub(super) n: usize,
    /// Whether completions begin with their prompts.
    pub(super) echo: bool,
    pub(super) settings: Settings,
    /// Whether tool calls are extracted from the completions.
    pub(super) has_tools: bool,
    /// The fields that the response repeats.
    pub(super) repeated: Value,
    pub(super) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(super) include_usage: bool,
}

impl GenerateRequest {
    /// Reads a request to `/v1/completions`.
    pub(super) fn completion(mut fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let prompts = prompts("prompt", &mut fields, model)?;
        let guide = format::guide("response_format", fields.take("response_format").as_ref(), model)?;
        let request: CompletionRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
        let CompletionRequest { max_tokens, echo, logprobs, sampling, .. } = request;
        let mut request = sampling.request(Form::Completion, prompts, max_tokens, model)?;
        request.echo = echo;
        request.settings.n_top = logprobs;
        request.settings.scores_prompt = echo && logprobs.is_some();
        request.settings.guide = guide;
        request.check_size()?;
        Ok(request)
    }

    /// Reads a request to `/v1/chat/completions`.
    pub(super) fn chat(mut fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let (text, tools) = rendered(&mut fields, model)?;
        let prompt = chat::prompt("messages", text, model)?;
        let format = format::guide("response_format", fields.take("response_format").as_ref(), model)?;
        let call = tools.as_ref().map(|tools| tools.guide(model)).transpose()?.flatten();
        if format.is_some() && call.is_some() {
            let message = "a completion that must be a tool call cannot have a `response_format`";
            return Err(ApiError::field("response_format", message));
        }
        let request: ChatRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
        let ChatRequest { max_tokens, max_completion_tokens, logprobs, top_logprobs, sampling, .. } = request;
        let max_tokens = max_completion_tokens.or(max_tokens).unwrap_or_else(|| prompt.room(model));
        if top_logprobs.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` = true"));
        }
        let mut request = sampling.request(Form::Chat, vec![prompt], max_tokens, model)?;
        request.has_tools = tools.is_some();
        request.settings.n_top = logprobs.then(|| top_logprobs.unwrap_or(0));
        request.settings.guide = format.or(call);
        request.check_size()?;
        Ok(request)
    }

    /// Reads a request to `/v1/responses`.
    pub(super) fn response(mut fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let (input, instructions) = (fields.take("input"), fields.text("instructions")?);
        let messages = chat::input_messages(input.as_ref(), instructions.clone())?;
        let prompt = chat::prompt("input", chat::rendered("input", messages, true, None, None, model)?, model)?;
        let text = fields.take("text").unwrap_or(json!({}));
        if !text.is_object() {
            return Err(ApiError::field("text", "`text` must be an object with a `format`"));
        }
        let guide = format::guide("text", format::present(&text, "format"), model)?;
        let ResponseRequest { max_output_tokens, metadata, common, .. } = fields.parse(&[])?;
        let sampling = Sampling { common, ..Fields::from_object(Map::new()).parse(&[])? };
        let max_tokens = max_output_tokens.unwrap_or_else(|| prompt.room(model));
        let mut request = sampling.request(Form::Response, vec![prompt], max_tokens, model)?;
        request.settings.guide = guide;
        let metadata = if metadata.is_null() { json!({}) } else { metadata };
        request.repeated =
            json!({"instructions": instructions, "max_output_tokens": max_output_tokens, "metadata": metadata});
        Ok(request)
    }

    /// Rejects a request whose response could have too many log-probabilities.
    fn check_size(&self) -> Result<(), ApiError> {
        let Some(n_top) = self.settings.n_top else { return Ok(()) };
        let n_echoed: usize = if self.echo { self.prompts.iter().map(|prompt| prompt.tokens.len()).sum() } else { 0 };
        let n_tokens = n_echoed * self.n + self.settings.config.max_new_tokens * self.n_sequences();
        if n_tokens * (n_top + 1) <= MAX_SHOWN_SCORES {
            return Ok(());
        }
        let message = format!(
            "up to {n_tokens} tokens with {} log-probabilities each are more than the {MAX_SHOWN_SCORES} that a response \
             may have; ask for fewer, or in several requests",
            n_top + 1,
        );
        Err(ApiError::field("logprobs", message))
    }

    /// The number of sequences.
    pub(super) fn n_sequences(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The prompt of a sequence.
    pub(super) fn prompt(&self, idx: usize) -> &EncodedPrompt {
        &self.prompts[idx / self.n]
    }
}

impl Sampling {
    /// A request without log-probabilities, guide and tools.
    fn request(
        self,
        form: Form,
        prompts: Vec<EncodedPrompt>,
        max_new_tokens: usize,
        model: &LoadedModel,
    ) -> Result<GenerateRequest, ApiError> {
        let (tokenizer, n) = (&model.tokenizer, self.n);
        let Common { temperature, top_p, seed, stream, .. } = self.common;
        let mut stop_token_ids = model.stop_token_ids.clone();
        stop_token_ids.extend(stop_tokens(&self.stop_token_ids, tokenizer)?);
        let config = GenerateConfig {
            max_new_tokens,
            num_samples: n,
            temperature,
            top_k: self.top_k,
            top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            stop: stops(&self.stop)?,
            stop_token_ids,
            min_new_tokens: if self.ignore_eos { max_new_tokens } else { self.min_tokens },
            seed: seed.try_into().unwrap_or_else(|_| random()),
            speculate: 0,
        };
        let bias = bias(&self.logit_bias, tokenizer)?;
        let include_usage = include_usage(self.stream_options, stream)?;
        let n_sequences = prompts.len() * n;
        if n_sequences > MAX_SEQUENCES {
            let message = format!(
                "`n` completions of each prompt are {n_sequences} completions; a request may ask for {MAX_SEQUENCES}"
            );
            return Err(ApiError::field("n", message));
        }
        let prefix = match form {
            Form::Completion => "cmpl-",
            Form::Chat => "chatcmpl-",
            Form::Response => "resp_",
        };
        Ok(GenerateRequest {
            form,
            id: format!("{prefix}{:016x}", random()),
            created_unix_s: unix_s(SystemTime::now()),
            model: model.name.clone(),
            prompts,
            n,
            echo: false,
            settings: Settings { config, bias, guide: None, scores_prompt: false, n_top: None },
            has_tools: false,
            repeated: Value::Null,
            stream,
            include_usage,
        })
    }
}

/// The prompt that the chat template makes of the fields of a chat, and their tools.
fn rendered(fields: &mut Fields, model: &LoadedModel) -> Result<(String, Option<Tools>), ApiError> {
    let (messages, variables) = (fields.take("messages"), fields.take("chat_template_kwargs"));
    let tools = Tools::read(fields.take("tools"), fields.take("tool_choice"), model)?;
    let messages = chat::messages(messages.as_ref())?;
    let to_answer = fields.truth("add_generation_prompt")?.unwrap_or(true);
    let text = chat::rendered("messages", messages, to_answer, variables, tools.as_ref(), model)?;
    Ok((text, tools))
}

/// The response of `/apply-template`, as JSON: the prompt of a chat, however long it is.
pub(super) fn apply_template(mut fields: Fields, model: &LoadedModel) -> Result<String, ApiError> {
    let (text, _) = rendered(&mut fields, model)?;
    let _: ChatRequest = fields.parse(&[("top_k", model.tokenizer.vocab_size())])?;
    Ok(json!({"prompt": text}).to_string())
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
