//! Long runs do not grow in memory, nor with many records.

use std::io::Write;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::finetune;
use crate::fixtures::{Folder, fs, set};

/// The current memory of a process, in KiB; `None` after its end.
pub fn rss_kib(id: u32) -> Option<u64> {
    memory_kib(id, "VmRSS:")
}

fn memory_kib(id: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().strip_suffix(" kB")?.parse().ok()
}

fn mean(measured: &[u64]) -> f64 {
    measured.iter().sum::<u64>() as f64 / measured.len() as f64
}

/// Trains for `max_steps` steps, and compares the memory near the end of them with that in their second tenth. By then
/// all of their work was done once: a GPU's kernels of evaluations and samples, too, are compiled when they are first
/// needed. Those of the report, which follows the last step, do not count.
fn keeps_its_memory(device: &str, max_steps: usize) {
    let folder = Folder::new();
    let interval = max_steps / 20;
    let sets = [
        format!("train.max_steps={max_steps}"),
        format!("train.eval_interval={interval}"),
        format!("train.checkpoint_interval={interval}"),
        "train.log_interval=20".to_owned(),
    ];
    let settings = set(&sets.each_ref().map(String::as_str));
    let mut command = folder.command(&[&["train", "tiny.toml", "--device", device], &*settings].concat());
    command.env("CUBECL_AUTOTUNE_LEVEL", "minimal").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary starts");
    let metrics = folder.path("runs/tiny/metrics.jsonl");
    let mut by_step: Vec<(usize, u64)> = Vec::new();
    while child.try_wait().expect("a status").is_none() {
        sleep(Duration::from_millis(50));
        // All lines are about equally long.
        let n_bytes = fs::metadata(&metrics).map_or(0, |it| it.len() as usize);
        by_step.extend(rss_kib(child.id()).map(|kib| (n_bytes, kib)));
    }
    assert!(child.wait().expect("the process has ended").success());
    let all = fs::metadata(&metrics).expect("it was logged").len() as usize;
    let within = |from: usize, to: usize| {
        let some = by_step.iter().filter(|(n_bytes, _)| (from * all / 100..to * all / 100).contains(n_bytes));
        some.map(|(_, kib)| *kib).collect::<Vec<_>>()
    };
    let (early, late) = (within(10, 20), within(90, 98));
    assert!(early.len() > 10 && late.len() > 10, "{} and {} measurements", early.len(), late.len());
    let (early, late) = (mean(&early) / 1024.0, mean(&late) / 1024.0);
    eprintln!("{early:.1} MiB, and {late:.1} MiB at the end");
    assert!(late < 1.02 * early, "from {early} to {late} MiB");
}

#[test]
#[ignore = "takes minutes"]
fn twenty_thousand_steps_keep_memory() {
    keeps_its_memory("flex", 20_000);
}

#[test]
#[ignore = "takes minutes"]
fn two_thousand_gpu_steps_keep_memory() {
    if crate::devices::wgpu().is_some() {
        keeps_its_memory("wgpu", 2_000);
    }
}

/// Runs a command that succeeds; returns the most memory that it ever had, in MiB.
fn peak_mib(folder: &Folder, args: &[&str]) -> u64 {
    let mut command = folder.command(args);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let mut peak = 0;
    while child.try_wait().expect("a status").is_none() {
        peak = memory_kib(child.id(), "VmHWM:").unwrap_or(peak);
        sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("the process has ended").success(), "{args:?}");
    peak / 1024
}

#[test]
#[ignore = "takes minutes"]
fn three_hundred_thousand_records_take_little_memory() {
    let folder = finetune::folder();
    let record = |i: usize, n: usize, n_turns: usize| {
        let [user, assistant] = [("user", format!("is it {i}?")), ("assistant", "yes ".repeat(n))]
            .map(|(role, content)| serde_json::json!({"role": role, "content": content}));
        let messages: Vec<_> = (0..n_turns).flat_map(|_| [&user, &assistant]).collect();
        format!("{}\n", serde_json::json!({"messages": messages}))
    };
    let mut many = GzEncoder::new(Vec::new(), Compression::default());
    for i in 0..300_000 {
        many.write_all(record(i, 250, 1).as_bytes()).expect("memory takes it");
    }
    let many = many.finish().expect("memory takes it");
    eprintln!("{} KiB of gzip", many.len() >> 10);
    folder.write("many.jsonl.gz", many);
    let text = |n: usize| format!("{}\n", serde_json::json!({"text": "yes ".repeat(n)}));
    folder.write("long.jsonl", text(1) + &text(10 << 20));
    folder.write("turns.jsonl", record(0, 1, 1) + &record(1, 1, 2_000));
    let settings = ["--set", "model.context_length=1024", "--set", "data.val_fraction=0.0001"];
    for data in ["many.jsonl.gz", "long.jsonl", "turns.jsonl"] {
        for command in [&["data", "preview", "runs/base"][..], &["finetune", "runs/base", "--set", "train.max_steps=2"]]
        {
            let peak = peak_mib(&folder, &[command, &["--data", data], &settings].concat());
            eprintln!("{data}: {} {peak} MiB", command[0]);
            assert!(peak < 300, "{data}: {command:?} takes {peak} MiB");
        }
    }
}
