//! `tinderbox bench machine`: the machine's ceilings.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::{at_least_one, config, figures, on, or_dash, print_json, spread, under_way};
use crate::autoconfig::Preset;
use crate::bench::machine::{self, Access, Ceiling, Product};
use crate::config::Config;
use crate::device::{self, DeviceSpec};
use crate::draw::table::{Column, table};
use crate::measure::Trial;
use crate::plan;

/// No more rounds than fit this time, but at least 3.
const ENOUGH: Duration = Duration::from_secs(2);

/// Measure what the machine could reach: products of matrices, memory bandwidth
///
/// Training and the reading of prompts are limited by products of matrices, writing by how fast weights are read from
/// memory. On a CPU both are measured with one thread and with all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench machine
  tinderbox bench machine configs/gpt2-124m.toml --set train.batch_size=1 --device cpu")]
pub(super) struct Args {
    /// A config whose model's products are multiplied [default: the feed-forward layers of three shipped
    /// configs, and a large square]
    config: Option<PathBuf>,
    /// Use another value for a key of the config, such as train.batch_size=4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "config")]
    overrides: Vec<String>,
    /// The size of each of the arrays that bandwidth is measured with, MiB; well above what caches hold
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one())]
    array: usize,
    /// The most rounds that a row is the median of; one that takes long has fewer, at least 3
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one())]
    rounds: usize,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSpec::Auto)]
    device: DeviceSpec,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let device = device::open(&args.device)?;
    let sizes = match &args.config {
        Some(path) => {
            let config = config(Some(path), &args.overrides)?;
            let plan = plan::plan(&config, None, &device, false)?;
            Product::of(&config, plan.vocabulary.size)
        }
        None => default_products(),
    };
    let trial = Trial { warm_up: 1, rounds: args.rounds.min(3)..=args.rounds, enough: ENOUGH };
    under_way("products of matrices");
    let products = machine::products(sizes, &device, &trial)?;
    under_way("memory");
    let bandwidth = machine::bandwidth(args.array << 18, &device, &trial)?;
    if args.json {
        return print_json(&json!({
            "device": device.name,
            "threads": rayon::current_num_threads(),
            "products": products,
            "array_mib": args.array,
            "bandwidth": bandwidth,
        }));
    }
    let place = on(&device.name, device.backend.is_cpu());
    Ok(write!(
        io::stdout(),
        "products of matrices on {place}: GFLOP/s\n{}\n\
         memory, arrays of {} MiB: GB/s\n{}\
         medians of at most {} rounds; SPREAD: the width of their middle half\n",
        products_table(&products),
        args.array,
        bandwidth_table(&bandwidth),
        args.rounds,
    )?)
}

/// The largest product of models of three sizes, for as many tokens as suit a CPU, and a square one.
fn default_products() -> Vec<Product> {
    let of = |name: &str, change: fn(&mut Config)| {
        let mut config = Preset::named(name).expect("it is shipped").config();
        change(&mut config);
        let products = Product::of(&config, 0).into_iter();
        let largest = products.max_by(|a, b| a.flops().total_cmp(&b.flops()));
        Product { name: name.to_owned(), ..largest.expect("there are five") }
    };
    vec![
        of("shakespeare", |_| {}),
        of("shakespeare-gpu", |config| config.train.batch_size = 4),
        of("gpt2", |config| {
            config.train.batch_size = 1;
            config.model.context_length = 256;
        }),
        Product { name: "square".to_owned(), m: 1024, k: 1024, n: 1024 },
    ]
}

fn products_table(products: &[Ceiling<Product>]) -> String {
    let lines: Vec<_> = products
        .iter()
        .map(|ceiling| {
            let Product { name, m, k, n } = &ceiling.what;
            let [one, all, apart] = speeds(ceiling);
            [name.clone(), format!("[{m}, {k}] x [{k}, {n}]"), one, all, apart]
        })
        .collect();
    let columns = [
        Column::Left("OF"),
        Column::Left("PRODUCT"),
        Column::Right("1 THREAD"),
        Column::Right("ALL"),
        Column::Right("SPREAD"),
    ];
    table(columns, &lines)
}

fn bandwidth_table(bandwidth: &[Ceiling<Access>]) -> String {
    let lines: Vec<_> = bandwidth
        .iter()
        .map(|ceiling| {
            let what = match ceiling.what {
                Access::Read => "read   sum(a)",
                Access::Copy => "copy   b = a",
                Access::Triad => "triad  c = a + x b",
            };
            let [one, all, apart] = speeds(ceiling);
            [what.to_owned(), one, all, apart]
        })
        .collect();
    let columns = [Column::Left("ACCESS"), Column::Right("1 THREAD"), Column::Right("ALL"), Column::Right("SPREAD")];
    table(columns, &lines)
}

/// With one thread, with all threads, and the spread.
fn speeds<T>(ceiling: &Ceiling<T>) -> [String; 3] {
    [or_dash(ceiling.one_thread.map(figures)), figures(ceiling.all_threads), spread(&ceiling.times)]
}
