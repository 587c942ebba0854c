//! Formats the measurements as text for a terminal.

use super::attention::{Case, Method, Pass, Row, Shape};
use super::machine::{Access, Ceiling, Product, Products};
use super::train::Repetitions;
use super::{generate, train};
use crate::config::precision_remark;
use crate::device::OpenDevice;
use crate::format::{counted, grouped, or_dash, short};
use crate::measure::{Times, peak_rss_mib};
use crate::view::terminal::table::table;

/// The width of tables, which are made to be kept and compared.
const N_COLUMNS: usize = 100;

/// The cost of attention: a table for each pass, and the reasons why rows were left out.
pub fn attention(rows: &[Row], shape: Shape, rounds: usize, device_name: &str) -> String {
    let Shape { batch_size, n_heads, head_dim } = shape;
    let heading = format!(
        "attention with {} of {head_dim} numbers, {} at once, on {device_name}\n",
        counted(n_heads as u64, "head"),
        counted(batch_size as u64, "text"),
    );
    let tables = Pass::ALL.map(|pass| format!("\n{pass}\n{}", both_methods(rows, pass))).concat();
    let left_out = rows.iter().filter_map(|row| {
        let Case { method, pass, tokens } = row.case;
        let why = row.left_out.as_ref()?;
        Some(format!("left out: {method}, {pass}, {tokens} tokens: {why}\n"))
    });
    let left_out: String = left_out.collect();
    let longest = rows.iter().map(|row| row.case.tokens).max().unwrap_or(0);
    let weights_mib = (4 * n_heads * batch_size * longest * longest) as f64 / 1_048_576.0;
    format!(
        "{heading}{tables}\n{left_out}\
         medians of at most {}; SPREAD: the width of their middle half; RATIO: to the row above\n\
         MiB: the peak memory of the first pass, without queries, keys and values; the weights of {longest}\n\
         tokens alone are {} MiB\n",
        counted(rounds as u64, "round"),
        figures(weights_mib),
    )
}

/// Both methods side by side, one line per length.
fn both_methods(rows: &[Row], pass: Pass) -> String {
    let of = |method: Method| rows.iter().filter(move |row| row.case.method == method && row.case.pass == pass);
    let line = |(explicit, fused): (&Row, &Row)| {
        let both = explicit.cost.zip(fused.cost);
        let faster = both.map(|(explicit, fused)| format!("{:.1}x", explicit.times.median_ms / fused.times.median_ms));
        [&[explicit.case.tokens.to_string()][..], &cells(explicit), &cells(fused), &[or_dash(faster)]].concat()
    };
    let lines: Vec<_> = of(Method::Explicit).zip(of(Method::Fused)).map(line).collect();
    let headings = ">TOKENS | >EXPLICIT ms | >SPREAD | >RATIO | >MiB | >RATIO | >FUSED ms | >SPREAD | >RATIO | >MiB | >RATIO \
         | >FASTER";
    table(headings, &lines, N_COLUMNS)
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

/// The speed of reading and generating, one line per number of parallel texts.
pub fn generate(n_parameters: usize, speeds: &[generate::Speed], device_name: &str) -> String {
    let line = |speed: &generate::Speed| {
        [
            speed.case.batch_size.to_string(),
            figures(speed.prompt_tokens_per_s),
            figures(speed.prompt.median_ms),
            spread(&speed.prompt),
            figures(speed.tokens_per_s),
            figures(speed.token.median_ms),
            spread(&speed.token),
            figures(speed.weight_bytes_per_s / 1e9),
        ]
    };
    let headings = ">TEXTS | >READ tokens/s | >ms | >SPREAD | >WRITTEN tokens/s | >ms/token | >SPREAD | >GB/s";
    let table = table(headings, &speeds.iter().map(line).collect::<Vec<_>>(), N_COLUMNS);
    let measured = speeds.first().map_or_else(String::new, |speed| {
        format!(
            "a prompt of {} tokens, then {} tokens one by one; medians of {} rounds\n",
            speed.case.prompt_tokens, speed.case.new_tokens, speed.token.rounds
        )
    });
    format!(
        "writing with {} parameters on {device_name}\n{table}{measured}\
         GB/s: the bytes of all weights, read once for each token that a text gets; peak memory {} MiB\n",
        grouped(n_parameters as u64),
        or_dash(peak_rss_mib().map(figures)),
    )
}

/// The machine's ceilings: a table for each kind of products, and one of accesses to arrays of `array_mib`.
pub fn machine(
    products: &[(&str, Products)],
    bandwidth: &[Ceiling<Access>],
    array_mib: usize,
    rounds: usize,
    device_name: &str,
) -> String {
    let access = |access: &Access| {
        let what = match access {
            Access::Read => "read   sum(a)",
            Access::Copy => "copy   b = a",
            Access::Triad => "triad  c = a + x b",
        };
        vec![what.to_owned()]
    };
    let tables = products.iter().map(|(title, products)| format!("{title}: GFLOP/s\n{}\n", of(products)));
    let tables = tables.collect::<Vec<_>>().concat();
    format!(
        "on {device_name}\n\n{tables}\
         memory, arrays of {array_mib} MiB: GB/s\n{}\
         medians of at most {rounds} rounds; SPREAD: the width of their middle half\n",
        ceilings("ACCESS | >1 THREAD | >ALL | >SPREAD", bandwidth.iter().map(|it| line(it, access(&it.what)))),
    )
}

/// A table of products, headed by their limit.
fn of(Products { multiply_adds, products }: &Products) -> String {
    let product = |Product { name, m, k, n }: &Product| vec![name.clone(), format!("[{m}, {k}] x [{k}, {n}]")];
    let limit = multiply_adds.iter().map(|it| line(it, vec!["limit".to_owned(), "multiply-adds alone".to_owned()]));
    let lines = limit.chain(products.iter().map(|it| line(it, product(&it.what))));
    ceilings("OF | PRODUCT | >1 THREAD | >ALL | >SPREAD", lines)
}

/// A line for a ceiling: its name, its speed with one thread and with all threads, and the spread.
fn line<T>(Ceiling { one_thread, all_threads, times, .. }: &Ceiling<T>, name: Vec<String>) -> Vec<String> {
    let speeds = [or_dash(one_thread.map(figures)), figures(*all_threads), spread(times)];
    [&name[..], &speeds].concat()
}

fn ceilings(headings: &str, lines: impl Iterator<Item = Vec<String>>) -> String {
    table(headings, &lines.collect::<Vec<_>>(), N_COLUMNS)
}

/// The training speed of a model.
pub fn train(speed: &train::Speed, device_name: &str) -> String {
    let Repetitions { warm_up_steps, rounds, steps } = speed.measured;
    let rounds_ms: Vec<_> = speed.rounds_ms.iter().map(|ms| figures(*ms)).collect();
    let lines = [
        ("ms per step", figures(speed.step.median_ms)),
        ("tokens/s", figures(speed.tokens_per_s)),
        ("GFLOP/s", figures(speed.flops_per_s / 1e9)),
        ("peak memory, MiB", or_dash(speed.peak_rss_mib.map(figures))),
        ("spread of rounds", spread(&speed.step)),
        ("rounds, ms per step", rounds_ms.join("  ")),
    ];
    let title = format!(
        "training of {} parameters, {} tokens a step, on {device_name}{}\n",
        grouped(speed.parameters as u64),
        grouped(speed.tokens_per_step as u64),
        precision_remark(speed.matmul_precision),
    );
    let lines = lines.map(|(name, value)| format!("  {name:<22}{value}\n"));
    format!(
        "{title}{}{rounds} rounds of {steps} steps each after {warm_up_steps} to warm up; medians\n",
        lines.concat()
    )
}

/// A number with about three digits.
fn figures(x: f64) -> String {
    if x < 0.995 { format!("{x:.3}") } else { short(x) }
}

/// The interquartile range of all rounds, in percent of their median.
fn spread(times: &Times) -> String {
    format!("{:.0} %", times.spread * 100.0)
}

/// `flex, 2 threads`; for a GPU just its name.
pub fn device(device: &OpenDevice) -> String {
    match device.backend.is_cpu() {
        true => format!("{}, {}", device.name, counted(rayon::current_num_threads() as u64, "thread")),
        false => device.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::attention::{Cost, series};
    use crate::view::terminal::columns::width;

    #[test]
    fn a_table_of_large_numbers_is_no_wider_than_a_page() {
        let measure = |case: Case| {
            let tokens = case.tokens as f64;
            let times = Times::of(&[9.0, 9.0, 10.0, 11.0, 99.0].map(|ms| ms * tokens));
            Ok(Cost { times, extra_mib: Some(2.0 * tokens) })
        };
        let of = |method| series(method, Pass::Forward, &[4096, 8192], || None, measure);
        let rows: Vec<Row> = Method::ALL.into_iter().flat_map(of).collect();
        let table = both_methods(&rows, Pass::Forward);
        assert!(table.lines().all(|line| width(line) <= N_COLUMNS), "{table}");
        let last: Vec<_> = table.lines().last().expect("a row").split_whitespace().collect();
        let one_method = "81,920 20 % 2.0x 16384.0 2.0x";
        assert_eq!(last.join(" "), format!("8192 {one_method} {one_method} 1.0x"));
    }

    #[test]
    fn a_row_that_was_left_out_is_dashes() {
        let rows = series(Method::Explicit, Pass::Forward, &[8], || None, |_| Err("no luck".to_owned()));
        assert_eq!(cells(&rows[0]), ["-", "-", "", "-", ""]);
    }

    #[test]
    fn numbers_have_about_three_figures() {
        let shown = [0.0123, 0.999, 1.234, 9.96, 56.78, 99.6, 567.8, 12_345.6].map(figures);
        assert_eq!(shown, ["0.012", "1.00", "1.23", "9.96", "56.8", "99.6", "568", "12,346"]);
    }
}
