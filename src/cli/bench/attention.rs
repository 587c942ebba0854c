//! `tinderbox bench attention`: the cost of attention as a text grows.

use std::io::{self, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use super::{MIB, at_least_one, figures, on, or_dash, print_json, spread, this_program, under_way};
use crate::bench::attention::{self, Case, Cost, Method, Pass, Row, Shape};
use crate::device::{self, DeviceSpec};
use crate::draw::table::{Column, table};
use crate::format::counted;
use crate::measure::{Machine, Trial};

/// No more rounds than fit this time, but at least 3.
const ENOUGH: Duration = Duration::from_secs(1);

/// Measure what attention costs as a text grows, explicit and fused
///
/// Explicit attention computes its scores, its mask, its weights and their products one after another, each for all
/// pairs of tokens: time and memory grow with the square of the text. The fused operation is the one that
/// training and generation use. Every row is measured in a process of its own; rows that may not fit the memory
/// are left out, with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench attention
  tinderbox bench attention --heads 12 --head-dim 64 --longest 2048 --json")]
pub(super) struct Args {
    /// How many heads there are
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one())]
    heads: usize,
    /// How many numbers a query, a key or a value of a head has
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one())]
    head_dim: usize,
    /// How many texts are attended to at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    batch_size: usize,
    /// How many tokens the shortest text has
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one())]
    shortest: usize,
    /// How many tokens the longest text has; lengths double up to it
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = at_least_one())]
    longest: usize,
    /// The most rounds that a row is the median of; one that takes long has fewer, at least 3
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one())]
    rounds: usize,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSpec::Auto)]
    device: DeviceSpec,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Measure only this row, in this process: how the program calls itself [default: all rows]
    #[arg(long, value_name = "JSON", hide = true, value_parser = |json: &str| serde_json::from_str::<Case>(json))]
    case: Option<Case>,
}

/// Measures all rows, each in a process of its own, or the one of this process.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match args.case {
        Some(case) => args.run_case(case),
        None => args.run_all(),
    }
}

impl Args {
    fn shape(&self) -> Shape {
        Shape { batch_size: self.batch_size, n_heads: self.heads, head_dim: self.head_dim }
    }

    fn run_case(&self, case: Case) -> anyhow::Result<()> {
        let device = device::open(&self.device)?;
        let trial = Trial { warm_up: 0, rounds: self.rounds.min(3)..=self.rounds, enough: ENOUGH };
        let cost = attention::measure(case, self.shape(), &device, &trial)?;
        print_json(&cost)
    }

    fn run_all(&self) -> anyhow::Result<()> {
        let lengths = attention::lengths(self.shortest, self.longest);
        if lengths.is_empty() {
            bail!("--shortest {} is longer than --longest {}", self.shortest, self.longest);
        }
        let device = device::open(&self.device)?;
        let mut rows = Vec::new();
        for pass in Pass::ALL {
            for method in Method::ALL {
                under_way(format!("{method} attention, {pass}"));
                rows.extend(attention::series(
                    method,
                    pass,
                    &lengths,
                    || device.backend.is_cpu().then(|| Machine::here().available as f64 / MIB),
                    |case| self.measure(case).map_err(|error| format!("{error:#}")),
                ));
            }
        }
        if rows.iter().all(|row| row.cost.is_none()) {
            let why = rows[0].left_out.as_deref().unwrap_or_default();
            bail!("nothing could be measured: {why}");
        }
        if self.json {
            return print_json(&json!({
                "device": device.name,
                "threads": rayon::current_num_threads(),
                "shape": self.shape(),
                "rows": rows,
            }));
        }
        let place = on(&device.name, device.backend.is_cpu());
        Ok(write!(io::stdout(), "{}", self.page(&rows, &place))?)
    }

    /// The cost of a case, in a process of its own.
    fn measure(&self, case: Case) -> anyhow::Result<Cost> {
        let mut child = this_program()?;
        child.arg("attention");
        for (name, value) in [
            ("--heads", self.heads.to_string()),
            ("--head-dim", self.head_dim.to_string()),
            ("--batch-size", self.batch_size.to_string()),
            ("--rounds", self.rounds.to_string()),
            ("--device", self.device.to_string()),
            ("--case", serde_json::to_string(&case)?),
        ] {
            child.args([name, &value]);
        }
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = child.output().context("cannot start this program again")?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let said = said.lines().next().unwrap_or("it said nothing");
            bail!("its process ended with {}: {said}", done.status);
        }
        Ok(serde_json::from_slice(&done.stdout)?)
    }

    fn page(&self, rows: &[Row], place: &str) -> String {
        let heading = format!(
            "attention with {} of {} numbers, {} at once, on {place}\n",
            counted(self.heads as u64, "head"),
            self.head_dim,
            counted(self.batch_size as u64, "text"),
        );
        let tables = Pass::ALL.map(|pass| format!("\n{pass}\n{}", table_of(rows, pass)));
        let left_out = rows.iter().filter_map(|row| {
            let Case { method, pass, tokens } = row.case;
            let why = row.left_out.as_ref()?;
            Some(format!("left out: {method}, {pass}, {tokens} tokens: {why}\n"))
        });
        let longest = rows.iter().map(|row| row.case.tokens).max().unwrap_or(0);
        let weights_mib = (4 * self.heads * self.batch_size * longest * longest) as f64 / MIB;
        let notes = format!(
            "medians of at most {}; SPREAD: the width of their middle half; RATIO: to the row above\n\
             MiB: the most memory of the first pass, without queries, keys and values; of {longest} tokens the\n\
             weights alone are {} MiB\n",
            counted(self.rounds as u64, "round"),
            figures(weights_mib),
        );
        heading + &tables.concat() + "\n" + &left_out.collect::<String>() + &notes
    }
}

/// Both methods side by side, a line for each length.
fn table_of(rows: &[Row], pass: Pass) -> String {
    let of = |method: Method| rows.iter().filter(move |row| row.case.method == method && row.case.pass == pass);
    let lines: Vec<_> = of(Method::Explicit)
        .zip(of(Method::Fused))
        .map(|(explicit, fused)| {
            let [a, b, c, d, e] = cells(explicit);
            let [f, g, h, i, j] = cells(fused);
            let both = explicit.cost.as_ref().zip(fused.cost.as_ref());
            let faster =
                both.map(|(explicit, fused)| format!("{:.1}x", explicit.times.median_ms / fused.times.median_ms));
            let tokens = explicit.case.tokens.to_string();
            [tokens, a, b, c, d, e, f, g, h, i, j, or_dash(faster)]
        })
        .collect();
    let columns = [
        "TOKENS",
        "EXPLICIT ms",
        "SPREAD",
        "RATIO",
        "MiB",
        "RATIO",
        "FUSED ms",
        "SPREAD",
        "RATIO",
        "MiB",
        "RATIO",
        "FASTER",
    ];
    table(columns.map(Column::Right), &lines)
}

/// Time, spread, ratio, memory, ratio.
fn cells(row: &Row) -> [String; 5] {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |x| format!("{x:.1}x"));
    let cost = row.cost.as_ref();
    [
        or_dash(cost.map(|cost| figures(cost.times.median_ms))),
        or_dash(cost.map(|cost| spread(&cost.times))),
        ratio(row.time_ratio),
        or_dash(cost.and_then(|cost| cost.extra_mib).map(|mib| format!("{mib:.1}"))),
        ratio(row.memory_ratio),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::table::{MAX_WIDTH, width};
    use crate::measure::Times;

    #[test]
    fn a_table_of_large_numbers_is_no_wider_than_a_page() {
        let measure = |case: Case| {
            let tokens = case.tokens as f64;
            Ok(Cost {
                times: Times::of(&[9.0, 9.0, 10.0, 11.0, 99.0].map(|ms| ms * tokens)),
                extra_mib: Some(2.0 * tokens),
            })
        };
        let of = |method| attention::series(method, Pass::Forward, &[4096, 8192], || None, measure);
        let rows: Vec<Row> = Method::ALL.into_iter().flat_map(of).collect();
        let table = table_of(&rows, Pass::Forward);
        assert!(table.lines().all(|line| width(line) <= MAX_WIDTH), "{table}");
        let last = table.lines().last().expect("a row");
        let cells: Vec<_> = last.split_whitespace().collect();
        let one_method = ["81,920", "20", "%", "2.0x", "16384.0", "2.0x"];
        assert_eq!(cells[0], "8192");
        assert_eq!(cells[1..7], one_method);
        assert_eq!(cells[7..13], one_method);
        assert_eq!(cells[13], "1.0x");
    }

    #[test]
    fn a_row_that_was_left_out_is_dashes() {
        let rows = attention::series(Method::Explicit, Pass::Forward, &[8], || None, |_| Err("no luck".to_owned()));
        assert_eq!(cells(&rows[0]), ["-", "-", "", "-", ""]);
    }
}
