//! `tinderbox runs`: what was trained, what came of it, and what sets runs apart.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::note;
use super::table::{self, Column, MOST_COLUMNS, cut_in_the_middle, width};
use crate::format::{duration, grouped};
use crate::run::{self, Difference, Facts, Order, RunDir, Status, unix_s};

/// How many runs stand side by side.
const MOST_ABREAST: usize = 4;

/// What a cell has room for, however long the names of keys are: a number.
const LEAST_WIDTH: usize = 10;

/// List runs, or compare some of them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox runs
  tinderbox runs --sort time --json
  tinderbox runs runs/quickstart runs/longer")]
pub(super) struct Args {
    /// A folder of runs, or one or more run directories to look at side by side
    #[arg(default_value = "runs", value_name = "DIR")]
    paths: Vec<PathBuf>,
    /// What comes first: the lowest validation loss in bits per byte, or the run that began last
    #[arg(long, value_enum, default_value_t = Sort::Loss)]
    sort: Sort,
    /// Print a JSON array with an object for each run
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    Loss,
    Time,
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
    let order = match args.sort {
        Sort::Loss => Order::Loss,
        Sort::Time => Order::Time,
    };
    run::sort(&mut listing.runs, order);
    let mut stdout = io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&listing.runs)?)?;
    } else {
        write!(stdout, "{}", overview(&listing.runs, unix_s()))?;
    }
    for line in &listing.skipped {
        note(format!("note: skipped: {line}"));
    }
    say_notes(&listing.runs);
    Ok(())
}

fn compare(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let open = |path: &PathBuf| RunDir::open(path);
    let runs = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let facts = runs.iter().map(Facts::read).collect::<Result<Vec<_>, _>>()?;
    let differences = run::differences(&runs)?;
    let mut stdout = io::stdout().lock();
    if json {
        let objects = objects(&facts, &differences)?;
        writeln!(stdout, "{}", serde_json::to_string(&objects)?)?;
    } else {
        write!(stdout, "{}", side_by_side(&facts, &differences, unix_s()))?;
    }
    say_notes(&facts);
    Ok(())
}

fn say_notes(runs: &[Facts]) {
    for line in runs.iter().flat_map(|facts| &facts.notes) {
        note(format!("note: {line}"));
    }
}

/// The facts of each run, with its values of the keys that are not the same in all.
fn objects(facts: &[Facts], differences: &[Difference]) -> serde_json::Result<Vec<Value>> {
    let with_settings = |(at, facts): (usize, &Facts)| {
        let mut object = serde_json::to_value(facts)?;
        let mut settings = Map::new();
        for difference in differences {
            settings.insert(difference.key.clone(), serde_json::to_value(&difference.values[at])?);
        }
        object["differing_settings"] = settings.into();
        Ok(object)
    };
    facts.iter().enumerate().map(with_settings).collect()
}

/// One line for each run.
fn overview(runs: &[Facts], now_unix_s: f64) -> String {
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
    let rows: Vec<[String; 10]> = runs
        .iter()
        .map(|facts| {
            [
                name(&facts.run),
                status(facts).to_owned(),
                steps(facts),
                or_empty(facts.parameters, compact),
                or_empty(facts.tokens, compact),
                or_empty(facts.train_s, duration),
                loss(facts),
                bits(facts),
                facts.device.clone().unwrap_or_default(),
                or_empty(facts.began_unix_s, |began| rough(now_unix_s - began)),
            ]
        })
        .collect();
    table::table(columns, &rows)
}

/// One column for each run: what is known, and below it the keys of the configs that are not the same.
fn side_by_side(runs: &[Facts], differences: &[Difference], now_unix_s: f64) -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut fact = |label: &str, of: &dyn Fn(&Facts) -> String| {
        rows.push((label.to_owned(), runs.iter().map(of).collect()));
    };
    fact("status", &|facts| status(facts).to_owned());
    fact("steps", &steps);
    fact("parameters", &|facts| or_empty(facts.parameters, grouped));
    fact("tokens", &|facts| or_empty(facts.tokens, grouped));
    fact("time of steps", &|facts| or_empty(facts.train_s, duration));
    fact("time of all", &|facts| or_empty(facts.wall_s, duration));
    fact("val loss", &loss);
    fact("bits per byte", &bits);
    fact("best step", &|facts| or_empty(facts.best_step, grouped));
    fact("device", &|facts| facts.device.clone().unwrap_or_default());
    fact("began", &|facts| {
        or_empty(facts.began_unix_s, |began| format!("{} ago", rough(now_unix_s - began)))
    });
    if runs.iter().any(|facts| facts.started_from.is_some()) {
        fact("started from", &|facts| facts.started_from.clone().unwrap_or_default());
    }
    if !differences.is_empty() {
        rows.push((String::new(), vec![String::new(); runs.len()]));
    }
    rows.extend(differences.iter().map(|Difference { key, values }| {
        let cell = |value: &Option<toml::Value>| {
            value.as_ref().map_or_else(String::new, ToString::to_string)
        };
        (key.clone(), values.iter().map(cell).collect())
    }));
    let labels = rows.iter().map(|(label, _)| width(label)).max().unwrap_or(0);
    let names = distinct_names(runs);
    rows.insert(0, (String::new(), names));
    let n_abreast = runs.len().clamp(1, MOST_ABREAST);
    let most = MOST_COLUMNS.saturating_sub(labels) / n_abreast;
    let most = most.saturating_sub(2).max(LEAST_WIDTH);
    let columns: Vec<usize> = (0..runs.len()).collect();
    let blocks = columns.chunks(n_abreast).map(|block| block_of(&rows, block, labels, most));
    blocks.collect::<Vec<_>>().join("\n")
}

/// The columns `block` of the rows, each cell in at most `most` characters.
fn block_of(rows: &[(String, Vec<String>)], block: &[usize], labels: usize, most: usize) -> String {
    let width_of =
        |at: usize| rows.iter().map(|(_, cells)| width(&cells[at])).max().unwrap_or(0).min(most);
    let mut text = String::new();
    for (label, cells) in rows {
        let mut line = format!("{label:<labels$}");
        for &at in block {
            let (cell, width) = (cut_in_the_middle(&cells[at], most), width_of(at));
            write!(line, "  {cell:<width$}").expect("a string takes any text");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The last part of a path.
fn name(run: &Path) -> String {
    let whole = run.canonicalize().unwrap_or_else(|_| run.to_owned()); // `.` has no name of its own
    let name = whole.file_name().unwrap_or(run.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A name for each run, which is its path as it was given where the last part of it is another's, too.
fn distinct_names(runs: &[Facts]) -> Vec<String> {
    let names: Vec<String> = runs.iter().map(|facts| name(&facts.run)).collect();
    let is_only = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let all = names.iter().zip(runs);
    let distinct = all.map(|(name, facts)| match is_only(name) {
        true => name.clone(),
        false => facts.run.display().to_string(),
    });
    distinct.collect()
}

fn status(facts: &Facts) -> &'static str {
    match facts.status {
        Status::Done => "done",
        Status::Running => "running",
        Status::Stopped => "stopped",
    }
}

/// `1600`, or `500/1600` where they are not all made.
fn steps(facts: &Facts) -> String {
    match facts.max_steps {
        Some(max_steps) if max_steps != facts.step => format!("{}/{max_steps}", facts.step),
        _ => facts.step.to_string(),
    }
}

fn loss(facts: &Facts) -> String {
    or_empty(facts.val_loss, |loss| format!("{}{loss:.4}", mark(facts)))
}

fn bits(facts: &Facts) -> String {
    or_empty(facts.val_bits_per_byte, |bits| format!("{}{bits:.4}", mark(facts)))
}

/// What stands before an estimate.
fn mark(facts: &Facts) -> &'static str {
    if facts.is_estimate { "~" } else { "" }
}

fn or_empty<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(String::new, show)
}

/// A number in three digits: `804K`, `1.23M`.
#[allow(clippy::cast_precision_loss, reason = "three digits to look at")]
fn compact(n: u64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")];
    // What would be rounded to the next unit is said in that.
    let unit = units.into_iter().find(|(size, _)| n as f64 >= size * 0.9995);
    let Some((size, unit)) = unit else {
        return n.to_string();
    };
    match n as f64 / size {
        x if x < 9.995 => format!("{x:.2}{unit}"),
        x if x < 99.95 => format!("{x:.1}{unit}"),
        x => format!("{x:.0}{unit}"),
    }
}

/// A time in its largest unit.
fn rough(s: f64) -> String {
    let (n, unit) = match s {
        ..60.0 => (s.max(0.0), "s"),
        ..3600.0 => (s / 60.0, "min"),
        ..86_400.0 => (s / 3600.0, "h"),
        _ => (s / 86_400.0, "d"),
    };
    format!("{:.0} {unit}", n.floor())
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn done(run: &str) -> Facts {
        Facts {
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
    fn bare(run: &str) -> Facts {
        Facts {
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
        let running = Facts {
            status: Status::Running,
            step: 500,
            is_estimate: true,
            val_loss: Some(1.25),
            val_bits_per_byte: Some(1.8),
            device: Some("wgpu:1".to_owned()),
            ..done("runs/sweep-2025-with-a-rather-long-name-lr3e-4")
        };
        let text = overview(&[done("runs/quickstart"), running, bare("runs/old")], 8200.0);
        assert!(text.lines().all(|line| width(line) <= MOST_COLUMNS), "{text}");
        assert_snapshot!(text, @r"
        RUN                  STATUS      STEPS  PARAMS  TOKENS        TIME  VAL LOSS  BITS/BYTE  DEVICE  AGO
        quickstart           done         1600    804K   2.46M  2 min 19 s    1.0277     1.4827  flex    2 h
        sweep-202…me-lr3e-4  running  500/1600    804K   2.46M  2 min 19 s   ~1.2500    ~1.8000  wgpu:1  2 h
        old                  stopped  250/1600
        ");
    }

    #[test]
    fn runs_stand_side_by_side_with_what_sets_them_apart() {
        let fine = Facts {
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
        let runs: Vec<Facts> =
            (0..6).map(|i| done(&format!("runs/{}-{i}", "long-".repeat(9)))).collect();
        let text = side_by_side(&runs, &[], 0.0);
        assert!(text.lines().all(|line| width(line) <= MOST_COLUMNS), "{text}");
        assert_eq!(text.matches("bits per byte").count(), 2, "{text}");
        assert!(text.contains("-0") && text.contains("-5"), "{text}");
    }

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let runs = ["a/m", "b/m", "b/n"].map(done);
        assert_eq!(distinct_names(&runs), ["a/m", "b/m", "n"]);
    }

    #[test]
    fn a_key_may_be_longer_than_the_table() {
        let difference =
            Difference { key: "key".repeat(MOST_COLUMNS), values: vec![Some(1.into()), None] };
        let text = side_by_side(&["a", "b"].map(done), &[difference], 0.0);
        assert!(text.contains("key  1\n") && text.contains("2 min 19 s"), "{text}");
    }

    #[test]
    fn large_numbers_have_three_digits() {
        let pairs =
            [(7, "7"), (999, "999"), (1234, "1.23K"), (804_096, "804K"), (999_600, "1.00M")];
        for (n, text) in pairs.into_iter().chain([(12_345_678, "12.3M"), (1_500_000_000, "1.50G")])
        {
            assert_eq!(compact(n), text);
        }
    }

    #[test]
    fn times_ago_are_rough() {
        let pairs = [(-5.0, "0 s"), (59.9, "59 s"), (119.0, "1 min"), (7200.0, "2 h")];
        for (s, text) in pairs.into_iter().chain([(200_000.0, "2 d")]) {
            assert_eq!(rough(s), text);
        }
    }
}
