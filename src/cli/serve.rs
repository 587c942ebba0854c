//! `tinderbox serve`: serves trained models over HTTP.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::numbers::{count, within};
use super::weights::Formats;
use super::{INTERRUPTED, Misuse, Subject, note, on_ctrl_c};
use crate::device::DeviceSpec;
use crate::format::{first_line, size};
use crate::measure::Machine;
use crate::plan::Writing;
use crate::run::{self, Checkpoint, RunError, Trained};
use crate::serve::{ApiKeys, Model, OpenModel, OpenTensors, Options, Server, TensorsError, is_origin, unix_s};

/// How long a stream may be silent: proxies and clients close connections after 30 seconds and more.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox serve runs/quickstart
  tinderbox serve runs/quickstart/last runs/other --port 9000 --weights int8
  tinderbox serve --runs runs
  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"The\", \"max_tokens\": 50}'")]
pub(super) struct Args {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N; may be repeated
    #[arg(required_unless_present = "folder", value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Serve every run in this folder, including later ones; each is opened at its first request
    /// [default: only the runs named]
    #[arg(long = "runs", value_name = "DIR", conflicts_with = "runs")]
    folder: Option<PathBuf>,
    /// The address to listen on; any other than this machine's own needs --api-key-file or --no-auth
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes any that is free
    #[arg(long, default_value_t = 8080, value_parser = |typed: &str| within(typed, 0..=65_535).map(|n| n as u16))]
    port: u16,
    /// The number of texts that each model writes at once
    #[arg(long, value_name = "N", default_value = "16", value_parser = count)]
    parallel: usize,
    #[command(flatten)]
    formats: Formats,
    /// A file of API keys, one per line, of which each request must have one [default: no key]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Require no key, even from other machines
    #[arg(long, conflicts_with = "api_key_file")]
    no_auth: bool,
    /// A site whose pages may use the server from a browser, such as http://localhost:3000; may be repeated
    /// [default: none but the server's own page]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    allow_origin: Vec<String>,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: each run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Serve even if the memory seems to be too small
    #[arg(long)]
    force: bool,
}

/// Runs the server until it is stopped.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if args.parallel == 0 {
        return Err(Misuse("--parallel must be at least 1".to_owned()).into());
    }
    let address = address(&args.host, args.port)?;
    let keys = args.api_key_file.as_deref().map(keys).transpose()?;
    if !address.ip().is_loopback() && keys.is_none() {
        if !args.no_auth {
            return Err(Misuse(format!(
                "{} can be reached from other machines\n  hint: say who may use the models with --api-key-file, or let \
                 everybody with --no-auth",
                args.host
            ))
            .into());
        }
        note(format!("warning: everybody who reaches {address} can use these models"));
    }
    if !args.force {
        check_memory(&args.runs, args.parallel)?;
    }
    let models = args.runs.iter().map(|run| args.open(run)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let folder = args.folder.clone();
    folder.as_deref().map_or(Ok(()), check_folder)?;
    names.extend(folder.iter().map(|folder| format!("the runs in {}", folder.display())));
    let options = Options {
        address,
        n_slots: args.parallel,
        keys,
        origins: args.allow_origin.clone(),
        keep_alive: KEEP_ALIVE,
        folder,
        open: args.later(),
        program: this_program()?,
    };
    let server = Server::bind(models, options)?;
    let stop = server.stop();
    on_ctrl_c(move || {
        if stop.was_asked() {
            std::process::exit(i32::from(INTERRUPTED));
        }
        note("finishing what is being written; Ctrl-C again ends at once"); // before the server can end
        stop.stop();
    })?;
    note(format!("serving {} at http://{}", names.join(", "), server.address()));
    server.run();
    Ok(())
}

/// The path of this program. On Linux it holds even if the file is replaced meanwhile.
fn this_program() -> anyhow::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    std::env::current_exe().context("cannot find the program itself")
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
    ApiKeys::parse(&text).with_context(|| format!("`{}` has no keys\n  hint: write one key a line", path.display()))
}

/// Prints a note for a folder that has no runs yet, and returns an error for a folder that cannot be read.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    match run::list(folder) {
        Err(error @ RunError::NoRuns { .. }) => note(format!("note: {}", first_line(&error))),
        listed => drop(listed?),
    }
    Ok(())
}

impl Args {
    /// The function with which the server opens a run or a checkpoint at its first request.
    fn later(&self) -> OpenModel {
        let args = self.clone();
        OpenModel::new(move |run| {
            let checked = if args.force { Ok(()) } else { check_memory(&[run.to_owned()], args.parallel) };
            checked.and_then(|()| args.open(run)).map_err(|error| first_line(format!("{error:#}")))
        })
    }

    /// Opens a model, whose name is that of the run's folder, followed by the checkpoint if `path` names one.
    fn open(&self, path: &Path) -> anyhow::Result<Model> {
        let located = run::locate(path)?;
        let device = self.device;
        let opened = Subject { run: path.to_owned(), device }.open()?;
        let (checkpoint, checksum, config) = (opened.checkpoint, opened.checksum, opened.config.model);
        let stop_token_ids = opened.config.generate.stop_token_ids;
        let created_unix_s = unix_s(fs::metadata(&checkpoint)?.modified()?);
        let tensors = OpenTensors::new(move || match Trained::open(&checkpoint, device.as_ref()) {
            Ok(again) if again.checksum == checksum && again.config.model == config => Ok(again.model),
            // Another run may have taken the place of the first, with a checkpoint of the same name.
            Ok(_) => Err(TensorsError::Gone),
            Err(_) if !checkpoint.exists() || Checkpoint::weights_checksum(&checkpoint) != checksum => {
                Err(TensorsError::Gone)
            }
            Err(error) => Err(TensorsError::Failed(first_line(&error))),
        });
        let model = self.formats.convert(opened.model, &opened.device.name)?;
        let [root, named] = [located.run.root(), path].map(fs::canonicalize);
        let (root, named) = (root?, named?);
        let last = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let name = if named == root { last(&root) } else { format!("{}/{}", last(&root), last(&named)) };
        let (tokenizer, run) = (opened.tokenizer, Some(located.run));
        Ok(Model { name, model, tensors, tokenizer, stop_token_ids, created_unix_s, run })
    }
}

/// Returns an error if the models do not fit into memory together.
fn check_memory(runs: &[PathBuf], n_texts: usize) -> anyhow::Result<()> {
    let mut needed = 0_u64;
    for run in runs {
        let located = run::locate(run)?;
        let config = located.run.config()?;
        let writing = Writing {
            model: &config.model,
            weights: Checkpoint::weights_bytes(&located.checkpoint),
            n_texts: n_texts as u64,
            n_tokens: u64::MAX,
        };
        needed = needed.saturating_add(writing.memory());
    }
    if let Some(machine) = Machine::here()
        && needed > machine.available
    {
        let [needed, free] = [needed, machine.available].map(size);
        bail!(
            "serving {n_texts} texts at once needs up to {needed}, and {free} are free\n  hint: lower --parallel, serve \
             fewer runs, or try it with --force"
        );
    }
    Ok(())
}
