//! Fine-tuning: training that starts from the weights of another run, on records of which some tokens count.
//!
//! A config with `finetune.base` is trained by the same loop as any other. What differs stands where it belongs: the
//! records in `data::conversations`, the adapters in the model, and the checkpoints that hold only these in
//! `run::adapter`.

mod config;
mod starting_config;

pub use config::{FinetuneConfig, FinetuneMethod, TrainOn};
pub use starting_config::starting_config;
