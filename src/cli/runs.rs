//! `tinderbox runs`: lists the runs in a folder, or compares some.

use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::note;
use super::table::{Column, MAX_WIDTH, cut_in_the_middle, table, width};
use crate::format::{compact, duration, grouped, rough_duration};
use crate::run::{self, Difference, Order, RunDir, RunInfo, Status, unix_s};

/// How many runs are shown side by side.
const MAX_ABREAST: usize = 4;

/// The least width of a cell in a comparison: a number fits.
const MIN_CELL: usize = 10;

/// List runs, or compare some of them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox runs
  tinderbox runs --sort time --json
  tinderbox runs runs/quickstart runs/longer")]
pub(super) struct Args {
    /// A folder of runs, or one or more run directories to compare
    #[arg(default_value = "runs", value_name = "DIR")]
    paths: Vec<PathBuf>,
    /// The run to list first: the one with the lowest validation loss in bits per byte, or the one that began last
    #[arg(long, value_enum, default_value_t = Order::Loss)]
    sort: Order,
    /// Print a JSON array with an object for each run
    #[arg(long)]
    json: bool,
}

/// Lists or compares.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.paths[..] {
        [folder] if RunDir::open(folder).is_err() => list(folder, args),
        runs => compare(runs, args.json),
    }
}

fn list(folder: &Path, args: &Args) -> anyhow::Result<()> {
    let mut listing = run::list(folder)?;
    run::sort(&mut listing.runs, args.sort);
    let text = match args.json {
        true => serde_json::to_string(&listing.runs)? + "\n",
        false => overview(&listing.runs, unix_s()),
    };
    io::stdout().write_all(text.as_bytes())?;
    for line in &listing.skipped {
        note(format!("note: skipped: {line}"));
    }
    print_notes(&listing.runs);
    Ok(())
}

fn compare(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let dirs = paths.iter().map(|path| RunDir::open(path)).collect::<Result<Vec<_>, _>>()?;
    let runs = dirs.iter().map(RunInfo::read).collect::<Result<Vec<_>, _>>()?;
    let differences = run::differences(&dirs)?;
    let text = match json {
        true => serde_json::to_string(&objects(&runs, &differences)?)? + "\n",
        false => side_by_side(&runs, &differences, unix_s()),
    };
    io::stdout().write_all(text.as_bytes())?;
    print_notes(&runs);
    Ok(())
}

fn print_notes(runs: &[RunInfo]) {
    for line in runs.iter().flat_map(|info| &info.notes) {
        note(format!("note: {line}"));
    }
}

/// Each run with its values of the keys that differ.
fn objects(runs: &[RunInfo], differences: &[Difference]) -> serde_json::Result<Vec<Value>> {
    let with_settings = |(index, info): (usize, &RunInfo)| {
        let mut object = serde_json::to_value(info)?;
        let setting = |difference: &Difference| {
            Ok((difference.key.clone(), serde_json::to_value(&difference.values[index])?))
        };
        let settings = differences.iter().map(setting);
        object["differing_settings"] = settings.collect::<serde_json::Result<Map<_, _>>>()?.into();
        Ok(object)
    };
    runs.iter().enumerate().map(with_settings).collect()
}

/// A line for each run.
fn overview(runs: &[RunInfo], now_unix_s: f64) -> String {
    let columns = [
        Column::Left("RUN"),
        Column::Left("STATUS"),
        Column::Right("STEPS"),
        Column::Right("PARAMS"),
        Column::Right("TOKENS"),
        Column::Right("TIME"),
        Column::Right("VAL LOSS"),
        Column::Right("BITS/BYTE"),
        Column::Left("DEVICE"),
        Column::Right("AGO"),
    ];
    let row = |info: &RunInfo| {
        let ago = info.began_unix_s.map(|began| rough_duration(now_unix_s - began));
        [
            name(&info.run),
            status(info),
            steps(info),
            info.parameters.map(compact).unwrap_or_default(),
            info.tokens.map(compact).unwrap_or_default(),
            info.train_s.map(duration).unwrap_or_default(),
            loss(info, info.val_loss),
            loss(info, info.val_bits_per_byte),
            info.device.clone().unwrap_or_default(),
            ago.unwrap_or_default(),
        ]
    };
    table(columns, &runs.iter().map(row).collect::<Vec<_>>())
}

/// A column for each run, with the config keys that differ below.
fn side_by_side(runs: &[RunInfo], differences: &[Difference], now_unix_s: f64) -> String {
    type Cell<'a> = &'a dyn Fn(&RunInfo) -> Option<String>;
    let facts: [(&str, Cell<'_>); 12] = [
        ("status", &|info| Some(status(info))),
        ("steps", &|info| Some(steps(info))),
        ("parameters", &|info| info.parameters.map(grouped)),
        ("tokens", &|info| info.tokens.map(grouped)),
        ("time of steps", &|info| info.train_s.map(duration)),
        ("time of all", &|info| info.wall_s.map(duration)),
        ("val loss", &|info| Some(loss(info, info.val_loss))),
        ("bits per byte", &|info| Some(loss(info, info.val_bits_per_byte))),
        ("best step", &|info| info.best_step.map(grouped)),
        ("device", &|info| info.device.clone()),
        ("began", &|info| {
            info.began_unix_s.map(|began| rough_duration(now_unix_s - began) + " ago")
        }),
        ("started from", &|info| info.started_from.clone()),
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (label, cell) in facts {
        let cells = runs.iter().map(|info| cell(info).unwrap_or_default());
        rows.push(iter::once(label.to_owned()).chain(cells).collect());
    }
    if runs.iter().all(|info| info.started_from.is_none()) {
        rows.pop();
    }
    if !differences.is_empty() {
        rows.push(vec![String::new(); 1 + runs.len()]);
    }
    for Difference { key, values } in differences {
        let cells = values.iter().map(|value| value.as_ref().map(ToString::to_string));
        rows.push(iter::once(key.clone()).chain(cells.map(Option::unwrap_or_default)).collect());
    }
    let label_width = rows.iter().map(|row| width(&row[0])).max().unwrap_or(0);
    let n_abreast = runs.len().clamp(1, MAX_ABREAST);
    let cell_width = MAX_WIDTH.saturating_sub(label_width) / n_abreast;
    let cell_width = cell_width.saturating_sub(2).max(MIN_CELL);
    let heading: Vec<String> = iter::once(String::new()).chain(distinct_names(runs)).collect();
    let columns: Vec<usize> = (1..heading.len()).collect();
    let blocks = columns.chunks(n_abreast).map(|block| {
        let cells = |row: &Vec<String>| {
            let cells = block.iter().map(|&column| cut_in_the_middle(&row[column], cell_width));
            iter::once(row[0].clone()).chain(cells).collect::<Vec<_>>()
        };
        let heading = cells(&heading);
        let columns: Vec<Column<'_>> = heading.iter().map(|name| Column::Left(name)).collect();
        table(columns, &rows.iter().map(cells).collect::<Vec<_>>())
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// The last part of a path.
fn name(run: &Path) -> String {
    let whole = run.canonicalize().unwrap_or_else(|_| run.to_owned()); // `.` has no name of its own
    let name = whole.file_name().unwrap_or(run.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A name for each run: the last part of its path, or the whole path if another run has the same last part.
fn distinct_names(runs: &[RunInfo]) -> Vec<String> {
    let names: Vec<String> = runs.iter().map(|info| name(&info.run)).collect();
    let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let distinct = names.iter().zip(runs).map(|(name, info)| match is_unique(name) {
        true => name.clone(),
        false => info.run.display().to_string(),
    });
    distinct.collect()
}

fn status(info: &RunInfo) -> String {
    match info.status {
        Status::Done => "done",
        Status::Running => "running",
        Status::Stopped => "stopped",
    }
    .to_owned()
}

/// `1600`, or `500/1600` if steps are missing.
fn steps(info: &RunInfo) -> String {
    match info.max_steps {
        Some(max_steps) if max_steps != info.step => format!("{}/{max_steps}", info.step),
        _ => info.step.to_string(),
    }
}

/// A loss; an estimate is marked with `~`.
fn loss(info: &RunInfo, loss: Option<f64>) -> String {
    let mark = if info.is_estimate { "~" } else { "" };
    loss.map(|loss| format!("{mark}{loss:.4}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn done(run: &str) -> RunInfo {
        RunInfo {
            run: run.into(),
            status: Status::Done,
            step: 1600,
            max_steps: Some(1600),
            parameters: Some(804_096),
            tokens: Some(2_457_600),
            train_s: Some(139.2),
            wall_s: Some(150.0),
            val_loss: Some(1.027_71),
            is_estimate: false,
            val_bits_per_byte: Some(1.482_71),
            best_step: Some(1600),
            device: Some("flex".to_owned()),
            began_unix_s: Some(1000.0),
            started_from: None,
            notes: Vec::new(),
        }
    }

    /// A run of which next to nothing is known.
    fn bare(run: &str) -> RunInfo {
        RunInfo {
            status: Status::Stopped,
            step: 250,
            parameters: None,
            tokens: None,
            train_s: None,
            wall_s: None,
            val_loss: None,
            val_bits_per_byte: None,
            best_step: None,
            device: None,
            began_unix_s: None,
            ..done(run)
        }
    }

    #[test]
    fn a_list_is_read_at_a_glance_and_stays_within_its_width() {
        let running = RunInfo {
            status: Status::Running,
            step: 500,
            is_estimate: true,
            val_loss: Some(1.25),
            val_bits_per_byte: Some(1.8),
            device: Some("wgpu:1".to_owned()),
            ..done("runs/sweep-2025-with-a-rather-long-name-lr3e-4")
        };
        let text = overview(&[done("runs/quickstart"), running, bare("runs/old")], 8200.0);
        assert!(text.lines().all(|line| width(line) <= MAX_WIDTH), "{text}");
        assert_snapshot!(text, @r"
        RUN                  STATUS      STEPS  PARAMS  TOKENS        TIME  VAL LOSS  BITS/BYTE  DEVICE  AGO
        quickstart           done         1600    804K   2.46M  2 min 19 s    1.0277     1.4827  flex    2 h
        sweep-202…me-lr3e-4  running  500/1600    804K   2.46M  2 min 19 s   ~1.2500    ~1.8000  wgpu:1  2 h
        old                  stopped  250/1600
        ");
    }

    #[test]
    fn runs_stand_side_by_side_with_what_sets_them_apart() {
        let fine = RunInfo {
            started_from: Some("runs/quickstart/checkpoints/step-001600".to_owned()),
            ..bare("runs/fine")
        };
        let value = |text: &str| Some(toml::Value::String(text.to_owned()));
        let differences = [
            Difference {
                key: "data.path".to_owned(),
                values: vec![value("data/stories.txt"), value("letters.txt")],
            },
            Difference { key: "model.novel".to_owned(), values: vec![None, Some(true.into())] },
        ];
        assert_snapshot!(side_by_side(&[done("runs/quickstart"), fine], &differences, 1030.0), @r#"
                       quickstart          fine
        status         done                stopped
        steps          1600                250/1600
        parameters     804,096
        tokens         2,457,600
        time of steps  2 min 19 s
        time of all    2 min 30 s
        val loss       1.0277
        bits per byte  1.4827
        best step      1,600
        device         flex
        began          30 s ago
        started from                       runs/quickstart/checkpoints/step-001600

        data.path      "data/stories.txt"  "letters.txt"
        model.novel                        true
        "#);
    }

    #[test]
    fn many_runs_stand_in_several_blocks() {
        let runs: Vec<RunInfo> =
            (0..6).map(|i| done(&format!("runs/{}-{i}", "long-".repeat(9)))).collect();
        let text = side_by_side(&runs, &[], 0.0);
        assert!(text.lines().all(|line| width(line) <= MAX_WIDTH), "{text}");
        assert_eq!(text.matches("bits per byte").count(), 2, "{text}");
        assert!(text.contains("-0") && text.contains("-5"), "{text}");
    }

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let runs = ["a/m", "b/m", "b/n"].map(done);
        assert_eq!(distinct_names(&runs), ["a/m", "b/m", "n"]);
    }

    #[test]
    fn a_key_that_is_too_long_is_cut() {
        let key = "key".repeat(MAX_WIDTH);
        let difference = Difference { key, values: vec![Some(1.into()), None] };
        let text = side_by_side(&["a", "b"].map(done), &[difference], 0.0);
        assert!(text.lines().all(|line| width(line) <= MAX_WIDTH), "{text}");
        assert!(text.contains("key  1\n") && text.contains("2 min 19 s"), "{text}");
    }
}
