//! Which of two devices trains a model faster, measured once for a machine and a size of model.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Memory, PlanError, parameters, text, time};
use crate::config::Config;
use tinderbox_model::device::OpenDevice;

/// The milliseconds of a training step on a CPU and on a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// On the CPU.
    pub cpu_ms: f64,
    /// On the GPU.
    pub gpu_ms: f64,
}

impl StepTimes {
    /// Whether the GPU is faster.
    pub fn are_shorter_on_gpu(&self) -> bool {
        self.gpu_ms < self.cpu_ms
    }

    /// Which device computes, why, and how to have the other one: a line for the user.
    pub fn reason(&self, gpu: &OpenDevice) -> String {
        let Self { cpu_ms, gpu_ms } = self;
        let (name, spec) = (&gpu.name, gpu.name.split(' ').next().unwrap_or_default());
        let (here, there, argument, ratio) = match self.are_shorter_on_gpu() {
            true => (&name[..], "the CPU", "cpu takes the CPU".to_owned(), cpu_ms / gpu_ms),
            false => ("the CPU", &name[..], format!("{spec} takes the GPU"), gpu_ms / cpu_ms),
        };
        format!("computing on {here}: {ratio:.1} times as fast as {there} for this model; --device {argument}")
    }
}

/// Measures training steps of `config` on a CPU and on a GPU, on synthetic text, after a call of `begin`; or returns
/// what was measured earlier for these devices and a model of this size. `None` if the run does not fit the CPU's
/// memory.
///
/// # Errors
/// If the text or the tokenizer cannot be used, or a device fails.
pub fn step_times(
    config: &Config,
    devices: [&OpenDevice; 2],
    begin: impl FnOnce(),
) -> Result<Option<StepTimes>, PlanError> {
    step_times_by(config, devices, default_file().as_deref(), begin)
}

/// [`step_times`], kept in this file.
fn step_times_by(
    config: &Config,
    devices @ [cpu, gpu]: [&OpenDevice; 2],
    file: Option<&Path>,
    begin: impl FnOnce(),
) -> Result<Option<StepTimes>, PlanError> {
    let vocab_size = text::find(config, None, &mut Vec::new(), &mut Vec::new())?.0.size;
    if Memory::new(config, vocab_size, cpu).is_too_much() {
        return Ok(None);
    }
    let name = name_of(config, vocab_size, devices);
    if let Some(kept) = file.and_then(|file| read(file, &name)) {
        return Ok(Some(kept));
    }
    begin();
    let [cpu_ms, gpu_ms] = [cpu, gpu].map(|device| time::step_ms(config, vocab_size, device));
    let times = StepTimes { cpu_ms: cpu_ms?, gpu_ms: gpu_ms? };
    if let Some(file) = file {
        // Another run measures again if this fails.
        let _ = keep(file, &name, times);
    }
    Ok(Some(times))
}

/// What the times depend on, in one line without tabs.
fn name_of(config: &Config, vocab_size: usize, [cpu, gpu]: [&OpenDevice; 2]) -> String {
    let train = &config.train;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let name = format!(
        "{} {} with {threads} threads, {}: {} parameters, {} layers, {} x {} rows of {}, {:?} {:?}",
        env!("CARGO_PKG_VERSION"),
        cpu.name,
        gpu.name,
        parameters(&config.model, vocab_size).total,
        config.model.n_layers,
        train.grad_accumulation_steps,
        train.batch_size,
        config.model.context_length,
        config.optimizer.kind,
        train.matmul_precision,
    );
    name.replace(['\t', '\n'], " ")
}

/// A line of the file is a name, and the milliseconds on the CPU and on the GPU.
fn read(file: &Path, name: &str) -> Option<StepTimes> {
    let text = fs::read_to_string(file).ok()?;
    let times = text.lines().rev().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'))?;
    let (cpu_ms, gpu_ms) = times.split_once('\t')?;
    let ms = |text: &str| text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
    Some(StepTimes { cpu_ms: ms(cpu_ms)?, gpu_ms: ms(gpu_ms)? })
}

fn keep(file: &Path, name: &str, StepTimes { cpu_ms, gpu_ms }: StepTimes) -> std::io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(format!("{name}\t{cpu_ms}\t{gpu_ms}\n").as_bytes())
}

fn default_file() -> Option<PathBuf> {
    dirs::cache_dir().map(|cache| cache.join("tinderbox").join("devices.tsv"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tinderbox_model::device;

    use super::*;

    #[test]
    fn step_times_are_kept_for_devices_and_size() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("text.txt"), dir.path().join("cache").join("devices.tsv"));
        fs::write(&path, "the cat sat on the mat. ".repeat(50)).unwrap();
        let config = |d_model: usize| {
            let text = format!(
                "data = {{path = {path:?}}}\ntokenizer = {{kind = \"byte\"}}\n\
                 model = {{context_length = 8, n_layers = 1, n_heads = 2, d_model = {d_model}}}\n\
                 train = {{batch_size = 2}}"
            );
            Config::from_toml(&text, "c.toml".as_ref(), &[]).unwrap()
        };
        // The CPU stands for a GPU, too.
        let (cpu, gpu) = (device::open(&"flex".parse().unwrap()).unwrap(), card());
        let n_measured = Cell::new(0);
        let times = |d_model| {
            let begin = || n_measured.set(n_measured.get() + 1);
            step_times_by(&config(d_model), [&cpu, &gpu], Some(&file), begin).unwrap().unwrap()
        };
        let first = times(8);
        assert!(first.cpu_ms > 0.0 && first.gpu_ms > 0.0);
        assert_eq!((times(8), n_measured.get()), (first, 1));
        times(16);
        let kept = fs::read_to_string(&file).unwrap();
        assert_eq!(kept.lines().count(), 2, "{kept}");
        // The last line counts, and a damaged one does not.
        let name = kept.lines().next().unwrap().split('\t').next().unwrap();
        fs::write(&file, format!("{kept}{name}\t8\t4\n{name} \t1\t1\n")).unwrap();
        assert_eq!(times(8), StepTimes { cpu_ms: 8.0, gpu_ms: 4.0 });
        fs::write(&file, format!("{name}\tnever\t-1\n")).unwrap();
        times(8);
        assert_eq!(n_measured.get(), 3);
    }

    fn card() -> OpenDevice {
        let flex = device::open(&"flex".parse().unwrap()).unwrap();
        OpenDevice { name: "wgpu:0 (A Card, Vulkan)".to_owned(), ..flex }
    }

    #[test]
    fn reason_names_device_ratio_and_the_other() {
        for (cpu_ms, gpu_ms, want) in [
            (
                10.0,
                21.0,
                "the CPU: 2.1 times as fast as wgpu:0 (A Card, Vulkan) for this model; --device wgpu:0 takes the GPU",
            ),
            (
                30.0,
                10.0,
                "wgpu:0 (A Card, Vulkan): 3.0 times as fast as the CPU for this model; --device cpu takes the CPU",
            ),
        ] {
            let reason = StepTimes { cpu_ms, gpu_ms }.reason(&card());
            assert_eq!(reason, format!("computing on {want}"));
        }
    }
}
