//! The effect of a fine-tuning: losses and answers of the base and of the new model, stored in the run directory.

use serde::{Deserialize, Serialize};

use super::layout::BEFORE_AND_AFTER;
use super::{RunDir, RunError, cannot_read, cannot_write};
use tinderbox_model::disk::write_atomically;

/// The base and the fine-tuned model compared. Of each pair, the base's value comes first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BeforeAndAfter {
    /// The losses on the records that were held out, in nats per token that counts.
    pub held_out_loss: [f64; 2],
    /// The losses on a general text, in nats per token, which show what was forgotten; `None` if the tokenizer lacks
    /// some of its characters.
    pub general_loss: Option<[f64; 2]>,
    /// The number of tokens of the general text.
    pub general_tokens: u64,
    /// Answers to prompts of the held-out records.
    pub answers: Vec<Answers>,
}

/// The answers of both models to a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// The prompt, with the texts of the chat template.
    pub prompt: String,
    /// The last question in the prompt, without them; `None` in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The answer in the record, without the token that ends it.
    pub expected: String,
    /// The base's answer.
    pub before: String,
    /// The new model's answer.
    pub after: String,
}

impl Answers {
    /// The question, or else the prompt.
    pub fn question(&self) -> &str {
        self.question.as_deref().unwrap_or(&self.prompt)
    }
}

impl BeforeAndAfter {
    /// Writes it into the directory of the run.
    pub fn write(&self, run: &RunDir) -> Result<(), RunError> {
        let (path, json) =
            (run.join(BEFORE_AND_AFTER), serde_json::to_string_pretty(self).expect("plain data serializes"));
        write_atomically(&path, json.as_bytes()).map_err(cannot_write(&path))
    }

    /// Removes it, since the run goes on.
    pub(super) fn remove(run: &RunDir) -> Result<(), RunError> {
        let path = run.join(BEFORE_AND_AFTER);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot_write(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Reads it; `None` if the run was not compared with a base.
    pub fn read(run: &RunDir) -> Result<Option<Self>, RunError> {
        let path = run.join(BEFORE_AND_AFTER);
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot_read(&path)(error)),
            Ok(json) => {
                serde_json::from_slice(&json).map(Some).map_err(|error| RunError::damaged(&path, error.to_string()))
            }
        }
    }
}
