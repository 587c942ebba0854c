//! The config of a new fine-tuning: only keys that differ from the defaults, each with its reason.

use std::path::Path;

use super::FinetuneMethod;
use crate::data::conversations::n_held_out;
use crate::data::{DataConfig, Records};

/// The rows of a step. Small steps suit a few hundred records: two passes over 300 of them are 68 steps.
const BATCH_SIZE: usize = 8;

/// The rows of a step if each is filled with records.
const PACKED_BATCH_SIZE: usize = 1;

/// The warm-up as a fraction of the steps.
const WARMUP: f64 = 0.05;

/// The text of a config that adapts the run at `base` to the records in the file or folder `data`, in `epochs` passes.
/// The vectors of the tokens `trained` are trained in addition to adapters. `rows_per_step` replaces the default number
/// of rows of a step.
///
/// # Panics
/// If a path is not UTF-8.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "fractions of a number of steps")]
pub fn starting_config(
    base: &Path,
    data: &Path,
    method: FinetuneMethod,
    records: &Records,
    epochs: f64,
    trained: &[u32],
    rows_per_step: Option<usize>,
) -> String {
    let quoted = |path: &Path| toml::Value::from(path.to_str().expect("the caller passes UTF-8 paths")).to_string();
    let n_train = n_trained(records);
    let batch_size = if records.rows < records.used { PACKED_BATCH_SIZE } else { BATCH_SIZE };
    let max_steps = n_steps(records, rows_per_step.unwrap_or(batch_size), epochs);
    let warmup = (WARMUP * max_steps as f64).ceil() as usize;
    let often = max_steps.div_ceil(4);
    let (method, learning_rate, why) = match method {
        FinetuneMethod::Lora => ("lora", "2e-4", "new matrices take larger steps than trained ones"),
        FinetuneMethod::Dora => ("dora", "2e-4", "new matrices take larger steps than trained ones"),
        FinetuneMethod::Full => ("full", "2e-5", "small, since all weights move and have much to lose"),
    };
    let (learning_rate, why) = match (records.preferences, method) {
        (false, _) => (learning_rate, why),
        (true, "full") => ("1e-6", "preferences move a model far in few steps"),
        (true, _) => ("5e-5", "preferences move a model far in few steps"),
    };
    let trained = match trained {
        [] => String::new(),
        ids => format!("trained_tokens = {ids:?}  # of the chat template, which is new to the model\n"),
    };
    format!(
        "# Fine-tuning: {n_train} records for training, {} for validation, {epochs} passes.\n\
         [data]\npath = {}\n\n\
         [finetune]\nbase = {}\nmethod = \"{method}\"\n{trained}\n\
         [train]\nbatch_size = {batch_size}\nmax_steps = {max_steps}\nlog_interval = {}\neval_interval = {often}\neval_batches = 4\n\
         checkpoint_interval = {often}\n\
         device = \"cpu\"        # a GPU first tries out its kernels, which takes minutes; a CPU finishes a small model in that time\n\
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

/// The number of records that are trained on.
fn n_trained(records: &Records) -> usize {
    records.used.saturating_sub(n_held_out(records.used, DataConfig::default().val_fraction))
}

/// The number of steps of so many passes over the records.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of steps")]
pub fn n_steps(records: &Records, rows_per_step: usize, epochs: f64) -> usize {
    let n_rows = (n_trained(records) * records.rows) as f64 / records.used.max(1) as f64;
    ((n_rows / rows_per_step as f64).ceil() * epochs).round().max(1.0) as usize
}
