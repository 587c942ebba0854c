//! `tinderbox bench attention`: measures the cost of attention as a text grows.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use super::{Measuring, this_program, under_way};
use crate::bench::attention::{self, Case, Cost, Method, Pass, Shape};
use crate::bench::text;
use crate::cli::numbers::at_least_one;
use crate::cli::print::{print, print_json};
use crate::device;
use crate::measure::Machine;

/// The time after which no rounds beyond the first 3 are started.
const ENOUGH: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench attention
  tinderbox bench attention --heads 12 --head-dim 64 --longest 2048 --json")]
pub(super) struct Args {
    /// The number of heads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    heads: usize,
    /// The length of a query, a key or a value of a head, in numbers
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    head_dim: usize,
    /// The number of texts in a batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    batch_size: usize,
    /// The number of tokens in the shortest text
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    shortest: usize,
    /// The number of tokens in the longest text; lengths double up to it
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = at_least_one)]
    longest: usize,
    #[command(flatten)]
    measuring: Measuring,
    /// Measure only this row, in this process: how the program calls itself [default: all rows]
    #[arg(long, value_name = "JSON", hide = true, value_parser = |json: &str| serde_json::from_str::<Case>(json))]
    case: Option<Case>,
}

/// Measures all rows, each in a separate process, or in such a process its one row.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let shape = Shape { batch_size: args.batch_size, n_heads: args.heads, head_dim: args.head_dim };
    let Some(case) = args.case else {
        return args.run_all(shape);
    };
    let (device, trial) = (device::open(&args.measuring.device)?, args.measuring.trial(0, ENOUGH));
    print_json(&attention::measure(case, shape, &device, &trial)?)
}

impl Args {
    fn run_all(&self, shape: Shape) -> anyhow::Result<()> {
        let lengths = attention::lengths(self.shortest, self.longest);
        if lengths.is_empty() {
            bail!("--shortest {} is longer than --longest {}", self.shortest, self.longest);
        }
        let device = device::open(&self.measuring.device)?;
        let mut rows = Vec::new();
        for pass in Pass::ALL {
            for method in Method::ALL {
                under_way(format!("{method} attention, {pass}"));
                rows.extend(attention::series(
                    method,
                    pass,
                    &lengths,
                    || Some(Machine::here().filter(|_| device.backend.is_cpu())?.available as f64 / 1_048_576.0),
                    |case| self.measure(case).map_err(|error| format!("{error:#}")),
                ));
            }
        }
        if rows.iter().all(|row| row.cost.is_none()) {
            let why = rows[0].left_out.as_deref().unwrap_or_default();
            bail!("nothing could be measured: {why}");
        }
        if self.measuring.json {
            return print_json(&json!({
                "device": device.name,
                "threads": rayon::current_num_threads(),
                "shape": shape,
                "rows": rows,
            }));
        }
        print(&text::attention(&rows, shape, self.measuring.rounds, &text::device(&device)))
    }

    /// Measures the cost of a case in a separate process.
    fn measure(&self, case: Case) -> anyhow::Result<Cost> {
        let sizes = [("--heads", self.heads), ("--head-dim", self.head_dim), ("--batch-size", self.batch_size)];
        let mut child = this_program()?;
        child.arg("attention").args(["--case", &serde_json::to_string(&case)?]);
        child.args(["--device", &self.measuring.device.to_string()]);
        for (name, n) in [&sizes[..], &[("--rounds", self.measuring.rounds)]].concat() {
            child.args([name, &n.to_string()]);
        }
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = child.output().context("cannot start this program again")?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let said = said.lines().next().unwrap_or("it printed no message");
            bail!("its process ended with {}: {said}", done.status);
        }
        Ok(serde_json::from_slice(&done.stdout)?)
    }
}
