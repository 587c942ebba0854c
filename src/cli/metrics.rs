//! `tinderbox metrics`: prints the curves of a run.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::Value;

use super::note;
use super::table::{Column, table};
use crate::run::{self, Curves, Row};

/// The rows of a table by default: about a screen.
const MAX_ROWS: usize = 24;

/// Print the curves of a run: losses, learning rate, speed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox metrics runs/quickstart
  tinderbox metrics runs/quickstart --every 500
  tinderbox metrics runs/quickstart --csv > quickstart.csv")]
pub(super) struct Args {
    /// A run directory; a run in progress is fine
    run: PathBuf,
    /// Print every column and row as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print a JSON array with an object for each row
    #[arg(long)]
    json: bool,
    /// Print only rows whose step is a multiple of N, and the last one [default: about a screen of rows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Print every row of the table, not about a screen of them
    #[arg(long, conflicts_with = "every")]
    all: bool,
}

/// Reads and prints the curves.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let curves = Curves::read(&run::open_or_locate(&args.run)?)?;
    let is_table = !(args.csv || args.json);
    let rows = match args.every {
        Some(n) => curves.every(n),
        None if is_table && !args.all => curves.thinned(MAX_ROWS),
        None => curves.rows.iter().collect(),
    };
    match curves.broken_lines {
        0 => {}
        1 => note("note: a line of the logs cannot be read, and is left out"),
        n => note(format!("note: {n} lines of the logs cannot be read, and are left out")),
    }
    if curves.rows.is_empty() {
        note("note: the run has not logged anything yet");
    }
    let mut stdout = io::stdout().lock();
    if args.csv {
        stdout.write_all(&csv(&curves.columns, &rows)?)?;
    } else if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&rows)?)?;
    } else if !rows.is_empty() {
        write!(stdout, "{}", overview(&rows))?;
        if rows.len() < curves.rows.len() && args.every.is_none() {
            let (shown, all) = (rows.len(), curves.rows.len());
            note(format!("{shown} of {all} rows; --all shows every one, --csv all columns too"));
        }
    }
    Ok(())
}

/// The rows with all columns. A missing value is an empty cell.
fn csv(columns: &[String], rows: &[&Row]) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !columns.is_empty() {
        writer.write_record(columns)?;
    }
    for row in rows {
        let cells = columns.iter().map(|column| match row.get(column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        });
        writer.write_record(cells)?;
    }
    Ok(writer.into_inner()?)
}

/// The rows with the columns that matter most. Estimated losses are marked with `~`.
fn overview(rows: &[&Row]) -> String {
    let columns = [
        Column::Right("STEP"),
        Column::Right("TRAIN LOSS"),
        Column::Right("VAL LOSS"),
        Column::Right("BITS/BYTE"),
        Column::Left(""),
        Column::Right("LEARNING RATE"),
        Column::Right("GRADIENT NORM"),
        Column::Right("MS/STEP"),
        Column::Right("TOKENS/S"),
    ];
    let cells = |row: &&Row| {
        let number = |key: &str| row.get(key).and_then(Value::as_f64);
        let show =
            |key: &str, format: fn(f64) -> String| number(key).map(format).unwrap_or_default();
        let loss = |full: &str, estimate: &str| match number(full) {
            Some(full) => format!("{full:.4}"),
            None => show(estimate, |estimate| format!("~{estimate:.4}")),
        };
        let is_best = match row.get("best_step") {
            None | Some(Value::Null) => row.get("is_best") == Some(&Value::Bool(true)),
            best_step => best_step == row.get("step"), // by the whole split, which may disagree with the estimate
        };
        [
            row.get("step").map(Value::to_string).unwrap_or_default(),
            show("train_loss", |x| format!("{x:.4}")),
            loss("val_loss", "val_loss_estimate"),
            loss("val_bits_per_byte", "val_bits_per_byte_estimate"),
            if is_best { "best" } else { "" }.to_owned(),
            show("learning_rate", |x| format!("{x:.2e}")),
            show("gradient_norm", |x| format!("{x:.3}")),
            show("median_step_ms", |x| format!("{x:.1}")),
            show("tokens_per_s", |x| format!("{x:.0}")),
        ]
    };
    table(columns, &rows.iter().map(cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(value: Value) -> Row {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn cells_that_a_row_does_not_have_are_empty() {
        let rows = [
            row(json!({"step": 5, "train_loss": 0.1, "note": "a, \"b\""})),
            row(json!({"step": 10, "is_best": true, "train_loss": null})),
        ];
        let columns = ["step", "train_loss", "is_best", "note"].map(str::to_owned);
        let text = csv(&columns, &rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "step,train_loss,is_best,note\n5,0.1,,\"a, \"\"b\"\"\"\n10,,true,\n"
        );
    }

    #[test]
    fn an_estimate_is_marked_until_the_whole_split_is_known() {
        let rows = [
            row(
                json!({"step": 250, "val_loss_estimate": 1.25, "val_bits_per_byte_estimate": 1.8, "is_best": true}),
            ),
            row(
                json!({"step": 1000, "train_loss": 1.0, "learning_rate": 3e-4, "val_loss_estimate": 1.25,
                "val_loss": 1.23456, "gradient_norm": 0.5, "tokens_per_s": 12345.6, "median_step_ms": 33.33,
                "val_bits_per_byte": 1.781}),
            ),
        ];
        insta::assert_snapshot!(overview(&rows.iter().collect::<Vec<_>>()), @r"
        STEP  TRAIN LOSS  VAL LOSS  BITS/BYTE        LEARNING RATE  GRADIENT NORM  MS/STEP  TOKENS/S
         250               ~1.2500    ~1.8000  best
        1000      1.0000    1.2346     1.7810              3.00e-4          0.500     33.3     12346
        ");
    }

    #[test]
    fn the_last_row_is_the_best_only_where_the_whole_split_says_so() {
        let last = |best_step: Value| {
            let last =
                row(json!({"step": 20, "is_best": true, "val_loss": 1.5, "best_step": best_step}));
            overview(&[&last]).contains("best")
        };
        assert!(last(20.into()) && last(Value::Null));
        assert!(!last(10.into()));
    }
}
