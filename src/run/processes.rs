//! The processes that made a run: the one that began it, and another for each time that it went on.

use serde_json::{Map, Value};

use super::RunDir;
use super::{RunsError, log};

/// A process that trained in a run; none where an older version did not write it down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Updates made before it began.
    pub step: u64,
    /// When it began, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    /// What computed.
    pub device: Option<String>,
    /// The version of the program.
    pub version: Option<String>,
    /// The most memory that it held, MiB; none also while it runs, and where it did not come to say so.
    pub peak_rss_mib: Option<f64>,
    /// Tokens that are learned from.
    pub train_tokens: Option<u64>,
    /// Tokens that are kept for validation.
    pub val_tokens: Option<u64>,
    /// Different tokens.
    pub vocab_size: Option<u64>,
}

/// The processes of a run in their order. Those whose steps were made anew are not among them.
///
/// # Errors
/// If the run's timings are there and cannot be read.
pub fn processes(run: &RunDir) -> Result<Vec<Process>, RunsError> {
    let lines = log::read(&run.join("timings.jsonl"))?;
    Ok(of_lines(&lines.objects))
}

fn of_lines(lines: &[Map<String, Value>]) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::new();
    for line in lines {
        if let Some(session) = line.get("session").and_then(Value::as_object) {
            let count = |key: &str| session.get(key)?.as_u64();
            let text = |key: &str| Some(session.get(key)?.as_str()?.to_owned());
            processes.push(Process {
                step: line.get("step").and_then(Value::as_u64).unwrap_or(0),
                began_unix_s: session.get("began_unix_s").and_then(Value::as_f64),
                device: text("device"),
                version: text("version"),
                peak_rss_mib: None,
                train_tokens: count("train_tokens"),
                val_tokens: count("val_tokens"),
                vocab_size: count("vocab_size"),
            });
        }
        let peak = line.get("end").and_then(|end| end.get("peak_rss_mib"));
        if let (Some(peak), Some(process)) = (peak, processes.last_mut()) {
            process.peak_rss_mib = peak.as_f64();
        }
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Process> {
        let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        of_lines(&lines)
    }

    #[test]
    fn each_process_has_its_own_end() {
        let processes = read(
            "{\"step\":0,\"session\":{\"device\":\"flex\",\"version\":\"0.1.0\",\"val_tokens\":7}}
             {\"step\":5,\"train_s\":1.0,\"wall_s\":2.0,\"end\":{\"peak_rss_mib\":50.5}}
             {\"step\":5,\"session\":{\"device\":\"wgpu\"}}
             {\"step\":8,\"tokens_per_s\":9.0}",
        );
        let devices: Vec<_> = processes.iter().map(|p| p.device.as_deref()).collect();
        assert_eq!(devices, [Some("flex"), Some("wgpu")]);
        assert_eq!((processes[0].step, processes[1].step), (0, 5));
        assert_eq!(processes[0].peak_rss_mib, Some(50.5));
        assert_eq!(processes[0].version.as_deref(), Some("0.1.0"));
        assert_eq!(processes[0].val_tokens, Some(7));
        assert_eq!(processes[1].peak_rss_mib, None);
    }

    #[test]
    fn an_end_without_a_beginning_is_no_process() {
        assert_eq!(read("{\"step\":5,\"end\":{\"peak_rss_mib\":1.0}}"), []);
        assert_eq!(read("{\"step\":5,\"train_s\":1.0}"), []);
    }
}
