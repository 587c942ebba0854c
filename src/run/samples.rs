//! `samples.txt`: the texts that a run wrote, each below a heading with its step.

use super::files::read_or_empty;
use super::layout::SAMPLES;
use super::{RunDir, RunError};

/// The parts of a heading before and after the step.
const HEADING: [&str; 2] = ["===== step ", " ====="];

/// A text that a run wrote after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Updates made.
    pub step: u64,
    /// The prompt and its continuation.
    pub text: String,
}

/// A sample as it is appended to `samples.txt`.
pub(crate) fn entry(step: usize, text: &str) -> String {
    let [before, after] = HEADING;
    format!("{before}{step}{after}\n{text}\n\n")
}

/// The step of a heading; `None` for any other line.
pub(super) fn heading_step(line: &str) -> Option<usize> {
    let [before, after] = HEADING;
    line.trim_end().strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// The samples of a run by step; empty if the run writes none.
pub fn samples(run: &RunDir) -> Result<Vec<Sample>, RunError> {
    let bytes = read_or_empty(&run.join(SAMPLES))?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.split_inclusive('\n') {
        // A model may write a line that looks like a heading; only one of a later step is taken for one.
        let is_later = |step: &u64| samples.last().is_none_or(|last| *step > last.step);
        let step = heading_step(line).map(|step| step as u64);
        if let Some(step) = step.filter(is_later) {
            samples.push(Sample { step, text: String::new() });
        } else if let Some(sample) = samples.last_mut() {
            sample.text.push_str(line);
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
    fn samples_are_read_back_as_they_were_written() {
        let texts = [(5, "\nThe cat\n\n===== step 4 =====\nsat\n"), (10, "<b>"), (15, "")];
        let file: String = texts.iter().map(|(step, text)| entry(*step, text)).collect();
        let sample = |(step, text): (usize, &str)| Sample { step: step as u64, text: text.to_owned() };
        assert_eq!(parse(&file), texts.map(sample));
        let torn = "===== step 5 =====\n<b>\n";
        assert_eq!(parse(torn), [sample((5, "<b>"))]);
        assert_eq!(parse(""), []);
        assert_eq!(parse("half a line"), []);
    }
}
