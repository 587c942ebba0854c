//! Merges adapters with the weights that they change.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Adapters, Checkpoint, Located, RunDir, RunError, TrainState};
use tinderbox_model::Parameter;

/// Writes the model of a checkpoint as the run `root`, with its own adapters or `adapters` merged with its weights,
/// replacing an old run if `overwrite`. Like an imported model, the new run has no text and no steps.
pub fn merge(of: &Located, adapters: Option<Adapters>, root: &Path, overwrite: bool) -> Result<RunDir, RunError> {
    RunDir::check_new(root, overwrite)?; // before the weights are read
    let config = of.run.config()?;
    let tokenizer = of.run.tokenizer()?;
    let Checkpoint { mut model, state, .. } = Checkpoint::read(&of.checkpoint)?;
    match adapters {
        None if state.adapter.is_none() => return Err(RunError::NoAdapter(of.run.root().to_owned())),
        None => {}
        Some(adapters) => {
            let vocab_size = of.run.tokenizer_of_model(&config)?.vocab_size();
            let table: Vec<Parameter> = Parameter::all(&config.model, vocab_size).collect();
            model = adapters.merged_into(model, &table, &of.checkpoint)?;
        }
    }
    let state = TrainState::starting_from(&of.checkpoint, state);
    RunDir::create_with(
        root,
        overwrite,
        &config.of_model(),
        &tokenizer,
        &Checkpoint { model, optimizer: BTreeMap::new(), state },
    )
}
