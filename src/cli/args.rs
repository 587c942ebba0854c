//! Arguments that several commands share.

use std::env;
use std::path::{Path, PathBuf};

use super::print::note_each;
use crate::config::GenerateConfig;
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
