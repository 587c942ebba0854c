//! Writes completions in OpenAI's forms, as one JSON body or as server-sent events.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::calls::Call;
use super::completion::{Completion, CompletionDelta, PlacedScore};
use super::error::ApiError;
use super::http::{Lazy, to_json, to_large_json};
use super::limits::MAX_UNSENT;
use super::loaded_model::LoadedModel;
use super::request::{Form, GenerateRequest};
use super::responses::{self, ResponseEvents};
use crate::generate::End;
use crate::tokenizer::bytes_of_token;

pub(super) struct ResponseWriter {
    pub(super) model: Arc<LoadedModel>,
    pub(super) request: GenerateRequest,
    responses: ResponseEvents,
}

/// A response, or a chunk of one.
#[allow(clippy::option_option, reason = "a usage is absent, null or there")]
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Body<'a, L> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: L,
    /// Null before the end of a stream; absent in one whose request did not ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Usage")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ChoiceBody<C, L> {
    index: usize,
    #[serde(flatten)]
    content: C,
    logprobs: Option<L>,
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", null]))]
    finish_reason: Option<&'static str>,
}

pub(super) type CompletionBody = Body<'static, Vec<ChoiceBody<TextContent, CompletionLogprobs>>>;
pub(super) type ChatCompletionBody = Body<'static, Vec<ChoiceBody<MessageContent, ChatLogprobs>>>;
/// A choice of either, or of a chunk of a chat.
type AnyChoice = ChoiceBody<Content, Logprobs>;

#[derive(Serialize)]
#[serde(untagged)]
enum Content {
    Text(TextContent),
    Message(MessageContent),
    Chunk { delta: ChatDelta },
}

#[derive(Serialize, JsonSchema)]
pub(super) struct TextContent {
    text: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct MessageContent {
    message: Message,
}

#[derive(Serialize, JsonSchema)]
struct Message {
    role: &'static str,
    /// Null if there are only calls.
    content: Option<String>,
    refusal: (),
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Serialize, JsonSchema)]
struct ToolCall {
    /// Its number, in a stream only.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    #[schemars(extend("enum" = ["function"]))]
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize, JsonSchema)]
struct Function {
    name: String,
    /// JSON, as the model generated it.
    arguments: String,
}

#[derive(Default, Serialize)]
struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Completion(CompletionLogprobs),
    Chat(ChatLogprobs),
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// Null if not requested, and for the first token of a prompt.
    top_logprobs: Option<Vec<Option<BTreeMap<String, f32>>>>,
    text_offset: Vec<usize>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatScore>,
    refusal: (),
}

#[derive(Serialize, JsonSchema)]
struct ChatScore {
    #[serde(flatten)]
    token: ChatToken,
    top_logprobs: Vec<ChatToken>,
}

#[derive(Serialize, JsonSchema)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
struct PromptTokens {
    /// Prompt tokens whose keys and values were cached.
    cached_tokens: usize,
}

impl ResponseWriter {
    pub(super) fn new(model: Arc<LoadedModel>, request: GenerateRequest) -> Self {
        Self { model, request, responses: ResponseEvents::default() }
    }

    /// The complete response, with each completion in one delta.
    pub(super) fn whole(&self, deltas: Vec<CompletionDelta>, completions: &[Completion]) -> String {
        if self.request.form == Form::Response {
            return responses::whole(&self.request, &deltas[0].text, &completions[0]);
        }
        let choice = |(index, (delta, completion)): (usize, (CompletionDelta, &Completion))| ChoiceBody {
            index,
            logprobs: self.logprobs(delta.scores),
            content: match self.request.form {
                Form::Completion => Content::Text(TextContent { text: delta.text }),
                Form::Chat | Form::Response => {
                    let (content, tool_calls) = message(delta.text, delta.calls, |_| None);
                    let message = Message { role: "assistant", content, refusal: (), tool_calls };
                    Content::Message(MessageContent { message })
                }
            },
            finish_reason: finish_reason(completion),
        };
        let choices = deltas.into_iter().zip(completions).enumerate().map(choice);
        let object = if self.request.form == Form::Chat { "chat.completion" } else { "text_completion" };
        let body = self.body(object, choices, Some(Some(self.usage(completions))));
        to_large_json(&body, (self.request.n_bytes() / 4 * 5).min(MAX_UNSENT))
    }

    /// Writes the events before a completion.
    pub(super) fn begin(&mut self, index: usize, out: &mut String) {
        match self.request.form {
            Form::Completion => {}
            Form::Chat => {
                let delta = ChatDelta { role: Some("assistant"), content: Some(String::new()), ..ChatDelta::default() };
                event(out, &self.chunk(index, Content::Chunk { delta }, None, None));
            }
            Form::Response => self.responses.begin(&self.request, out),
        }
    }

    /// Writes the event of the next part of a completion.
    pub(super) fn delta(&mut self, index: usize, delta: CompletionDelta, completion: &Completion, out: &mut String) {
        let content = match self.request.form {
            Form::Response => return self.responses.delta(&self.request, &delta.text, out),
            Form::Completion => Content::Text(TextContent { text: delta.text }),
            Form::Chat => {
                let first_call = completion.reader.n_calls - delta.calls.len();
                let (content, tool_calls) = message(delta.text, delta.calls, |n| Some(first_call + n));
                Content::Chunk { delta: ChatDelta { role: None, content, tool_calls } }
            }
        };
        event(out, &self.chunk(index, content, self.logprobs(delta.scores), None));
    }

    /// Writes the events after a completion.
    pub(super) fn end(&mut self, index: usize, completion: &Completion, out: &mut String) {
        let content = match self.request.form {
            Form::Response => return self.responses.end(&self.request, completion, out),
            Form::Completion => Content::Text(TextContent { text: String::new() }),
            Form::Chat => Content::Chunk { delta: ChatDelta::default() },
        };
        event(out, &self.chunk(index, content, None, finish_reason(completion)));
    }

    /// Writes the events after all completions.
    pub(super) fn finish(&self, completions: &[Completion], out: &mut String) {
        if self.request.form == Form::Response {
            return;
        }
        if self.request.include_usage {
            event(out, &to_json(&self.body(self.chunk_object(), [], Some(Some(self.usage(completions))))));
        }
        event(out, "[DONE]");
    }

    /// Writes the last event, an error.
    pub(super) fn fail(&mut self, error: &ApiError, out: &mut String) {
        match self.request.form {
            Form::Response => self.responses.fail(error, out),
            Form::Completion | Form::Chat => event(out, &error.body()),
        }
    }

    fn chunk(
        &self,
        index: usize,
        content: Content,
        logprobs: Option<Logprobs>,
        finish_reason: Option<&'static str>,
    ) -> String {
        let choice = ChoiceBody { index, content, logprobs, finish_reason };
        to_json(&self.body(self.chunk_object(), [choice], self.request.include_usage.then_some(None)))
    }

    fn chunk_object(&self) -> &'static str {
        if self.request.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" }
    }

    #[allow(clippy::option_option, reason = "a usage is absent, null or there")]
    fn body<I: IntoIterator<Item = AnyChoice>>(
        &self,
        object: &'static str,
        choices: I,
        usage: Option<Option<Usage>>,
    ) -> Body<'_, Lazy<I::IntoIter>> {
        let GenerateRequest { id, created_unix_s, model, .. } = &self.request;
        let choices = Lazy::new(choices);
        Body { id, object, created: *created_unix_s, model, choices, usage }
    }

    fn usage(&self, completions: &[Completion]) -> Usage {
        let prompt_tokens = self.request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let completion_tokens = completions.iter().map(|completion| completion.n_generated).sum();
        // Of several completions of a prompt, the first has the number of cached tokens of the prompt.
        let cached_tokens = completions.iter().step_by(self.request.n).map(|completion| completion.n_cached).sum();
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens },
        }
    }

    fn logprobs(&self, scores: Vec<PlacedScore>) -> Option<Logprobs> {
        let n_top = self.request.settings.n_top?;
        Some(match self.request.form {
            Form::Completion => Logprobs::Completion(CompletionLogprobs {
                tokens: scores.iter().map(|it| self.token(it.before, it.score.token).0).collect(),
                token_logprobs: scores.iter().map(|it| it.score.logprob).collect(),
                top_logprobs: (n_top > 0).then(|| scores.iter().map(|it| self.top(it)).collect()),
                text_offset: scores.iter().map(|it| it.offset).collect(),
            }),
            Form::Chat | Form::Response => Logprobs::Chat(ChatLogprobs {
                content: scores.into_iter().filter_map(|it| self.chat_score(&it)).collect(),
                refusal: (),
            }),
        })
    }

    /// The log-probabilities of the most probable tokens and the actual one, by text; of equal texts, the highest.
    fn top(&self, PlacedScore { score, before, .. }: &PlacedScore) -> Option<BTreeMap<String, f32>> {
        let chosen = (score.token, score.logprob?);
        let mut top = BTreeMap::new();
        for (token, logprob) in score.top.iter().copied().chain([chosen]) {
            top.entry(self.token(*before, token).0).or_insert(logprob);
        }
        Some(top)
    }

    /// What a token adds to the text after the token `before`: as text, or `bytes:\xNN` where it is not text, and as bytes.
    fn token(&self, before: Option<u32>, token: u32) -> (String, Vec<u8>) {
        let bytes = bytes_of_token(&self.model.tokenizer, before, token);
        let shown = || bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}"));
        let text = std::str::from_utf8(&bytes).map_or_else(|_| shown(), str::to_owned);
        (text, bytes)
    }

    /// `None` for a token that ends the message, since it is not part of it.
    fn chat_score(&self, PlacedScore { score, before, .. }: &PlacedScore) -> Option<ChatScore> {
        let token = |token: u32, logprob: f32| {
            let (token, bytes) = self.token(*before, token);
            ChatToken { token, logprob, bytes }
        };
        let is_end = self.model.tokenizer.end_of_text() == Some(score.token)
            || self.request.settings.config.stop_token_ids.contains(&score.token);
        let logprob = score.logprob.filter(|_| !is_end)?;
        let top_logprobs = score.top.iter().map(|(id, logprob)| token(*id, *logprob)).collect();
        Some(ChatScore { token: token(score.token, logprob), top_logprobs })
    }
}

fn finish_reason(completion: &Completion) -> Option<&'static str> {
    Some(match completion.end? {
        End::Length => "length",
        End::Model | End::StopString if completion.reader.n_calls > 0 => "tool_calls",
        End::Model | End::StopString => "stop",
    })
}

/// The content of a message, which is null if there are only calls, and its calls; `index` numbers those of a stream.
fn message(text: String, calls: Vec<Call>, index: impl Fn(usize) -> Option<usize>) -> (Option<String>, Vec<ToolCall>) {
    let tool_call = |(n, Call { id, name, arguments }): (usize, Call)| ToolCall {
        index: index(n),
        id,
        r#type: "function",
        function: Function { name, arguments },
    };
    let tool_calls: Vec<ToolCall> = calls.into_iter().enumerate().map(tool_call).collect();
    (Some(text).filter(|text| tool_calls.is_empty() || !text.is_empty()), tool_calls)
}

fn event(out: &mut String, data: &str) {
    write!(out, "data: {data}\n\n").expect("a string takes any text");
}
