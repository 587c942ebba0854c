//! The report of a run: one page of HTML that needs nothing else, with the curves, texts, heads and config of a run.
//!
//! [`Report::read`] gathers what a run directory says, [`Report::look_inside`] measures its best weights, and
//! [`Report::write`] writes the page and its curves as pictures. A run that is not over, broke off, or is of an
//! older version has a report as far as its files reach; [`Report::notes`] says what is missing.
//!
//! Each section of the page is a file: `curves` and `forming` say what is drawn, `chart` draws lines over steps,
//! `sections` are their frames, `page` puts all of it together on the shell that [`crate::page`] gives. Nothing
//! here changes a run.

mod chart;
mod curves;
mod forming;
mod inside;
mod page;
mod sections;
mod settings;

use std::path::{Path, PathBuf};

use burn::tensor::Device;

use crate::run::{
    self, CheckpointError, Curves, Facts, Process, RunDir, RunsError, Sample, Status,
    write_atomically,
};
use forming::Forming;
use inside::Inside;
use settings::Section;

/// The page, in the run directory.
pub const PAGE: &str = "report.html";

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunsError),
    /// The report cannot be written.
    #[error(
        "cannot write the report `{}`: {source}\n  hint: make room or choose another place; `tinderbox report` makes \
         it again from the run directory", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Everything that a report shows.
#[derive(Clone, Debug)]
pub struct Report {
    facts: Facts,
    processes: Vec<Process>,
    curves: Curves,
    forming: Option<Forming>,
    samples: Vec<Sample>,
    settings: Vec<Section>,
    inside: Option<Inside>,
    /// What is missing, and why; one line each.
    notes: Vec<String>,
}

impl Report {
    /// Gathers what the files of a run say, as far as they are there.
    ///
    /// # Errors
    /// If the run's config, or a log that is there, cannot be read.
    pub fn read(run: &RunDir) -> Result<Self, ReportError> {
        let facts = Facts::read(run)?;
        let mut notes = facts.notes.clone();
        if facts.status == Status::Stopped {
            notes.extend(broke_off(run).map(|why| format!("The run broke off: {why}")));
        }
        Ok(Self {
            facts,
            processes: run::processes(run)?,
            curves: Curves::read(run)?,
            forming: Forming::new(&run::head_log(run)?),
            samples: run::samples(run)?,
            settings: settings::sections(&run::settings(run)?),
            inside: None,
            notes,
        })
    }

    /// Measures on `device` what the run's best weights do with its validation split, which takes about as long
    /// as reading 48 windows of it. Where that cannot be done a note says why.
    pub fn look_inside(&mut self, run: &RunDir, device: &Device) {
        match inside::look(run, device) {
            Ok(inside) => self.inside = Some(inside),
            Err(error) => {
                let error = error.to_string(); // its hint is for those who asked for nothing else
                let reason = error.lines().next().unwrap_or_default();
                self.note(format!("Nothing can be said of heads and attention: {reason}"));
            }
        }
    }

    /// Notes something that its reader should know.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// What is missing, and why; one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the page and its pictures into the run directory.
    ///
    /// # Errors
    /// If one of them cannot be written; each is there whole or as it was before.
    pub fn write(&self, run: &RunDir) -> Result<(), ReportError> {
        for (name, picture) in self.pictures() {
            replace(&run.join(name), &picture)?;
        }
        replace(&run.join(PAGE), &self.html())
    }

    /// The curves as pictures that stand alone, with their file names; those of which anything was logged.
    #[must_use]
    pub fn pictures(&self) -> Vec<(&'static str, String)> {
        let charts = [
            ("loss.svg", curves::losses(&self.curves, self.facts.best_step)),
            ("learning-rate.svg", curves::learning_rate(&self.curves)),
        ];
        let charts = charts.into_iter().filter(|(_, chart)| !chart.is_empty());
        let mut pictures: Vec<_> = charts.map(|(name, chart)| (name, chart.standalone())).collect();
        if let Some(forming) = &self.forming {
            pictures.push(("heads.svg", forming.standalone()));
        }
        pictures
    }

    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        page::of(self).render()
    }
}

/// The error that a run ended with, if its log ends with one.
fn broke_off(run: &RunDir) -> Option<String> {
    let log = std::fs::read(run.join("train.log")).ok()?;
    last_error(&String::from_utf8_lossy(&log))
}

fn last_error(log: &str) -> Option<String> {
    // Hints and causes are indented, and what is said of the report comes after.
    let aside = [" ", "report: ", "warning: no report"];
    let is_end = |line: &&str| !aside.iter().any(|start| line.starts_with(start));
    let last = log.lines().rfind(is_end)?;
    last.strip_prefix("error: ").map(str::to_owned)
}

fn replace(path: &Path, text: &str) -> Result<(), ReportError> {
    write_atomically(path, text.as_bytes()).map_err(|error| match error {
        CheckpointError::Write { path, source } => ReportError::Write { path, source },
        other => ReportError::Run(other.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_broke_off_if_its_log_ends_with_an_error() {
        let log = "step 1/5  loss 3\nerror: the loss is NaN\n  hint: lower it\n";
        assert_eq!(last_error(log).as_deref(), Some("the loss is NaN"));
        let log = [log, "report: `x/report.html`\n"].concat();
        assert_eq!(last_error(&log).as_deref(), Some("the loss is NaN"));
        assert_eq!(last_error(&[&*log, "resuming `x`\n"].concat()), None);
        assert_eq!(last_error(""), None);
    }
}
