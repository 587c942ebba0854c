//! `tinderbox metrics`: prints the curves of a run.

use std::path::PathBuf;

use serde_json::Value;

use super::numbers::at_least_one;
use super::paint::n_columns;
use super::print::{note, print, print_json, print_table};
use crate::run::{self, Curves, LogRow};
use crate::view;

/// The default number of rows of a table, about a screen.
const MAX_ROWS: usize = 24;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox metrics runs/quickstart
  tinderbox metrics runs/quickstart --every 500
  tinderbox metrics runs/quickstart --csv > quickstart.csv")]
pub(super) struct Args {
    /// Run directory; the run may be in progress
    run: PathBuf,
    /// Print all columns and rows as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print a JSON array with an object for each row
    #[arg(long)]
    json: bool,
    /// Print only rows at multiples of N steps, and the last one [default: about a screen of rows]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    every: Option<usize>,
    /// Print all rows of the table
    #[arg(long, conflicts_with_all = ["every", "csv", "json"])]
    all: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let curves = Curves::read(&run::open_or_locate(&args.run)?)?;
    let is_table = !(args.csv || args.json);
    let rows = match args.every {
        Some(n) => curves.every(n as u64),
        None if is_table && !args.all => curves.thinned(MAX_ROWS),
        None => curves.rows.iter().collect(),
    };
    match curves.broken_lines {
        0 => {}
        1 => note("note: one line of the logs cannot be read and is left out"),
        n => note(format!("note: {n} lines of the logs cannot be read and are left out")),
    }
    if curves.rows.is_empty() {
        note("note: the run has not logged anything yet");
    }
    if args.csv {
        print(&csv(&curves.columns, &rows)?)?;
    } else if args.json {
        print_json(&rows)?;
    } else if !rows.is_empty() {
        print_table(&view::curves_table(&rows, n_columns()))?;
        let norms = view::gradient_norms_table(&curves, n_columns());
        if !norms.is_empty() {
            print_table(&format!("\n{norms}"))?;
        }
        if rows.len() < curves.rows.len() && args.every.is_none() {
            let (shown, all) = (rows.len(), curves.rows.len());
            note(format!("{shown} of {all} rows; --all shows every row, --csv also all columns"));
        }
    }
    Ok(())
}

/// The rows with all columns as CSV. A missing value is an empty cell.
fn csv(columns: &[String], rows: &[&LogRow]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !columns.is_empty() {
        writer.write_record(columns)?;
    }
    for row in rows {
        let cells = columns.iter().map(|column| match row.get(column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
        });
        writer.write_record(cells)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::terminal::runs::log_row;

    #[test]
    fn csv_leaves_missing_cells_empty() {
        let rows = [
            log_row(json!({"step": 5, "train_loss": 0.1, "note": "a, \"b\""})),
            log_row(json!({"step": 10, "is_best": true, "train_loss": null})),
        ];
        let columns = ["step", "train_loss", "is_best", "note"].map(str::to_owned);
        let text = csv(&columns, &rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(text, "step,train_loss,is_best,note\n5,0.1,,\"a, \"\"b\"\"\"\n10,,true,\n");
    }
}
