//! Arguments that several commands share.

use std::env;
use std::path::{Path, PathBuf};

use super::exit::Misuse;
use super::print::note_each;
use crate::config::{DataConfig, GenerateConfig};
use crate::device::{self, DeviceSpec, OpenDevice};
use crate::format::shell_word;
use crate::interop::open_adapters;
use crate::run::{Trained, locate};

/// A trained model.
#[derive(Debug, clap::Args)]
pub(super) struct Subject {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N
    pub(super) run: PathBuf,
    /// Adapters to apply to the run's weights: a run fine-tuned from it, a folder from PEFT or mlx-lm, or a GGUF file
    /// [default: none]
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<DeviceSpec>,
}

impl Subject {
    /// Refuses adapters that leave the token embedding as it is.
    pub(super) fn check_embedding(&self) -> anyhow::Result<()> {
        let Some(path) = &self.adapter else { return Ok(()) };
        if open_adapters(path, &self.run)?.lora.tokens.is_empty() {
            return Err(Misuse(format!(
                "--adapter {} leaves the token embedding as it is: no tokens were trained\n  hint: leave it out",
                shell_word(path)
            ))
            .into());
        }
        Ok(())
    }

    pub(super) fn open(&self) -> anyhow::Result<Trained> {
        let adapters = self.adapter.as_ref().map(|path| open_adapters(path, &self.run)).transpose()?;
        let mut opened = Trained::open_adapted(&self.run, self.device.as_ref(), adapters)?;
        warn_if_slow(&opened.device);
        if let Some(generate) = self.adapter.as_deref().map_or(Ok(None), generate_of)? {
            opened.config.generate = generate;
        }
        Ok(opened)
    }
}

/// The settings of generation of an adapter's run; `None` for a folder from elsewhere.
pub(super) fn generate_of(adapter: &Path) -> anyhow::Result<Option<GenerateConfig>> {
    locate(adapter).ok().map(|located| Ok(located.run.config()?.generate)).transpose()
}

/// Opens a device, with a warning on standard error if it will be slow.
pub(super) fn open_device(spec: &DeviceSpec) -> anyhow::Result<OpenDevice> {
    let device = device::open(spec)?;
    warn_if_slow(&device);
    Ok(device)
}

pub(super) fn warn_if_slow(device: &OpenDevice) {
    note_each("warning", device.caution());
}

/// This program's name as the user typed it, for commands to paste.
pub(super) fn program() -> String {
    let program = env::args_os().next().unwrap_or_else(|| "tinderbox".into());
    if cfg!(windows) {
        // Only with its quotes within, not at the start, is a word a command in PowerShell.
        return program.to_string_lossy().split('\\').map(shell_word).collect::<Vec<_>>().join("\\");
    }
    shell_word(program)
}

/// The files of a folder that are read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Selected {
    /// Read only files of the folder that match this pattern, such as '*.txt'; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(super) include: Vec<String>,
    /// Leave out files of the folder that match this pattern, such as '*.png'; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(super) exclude: Vec<String>,
    /// Leave out the files of the folder that are not text in UTF-8
    #[arg(long)]
    pub(super) skip_bad_files: bool,
}

impl Selected {
    /// Refuses the flags if nothing names a `folder`, as this flag does.
    pub(super) fn check(&self, flag: &str, folder: Option<&Path>) -> Result<(), Misuse> {
        let given = [
            ("--include", !self.include.is_empty()),
            ("--exclude", !self.exclude.is_empty()),
            ("--skip-bad-files", self.skip_bad_files),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((given, _)) if folder.is_none_or(|path| !path.is_dir()) => {
                Err(Misuse(format!("{given} selects files of a folder\n  hint: name one with {flag}")))
            }
            _ => Ok(()),
        }
    }

    /// The arguments of `--set` that do the same.
    pub(super) fn overrides(&self) -> Vec<String> {
        let patterns = [("include", &self.include), ("exclude", &self.exclude)];
        let given = patterns.into_iter().filter(|(_, patterns)| !patterns.is_empty());
        let mut sets: Vec<String> =
            given.map(|(key, patterns)| format!("data.{key}={}", toml::Value::from(patterns.clone()))).collect();
        sets.extend(self.skip_bad_files.then(|| "data.skip_bad_files=true".to_owned()));
        sets
    }

    /// Sets the keys of `data` that do the same.
    pub(super) fn apply(&self, data: &mut DataConfig) {
        let Self { include, exclude, skip_bad_files } = self.clone();
        if !include.is_empty() {
            data.include = include;
        }
        if !exclude.is_empty() {
            data.exclude = exclude;
        }
        data.skip_bad_files |= skip_bad_files;
    }
}

/// The names of fields of records in another form.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Mapped {
    /// Fields of records in another form, such as prompt=question,completion=answer; may be repeated
    #[arg(long, value_name = "OURS=THEIRS", value_delimiter = ',', requires = "data")]
    pub(super) map: Vec<String>,
}

impl Mapped {
    /// The arguments of `--set` that do the same.
    pub(super) fn overrides(&self) -> Option<String> {
        (!self.map.is_empty()).then(|| format!("finetune.map={}", toml::Value::from(self.map.clone())))
    }
}

/// The arguments of `--set`, followed by `--device` as the key that it sets.
pub(super) fn overrides(sets: &[String], device: Option<DeviceSpec>) -> Vec<String> {
    sets.iter().cloned().chain(device.map(|device| format!("train.device=\"{device}\""))).collect()
}
