//! The chat template of a tokenizer, rendered in a process of its own.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};

use super::Tokenizer;
use super::chat_template::{ChatTemplate, ChatTemplateSource};
use super::limited::{Limits, Process, Task, program};

/// The chat template of a tokenizer. It is rendered in a process that lives as long as this, unless a conversation exceeds
/// its limits; the next one then starts another.
#[derive(Debug)]
pub struct ChatRenderer {
    source: ChatTemplateSource,
    limits: Limits,
    place: Place,
}

/// Where the template is rendered.
#[derive(Debug)]
enum Place {
    /// In this process: see [`super::set_program`].
    Here(OnceLock<Result<ChatTemplate, String>>),
    Process {
        program: PathBuf,
        process: Mutex<Option<Process>>,
    },
}

/// The reason why a conversation has no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template is not valid, or exceeded a limit.
    #[error("{0}")]
    Unusable(String),
    /// The template does not take these messages.
    #[error("{0}")]
    Refused(String),
}

impl ChatRenderer {
    /// The chat template of a tokenizer; `None` if it has none.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        Self::within(tokenizer, program(), Limits::default())
    }

    /// The same, rendered by processes of this `tinderbox` program, or else in this process and without limits.
    pub fn within(tokenizer: &Tokenizer, program: Option<&Path>, limits: Limits) -> Option<Self> {
        let source = ChatTemplateSource::from_tokenizer(tokenizer)?;
        let place = match program {
            Some(program) => Place::Process { program: program.to_owned(), process: Mutex::default() },
            None => Place::Here(OnceLock::new()),
        };
        Some(Self { source, limits, place })
    }

    /// Parses the template, which the first conversation would do otherwise.
    ///
    /// # Errors
    /// If the template is unusable.
    pub fn parse(&self) -> Result<(), RenderError> {
        match &self.place {
            Place::Here(template) => self.here(template).map(|_| ()),
            Place::Process { program, process } => {
                *process.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.start(program)?);
                Ok(())
            }
        }
    }

    /// The text of a conversation, up to where the model's reply begins, if `add_generation_prompt`, or up to where the
    /// last message ends. `variables` are more variables for the template, such as `tools` and `enable_thinking`; they
    /// replace none of its own. Waits for earlier conversations.
    ///
    /// # Errors
    /// If the template is unusable, or does not take these messages.
    pub fn render(
        &self,
        messages: &[impl Serialize],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, RenderError> {
        let whole = vec![(messages.len(), add_generation_prompt)];
        self.render_prefixes(messages, whole, variables)?.pop().expect("one prefix has one text")
    }

    /// The texts of several prefixes of a conversation, at the cost of one message to the process: the number of messages
    /// of each, and whether the model's reply begins after them.
    ///
    /// # Errors
    /// If the template is unusable; each text, if the template does not take its messages.
    pub fn render_prefixes(
        &self,
        messages: &[impl Serialize],
        prefixes: Vec<(usize, bool)>,
        variables: &Map<String, Value>,
    ) -> Result<Vec<Result<String, RenderError>>, RenderError> {
        let rendered: Vec<Result<String, String>> = match &self.place {
            Place::Here(template) => {
                let template = self.here(template)?;
                let render =
                    |(n, begins_answer): (usize, bool)| template.render_with(&messages[..n], begins_answer, variables);
                prefixes.into_iter().map(render).collect()
            }
            Place::Process { program, process } => {
                let mut slot = process.lock().unwrap_or_else(PoisonError::into_inner);
                let mut process = slot.take().map_or_else(|| self.start(program), Ok)?;
                let reply = process.ask(&Task::Conversation { messages, prefixes, variables });
                let reply = reply.map_err(RenderError::Unusable)?;
                *slot = Some(process);
                reply.map_err(RenderError::Unusable)?
            }
        };
        Ok(rendered.into_iter().map(|text| text.map_err(RenderError::Refused)).collect())
    }

    fn here<'a>(&self, template: &'a OnceLock<Result<ChatTemplate, String>>) -> Result<&'a ChatTemplate, RenderError> {
        let parsed = template.get_or_init(|| self.source.clone().parse());
        parsed.as_ref().map_err(|error| RenderError::Unusable(error.clone()))
    }

    fn start(&self, program: &Path) -> Result<Process, RenderError> {
        let mut process = Process::start(program, self.limits).map_err(RenderError::Unusable)?;
        let task: Task = Task::Template(self.source.clone());
        process.ask(&task).flatten().map_err(RenderError::Unusable)?;
        Ok(process)
    }
}
