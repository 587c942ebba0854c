//! `tinderbox runs`: lists the runs in a folder, or compares several runs.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::paint::n_columns;
use super::print::{note_each, print_json, print_table};
use crate::run::{self, Difference, Order, RunDir, RunInfo, unix_s};
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox runs
  tinderbox runs --sort time --json
  tinderbox runs runs/quickstart runs/longer")]
pub(super) struct Args {
    /// Folder of runs, or run directories to compare
    #[arg(default_value = "runs", value_name = "DIR")]
    paths: Vec<PathBuf>,
    /// Order: by validation loss in bits per byte, lowest first, or by start time, latest first
    #[arg(long, value_enum, default_value_t = Order::Loss)]
    sort: Order,
    /// Print a JSON array with an object for each run
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.paths[..] {
        [folder] if RunDir::open(folder).is_err() => list(folder, args),
        runs => compare(runs, args.json),
    }
}

fn list(folder: &Path, args: &Args) -> anyhow::Result<()> {
    let mut listing = run::list(folder)?;
    run::sort(&mut listing.runs, args.sort);
    match args.json {
        true => print_json(&listing.runs)?,
        false => print_table(&view::runs_table(&listing.runs, unix_s(), n_columns()))?,
    }
    note_each("note: skipped", &listing.skipped);
    note_each("note", listing.runs.iter().flat_map(|info| &info.notes));
    Ok(())
}

fn compare(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let dirs = paths.iter().map(|path| RunDir::open(path)).collect::<Result<Vec<_>, _>>()?;
    let runs = dirs.iter().map(RunInfo::read).collect::<Result<Vec<_>, _>>()?;
    let differences = run::differences(&dirs)?;
    match json {
        true => print_json(&objects(&runs, &differences)?)?,
        false => print_table(&view::runs_side_by_side(&runs, &differences, unix_s(), n_columns()))?,
    }
    note_each("note", runs.iter().flat_map(|info| &info.notes));
    Ok(())
}

/// A JSON object for each run, with its values of the keys that differ.
fn objects(runs: &[RunInfo], differences: &[Difference]) -> serde_json::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (index, info) in runs.iter().enumerate() {
        let mut object = serde_json::to_value(info)?;
        object["differing_settings"] = Map::new().into();
        for Difference { key, values } in differences {
            object["differing_settings"][key] = serde_json::to_value(&values[index])?;
        }
        objects.push(object);
    }
    Ok(objects)
}
