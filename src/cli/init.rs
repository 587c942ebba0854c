//! `tinderbox init`: prints or writes a config.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::args::{Selected, open_device, program};
use super::output;
use super::print::{note, print};
use crate::autoconfig::{self, Request};
use crate::config::reference::with_every_key;
use crate::config::{Config, TokenizerKind};
use crate::data;
use crate::device::DeviceSpec;
use crate::format::shell_word;
use crate::preset::{PRESETS, Preset};
use crate::run::layout::default_dir;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox init --from-text my.txt > my.toml
  tinderbox init --from-text books/ --minutes 60 --output books.toml
  tinderbox init --preset shakespeare > shakespeare.toml
  tinderbox init --all > all.toml")]
pub(super) struct Args {
    /// Preset to print unchanged [default: quickstart]
    #[arg(long, value_name = "NAME", value_parser = preset_names(), conflicts_with = "from_text")]
    preset: Option<String>,
    /// Print all keys, with meaning and default; those that the config does not set are commented out
    #[arg(long, conflicts_with = "from_text")]
    all: bool,
    /// Make a config for this text, a file or a folder: reads it and measures a few training steps [default: print a
    /// preset]
    #[arg(long, value_name = "FILE")]
    from_text: Option<PathBuf>,
    /// Field of a JSON Lines record that holds its text [default: text]
    #[arg(long, value_name = "NAME", requires = "from_text")]
    text_field: Option<String>,
    #[command(flatten)]
    selected: Selected,
    /// Training time to plan for, in minutes
    #[arg(long, value_name = "N", default_value_t = 10.0, requires = "from_text", value_parser = minutes)]
    minutes: f64,
    /// Kind of tokenizer; auto: chosen for the text
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Kind::Auto, requires = "from_text")]
    tokenizer: Kind,
    /// Device to measure and to train on: auto, cpu, or a name from `tinderbox devices` [default: auto]
    #[arg(long, value_name = "DEVICE", requires = "from_text")]
    device: Option<DeviceSpec>,
    /// Output file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing config
    #[arg(long, requires = "output")]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Auto,
    Char,
    Byte,
    Bpe,
}

fn preset_names() -> PossibleValuesParser {
    // File names are accepted as aliases but not listed.
    PRESETS.map(|preset| PossibleValue::new(preset.name).alias(preset.stem)).into()
}

fn minutes(typed: &str) -> anyhow::Result<f64> {
    let minutes = typed.parse().context("it is not a number of minutes")?;
    autoconfig::check_minutes(minutes)?;
    Ok(minutes)
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.selected.check("--from-text", args.from_text.as_deref())?;
    args.check_output()?; // before the measurement, which takes seconds
    // A script that reads the config from a pipe needs no advice.
    let has_reader = args.output.is_some() || io::stdout().is_terminal();
    if let Some(text) = &args.from_text {
        emit(args, &from_text(args, text)?)?;
    } else {
        let name = args.preset.as_deref().unwrap_or("quickstart");
        let preset = Preset::named(name).expect("clap has checked the name");
        match args.all {
            true => emit(args, &with_every_key(preset.toml, Path::new(name))?)?,
            false => emit(args, preset.toml)?,
        }
        if args.preset.is_none() {
            list_presets();
        }
        let path = preset.config().data.path;
        if let Some(hint) = data::fetch_hint(&path).filter(|_| has_reader) {
            note(format!("\nIts text is `{}`: {hint}.", path.display()));
        }
    }
    if has_reader {
        note_next_commands(args);
    }
    Ok(())
}

/// The config for a text and a device, after measuring training steps.
fn from_text(args: &Args, text: &Path) -> anyhow::Result<String> {
    let spec = args.device.unwrap_or(DeviceSpec::Auto);
    let request = Request {
        text: text.to_owned(),
        text_field: args.text_field.clone(),
        include: args.selected.include.clone(),
        exclude: args.selected.exclude.clone(),
        skip_bad_files: args.selected.skip_bad_files,
        minutes: args.minutes,
        tokenizer: match args.tokenizer {
            Kind::Auto => None,
            Kind::Char => Some(TokenizerKind::Char),
            Kind::Byte => Some(TokenizerKind::Byte),
            Kind::Bpe => Some(TokenizerKind::Bpe),
        },
        device: spec.to_string(),
        config_name: config_name(args, text),
    };
    let device = open_device(&spec)?;
    note(format!("reading `{}` and measuring training steps on {} ...", text.display(), device.name));
    let config = autoconfig::for_text(&request, &device)?;
    for caution in config.cautions {
        note(caution);
    }
    Ok(config.toml)
}

/// The config's name in its comments: the output file's name, or one derived from the text's.
fn config_name(args: &Args, text: &Path) -> String {
    if let Some(path) = &args.output {
        return path.to_string_lossy().into_owned();
    }
    let stem = text.file_stem().unwrap_or("my".as_ref());
    format!("{}.toml", stem.to_string_lossy())
}

fn emit(args: &Args, toml: &str) -> anyhow::Result<()> {
    let Some(path) = &args.output else { return print(toml) };
    args.check_output()?; // the measurement took seconds
    output::write(path, toml)
}

impl Args {
    /// Checks that the output file can be written, and replaces at most a config.
    fn check_output(&self) -> anyhow::Result<()> {
        let Some(path) = &self.output else { return Ok(()) };
        output::check_file(path)?;
        if !self.overwrite && path.symlink_metadata().is_ok() {
            bail!(
                "`{}` already exists; nothing was written\n  hint: choose another name, or replace it with --overwrite",
                path.display()
            );
        }
        output::check_replaced(path, "a config", is_config)
    }
}

/// Whether a text is a config: it has sections of a config, and no others.
fn is_config(text: &str) -> bool {
    let known = toml::Table::try_from(Config::default()).expect("the default config serializes");
    let found = text.parse::<toml::Table>().unwrap_or_default();
    !found.is_empty() && found.keys().all(|section| known.contains_key(section) || section == "distributed")
}

fn list_presets() {
    note("\nThis is the preset quickstart. The presets are:");
    for Preset { name, about, stem, .. } in PRESETS {
        note(format!("    --preset {name:<16} {about} (configs/{stem}.toml)"));
    }
    note("    --from-text FILE          a config for your own text and this machine");
    note("    --all                     all keys, with meaning and default");
}

fn note_next_commands(args: &Args) {
    let config = match (&args.output, &args.from_text) {
        (Some(path), _) => path.clone(),
        (None, Some(text)) => config_name(args, text).into(),
        (None, None) => PathBuf::from("my.toml"),
    };
    let (program, run, config) = (program(), shell_word(default_dir(&config)), shell_word(config));
    let save = match args.output {
        Some(_) => "The config is written. Next:".to_owned(),
        None => format!("Save it, for example with `> {config}`, then"),
    };
    note(format!("\n{save}\n    {program} train {config}\n    {program} generate {run} --prompt \"...\""));
}
