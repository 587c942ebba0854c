//! `tinderbox bench machine`: measures the machine's limits.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tinderbox_kernels::SimdLevel;

use super::{Measuring, config, under_way};
use crate::bench::machine::{self, Kernel, Product};
use crate::bench::text;
use crate::cli::numbers::at_least_one;
use crate::cli::print::{print, print_json};
use crate::config::{Config, MatmulPrecision};
use crate::device;
use crate::plan;
use crate::preset::Preset;

/// The time after which no rounds beyond the first 3 are started.
const ENOUGH: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench machine
  tinderbox bench machine gpt2 --set train.batch_size=1 --device cpu")]
pub(super) struct Args {
    /// A config whose model's matrix products are measured [default: the feed-forward layers of three shipped configs,
    /// and a large square]
    config: Option<PathBuf>,
    /// Replace the value of a key of the config, such as train.batch_size=4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "config")]
    overrides: Vec<String>,
    /// The size of each array for measuring bandwidth, in MiB; well above the size of the caches
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    array: usize,
    #[command(flatten)]
    measuring: Measuring,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let simd = SimdLevel::current()?.name();
    let device = device::open(&args.measuring.device)?;
    let sizes = match &args.config {
        Some(path) => {
            let config = config(Some(path), &args.overrides)?;
            let plan = plan::plan(&config, None, &device, false)?;
            Product::of_forward_pass(&config, plan.vocabulary.size)
        }
        None => default_products(),
    };
    let trial = args.measuring.trial(1, ENOUGH);
    under_way("matrix products");
    let products = |kernel| machine::products(kernel, &sizes, &device, &trial);
    let in_f32 = products(Kernel::Own(MatmulPrecision::F32))?;
    let in_bf16 = products(Kernel::Own(MatmulPrecision::Bf16))?;
    let of_burn = products(Kernel::Burn)?;
    under_way("memory");
    let bandwidth = machine::bandwidth(args.array << 18, &device, &trial)?;
    if args.measuring.json {
        return print_json(&json!({
            "device": device.name,
            "threads": rayon::current_num_threads(),
            "simd": simd,
            "own_in_f32": in_f32,
            "own_in_bf16": in_bf16,
            "burn_in_f32": of_burn,
            "array_mib": args.array,
            "bandwidth": bandwidth,
        }));
    }
    let products = [
        ("Tinderbox's products in f32", in_f32),
        ("Tinderbox's products in bf16", in_bf16),
        ("burn's products in f32", of_burn),
    ];
    let products = products.into_iter().filter_map(|(title, products)| Some((title, products?)));
    let (rounds, name) = (args.measuring.rounds, text::device(&device));
    let tables = text::machine(&products.collect::<Vec<_>>(), &bandwidth, args.array, rounds, &name);
    print(&format!("{tables}SIMD level of Tinderbox's own kernels: {simd}\n"))
}

/// The largest matrix product of models of three sizes, for a number of tokens that suits a CPU, and a square product.
fn default_products() -> Vec<Product> {
    let of = |name: &str, change: fn(&mut Config)| {
        let mut config = Preset::named(name).expect("it is shipped").config();
        change(&mut config);
        let products = Product::of_forward_pass(&config, 0).into_iter();
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
