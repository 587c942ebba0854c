//! The texts that a run wrote on its way.

use std::fs;
use std::io::ErrorKind;

use super::RunDir;
use super::RunsError;

/// What stands before and after the step in the heading of a sample.
pub(crate) const HEADING: [&str; 2] = ["===== step ", " ====="];

/// A text that a run wrote after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Updates made by then.
    pub step: u64,
    /// The prompt and what the model wrote on.
    pub text: String,
}

/// The samples of a run in the order of their steps; of a run that writes none, nothing.
///
/// # Errors
/// If they are there and cannot be read.
pub fn samples(run: &RunDir) -> Result<Vec<Sample>, RunsError> {
    let path = run.join("samples.txt");
    match fs::read(&path) {
        Ok(bytes) => Ok(of_text(&String::from_utf8_lossy(&bytes))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(RunsError::Read { path, source }),
    }
}

fn of_text(text: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.split_inclusive('\n') {
        // A model may write what looks like a heading; only a later step is one.
        let is_later = |step: &u64| samples.last().is_none_or(|last| *step > last.step);
        let step = heading_step(line).map(|step| step as u64);
        if let Some(step) = step.filter(is_later) {
            let text = String::new();
            samples.push(Sample { step, text });
        } else if let Some(sample) = samples.last_mut() {
            sample.text.push_str(line);
        }
    }
    for sample in &mut samples {
        for _ in 0..2 {
            if sample.text.ends_with('\n') {
                sample.text.pop(); // the text's own line ends here, and an empty one follows
            }
        }
    }
    samples
}

/// The step of a sample's heading; none of any other line.
pub(crate) fn heading_step(line: &str) -> Option<usize> {
    let [before, after] = HEADING;
    line.trim_end().strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heading_begins_a_sample() {
        let samples = of_text(
            "===== step 5 =====\n\nThe cat\n\n===== step 4 =====\nsat\n\n\n\
             ===== step 10 =====\n<b>\n",
        );
        assert_eq!(
            samples,
            [
                Sample { step: 5, text: "\nThe cat\n\n===== step 4 =====\nsat\n".to_owned() },
                Sample { step: 10, text: "<b>".to_owned() },
            ]
        );
        assert_eq!(of_text(""), []);
        assert_eq!(of_text("half a line"), []);
    }
}
