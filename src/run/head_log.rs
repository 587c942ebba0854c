//! What the heads of a run did at each evaluation, where it was logged.

use std::collections::BTreeMap;

use serde_json::Value;

use super::RunDir;
use super::{RunsError, log};
use crate::inspect::ScoredHeads;

/// What each head did, by step; of a run that does not log it, nothing.
///
/// # Errors
/// If the log is there and cannot be read.
pub fn head_log(run: &RunDir) -> Result<BTreeMap<u64, ScoredHeads>, RunsError> {
    let lines = log::read(&run.join("head_metrics.jsonl"))?;
    let of_line = |line| {
        let line = Value::Object(line);
        Some((line["step"].as_u64()?, ScoredHeads::from_json(&line)?))
    };
    Ok(lines.objects.into_iter().filter_map(of_line).collect())
}
