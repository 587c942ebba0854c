//! The config of a new fine-tuning: only keys that differ from the defaults, each with its reason.

use std::path::Path;

use super::FinetuneMethod;
use crate::data::Records;
use crate::data::conversations::n_held_out;

/// The rows of a step. Small steps suit a few hundred records: two passes over 300 of them are 68 steps.
const BATCH_SIZE: usize = 8;

/// The passes over the records, unless that makes too few or too many steps.
const PASSES: usize = 2;

/// The fewest steps that a model learns answers from, and the most that more than one pass may take.
const STEPS: [usize; 2] = [60, 200];

/// The evaluations without improvement that end a run whose number of passes was not asked for.
const PATIENCE: usize = 2;

/// The rows of a step if each is filled with records.
const PACKED_BATCH_SIZE: usize = 1;

/// The warm-up as a fraction of the steps.
const WARMUP: f64 = 0.05;

/// How long a fine-tuning is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// The passes over the records. `None`: two, but at least 60 steps, and of more than one pass at most 200.
    pub epochs: Option<f64>,
    /// The rows of a micro-batch. `None`: 8, and of packed records 1.
    pub batch_size: Option<usize>,
    /// The micro-batches of a step.
    pub grad_accumulation_steps: usize,
    /// The fraction of the records that is kept for validation.
    pub val_fraction: f64,
}

impl Length {
    fn batch_size(&self, records: &Records) -> usize {
        self.batch_size.unwrap_or(if records.rows < records.used { PACKED_BATCH_SIZE } else { BATCH_SIZE })
    }

    /// The number of records that are trained on.
    #[must_use]
    pub fn n_trained(&self, records: &Records) -> usize {
        records.used.saturating_sub(n_held_out(records.used, self.val_fraction))
    }

    /// The number of steps of a pass over the records.
    #[must_use]
    pub fn steps_of_pass(&self, records: &Records) -> usize {
        let n_rows = (self.n_trained(records) * records.rows).div_ceil(records.used.max(1));
        n_rows.div_ceil(self.batch_size(records) * self.grad_accumulation_steps).max(1)
    }

    /// The passes over the records, and the number of steps.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of steps")]
    pub fn passes_and_steps(&self, records: &Records) -> (f64, usize) {
        let of_pass = self.steps_of_pass(records);
        let default = PASSES.max(STEPS[0].div_ceil(of_pass)).min((STEPS[1] / of_pass).max(1));
        let passes = self.epochs.unwrap_or(default as f64);
        (passes, (of_pass as f64 * passes).round().max(1.0) as usize)
    }
}

/// The text of a config that adapts the run at `base` to the records in the file or folder `data`. The vectors of the
/// tokens `trained` are trained in addition to adapters.
///
/// # Panics
/// If a path is not UTF-8.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a number of steps")]
pub fn starting_config(
    base: &Path,
    data: &Path,
    method: FinetuneMethod,
    records: &Records,
    length: &Length,
    trained: &[u32],
) -> String {
    let quoted = |path: &Path| toml::Value::from(path.to_str().expect("the caller passes UTF-8 paths")).to_string();
    let (n_train, batch_size) = (length.n_trained(records), length.batch_size(records));
    let (passes, max_steps) = length.passes_and_steps(records);
    let warmup = (WARMUP * max_steps as f64).ceil() as usize;
    let (often, stopping) = match length.epochs {
        Some(_) => (max_steps.div_ceil(4), String::new()),
        None => (
            max_steps.div_ceil(8),
            format!(
                "early_stopping_patience = {PATIENCE}  # ends when the held-out records get worse; the best model is kept\n"
            ),
        ),
    };
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
        "# Fine-tuning: {n_train} records for training, {} for validation, {passes:.2} passes.\n\
         [data]\npath = {}\n\n\
         [finetune]\nbase = {}\nmethod = \"{method}\"\n{trained}\n\
         [train]\nbatch_size = {batch_size}\nmax_steps = {max_steps}\nlog_interval = {}\neval_interval = {often}\neval_batches = 4\n\
         checkpoint_interval = {often}\n{stopping}\
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_60_to_200_unless_passes_are_given() {
        let length = Length { epochs: None, batch_size: None, grad_accumulation_steps: 1, val_fraction: 0.1 };
        for (used, rows, length, expected) in [
            (10, 10, length, (30.0, 60)),
            (60, 60, length, (9.0, 63)),
            (300, 300, length, (2.0, 68)),
            (800, 800, length, (2.0, 180)),
            (1000, 1000, length, (1.0, 113)),
            (10_000, 10_000, length, (1.0, 1125)),
            (60, 4, length, (15.0, 60)), // packed
            (60, 60, Length { epochs: Some(0.5), ..length }, (0.5, 4)),
            (60, 60, Length { batch_size: Some(1), ..length }, (2.0, 108)),
            (60, 60, Length { grad_accumulation_steps: 4, ..length }, (30.0, 60)),
            (60, 60, Length { val_fraction: 0.5, ..length }, (15.0, 60)),
        ] {
            let found = length.passes_and_steps(&Records { used, rows, ..Records::default() });
            assert_eq!(found, expected, "{used} records in {rows} rows, {length:?}");
        }
    }
}
