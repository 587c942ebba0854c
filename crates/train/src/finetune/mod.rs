//! Fine-tuning: training that starts from the weights of another run, on records in which only some tokens count.
//!
//! A config with `finetune.base` is trained by the same loop as any other. The differences are elsewhere: the records
//! in `data::conversations`, the adapters in the model, and the checkpoints that hold only these in `run::adapter`.

mod chat_format;
mod config;
mod starting_config;

pub use chat_format::ChatFormat;
pub use config::{BaseWeights, FinetuneConfig, FinetuneMethod, PreferenceLoss, TrainOn};
pub use starting_config::{Length, starting_config};
