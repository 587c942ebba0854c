//! The argument CONFIG: a config file or the name of a preset.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use super::output;
use super::print::note;
use crate::config::{Base, Config};
use crate::data::DataError;
use crate::preset::{PRESETS, Preset, STORIES, stories};
use crate::run;

/// A preset is suggested if its name is at most this many typing errors away.
const MOST_ERRORS: usize = 2;

/// The text of the config file at `path`, or of the preset with this name if no such file exists.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    if path.exists() && !path.is_dir() {
        return Ok(Config::read(path)?);
    }
    let name = path.to_string_lossy();
    if let Some(preset) = Preset::named(&name) {
        return Ok(preset.toml.to_owned());
    }
    let is_name = path.extension().is_none() && path.components().count() == 1;
    if !is_name || path.is_dir() {
        return Ok(Config::read(path)?);
    }
    let names = PRESETS.map(|preset| preset.name);
    let n_errors = |preset: &&str| strsim::damerau_levenshtein(preset, &name);
    let nearest = names.into_iter().min_by_key(n_errors).filter(|preset| n_errors(preset) <= MOST_ERRORS);
    let question = nearest.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
    bail!(
        "there is no config file and no preset `{name}`\n  hint: {question}the presets are {}; give a config file by its path",
        names.join(", ")
    )
}

/// The config of a new run, which may omit the model's keys if it starts `from` the weights of another run.
pub(super) fn load(path: &Path, overrides: &[String], from: Option<&Path>) -> anyhow::Result<Config> {
    let text = read(path)?;
    let named = Config::finetune_base(&text, overrides);
    let base = from.or(named.as_deref()).map(|from| run::locate(from)?.run.config()).transpose()?;
    let config = Config::from_toml_inheriting(&text, path, overrides, base.as_ref().map(Base::Weights))?;
    check_texts(path, &config)?;
    Ok(config)
}

/// Rejects a text that is missing in the working directory and exists beside the config.
fn check_texts(config_path: &Path, config: &Config) -> Result<(), DataError> {
    let folder = config_path.parent().unwrap_or(Path::new(""));
    let paths = config.data.all_sources().into_iter().map(|source| source.path);
    let mut missing = paths.filter(|path| path.is_relative() && path != Path::new("-") && !path.exists());
    match missing.find(|path| folder.join(path).exists()) {
        Some(path) => Err(DataError::BesideConfig { beside: folder.join(&path), path }),
        None => Ok(()),
    }
}

/// Writes the bundled stories to the path where the config expects them, unless the path exists.
pub(super) fn provide_stories(config: &Config) -> anyhow::Result<()> {
    let path = Path::new(STORIES);
    let is_named = config.data.all_sources().iter().any(|source| source.path == path);
    if !is_named || path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let folder = path.parent().expect("the path has a parent");
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder `{}`", folder.display()))?;
    output::write(path, &stories())?;
    note(format!("wrote the bundled stories to `{STORIES}`"));
    Ok(())
}
