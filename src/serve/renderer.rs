//! The chat template of a model for requests: how many may wait for it, and what goes wrong as an error of the API.

use std::path::Path;

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::limits::{MAX_CHATS, MAX_TEXT};
use crate::tokenizer::{ChatRenderer, Limits, Message, RenderError, Tokenizer};

pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Whether the prompt ends where the next message begins, instead of with the last message.
    pub(super) add_generation_prompt: bool,
    pub(super) variables: Map<String, Value>,
}

pub(super) struct Renderer {
    /// `None` for a model without a template.
    template: Option<ChatRenderer>,
    permits: Semaphore,
}

impl Renderer {
    pub(super) fn new(program: &Path, limits: Limits, tokenizer: &Tokenizer) -> Self {
        let limits = Limits { text: MAX_TEXT, ..limits };
        let template = ChatRenderer::within(tokenizer, Some(program), limits);
        Self { template, permits: Semaphore::new(MAX_CHATS) }
    }

    /// The prompt that the template of `model` makes of a conversation, which is in the field `field`; waits for earlier ones.
    pub(super) fn render(&self, field: &str, model: &str, conversation: &Conversation) -> Result<String, ApiError> {
        let no_template = || ApiError::field("model", format!("`{model}` has no chat template; use /v1/completions"));
        let busy = |_| ApiError::busy(&format!("{MAX_CHATS} conversations wait for the template of `{model}`"));
        let template = self.template.as_ref().ok_or_else(no_template)?;
        let _permit = self.permits.try_acquire().map_err(busy)?;
        let Conversation { messages, add_generation_prompt, variables } = conversation;
        template.render(messages, *add_generation_prompt, variables).map_err(|error| match error {
            RenderError::Unusable(why) => {
                ApiError::bad_request(format!("the chat template of `{model}` cannot be used: {why}"))
            }
            RenderError::Refused(why) => {
                ApiError::field(field, format!("the chat template of `{model}` does not take these: {why}"))
            }
        })
    }
}
