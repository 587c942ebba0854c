//! The config with which a fine-tuning starts: only what differs from the defaults, each with its reason.

use std::path::Path;

use super::FinetuneMethod;
use crate::data::conversations::n_held_out;
use crate::data::{DataConfig, Records};

/// The rows of a step. Small steps suit a few hundred records: two passes over 300 of them are 68 steps.
const BATCH_SIZE: usize = 8;

/// The fraction of the steps in which the learning rate rises.
const WARMUP: f64 = 0.05;

/// The text of a config that adapts the run at `base` to the records in the file or folder `data`, in `epochs` passes.
///
/// # Panics
/// If a path is not UTF-8.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "fractions of a number of steps")]
pub fn starting_config(base: &Path, data: &Path, method: FinetuneMethod, records: &Records, epochs: f64) -> String {
    let quoted = |path: &Path| toml::Value::from(path.to_str().expect("UTF-8")).to_string();
    let n_val = n_held_out(records.used, DataConfig::default().val_fraction);
    let n_train = records.used.saturating_sub(n_val);
    let steps = ((n_train as f64 / BATCH_SIZE as f64).ceil() * epochs).round().max(1.0);
    let (max_steps, warmup) = (steps as usize, (WARMUP * steps).ceil() as usize);
    let often = max_steps.div_ceil(4);
    let (method, learning_rate, why) = match method {
        FinetuneMethod::Lora => ("lora", "2e-4", "new matrices take larger steps than trained ones"),
        FinetuneMethod::Full => ("full", "2e-5", "small, since all weights move and have much to lose"),
    };
    format!(
        "# Fine-tuning: {n_train} records for training, {} for validation, {epochs} passes.\n\
         [data]\npath = {}\n\n\
         [finetune]\nbase = {}\nmethod = \"{method}\"\n\n\
         [train]\nbatch_size = {BATCH_SIZE}\nmax_steps = {max_steps}\nlog_interval = {}\neval_interval = {often}\neval_batches = 4\n\
         checkpoint_interval = {often}\n\
         sample_tokens = 0     # the answers of before and after come at the end\n\
         head_metrics = false\n\n\
         [optimizer]\nlearning_rate = {learning_rate}  # {why}\nbetas = [0.9, 0.999]\nweight_decay = 0.0    # the base is what the weights \
         should stay near\n\n\
         [schedule]\nwarmup_steps = {warmup}\nmin_learning_rate = 0.0\n",
        records.used - n_train,
        quoted(data),
        quoted(base),
        max_steps.div_ceil(100),
    )
}
