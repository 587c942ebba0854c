//! Formats measurements as text.

use super::generate::GenerateSpeed;
use super::train::{GpuSpeed, Repetitions, TrainSpeed};
use crate::config::precision_remark;
use crate::device::OpenDevice;
use crate::format::{counted, grouped, or_dash, short};
use crate::measure::{Times, peak_rss_mib};
use crate::view::terminal::table::table;

/// The width of tables, fixed so that saved tables can be compared.
const N_COLUMNS: usize = 100;

/// The speed of reading and generating, one line per batch size.
pub fn generate(n_parameters: usize, speeds: &[GenerateSpeed], device_name: &str) -> String {
    let line = |speed: &GenerateSpeed| {
        [
            speed.sizes.batch_size.to_string(),
            figures(speed.prompt_tokens_per_s),
            figures(speed.prompt.median_ms),
            spread(&speed.prompt),
            figures(speed.tokens_per_s),
            figures(speed.token.median_ms),
            spread(&speed.token),
            figures(speed.weight_bytes_per_s / 1e9),
        ]
    };
    let headings = ">SEQUENCES | >PROMPT tokens/s | >ms | >SPREAD | >GENERATED tokens/s | >ms/token | >SPREAD | >GB/s";
    let table = table(headings, &speeds.iter().map(line).collect::<Vec<_>>(), N_COLUMNS);
    let measured = speeds.first().map_or_else(String::new, |speed| {
        format!(
            "a prompt of {} tokens, then {} tokens one by one; medians of {} rounds\n",
            speed.sizes.prompt_tokens, speed.sizes.new_tokens, speed.token.rounds
        )
    });
    format!(
        "generating with {} parameters on {device_name}\n{table}{measured}\
         GB/s: the bytes of all weights, read once per token of a sequence; peak memory {} MiB\n",
        grouped(n_parameters as u64),
        or_dash(peak_rss_mib().map(figures)),
    )
}

/// The training speed of a model.
pub fn train(speed: &TrainSpeed, device_name: &str) -> String {
    let Repetitions { warm_up_steps, rounds, steps } = speed.measured;
    let rounds_ms: Vec<_> = speed.rounds_ms.iter().map(|ms| figures(*ms)).collect();
    let mut lines = vec![
        ("ms per step", figures(speed.step.median_ms)),
        ("tokens/s", figures(speed.tokens_per_s)),
        ("GFLOP/s", figures(speed.flops_per_s / 1e9)),
        ("peak memory, MiB", or_dash(speed.peak_rss_mib.map(figures))),
        ("spread of rounds", spread(&speed.step)),
        ("rounds, ms per step", rounds_ms.join("  ")),
    ];
    if let Some(gpu) = speed.gpu {
        let GpuSpeed { first_step_s, unwaited_ms, kernels_per_step, submits_per_step, host_us_per_kernel } = gpu;
        lines.extend([
            ("ms, not waiting", figures(unwaited_ms)),
            ("first step, s", figures(first_step_s)),
            ("kernels per step", figures(kernels_per_step)),
            ("submits per step", or_dash(submits_per_step.map(figures))),
            ("host us per kernel", figures(host_us_per_kernel)),
            ("built with profile", speed.profile.to_owned()),
        ]);
    }
    let title = format!(
        "training of {} parameters, {} tokens a step, on {device_name}{}\n",
        grouped(speed.parameters as u64),
        grouped(speed.tokens_per_step as u64),
        precision_remark(speed.matmul_precision),
    );
    let lines: Vec<_> = lines.into_iter().map(|(name, value)| format!("  {name:<22}{value}\n")).collect();
    format!(
        "{title}{}{rounds} rounds of {steps} steps each after {warm_up_steps} to warm up; medians\n",
        lines.concat()
    )
}

/// A number with about three digits.
fn figures(x: f64) -> String {
    if x < 0.995 { format!("{x:.3}") } else { short(x) }
}

/// The interquartile range of the rounds, in percent of their median.
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
    #[test]
    fn figures_have_about_three_digits() {
        let shown = [0.0123, 0.999, 1.234, 9.96, 56.78, 99.6, 567.8, 12_345.6].map(figures);
        assert_eq!(shown, ["0.012", "1.00", "1.23", "9.96", "56.8", "99.6", "568", "12,346"]);
    }
}
