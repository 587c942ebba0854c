//! Responses with texts, as JSON in OpenAI's two forms.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::calls::Call;
use super::choice::{Choice, TextDelta};
use super::hosted::Hosted;
use super::request::{Shape, TextRequest};
use super::responses;
use super::score::Score;
use crate::generate::End;

/// The fields that all chunks of a response have in common.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) model: Arc<Hosted>,
    pub(super) request: TextRequest,
    pub(super) id: String,
    pub(super) created: u64,
}

/// A response, or a chunk of one.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Body<'a, L> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: L,
    #[serde(skip_serializing_if = "UsageBody::is_absent")]
    #[schemars(with = "Usage")]
    usage: UsageBody,
}

#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
enum UsageBody {
    /// In a stream that did not request it.
    Absent,
    /// Null, before the end of a stream.
    Later,
    Now(Usage),
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ChoiceBody<C, L> {
    index: usize,
    #[serde(flatten)]
    content: C,
    logprobs: Option<L>,
    finish_reason: Option<FinishReason>,
}

/// A response of `/v1/completions`.
pub(super) type Completion = Body<'static, Vec<ChoiceBody<TextContent, CompletionLogprobs>>>;
/// A response of `/v1/chat/completions`.
pub(super) type ChatCompletion = Body<'static, Vec<ChoiceBody<MessageContent, ChatLogprobs>>>;
/// Either, or a chunk of a chat.
type AnyChoice = ChoiceBody<Content, Logprobs>;

/// A list whose items are made one by one as they are written: those of a large response need several times its size.
struct Lazy<I>(Cell<Option<I>>);

impl<I: Iterator<Item: Serialize>> Serialize for Lazy<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().expect("it is written once"))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content {
    Text(TextContent),
    Message(MessageContent),
    Chunk { delta: Delta },
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
    /// Only in a stream: its number.
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
    /// JSON, as the model wrote it.
    arguments: String,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FinishReason {
    Stop,
    Length,
    ToolCalls,
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
    /// Null if not requested, and for the first token of a text.
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
    bytes: Option<Vec<u8>>,
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
    /// Tokens of prompts that had been read before.
    cached_tokens: usize,
}

impl UsageBody {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Answer {
    pub(super) fn new(model: Arc<Hosted>, request: TextRequest) -> Self {
        let prefix = match request.shape {
            Shape::Completion => "cmpl-",
            Shape::Chat => "chatcmpl-",
            Shape::Response => "resp_",
        };
        Self {
            model,
            request,
            id: format!("{prefix}{:016x}", super::random()),
            created: super::unix_s(SystemTime::now()),
        }
    }

    /// The complete response, with each text in one part.
    pub(super) fn whole(&self, texts: Vec<TextDelta>, choices: &[Choice]) -> String {
        if self.request.shape == Shape::Response {
            return responses::whole(self, &texts[0].text, &choices[0]);
        }
        let choice = |(index, (part, choice)): (usize, (TextDelta, &Choice))| ChoiceBody {
            index,
            logprobs: self.logprobs(part.scores),
            content: match self.request.shape {
                Shape::Completion => Content::Text(TextContent { text: part.text }),
                Shape::Chat | Shape::Response => {
                    let tool_calls: Vec<ToolCall> = part.calls.into_iter().map(|call| tool_call(call, None)).collect();
                    let content = Some(part.text).filter(|text| tool_calls.is_empty() || !text.is_empty());
                    let message = Message { role: "assistant", content, refusal: (), tool_calls };
                    Content::Message(MessageContent { message })
                }
            },
            finish_reason: finish_reason(choice),
        };
        let bodies = texts.into_iter().zip(choices).enumerate().map(choice);
        let object = if self.request.shape == Shape::Chat { "chat.completion" } else { "text_completion" };
        self.body(object, bodies, UsageBody::Now(self.usage(choices)))
    }

    /// The first chunk of a text, which exists only in chats.
    pub(super) fn opening(&self, index: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
        (self.request.shape == Shape::Chat).then(|| self.chunk(index, Content::Chunk { delta }, None, None))
    }

    /// A chunk with part of a text, before which there were `n_calls` calls.
    pub(super) fn part(&self, index: usize, part: TextDelta, n_calls: usize) -> String {
        let content = match self.request.shape {
            Shape::Completion => Content::Text(TextContent { text: part.text }),
            Shape::Chat | Shape::Response => {
                let calls = part.calls.into_iter().zip(n_calls..);
                let tool_calls: Vec<ToolCall> = calls.map(|(call, n)| tool_call(call, Some(n))).collect();
                let content = Some(part.text).filter(|text| tool_calls.is_empty() || !text.is_empty());
                Content::Chunk { delta: Delta { role: None, content, tool_calls } }
            }
        };
        self.chunk(index, content, self.logprobs(part.scores), None)
    }

    /// The last chunk of a text.
    pub(super) fn closing(&self, index: usize, choice: &Choice) -> String {
        let content = match self.request.shape {
            Shape::Completion => Content::Text(TextContent { text: String::new() }),
            Shape::Chat | Shape::Response => Content::Chunk { delta: Delta::default() },
        };
        self.chunk(index, content, None, finish_reason(choice))
    }

    /// The last chunk of a stream that requested it: the numbers of tokens read and generated.
    pub(super) fn usage_chunk(&self, choices: &[Choice]) -> String {
        self.body(self.chunk_object(), [], UsageBody::Now(self.usage(choices)))
    }

    fn chunk(
        &self,
        index: usize,
        content: Content,
        logprobs: Option<Logprobs>,
        finish_reason: Option<FinishReason>,
    ) -> String {
        let choice = ChoiceBody { index, content, logprobs, finish_reason };
        let usage = if self.request.include_usage { UsageBody::Later } else { UsageBody::Absent };
        self.body(self.chunk_object(), [choice], usage)
    }

    fn chunk_object(&self) -> &'static str {
        if self.request.shape == Shape::Chat { "chat.completion.chunk" } else { "text_completion" }
    }

    fn body(&self, object: &'static str, choices: impl IntoIterator<Item = AnyChoice>, usage: UsageBody) -> String {
        let Self { id, created, model, .. } = self;
        let choices = Lazy(Cell::new(Some(choices.into_iter())));
        let body = Body { id, object, created: *created, model: &model.name, choices, usage };
        serde_json::to_string(&body).expect("plain data")
    }

    fn usage(&self, choices: &[Choice]) -> Usage {
        let prompt_tokens = self.request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let completion_tokens = choices.iter().map(|choice| choice.n_written).sum();
        // Of several texts of a prompt, the first has the number of cached tokens of the prompt.
        let cached_tokens = choices.iter().step_by(self.request.n).map(|choice| choice.n_cached).sum();
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens },
        }
    }

    fn logprobs(&self, scores: Vec<(usize, Score)>) -> Option<Logprobs> {
        let n_top = self.request.n_top?;
        Some(match self.request.shape {
            Shape::Completion => Logprobs::Completion(CompletionLogprobs {
                tokens: scores.iter().map(|(_, score)| self.model.token_text(score.token)).collect(),
                token_logprobs: scores.iter().map(|(_, score)| score.logprob).collect(),
                top_logprobs: (n_top > 0).then(|| scores.iter().map(|(_, score)| self.top(score)).collect()),
                text_offset: scores.iter().map(|(offset, _)| *offset).collect(),
            }),
            Shape::Chat | Shape::Response => Logprobs::Chat(ChatLogprobs {
                content: scores.into_iter().filter_map(|(_, score)| self.chat_score(&score)).collect(),
                refusal: (),
            }),
        })
    }

    /// The most probable tokens and the actual one, by text; if texts are equal, the most probable.
    fn top(&self, score: &Score) -> Option<BTreeMap<String, f32>> {
        let chosen = (score.token, score.logprob?);
        let mut top = BTreeMap::new();
        for (token, logprob) in score.top.iter().copied().chain([chosen]) {
            top.entry(self.model.token_text(token)).or_insert(logprob);
        }
        Some(top)
    }

    /// `None` for the token that ends the message, which is not part of it.
    fn chat_score(&self, score: &Score) -> Option<ChatScore> {
        let token = |token: u32, logprob: f32| ChatToken {
            token: self.model.token_text(token),
            logprob,
            bytes: self.model.tokenizer.token_bytes(token).map(<[u8]>::to_vec),
        };
        let is_end = self.model.tokenizer.end_of_text() == Some(score.token)
            || self.request.config.stop_token_ids.contains(&score.token);
        let logprob = score.logprob.filter(|_| !is_end)?;
        let top_logprobs = score.top.iter().map(|(id, logprob)| token(*id, *logprob)).collect();
        Some(ChatScore { token: token(score.token, logprob), top_logprobs })
    }
}

fn finish_reason(choice: &Choice) -> Option<FinishReason> {
    Some(match choice.end? {
        End::Length => FinishReason::Length,
        End::Model | End::StopText if choice.reader.n_calls > 0 => FinishReason::ToolCalls,
        End::Model | End::StopText => FinishReason::Stop,
    })
}

fn tool_call(call: Call, index: Option<usize>) -> ToolCall {
    let Call { id, name, arguments } = call;
    ToolCall { index, id, r#type: "function", function: Function { name, arguments } }
}
