//! `tinderbox serve`: serves trained models over HTTP.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use super::args::{generate_of, warn_if_slow};
use super::exit::{INTERRUPTED, Misuse, on_ctrl_c, this_program};
use super::numbers::{at_least_one, count, within};
use super::print::note;
use super::weights::Formats;
use crate::config::ModelConfig;
use crate::device::DeviceSpec;
use crate::format::{counted, first_line, grouped, size};
use crate::interop::open_adapters;
use crate::measure::Machine;
use crate::plan::Writing;
use crate::run::{self, Adapters, Checkpoint, RunDir, RunError, Trained};
use crate::serve::{
    Adapted, ApiKeys, Model, OpenModel, OpenTensors, Options, Server, Slots, TensorsError, is_origin, unix_s,
};
use crate::tokenizer::Limits;

/// The slots of a model, if there is memory for their full contexts.
const SLOTS: usize = 16;
/// How long a stream may be silent. Proxies and clients close silent connections after 30 seconds or more.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox serve runs/quickstart
  tinderbox serve runs/quickstart/last runs/other --port 9000 --weights int8
  tinderbox serve runs/smol --adapter runs/smol-my --adapter their-adapter
  tinderbox serve --runs runs
  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"The\", \"max_tokens\": 50}'")]
pub(super) struct Args {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N; may be repeated
    #[arg(required_unless_present = "folder", value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Serve all runs in this folder, including later ones; each is opened on its first request [default: only the runs
    /// named]
    #[arg(long = "runs", value_name = "DIR", conflicts_with = "runs")]
    folder: Option<PathBuf>,
    /// Adapter of the only RUN, served as the model RUN+NAME: a run fine-tuned from it, a folder from PEFT or mlx-lm,
    /// or a GGUF file; on a CPU it shares the weights in memory; may be repeated [default: none]
    #[arg(long, value_name = "PATH", conflicts_with = "folder")]
    adapter: Vec<PathBuf>,
    /// Address to listen on; any other than the loopback address needs --api-key-file or --no-auth
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0: any free port
    #[arg(long, default_value_t = 8080, value_parser = |typed: &str| within(typed, 0..=65_535).map(|n| n as u16))]
    port: u16,
    /// Maximum number of completions that a model generates at once [default: 16, or fewer if the memory is for fewer]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    parallel: Option<usize>,
    /// Speculate on a CPU while a model generates a single completion: propose up to N tokens at once from its
    /// repetitions, which never changes it; 0: off
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count)]
    speculate: usize,
    #[command(flatten)]
    formats: Formats,
    /// File of API keys, one per line. Every request must send one of them [default: no key]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Accept requests from other machines without a key
    #[arg(long, conflicts_with = "api_key_file")]
    no_auth: bool,
    /// Origin whose pages may use the server from a browser, such as http://localhost:3000; may be repeated [default:
    /// only the server's own page]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    allow_origin: Vec<String>,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: each run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Serve even if the memory seems too small
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if !args.adapter.is_empty() && args.runs.len() != 1 {
        return Err(Misuse("--adapter is for one RUN: name only the run that the adapter belongs to".to_owned()).into());
    }
    let address = address(&args.host, args.port)?;
    let keys = args.api_key_file.as_deref().map(keys).transpose()?;
    if !address.ip().is_loopback() && keys.is_none() {
        if !args.no_auth {
            return Err(Misuse(format!(
                "{} can be reached from other machines\n  hint: restrict access with --api-key-file, or allow everybody \
                 with --no-auth",
                args.host
            ))
            .into());
        }
        note(format!("warning: everybody who can reach {address} can use these models"));
    }
    let n_slots = args.slots(&args.runs)?;
    let models = args.runs.iter().map(|run| args.open(run, n_slots)).collect::<anyhow::Result<Vec<_>>>()?;
    let models: Vec<Model> = models.into_iter().flatten().collect();
    let names = |model: &Model| {
        let adapted = model.adapted.iter().map(|adapted| adapted.name.clone());
        std::iter::once(model.name.clone()).chain(adapted).collect::<Vec<_>>()
    };
    let mut names: Vec<String> = models.iter().flat_map(names).collect();
    for Model { name, model, .. } in &models {
        let [token, context] = [1, u64::MAX].map(|n_tokens| model.config().cache_bytes(n_tokens));
        let (token, context) = (grouped(token), size(context));
        note(format!("{name}: {n_slots} slots, each of {token} bytes for a token, {context} for a full context"));
    }
    let folder = args.folder.clone();
    folder.as_deref().map_or(Ok(()), check_folder)?;
    names.extend(folder.iter().map(|folder| format!("the runs in {}", folder.display())));
    let options = Options {
        address,
        slots: Slots { n: n_slots, speculate: args.speculate },
        keys,
        origins: args.allow_origin.clone(),
        keep_alive: KEEP_ALIVE,
        folder,
        open: args.later(),
        program: this_program().context("cannot find the program itself")?,
        render: Limits::default(),
    };
    let server = Server::bind(models, options)?;
    let stop = server.stop();
    on_ctrl_c(move || {
        if stop.was_asked() {
            std::process::exit(i32::from(INTERRUPTED));
        }
        note("finishing requests in progress; press Ctrl-C again to stop at once"); // before the server can end
        stop.stop();
    })?;
    note(format!("serving {} at http://{}", names.join(", "), server.address()));
    server.run();
    Ok(())
}

fn origin(typed: &str) -> Result<String, String> {
    let origin = typed.trim_end_matches('/');
    let hint = "write it as browsers do, such as http://localhost:3000: without a path";
    is_origin(origin).then(|| origin.to_owned()).ok_or_else(|| hint.to_owned())
}

fn address(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let hint = "hint: --host is an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them";
    let mut found = (host, port).to_socket_addrs().with_context(|| format!("there is no host `{host}`\n  {hint}"))?;
    found.next().with_context(|| format!("the host `{host}` has no address\n  {hint}"))
}

fn keys(path: &Path) -> anyhow::Result<ApiKeys> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the keys in `{}`", path.display()))?;
    ApiKeys::parse(&text).map_err(|reason| anyhow!("`{}` {reason}", path.display()))
}

/// Notes that a folder has no runs yet; returns an error if it cannot be read.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    match run::list(folder) {
        Err(error @ RunError::NoRuns { .. }) => note(format!("note: {}", first_line(&error))),
        listed => drop(listed?),
    }
    Ok(())
}

impl Args {
    /// Opens a run or a checkpoint on its first request.
    fn later(&self) -> OpenModel {
        let args = self.clone();
        Box::new(move |run| {
            let opened = args.slots(&[run]).and_then(|n_slots| Ok((args.open_plain(run)?.0, n_slots)));
            opened.map_err(|error| first_line(format!("{error:#}")))
        })
    }

    /// The slots of each of these runs that there is memory for.
    fn slots(&self, runs: &[impl AsRef<Path>]) -> anyhow::Result<usize> {
        let n_slots = lowered(self.parallel, |n| if self.force { Ok(()) } else { check_memory(runs, n) })?;
        if self.parallel.is_none() && n_slots < SLOTS {
            let runs: Vec<_> = runs.iter().map(|run| run.as_ref().display().to_string()).collect();
            let n = counted(n_slots as u64, "completion");
            note(format!("{}: {n} at once, not {SLOTS}, for which there is too little memory", runs.join(", ")));
        }
        Ok(n_slots)
    }

    /// Opens a run and the adapters: beside the weights of the run, or, on a device that does not support that, each as a
    /// model of its own with merged weights.
    fn open(&self, path: &Path, n_slots: usize) -> anyhow::Result<Vec<Model>> {
        let (mut model, source) = self.open_plain(path)?;
        let mut merged = Vec::new();
        for adapter in &self.adapter {
            let adapters = open_adapters(adapter, &source.checkpoint)?;
            let name = format!("{}+{}", model.name, last(&fs::canonicalize(adapter)?));
            let (tensors, run) = (source.tensors(Some(adapters.clone())), RunDir::open(adapter).ok());
            let generate = generate_of(adapter)?;
            let stop_token_ids = generate.map_or_else(|| model.stop_token_ids.clone(), |own| own.stop_token_ids);
            if let Some(engine) = model.model.engine_mut() {
                adapters.add_to(engine, &source.checkpoint)?;
                model.adapted.push(Adapted { name, tensors, stop_token_ids, run });
                continue;
            }
            if !self.force {
                check_memory(&[path], n_slots)?;
            }
            let opened = Trained::open_adapted(&source.checkpoint, self.device.as_ref(), Some(adapters))?;
            merged.push(Model {
                name,
                model: self.formats.convert(opened.model, &opened.device.name)?,
                tensors,
                tokenizer: model.tokenizer.clone(),
                stop_token_ids,
                created_unix_s: model.created_unix_s,
                run,
                adapted: Vec::new(),
            });
        }
        Ok(std::iter::once(model).chain(merged).collect())
    }

    /// Opens a model. Its name is that of the run's folder, followed by the checkpoint if `path` names one.
    fn open_plain(&self, path: &Path) -> anyhow::Result<(Model, OpenedCheckpoint)> {
        let located = run::locate(path)?;
        let opened = Trained::open(path, self.device.as_ref())?;
        warn_if_slow(&opened.device);
        let model = self.formats.convert(opened.model, &opened.device.name)?;
        Formats::note_speculation(self.speculate > 0, &model, &opened.device.name);
        let source = OpenedCheckpoint {
            checkpoint: opened.checkpoint,
            checksum: opened.checksum,
            config: opened.config.model,
            device: self.device,
        };
        let [root, named] = [located.run.root(), path].map(fs::canonicalize);
        let (root, named) = (root?, named?);
        let model = Model {
            name: if named == root { last(&root) } else { format!("{}/{}", last(&root), last(&named)) },
            model,
            tensors: source.tensors(None),
            tokenizer: opened.tokenizer,
            stop_token_ids: opened.config.generate.stop_token_ids,
            created_unix_s: unix_s(fs::metadata(&source.checkpoint)?.modified()?),
            run: Some(located.run),
            adapted: Vec::new(),
        };
        Ok((model, source))
    }
}

fn last(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[derive(Clone)]
struct OpenedCheckpoint {
    checkpoint: PathBuf,
    checksum: Option<String>,
    config: ModelConfig,
    device: Option<DeviceSpec>,
}

impl OpenedCheckpoint {
    /// Opens the checkpoint again as tensors, with adapters merged into its weights, if it is still the same.
    fn tensors(&self, adapters: Option<Adapters>) -> OpenTensors {
        let Self { checkpoint, checksum, config, device } = self.clone();
        Box::new(move || match Trained::open_adapted(&checkpoint, device.as_ref(), adapters.clone()) {
            Ok(again) if again.checksum == checksum && again.config.model == config => Ok(again.model),
            // Another run may have replaced the first one, with a checkpoint of the same name.
            Ok(_) => Err(TensorsError::Gone),
            Err(_) if !checkpoint.exists() || Checkpoint::weights_checksum(&checkpoint) != checksum => {
                Err(TensorsError::Gone)
            }
            Err(error) => Err(TensorsError::Failed(first_line(&error))),
        })
    }
}

/// The slots for which `check` finds the memory: `given`, or else half of [`SLOTS`], a quarter and so on, down to one.
fn lowered(given: Option<usize>, check: impl Fn(usize) -> anyhow::Result<()>) -> anyhow::Result<usize> {
    let mut n_slots = given.unwrap_or(SLOTS);
    loop {
        match check(n_slots) {
            Err(_) if given.is_none() && n_slots > 1 => n_slots /= 2,
            checked => return checked.map(|()| n_slots),
        }
    }
}

/// Checks that the models fit into memory together.
fn check_memory(runs: &[impl AsRef<Path>], n_slots: usize) -> anyhow::Result<()> {
    let mut needed = 0_u64;
    for run in runs {
        let located = run::locate(run.as_ref())?;
        let config = located.run.config()?;
        let writing = Writing {
            model: &config.model,
            weights: Checkpoint::weights_bytes(&located.checkpoint),
            n_texts: n_slots as u64,
            n_tokens: u64::MAX,
        };
        needed = needed.saturating_add(writing.memory());
    }
    if let Some(machine) = Machine::here()
        && needed > machine.available
    {
        let [needed, free] = [needed, machine.available].map(size);
        let (n, fewer) = (counted(n_slots as u64, "completion"), if n_slots > 1 { "lower --parallel, " } else { "" });
        bail!(
            "serving {n} at once needs up to {needed} of memory, and {free} are free\n  hint: {fewer}serve fewer runs, or \
             try it with --force"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_lowered_until_they_fit_unless_they_were_given() {
        for (given, n_fit, expected) in [
            (None, 16, Some(16)),
            (None, 5, Some(4)),
            (None, 1, Some(1)),
            (None, 0, None),
            (Some(16), 5, None),
            (Some(3), 5, Some(3)),
        ] {
            let check = |n: usize| if n <= n_fit { Ok(()) } else { Err(anyhow!("{n} do not fit")) };
            assert_eq!(lowered(given, check).ok(), expected, "{given:?} {n_fit}");
        }
    }
}
