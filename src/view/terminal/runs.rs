//! The tables of `runs` and `metrics`.

use std::iter;
use std::path::Path;

use serde_json::Value;

use crate::format::{compact, cut_in_the_middle, duration, grouped, rough_duration, whole};
use crate::run::{Curves, Difference, LogRow, RunInfo, Status};
use crate::view::terminal::columns::width;
use crate::view::terminal::sparkline::curve_table;
use crate::view::terminal::table::{Column, cut_table, narrowed_table};

const MAX_ABREAST: usize = 4;

/// The minimum width of a cell in a comparison: a number fits.
const MIN_CELL: usize = 10;

/// The table of runs, with a line per run; a narrow one without tokens, devices and parameters.
pub fn runs_table(runs: &[RunInfo], now_unix_s: f64, n_columns: usize) -> String {
    let headings = "RUN | STATUS | >STEPS | >PARAMS | >TOKENS | >TIME | >VAL LOSS | >BITS/BYTE | DEVICE | >AGO";
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
    narrowed_table(headings, &runs.iter().map(row).collect::<Vec<_>>(), n_columns, &["TOKENS", "DEVICE", "PARAMS"])
}

/// The comparison of runs, with a column per run and the differing config keys below.
pub fn runs_side_by_side(runs: &[RunInfo], differences: &[Difference], now_unix_s: f64, n_columns: usize) -> String {
    type Cell<'a> = &'a dyn Fn(&RunInfo) -> Option<String>;
    let facts: [(&str, Cell<'_>); 12] = [
        ("status", &|info| Some(status(info))),
        ("steps", &|info| Some(steps(info))),
        ("parameters", &|info| info.parameters.map(grouped)),
        ("tokens", &|info| info.tokens.map(grouped)),
        ("training time", &|info| info.train_s.map(duration)),
        ("total time", &|info| info.wall_s.map(duration)),
        ("val loss", &|info| Some(loss(info, info.val_loss))),
        ("bits per byte", &|info| Some(loss(info, info.val_bits_per_byte))),
        ("best step", &|info| info.best_step.map(grouped)),
        ("device", &|info| info.device.clone()),
        ("began", &|info| info.began_unix_s.map(|began| rough_duration(now_unix_s - began) + " ago")),
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
    let cell_width = n_columns.saturating_sub(label_width) / n_abreast;
    let cell_width = cell_width.saturating_sub(2).max(MIN_CELL);
    let heading: Vec<String> = iter::once(String::new()).chain(run_names(runs)).collect();
    let columns: Vec<usize> = (1..heading.len()).collect();
    let blocks = columns.chunks(n_abreast).map(|block| {
        let cells = |row: &Vec<String>| {
            let cells = block.iter().map(|&column| cut_in_the_middle(&row[column], cell_width));
            iter::once(row[0].clone()).chain(cells).collect::<Vec<_>>()
        };
        let heading = cells(&heading);
        let columns: Vec<Column<'_>> = heading.iter().map(|name| (&**name, false)).collect();
        cut_table(&columns, &rows.iter().map(cells).collect::<Vec<_>>(), n_columns)
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// A loss or its bits per byte, to four decimals; an estimate is marked with `~`.
pub(crate) fn marked_loss(loss: f64, is_estimate: bool) -> String {
    format!("{}{loss:.4}", if is_estimate { "~" } else { "" })
}

fn name(run: &Path) -> String {
    let whole = run.canonicalize().unwrap_or_else(|_| run.to_owned()); // `.` has no name
    let name = whole.file_name().unwrap_or(run.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A name for each run: the last component of its path, or the whole path if that is not unique.
pub(crate) fn run_names(runs: &[RunInfo]) -> Vec<String> {
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
        Status::Imported => "imported",
    }
    .to_owned()
}

/// The steps of a run, such as `1,600`, or `500/1,600` if there are steps left.
fn steps(info: &RunInfo) -> String {
    match info.max_steps {
        Some(max_steps) if max_steps != info.step => format!("{}/{}", grouped(info.step), grouped(max_steps)),
        _ => grouped(info.step),
    }
}

fn loss(info: &RunInfo, loss: Option<f64>) -> String {
    loss.map(|loss| marked_loss(loss, info.is_estimate)).unwrap_or_default()
}

/// The rows with the most important columns; in a narrow table without the time of a step, which its speed says, too.
/// Estimated losses are marked with `~`.
pub fn curves_table(rows: &[&LogRow], n_columns: usize) -> String {
    let headings =
        ">STEP | >TRAIN LOSS | >VAL LOSS | >BITS/BYTE | | >LEARNING RATE | >GRAD NORM | >MS/STEP | >TOKENS/S";
    let cells = |row: &&LogRow| {
        let number = |key: &str| row.get(key).and_then(|value| value.as_f64());
        let show = |key: &str, format: fn(f64) -> String| number(key).map(format).unwrap_or_default();
        let loss = |full: &str, estimate: &str| match number(full) {
            Some(full) => marked_loss(full, false),
            None => show(estimate, |estimate| marked_loss(estimate, true)),
        };
        let is_best = match row.get("best_step") {
            None | Some(Value::Null) => row.get("is_best") == Some(Value::Bool(true)),
            best_step => best_step == row.get("step"), // on the whole split, which may differ from the estimate's best
        };
        [
            row.get("step").and_then(|value| value.as_u64()).map(grouped).unwrap_or_default(),
            show("train_loss", |x| format!("{x:.4}")),
            loss("val_loss", "val_loss_estimate"),
            loss("val_bits_per_byte", "val_bits_per_byte_estimate"),
            if is_best { "best" } else { "" }.to_owned(),
            show("learning_rate", |x| format!("{x:.2e}")),
            show("gradient_norm", |x| format!("{x:.3}")),
            show("median_step_ms", |x| format!("{x:.1}")),
            show("tokens_per_s", whole),
        ]
    };
    narrowed_table(headings, &rows.iter().map(cells).collect::<Vec<_>>(), n_columns, &["MS/STEP", "GRAD NORM"])
}

/// The gradient norm of each layer as a line: its curve, the first and the last. Empty for a run of an older version.
pub fn gradient_norms_table(curves: &Curves, n_columns: usize) -> String {
    let layers = curves.gradient_norms();
    if layers.is_empty() {
        return String::new();
    }
    let layers: Vec<(&str, &[(u64, f64)])> = layers.iter().map(|(name, points)| (*name, &**points)).collect();
    curve_table("GRADIENT NORM OF", &layers, n_columns)
}

/// A row of a log for tests.
#[cfg(test)]
pub(crate) fn log_row(value: Value) -> LogRow {
    value.as_object().expect("a row is an object").clone().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

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
            val_bits_per_byte: Some(1.482_71),
            best_step: Some(1600),
            device: Some("flex".to_owned()),
            began_unix_s: Some(1000.0),
            ..RunInfo::default()
        }
    }

    /// A run with hardly anything known.
    fn bare(run: &str) -> RunInfo {
        RunInfo { run: run.into(), step: 250, max_steps: Some(1600), ..RunInfo::default() }
    }

    #[test]
    fn runs_table_fits_width() {
        let running = RunInfo {
            status: Status::Running,
            step: 500,
            is_estimate: true,
            val_loss: Some(1.25),
            val_bits_per_byte: Some(1.8),
            device: Some("wgpu:1".to_owned()),
            ..done("runs/sweep-2025-with-a-rather-long-name-lr3e-4")
        };
        let text = runs_table(&[done("runs/quickstart"), running, bare("runs/old")], 8200.0, 100);
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert_snapshot!(text, @r"
        RUN                 STATUS       STEPS  PARAMS  TOKENS        TIME  VAL LOSS  BITS/BYTE  DEVICE  AGO
        quickstart          done         1,600    804K   2.46M  2 min 19 s    1.0277     1.4827  flex    2 h
        sweep-20…me-lr3e-4  running  500/1,600    804K   2.46M  2 min 19 s   ~1.2500    ~1.8000  wgpu:1  2 h
        old                 stopped  250/1,600
        ");
        let narrow = runs_table(&[done("runs/quickstart")], 8200.0, 80);
        assert!(narrow.lines().all(|line| width(line) <= 80) && !narrow.contains("TOKENS"), "{narrow}");
    }

    #[test]
    fn comparison_lists_differences() {
        let fine =
            RunInfo { started_from: Some("runs/quickstart/checkpoints/step-001600".to_owned()), ..bare("runs/fine") };
        let value = |text: &str| Some(toml::Value::String(text.to_owned()));
        let differences = [
            Difference { key: "data.path".to_owned(), values: vec![value("data/stories.txt"), value("letters.txt")] },
            Difference { key: "model.novel".to_owned(), values: vec![None, Some(true.into())] },
        ];
        assert_snapshot!(runs_side_by_side(&[done("runs/quickstart"), fine], &differences, 1030.0, 100), @r#"
                       quickstart          fine
        status         done                stopped
        steps          1,600               250/1,600
        parameters     804,096
        tokens         2,457,600
        training time  2 min 19 s
        total time     2 min 30 s
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
    fn many_runs_continue_below() {
        let runs: Vec<RunInfo> = (0..6).map(|i| done(&format!("runs/{}-{i}", "long-".repeat(9)))).collect();
        let text = runs_side_by_side(&runs, &[], 0.0, 100);
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert_eq!(text.matches("bits per byte").count(), 2, "{text}");
        assert!(text.contains("-0") && text.contains("-5"), "{text}");
    }

    #[test]
    fn equal_run_names_become_paths() {
        let runs = ["a/m", "b/m", "b/n"].map(done);
        assert_eq!(run_names(&runs), ["a/m", "b/m", "n"]);
    }

    #[test]
    fn long_keys_are_cut() {
        let key = "key".repeat(100);
        let difference = Difference { key, values: vec![Some(1.into()), None] };
        let text = runs_side_by_side(&["a", "b"].map(done), &[difference], 0.0, 100);
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert!(text.contains("key  1\n") && text.contains("2 min 19 s"), "{text}");
    }

    #[test]
    fn estimates_are_marked() {
        let rows = [
            log_row(
                json!({"step": 250, "val_loss_estimate": 1.25, "val_bits_per_byte_estimate": 1.8, "is_best": true}),
            ),
            log_row(json!({"step": 1000, "train_loss": 1.0, "learning_rate": 3e-4, "val_loss_estimate": 1.25,
                "val_loss": 1.23456, "gradient_norm": 0.5, "tokens_per_s": 12345.6, "median_step_ms": 33.33,
                "val_bits_per_byte": 1.781})),
        ];
        insta::assert_snapshot!(curves_table(&rows.iter().collect::<Vec<_>>(), 100), @r"
         STEP  TRAIN LOSS  VAL LOSS  BITS/BYTE        LEARNING RATE  GRAD NORM  MS/STEP  TOKENS/S
          250               ~1.2500    ~1.8000  best
        1,000      1.0000    1.2346     1.7810              3.00e-4      0.500     33.3    12,346
        ");
    }

    #[test]
    fn best_row_is_that_of_whole_split() {
        let last = |best_step: Value| {
            let last = log_row(json!({"step": 20, "is_best": true, "val_loss": 1.5, "best_step": best_step}));
            curves_table(&[&last], 100).contains("best")
        };
        assert!(last(20.into()) && last(Value::Null));
        assert!(!last(10.into()));
    }
}
