//! `tinderbox train`: trains a model from a config file and writes a run directory.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::args::{open_device, overrides, program};
use super::dashboard::{self, Dashboard};
use super::exit::{DONE, FAILED, INTERRUPTED, describe, on_ctrl_c};
use super::next::talk;
use super::print::{note, note_each, print_json};
use super::progress::Progress;
use super::{config, report};
use crate::config::{Base, Config};
use crate::data;
use crate::device::{self, DeviceSpec, OpenDevice};
use crate::distributed::Ranks;
use crate::format::shell_word;
use crate::plan::{self, PlanError};
use crate::run::RunDir;
use crate::run::layout::default_dir;
use crate::train::{self, Assignment, Interrupter, Job, Skipped, Start, Summary, TrainError};

#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an argument")]
#[command(after_help = "\
Examples:
  tinderbox train quickstart
  tinderbox train my.toml --set train.max_steps=3000 --run-dir runs/longer
  tinderbox train my.toml --resume")]
pub(super) struct Args {
    /// Config file, or a preset such as quickstart
    config: PathBuf,
    /// Override a config key, such as train.max_steps=3000; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Device: auto, cpu, a name from `tinderbox devices`, or cuda:all for all NVIDIA GPUs [default: train.device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Run directory [default: runs/ and the config's name]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Start from the weights of RUN (its best checkpoint), RUN/last, or RUN/checkpoints/step-N, with its model and
    /// tokenizer [default: random weights, drawn with train.seed]
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Continue from the run's last checkpoint
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
    /// Train even if the memory seems too small or the text is a binary file
    #[arg(long)]
    force: bool,
    /// Show a full-screen dashboard: metrics, charts, log
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Print one JSON object on standard output at the end
    #[arg(long)]
    json: bool,
}

/// Trains a run, together with the launcher's other processes if there are any, and returns the exit code.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    let ranks = Ranks::join(|error| note(error))?;
    if ranks.is_alone() {
        return lead(args, &ranks);
    }
    let done = check_same(args, &ranks).and_then(|()| match ranks.is_first() {
        true => lead(args, &ranks),
        false => follow(&ranks),
    });
    match done {
        Ok(code) => {
            ranks.leave();
            Ok(code)
        }
        // The other ranks wait for this one: abort them.
        Err(error) => {
            note(format!("{}: {}", ranks.name(), describe(&error)));
            ranks.abort(FAILED)
        }
    }
}

/// Checks that the program's version, the config file and the arguments that change the config equal rank 0's.
fn check_same(args: &Args, ranks: &Ranks) -> anyhow::Result<()> {
    ranks.check_same("version of the program", env!("CARGO_PKG_VERSION"))?;
    let config = config::read(&args.config)?;
    Ok(ranks.check_same("config", &format!("{config}{:?}", (&args.overrides, &args.device)))?)
}

/// Trains together with rank 0, which writes the run and decides when it ends.
fn follow(ranks: &Ranks) -> anyhow::Result<u8> {
    // A stopped launcher signals every process; only rank 0 reacts, after saving the run.
    on_ctrl_c(|| {})?;
    if let Some(assignment) = Assignment::receive(ranks)? {
        let device = open_device(&own_devices(&assignment.config, ranks)?[0])?;
        assignment.work(device, ranks, |step, skipped| note_skipped(ranks, step, skipped))?;
    }
    Ok(DONE)
}

/// The devices of this process: all, or under a launcher the one selected by the local rank.
fn own_devices(config: &Config, ranks: &Ranks) -> anyhow::Result<Vec<DeviceSpec>> {
    let devices = device::each(&config.train.device.parse()?);
    Ok(if ranks.is_alone() { devices } else { vec![devices[ranks.index_on_host() % devices.len()]] })
}

/// The device that `auto` means for the model of `config`: the GPU, if there is one and it is faster than the CPU.
fn faster_device(config: &Config) -> anyhow::Result<OpenDevice> {
    let gpu = open_device(&DeviceSpec::Auto)?;
    let Ok(cpu) = device::open(&DeviceSpec::Cpu) else { return Ok(gpu) };
    if gpu.backend.is_cpu() {
        return Ok(gpu);
    }
    let begin = || note(format!("comparing {} with the CPU, once for a model of this size ...", gpu.name));
    match plan::step_times(config, [&cpu, &gpu], begin) {
        Ok(Some(times)) => {
            note(times.reason(&gpu));
            Ok(if times.are_shorter_on_gpu() { gpu } else { cpu })
        }
        Err(PlanError::Device(message)) => {
            note_each("warning", [format!("computing on the CPU: {} failed: {message}", gpu.name)]);
            Ok(cpu)
        }
        // It does not fit the CPU's memory, or training reports the error.
        Ok(None) | Err(_) => Ok(gpu),
    }
}

fn note_skipped(ranks: &Ranks, step: usize, skipped: &Skipped) {
    note(format!("{}: step {step}  skipped: {skipped}", ranks.name()));
}

/// Trains as rank 0, which writes the run.
fn lead(args: &Args, ranks: &Ranks) -> anyhow::Result<u8> {
    let overrides = overrides(&args.overrides, args.device);
    let run_dir = args.run_dir.clone().unwrap_or_else(|| default_dir(&args.config));
    let config = if args.resume {
        let base = RunDir::open(&run_dir)?.config()?;
        Config::from_toml_inheriting(
            &config::read(&args.config)?,
            &args.config,
            &overrides,
            Some(Base::Resumed(&base)),
        )?
    } else {
        config::load(&args.config, &overrides, args.from.as_deref())?
    };
    config::provide_stories(&config)?;
    let start = start_of(args.resume, args.overwrite);
    let (interrupter, progress) = watch(args.tui)?;
    let session = Session { config, run_dir, start, from: args.from.clone(), force: args.force };
    let summary = match session.train(ranks, &interrupter, &progress)? {
        Ok(summary) => summary,
        Err(code) => return Ok(code),
    };
    let next = if summary.interrupted { ("", resume_command(args, &summary)) } else { talk(&summary.run_dir) };
    progress.finish(&summary, &report::at_end(&summary.run_dir, &interrupter), next);
    if args.json {
        print_json(&summary)?;
    }
    Ok(exit_code(&summary))
}

pub(super) fn exit_code(summary: &Summary) -> u8 {
    if summary.interrupted { INTERRUPTED } else { DONE }
}

pub(super) fn start_of(resume: bool, overwrite: bool) -> Start {
    match (resume, overwrite) {
        (true, _) => Start::Resume,
        (_, true) => Start::Overwrite,
        _ => Start::New,
    }
}

/// A run to train with progress on standard error.
pub(super) struct Session {
    pub(super) config: Config,
    pub(super) run_dir: PathBuf,
    pub(super) start: Start,
    pub(super) from: Option<PathBuf>,
    pub(super) force: bool,
}

impl Session {
    /// Trains the run, to its end or until it is interrupted. If it ended before the first step or at a loss that is not
    /// finite, that is reported, and only the exit code is left.
    pub(super) fn train(
        self,
        ranks: &Ranks,
        interrupter: &Interrupter,
        progress: &Progress,
    ) -> anyhow::Result<Result<Summary, u8>> {
        let Self { config, run_dir, start, from, force } = self;
        let specs = own_devices(&config, ranks)?;
        let devices: Vec<_> = match specs[..] {
            [DeviceSpec::Auto] if ranks.is_alone() && config.finetune.base.is_none() => vec![faster_device(&config)?],
            _ => specs.iter().map(open_device).collect::<Result<_, _>>()?,
        };
        let (device, others) = devices.split_first().expect("a run has at least one device");
        if !device.backend.is_cpu() {
            note(format!(
                "{} compiles kernels and tries them out before the first step: that may take minutes",
                device.name
            ));
        }
        if !force && config.finetune.base.is_none() {
            plan::check_training(&config, device)?;
            if start != Start::Resume {
                data::check_format(&config)?;
            }
        }
        let job = Job { config, run_dir: run_dir.clone(), start, from, device: device.clone() };
        let observer = Box::new(progress.clone());
        let trained = match others {
            [] => train::lead(job, ranks, observer, interrupter),
            others => train::train_on(job, others, observer, interrupter, note_skipped),
        };
        let error = match trained {
            Ok(summary) => return Ok(Ok(summary)),
            // Nothing has begun, so that nothing has failed.
            Err(error @ (TrainError::AlreadyDone { .. } | TrainError::AlreadyStopped { .. })) => {
                return Err(error.into());
            }
            Err(error) => error,
        };
        let is_interrupted = matches!(error, TrainError::InterruptedEarly);
        let has_curves = matches!(error, TrainError::NotFinite { .. });
        let error = anyhow::Error::from(error);
        progress.failed(&describe(&error));
        if is_interrupted {
            note(error);
            return Ok(Err(INTERRUPTED));
        }
        if !has_curves {
            return Err(error);
        }
        note(describe(&error));
        progress.say(&report::at_end(&run_dir, interrupter));
        Ok(Err(FAILED))
    }
}

/// The progress of a run, on the dashboard if `tui`, and the interrupter with which signals stop it.
pub(super) fn watch(tui: bool) -> anyhow::Result<(Interrupter, Progress)> {
    if tui {
        dashboard::check()?;
    }
    let interrupter = Interrupter::new();
    let progress = Progress::new(tui.then(|| Dashboard::new(interrupter.clone())));
    stop_on_ctrl_c(interrupter.clone(), progress.clone())?;
    Ok((interrupter, progress))
}

/// The command to continue an interrupted run.
fn resume_command(args: &Args, summary: &Summary) -> String {
    let run_dir = shell_word(&summary.run_dir);
    let mut words = vec![program(), "train".to_owned(), shell_word(&args.config)];
    words.extend(args.overrides.iter().map(|set| format!("--set {}", shell_word(set))));
    words.extend(args.device.map(|device| format!("--device {device}")));
    if args.run_dir.is_some() {
        words.push(format!("--run-dir {run_dir}"));
    }
    words.extend(args.tui.then(|| "--tui".to_owned()));
    words.push("--resume".to_owned());
    words.join(" ")
}

fn stop_on_ctrl_c(interrupter: Interrupter, progress: Progress) -> anyhow::Result<()> {
    let mut last: Option<Instant> = None;
    on_ctrl_c(move || {
        let is_same = last.is_some_and(|last| last.elapsed() < SAME_SIGNAL);
        last = Some(Instant::now());
        if !is_same {
            dashboard::stop_or_exit(&interrupter);
            progress.stopping();
            exit_while_reading(&progress);
        }
    })
}

/// Exits if the text is still being read: before the first step there is nothing to save, and long operations such as
/// finding merges do not check for a stop.
fn exit_while_reading(progress: &Progress) {
    thread::sleep(READING_STOPS);
    if progress.is_reading() {
        dashboard::restore_terminal();
        note(TrainError::InterruptedEarly);
        std::process::exit(i32::from(INTERRUPTED));
    }
}

const READING_STOPS: Duration = Duration::from_millis(150);

/// Signals closer together than this count as one: when a terminal closes, both the shell and the system send one.
const SAME_SIGNAL: Duration = Duration::from_millis(100);
