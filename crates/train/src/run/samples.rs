//! `samples.txt`: the samples of a run, each below a heading with its step.

use super::layout::SAMPLES;
use super::{RunDir, RunError, read_or_empty};

/// The parts of a heading before and after the step.
const HEADING: [&str; 2] = ["===== step ", " ====="];

/// A text that the run generated after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Updates made.
    pub step: u64,
    /// The prompt and its continuation.
    pub text: String,
}

/// A sample as it is appended to `samples.txt`. Lines that look like a heading are indented by one space.
pub(crate) fn entry(step: usize, text: &str) -> String {
    let [before, after] = HEADING;
    let lines = text.split_inclusive('\n').map(|line| if looks_like_heading(line) { [" ", line] } else { ["", line] });
    let text = lines.flatten().collect::<String>();
    format!("{before}{step}{after}\n{text}\n\n")
}

/// Whether a line is a heading after any number of spaces.
fn looks_like_heading(line: &str) -> bool {
    heading_step(line.trim_start_matches(' ')).is_some()
}

/// The step of a heading; `None` for any other line.
pub(super) fn heading_step(line: &str) -> Option<usize> {
    let [before, after] = HEADING;
    line.trim_end().strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// The samples of a run, in order of step; empty if it has none.
pub fn samples(run: &RunDir) -> Result<Vec<Sample>, RunError> {
    let bytes = read_or_empty(&run.join(SAMPLES))?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.split_inclusive('\n') {
        // Older versions did not indent lines that look like a heading; only one of a later step counts as one.
        let is_later = |step: &u64| samples.last().is_none_or(|last| *step > last.step);
        let step = heading_step(line).map(|step| step as u64);
        if let Some(step) = step.filter(is_later) {
            samples.push(Sample { step, text: String::new() });
        } else if let Some(sample) = samples.last_mut() {
            let is_indented = line.starts_with(' ') && looks_like_heading(line);
            sample.text.push_str(if is_indented { &line[1..] } else { line });
        }
    }
    for Sample { text, .. } in &mut samples {
        for _ in 0..2 {
            if text.ends_with('\n') {
                text.pop(); // the two line breaks that `entry` appends
            }
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_round_trip() {
        let headings = "===== step 4 =====\n===== step 12 =====\n  ===== step 99 =====\r\n =====";
        let texts = [(5, "\nThe cat\n\n===== step 4 =====\nsat\n"), (10, "<b>"), (15, ""), (20, headings)];
        let file: String = texts.iter().map(|(step, text)| entry(*step, text)).collect();
        let sample = |(step, text): (usize, &str)| Sample { step: step as u64, text: text.to_owned() };
        assert_eq!(parse(&file), texts.map(sample));
        let n_headings = |file: &str| file.lines().filter(|line| heading_step(line).is_some()).count();
        assert_eq!(n_headings(&file), texts.len());
        assert_eq!(entry(5, "a\n b"), "===== step 5 =====\na\n b\n\n", "anything else is as it was written");
        let torn = "===== step 5 =====\n<b>\n";
        assert_eq!(parse(torn), [sample((5, "<b>"))]);
        assert_eq!(parse(""), []);
        assert_eq!(parse("half a line"), []);
    }
}
