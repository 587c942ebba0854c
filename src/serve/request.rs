//! Requests for completions, in which the fields of OpenAI's forms are checked and turned into settings of sequences.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::calls::{CLOSE, Tools};
use super::error::ApiError;
use super::fields::{Fields, only, parse, wrong};
use super::format;
use super::forms::{ChatRequest, Common, CompletionRequest, ResponseRequest, Sampling, StreamOptions};
use super::http::{random, unix_s};
use super::limits::{MAX_BIAS, MAX_SEQUENCES, MAX_SHOWN_SCORES, MAX_STOP, MAX_STOPS};
use super::loaded_model::LoadedModel;
use super::prompt::{EncodedPrompt, input_messages, messages, prompts, tokens};
use super::renderer::Conversation;
use super::scheduler::Settings;
use crate::config::GenerateConfig;
use crate::tokenizer::Tokenizer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Completion,
    Chat,
    /// That of `/v1/responses`, which have one completion.
    Response,
}

/// A request for completions.
#[allow(clippy::struct_excessive_bools, reason = "each is a field of a request")]
#[derive(Clone, Debug)]
pub(super) struct GenerateRequest {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created_unix_s: u64,
    pub(super) model: String,
    pub(super) prompts: Vec<EncodedPrompt>,
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
    pub(super) fn completion(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let request: CompletionRequest = parse(fields, &[("top_k", model.tokenizer.vocab_size())])?;
        let CompletionRequest { prompt, max_tokens, echo, logprobs, sampling, .. } = request;
        let mut request = sampling.request(Form::Completion, prompts("prompt", &prompt, model)?, max_tokens, model)?;
        request.echo = echo;
        request.settings.n_top = logprobs;
        request.settings.scores_prompt = echo && logprobs.is_some();
        request.check_size()?;
        Ok(request)
    }

    pub(super) fn chat(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let (request, text, tools) = rendered(fields, model)?;
        let ChatRequest {
            max_tokens,
            max_completion_tokens,
            logprobs,
            top_logprobs,
            parallel_tool_calls,
            sampling,
            ..
        } = request;
        if top_logprobs.is_some_and(|n_top| n_top > 0) && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` = true"));
        }
        let prompt = EncodedPrompt::rendered("messages", text, model)?;
        let max_tokens = max_completion_tokens.or(max_tokens).unwrap_or_else(|| prompt.room(model));
        let mut request = sampling.request(Form::Chat, vec![prompt], max_tokens, model)?;
        request.has_tools = tools.is_some();
        if request.has_tools && parallel_tool_calls == Some(false) {
            request.settings.config.stop.push(CLOSE.to_owned()); // a call at the end need not be closed
        }
        request.settings.n_top = logprobs.then(|| top_logprobs.unwrap_or(0));
        if let Some(call) = tools.map_or(Ok(None), |tools| tools.guide(model))?
            && request.settings.guide.replace(call).is_some()
        {
            let message = "a completion that must be a tool call cannot have a `response_format`";
            return Err(ApiError::field("response_format", message));
        }
        request.check_size()?;
        Ok(request)
    }

    pub(super) fn response(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let request: ResponseRequest = parse(fields, &[])?;
        let ResponseRequest { input, instructions, text, reasoning, max_output_tokens, metadata, common, .. } = request;
        let is_usual = text["verbosity"] == "medium";
        only("text", &text, if is_usual { &["format", "verbosity"] } else { &["format"] })?;
        only("reasoning", &reasoning, &["effort"])?;
        let variables = match &reasoning["effort"] {
            Value::Null => Map::new(),
            effort @ Value::String(_) => Map::from_iter([(REASONING_EFFORT.to_owned(), effort.clone())]),
            _ => return Err(wrong("reasoning", &reasoning, "an object whose `effort` is a string")),
        };
        let messages = input_messages(&input, instructions.as_deref())?;
        let conversation = Conversation { messages, add_generation_prompt: true, variables };
        let rendered = model.renderer.render("input", &model.name, &conversation)?;
        let prompt = EncodedPrompt::rendered("input", rendered, model)?;
        let sampling = Sampling { common, ..parse(Map::new(), &[])? };
        let max_tokens = max_output_tokens.unwrap_or_else(|| prompt.room(model));
        let mut request = sampling.request(Form::Response, vec![prompt], max_tokens, model)?;
        request.settings.guide = format::guide("text", &text["format"], model)?;
        request.repeated =
            json!({"instructions": instructions, "max_output_tokens": max_output_tokens, "metadata": metadata});
        Ok(request)
    }

    /// The maximum number of tokens in the response.
    fn n_tokens(&self) -> usize {
        let n_echoed: usize = if self.echo { self.prompts.iter().map(|prompt| prompt.tokens.len()).sum() } else { 0 };
        n_echoed * self.n + self.settings.config.max_new_tokens * self.n_sequences()
    }

    /// The memory for the response as a whole, with an estimate of the text and the log-probabilities of a token.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_tokens() * (4 + self.settings.n_top.map_or(0, |n_top| 20 * (n_top + 1)))
    }

    /// Rejects a request whose response could have too many log-probabilities.
    fn check_size(&self) -> Result<(), ApiError> {
        let Some(n_top) = self.settings.n_top else { return Ok(()) };
        let n_tokens = self.n_tokens();
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

    pub(super) fn n_sequences(&self) -> usize {
        self.prompts.len() * self.n
    }

    pub(super) fn prompt(&self, idx: usize) -> &EncodedPrompt {
        &self.prompts[idx / self.n]
    }
}

impl Sampling {
    /// A request without log-probabilities and tools.
    fn request(
        self,
        form: Form,
        prompts: Vec<EncodedPrompt>,
        max_new_tokens: usize,
        model: &LoadedModel,
    ) -> Result<GenerateRequest, ApiError> {
        let (tokenizer, n) = (&model.tokenizer, self.n);
        let Common { temperature, top_p, seed, stream, stream_options, .. } = self.common;
        let mut stop_token_ids = model.stop_token_ids.clone();
        stop_token_ids.extend(tokens("stop_token_ids", &self.stop_token_ids, tokenizer)?);
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
        let bias = bias(self.logit_bias, tokenizer)?;
        let guide = format::guide("response_format", &self.response_format, model)?;
        if stream_options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream` = true"));
        }
        let StreamOptions { include_usage, include_obfuscation } = stream_options.unwrap_or_default();
        if include_obfuscation {
            let message = "`include_obfuscation` in `stream_options` is not supported; set it to false";
            return Err(ApiError::field("stream_options", message));
        }
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
            settings: Settings { config, bias, guide, scores_prompt: false, n_top: None },
            has_tools: false,
            repeated: Value::Null,
            stream,
            include_usage,
        })
    }
}

/// A request for a chat, the prompt that the chat template makes of it, and its tools.
fn rendered(fields: Fields, model: &LoadedModel) -> Result<(ChatRequest, String, Option<Tools>), ApiError> {
    let mut request: ChatRequest = parse(fields, &[("top_k", model.tokenizer.vocab_size())])?;
    let tools = Tools::read(&request.tools, &request.tool_choice, model)?;
    let mut variables = std::mem::take(&mut request.chat_template_kwargs);
    if let Some(tools) = &tools {
        variables.insert("tools".to_owned(), tools.list.clone().into());
    }
    if let Some(effort) = &request.reasoning_effort {
        variables.entry(REASONING_EFFORT).or_insert_with(|| effort.as_str().into());
    }
    let mut messages = messages(&request.messages)?;
    if !model.tokenizer.chat_template().is_some_and(|template| template.contains("developer")) {
        let developers = messages.iter_mut().filter(|message| message.role == "developer");
        developers.for_each(|message| "system".clone_into(&mut message.role)); // templates know the older name
    }
    let continues = request.continue_final_message;
    if continues && request.add_generation_prompt == Some(true) {
        let message = "`continue_final_message` ends the prompt within a message, `add_generation_prompt` after it: choose \
                       one of them";
        return Err(ApiError::field("continue_final_message", message));
    }
    if continues {
        messages.last_mut().expect("there is a message").content += END_OF_CONTENT;
    }
    let add_generation_prompt = request.add_generation_prompt.unwrap_or(!continues);
    let conversation = Conversation { messages, add_generation_prompt, variables };
    let mut text = model.renderer.render("messages", &model.name, &conversation)?;
    if continues {
        let left_out = || ApiError::field("messages", "the chat template leaves out the end of the last message");
        let end = text.rfind(END_OF_CONTENT.trim_end()).ok_or_else(left_out)?;
        let is_trimmed = !text[end..].starts_with(END_OF_CONTENT);
        text.truncate(if is_trimmed { text[..end].trim_end().len() } else { end });
    }
    Ok((request, text, tools))
}

/// Marks the end of the last message's content in a rendered conversation, as transformers does. The space at its end
/// shows whether the template trims contents.
const END_OF_CONTENT: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The variable of gpt-oss's chat template, and of others.
const REASONING_EFFORT: &str = "reasoning_effort";

/// The response of `/apply-template`, as JSON: the prompt of a chat, however long it is.
pub(super) fn apply_template(fields: Fields, model: &LoadedModel) -> Result<String, ApiError> {
    let (_, text, _) = rendered(fields, model)?;
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

fn bias(biases: Map<String, Value>, tokenizer: &Tokenizer) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let n_ids = tokenizer.vocab_size();
    let entry = |(token, bias): (&String, &Value)| {
        let token: u32 = token.parse().ok().filter(|token| (*token as usize) < n_ids)?;
        #[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
        let bias = bias.as_f64().filter(|bias| bias.abs() <= MAX_BIAS)? as f32;
        Some((token, bias))
    };
    let rule = format!("an object of token ids, below {n_ids}, with numbers from -{MAX_BIAS} to {MAX_BIAS}");
    biases.iter().map(entry).collect::<Option<_>>().ok_or_else(|| wrong("logit_bias", &biases.into(), &rule))
}
