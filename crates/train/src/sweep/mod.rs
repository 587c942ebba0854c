//! Sweeps: finds the settings that suit a text by training many short runs for equal time.
//!
//! Runs train inside this process, which has read the text and opened the device once. A panic ends only its run.
//! Running out of memory would end the process, so `plan` checks first that each run fits; resuming afterwards is the
//! same as after any other kill: everything that a decision depends on is logged before it is used.

mod best;
mod equal_time;
mod log;
mod outcome;
mod results;
mod space;
mod sweep_plan;
mod trial;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use log::Entry;
pub use outcome::{Group, Importance, Outcome, TrialRow};
pub use space::{Dimension, Edge, NextRange, Setting, SpaceError};
pub use sweep_plan::{Method, SweepPlan};

use crate::config::{Config, ConfigError, GenerateConfig, KeptCheckpoints, ScheduleConfig, TrainConfig};
use crate::plan::{self, PlanError, lack_of_memory};
use crate::run::RunError;
use crate::train::{Interrupter, TrainError, in_own_pool};
use equal_time::{steps_within, whole_steps};
use log::Folder;
use results::{Prepared, Results, mean};
use tinderbox_model::device::{self, DeviceError, OpenDevice};
use tinderbox_model::disk::remove_left_over;
use tinderbox_model::format::{duration, first_line, grouped};
use tinderbox_model::measure::Machine;

/// The page, in the folder of the sweep.
pub const PAGE: &str = "sweep.html";
/// The best config, in the same folder.
pub const BEST: &str = "best.toml";
/// The run directories, in the same folder.
const RUNS: &str = "runs";

const EVALUATIONS: usize = 8;

/// The speedup that two parallel runs need over one run after the other; a smaller one is noise.
const GAIN: f64 = 1.05;

/// A sweep to run. The same request in the same folder resumes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The base config, as TOML.
    pub config: String,
    /// The name of the base config in messages.
    pub config_name: PathBuf,
    /// Overrides for every run, `section.key=value`.
    pub overrides: Vec<String>,
    /// The keys that vary, in the format of [`Dimension::parse`].
    pub space: Vec<String>,
    /// The method that chooses the settings to try.
    pub method: Method,
    /// The time limit for all training steps together, in seconds.
    pub budget_s: f64,
    /// The number of seeds per setting, at least 1.
    pub n_seeds: usize,
    /// The most parameters of a model; `None` if only memory limits them.
    pub max_parameters: Option<u64>,
}

impl Request {
    /// The arguments that differ between two requests and change their runs; empty if none do. Those of a config's name,
    /// and of its comments, do not.
    fn differences(&self, other: &Self) -> String {
        let Self { config, config_name: _, overrides, space, method, budget_s, n_seeds, max_parameters } = self;
        let table = |text: &str| text.parse::<Table>().ok();
        let is_same_config =
            *config == other.config || table(config).is_some_and(|keys| table(&other.config) == Some(keys));
        let names = [
            ("the base config", !is_same_config),
            ("--set or --device", *overrides != other.overrides),
            ("--space", *space != other.space),
            ("--method", *method != other.method),
            ("--budget", budget_s.total_cmp(&other.budget_s).is_ne()),
            ("--seeds", *n_seeds != other.n_seeds),
            ("--max-parameters", *max_parameters != other.max_parameters),
        ];
        let names = names.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
        names.collect::<Vec<_>>().join(", ")
    }
}

/// The reason why a sweep did not finish. The runs trained so far stay, and the same request resumes from there.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum SweepError {
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("the base config cannot be trained: {0}\n  hint: `tinderbox plan` says more")]
    Base(String),
    #[error("a grid takes lists only\n  hint: list the values of every key, or use --method random")]
    GridOfRanges,
    #[error("none of the settings can be trained: {0}\n  hint: try one of them with `tinderbox plan`")]
    NothingLeft(String),
    #[error(
        "`{0}` holds another sweep, which differs in: {1}\n  hint: repeat its command to resume it, choose another \
         folder with --sweep-dir, or replace it with --overwrite"
    )]
    Other(PathBuf, String),
    #[error("`{0}` is damaged or of another version\n  hint: replace the sweep with --overwrite")]
    Damaged(PathBuf),
    #[error("`{0}` is not empty and not a sweep, so nothing is written there\n  hint: choose another --sweep-dir")]
    NotEmpty(PathBuf),
    #[error("cannot use `{0}`: {1}\n  hint: check the disk, or choose another place with --sweep-dir")]
    File(PathBuf, #[source] io::Error),
    #[error("interrupted: everything is saved\n  hint: repeat the command to go on")]
    Interrupted,
}

/// Runs or resumes the sweep, and writes the page and the best config into its folder `root`.
///
/// `observer` receives every new log entry.
pub fn run(
    request: &Request,
    root: &Path,
    overwrite: bool,
    observer: &(dyn Fn(&Entry) + Sync),
    interrupter: &Interrupter,
) -> Result<Outcome, SweepError> {
    let space = request.space.iter().map(|text| Dimension::parse(text)).collect::<Result<Vec<_>, _>>()?;
    if request.method == Method::Grid && space::n_settings(&space).is_none() {
        return Err(SweepError::GridOfRanges);
    }
    let base = load(request, &[], &[])?;
    let device = device::open(&base.train.device.parse()?)?;
    let (folder, entries) = Folder::open(root, request, overwrite)?;
    let logged = Mutex::new(Logged { folder, results: Results::default() });
    let sweep = Sweep { request, root, space: &space, base: &base, device, observer, interrupter, logged };
    for entry in entries {
        sweep.logged().results.add(entry);
    }
    let (plan, settings) = sweep.plan()?;
    sweep.prepare_all(&plan, &settings)?;
    sweep.train_all(&plan, &settings)?;
    let mut outcome = Outcome::new(root, &space, &settings, &plan, &sweep.logged().results);
    outcome.best_toml = outcome.best().map(|best| {
        let setting = if best.trial == 0 { &[] } else { &settings[best.trial][..] };
        best::toml(request, &space, setting, best.step_ms.expect("it was trained"), &outcome)
    });
    if let Some(toml) = &outcome.best_toml {
        outcome::write(root, BEST, toml)?;
    }
    // Files that were half written when the process was killed.
    remove_left_over(root);
    let runs = (0..settings.len()).flat_map(|trial| (0..plan.n_seeds).map(move |seed| run_name(trial, seed)));
    for run in runs {
        remove_left_over(&root.join(run));
    }
    Ok(outcome)
}

fn load(request: &Request, space: &[Dimension], setting: &[Value]) -> Result<Config, ConfigError> {
    Config::from_toml(&request.config, &request.config_name, &overrides(request, space, setting))
}

/// The overrides of the base config for a setting: the request's, then the setting's values.
fn overrides(request: &Request, space: &[Dimension], setting: &[Value]) -> Vec<String> {
    let values = space.iter().zip(setting).map(|(dimension, value)| format!("{}={value}", dimension.key.path));
    request.overrides.iter().cloned().chain(values).collect()
}

/// The directory of a run, relative to the sweep's.
fn run_name(trial: usize, seed: usize) -> PathBuf {
    let seed = if seed == 0 { String::new() } else { format!("-seed-{seed}") };
    Path::new(RUNS).join(format!("trial-{trial:03}{seed}"))
}

struct Cost {
    parameters: u64,
    /// The peak memory in bytes; of a fine-tuning 0 until it is measured.
    peak: u64,
    machine: Option<Machine>,
    /// `None` if it was not measured.
    step_ms: Option<f64>,
    has_text: bool,
    /// The first warning or note: the reason, if the run cannot be trained.
    warning: Option<String>,
}

impl Cost {
    fn estimate(config: &Config, device: &OpenDevice, measure: bool) -> Result<Self, PlanError> {
        if config.finetune.base.is_some() {
            let plan = plan::plan_finetune(config, device, measure)?;
            return Ok(Self {
                parameters: plan.parameters,
                peak: plan.measured.and_then(|measured| measured.peak).unwrap_or(0),
                machine: plan.machine,
                step_ms: plan.measured.map(|measured| measured.step_ms),
                has_text: true,
                warning: None,
            });
        }
        let plan = plan::plan(config, None, device, measure)?;
        Ok(Self {
            parameters: plan.parameters.total,
            peak: plan.memory.peak,
            machine: plan.memory.machine,
            step_ms: plan.time.map(|time| time.measured.step_ms),
            has_text: plan.text.is_some(),
            warning: plan.warnings.iter().chain(&plan.notes).map(first_line).next(),
        })
    }
}

struct Logged {
    folder: Folder,
    results: Results,
}

struct Sweep<'a> {
    request: &'a Request,
    root: &'a Path,
    space: &'a [Dimension],
    base: &'a Config,
    device: OpenDevice,
    observer: &'a (dyn Fn(&Entry) + Sync),
    interrupter: &'a Interrupter,
    logged: Mutex<Logged>,
}

impl Sweep<'_> {
    fn logged(&self) -> MutexGuard<'_, Logged> {
        self.logged.lock().expect("no thread panics while it holds the log")
    }

    /// Logs an entry before anything acts on it.
    fn note(&self, entry: Entry) -> Result<(), SweepError> {
        let mut logged = self.logged();
        logged.folder.append(&entry)?;
        (self.observer)(&entry);
        logged.results.add(entry);
        Ok(())
    }

    /// The plan of the sweep and its settings, the base config's first.
    fn plan(&self) -> Result<(SweepPlan, Vec<Setting>), SweepError> {
        let table = Table::try_from(self.base).expect("configs serialize to TOML");
        let value = |dimension: &Dimension| {
            let (section, key) = dimension.key.path.split_once('.').expect("keys are written section.key");
            table[section].get(key).cloned().unwrap_or_else(|| Value::String("none".to_owned()))
        };
        let base: Setting = self.space.iter().map(value).collect();
        let draw = |n| space::draw(self.space, base.clone(), n, self.base.train.seed);
        let n_settings = space::n_settings(self.space).map(|n| n.saturating_add(1));
        let n_possible = n_settings.map(|n| if n <= sweep_plan::MOST_SETTINGS { draw(n).len() } else { n });
        let known = self.logged().results.plan;
        let plan = known.map_or_else(|| self.new_plan(n_possible), Ok)?;
        Ok((plan, draw(plan.n_settings)))
    }

    /// Measures the base config, alone and with a second run in parallel, and plans with the faster option.
    fn new_plan(&self, n_possible: Option<usize>) -> Result<SweepPlan, SweepError> {
        let base = self.measured(self.base, 1)?;
        let Cost { step_ms: Some(alone_ms), has_text: true, .. } = base else {
            return Err(SweepError::Base(base.warning.unwrap_or_default()));
        };
        let fits_twice = base.machine.is_some_and(|machine| 2 * base.peak <= machine.available);
        let (mut jobs, mut step_ms) = (1, alone_ms);
        if self.device.backend.is_cpu() && fits_twice && rayon::current_num_threads() > 1 {
            let beside = self.measured(self.base, 2)?.step_ms;
            if let Some(beside_ms) = beside.filter(|beside_ms| beside_ms * GAIN < 2.0 * alone_ms) {
                (jobs, step_ms) = (2, beside_ms);
            }
        }
        let base_s = whole_steps(self.base, self.base.train.max_steps) * step_ms / 1e3;
        let plan = SweepPlan::new(self.request, base_s, n_possible, jobs);
        self.note(Entry::Planned(plan))?;
        Ok(plan)
    }

    /// The cost of a config, with the mean step time of `jobs` parallel runs.
    fn measured(&self, config: &Config, jobs: usize) -> Result<Cost, PlanError> {
        let config = measurable(config);
        let costs = side_by_side(jobs, || Cost::estimate(&config, &self.device, true));
        let costs = costs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let step_ms: Option<Vec<f64>> = costs.iter().map(|cost| cost.step_ms).collect();
        let first = costs.into_iter().next().expect("at least one job ran");
        Ok(Cost { step_ms: step_ms.map(|step_ms| mean(&step_ms)), ..first })
    }

    /// Checks every setting, and measures those that differ in keys that affect the step time.
    fn prepare_all(&self, plan: &SweepPlan, settings: &[Setting]) -> Result<(), SweepError> {
        let mut speeds: BTreeMap<String, f64> = BTreeMap::new();
        speeds.insert(speed_key(self.base), plan.base_s * 1e3 / whole_steps(self.base, self.base.train.max_steps));
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        for (trial, setting) in settings.iter().enumerate() {
            if self.interrupter.should_stop() {
                return Err(SweepError::Interrupted);
            }
            let config = self.config_of(trial, setting).and_then(|config| {
                let first = *runs.entry(equal_time::effective(&config).to_toml()).or_insert(trial);
                if first == trial { Ok(config) } else { Err(format!("it makes the same run as trial {first}")) }
            });
            if !self.logged().results.trials.contains_key(&trial) {
                let entry = match &config {
                    Err(reason) => Err(reason.clone()),
                    Ok(config) => self.prepare(plan, trial, config, &speeds)?,
                };
                self.note(entry.unwrap_or_else(|reason| Entry::LeftOut { trial, reason }))?;
            }
            if let (Ok(config), Ok(prepared)) = (&config, &self.logged().results.trials[&trial]) {
                speeds.insert(speed_key(config), prepared.step_ms);
            }
        }
        if self.logged().results.trainable().is_empty() {
            let base = self.logged().results.trials[&0].clone();
            return Err(SweepError::NothingLeft(base.err().unwrap_or_default()));
        }
        Ok(())
    }

    fn config_of(&self, trial: usize, setting: &[Value]) -> Result<Config, String> {
        let setting = if trial == 0 { &[] } else { setting };
        load(self.request, self.space, setting).map_err(|error| match error {
            ConfigError::Invalid(_, problems) => problems.join("; "),
            other => first_line(other),
        })
    }

    /// Checks a setting against the limits; the inner result is its log entry, or the reason why it is left out.
    fn prepare(
        &self,
        plan: &SweepPlan,
        trial: usize,
        config: &Config,
        speeds: &BTreeMap<String, f64>,
    ) -> Result<Result<Entry, String>, SweepError> {
        let known_ms = speeds.get(&speed_key(config)).copied();
        let cost = match Cost::estimate(config, &self.device, false) {
            Err(PlanError::Device(message)) => return Err(PlanError::Device(message).into()),
            Err(error) => return Ok(Err(first_line(error))),
            Ok(cost) => cost,
        };
        let parameters = cost.parameters;
        if let Some(most) = self.request.max_parameters.filter(|most| parameters > *most) {
            return Ok(Err(format!("{} parameters are more than {}", grouped(parameters), grouped(most))));
        }
        let needed = cost.peak * plan.jobs as u64;
        if let Some(lack) = cost.machine.and_then(|machine| lack_of_memory("it", needed, machine)) {
            return Ok(Err(lack));
        }
        let step_ms = match known_ms {
            Some(step_ms) => Some(step_ms),
            None => self.measured(config, plan.jobs)?.step_ms,
        };
        let Some(step_ms) = step_ms else { return Ok(Err(cost.warning.unwrap_or_default())) };
        let max_steps = steps_within(config, plan.full_s, step_ms);
        if max_steps == 0 {
            let (step, all) = (duration(step_ms / 1e3), duration(plan.full_s));
            return Ok(Err(format!("a step takes {step}, which is too long for a run of {all}")));
        }
        Ok(Ok(Entry::Prepared { trial, parameters, step_ms, max_steps }))
    }

    /// Trains all runs without a result.
    fn train_all(&self, plan: &SweepPlan, settings: &[Setting]) -> Result<(), SweepError> {
        let runs: Vec<(usize, usize)> = {
            let results = &self.logged().results;
            let runs =
                results.trainable().into_iter().flat_map(|trial| (0..plan.n_seeds).map(move |seed| (trial, seed)));
            runs.filter(|run| !results.reached.contains_key(run)).collect()
        };
        let next = AtomicUsize::new(0);
        let results = side_by_side(plan.jobs, || -> Result<(), SweepError> {
            while let Some((trial, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let entry = self.train_run(&settings[*trial], *trial, *seed);
                if entry.is_err() {
                    next.store(runs.len(), Ordering::Relaxed); // the parallel run is the last
                }
                self.note(entry?)?;
            }
            Ok(())
        });
        results.into_iter().collect()
    }

    fn train_run(&self, setting: &[Value], trial: usize, seed: usize) -> Result<Entry, SweepError> {
        let Some(Ok(Prepared { max_steps, .. })) = self.logged().results.trials.get(&trial).cloned() else {
            unreachable!("only prepared trials are trained");
        };
        let config = self.config_of(trial, setting).expect("it was checked when it was prepared");
        let config = compared(config, self.base, max_steps, seed);
        let root = self.root.join(run_name(trial, seed));
        Ok(match trial::train(&root, config, &self.device, self.interrupter)? {
            Ok(bits_per_byte) => Entry::Reached { trial, seed, step: max_steps, bits_per_byte },
            Err(reason) => Entry::Failed { trial, seed, reason },
        })
    }
}

/// The config of a run for comparison: as long as its time allows, and evaluated on as many tokens as the base config.
fn compared(config: Config, base: &Config, max_steps: usize, seed: usize) -> Config {
    let tokens = |config: &Config| config.train.batch_size * config.model.context_length;
    let train = TrainConfig {
        seed: base.train.seed + seed as u64,
        max_steps,
        eval_interval: (max_steps / EVALUATIONS).max(1),
        eval_batches: (base.train.eval_batches * tokens(base)).div_ceil(tokens(&config)),
        checkpoint_interval: 0,
        keep_checkpoints: KeptCheckpoints::Latest(1),
        sample_tokens: 0,
        early_stopping_patience: 0,
        tensorboard: false,
        head_metrics: false,
        ..config.train
    };
    Config { train, ..config }
}

/// The config with everything that does not affect step time at its default: learning rates, too, since some would make
/// a model diverge within a few steps.
fn measurable(config: &Config) -> Config {
    let mut config = config.clone();
    let TrainConfig { matmul_precision, batch_size, grad_accumulation_steps, .. } = config.train;
    config.train = TrainConfig { matmul_precision, batch_size, grad_accumulation_steps, ..TrainConfig::default() };
    config.optimizer = config.optimizer.for_timing();
    (config.schedule, config.generate) = (ScheduleConfig::default(), GenerateConfig::default());
    if config.model.dropout > 0.0 {
        config.model.dropout = 0.5; // any rate takes the same time
    }
    config
}

/// The part of a config that step time depends on.
fn speed_key(config: &Config) -> String {
    measurable(config).to_toml()
}

/// The results of `jobs` parallel calls, each with its share of the threads.
fn side_by_side<T: Send>(jobs: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    if jobs == 1 {
        return vec![work()];
    }
    thread::scope(|scope| {
        let running: Vec<_> = (0..jobs).map(|_| scope.spawn(|| in_own_pool(jobs, &work))).collect();
        running.into_iter().map(|thread| thread.join().expect("panics of runs are caught")).collect()
    })
}

#[cfg(test)]
mod tests;
