//! The report of a run: one page of HTML with the curves, texts, heads and config of a run.
//!
//! [`Report::read`] gathers the files of a run directory, [`Report::look_inside`] measures the best weights, and
//! [`Report::write`] writes the page and its plots. A run in progress, a failed run, or a run of an older version has a
//! report as far as its files reach; [`Report::notes`] says what is missing. Nothing here changes a run.

#![allow(clippy::format_push_string, reason = "a line reads better than it saves an allocation")]

mod curves;
mod inside;
mod numbers;
mod samples;
mod settings;

use std::path::{Path, PathBuf};

use burn::tensor::Device;

use crate::draw::{self, Chart, HeadHistory, Page};
use crate::inspect::ScoredHeads;
use crate::run::{self, Curves, Process, RunDir, RunError, RunInfo, Sample, Status, layout, write_atomically};
use inside::Inside;
use settings::Section;

/// The page, in the run directory.
pub const PAGE: &str = layout::REPORT;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
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

/// The contents of a report.
#[derive(Clone, Debug)]
pub struct Report {
    facts: RunInfo,
    processes: Vec<Process>,
    curves: Curves,
    heads: Option<HeadHistory>,
    samples: Vec<Sample>,
    settings: Vec<Section>,
    inside: Option<Inside>,
    /// One line for each thing that is missing.
    notes: Vec<String>,
}

impl Report {
    /// Gathers the files of a run, as far as they exist.
    ///
    /// # Errors
    /// If the run's config or one of its logs cannot be read.
    pub fn read(run: &RunDir) -> Result<Self, ReportError> {
        let facts = RunInfo::read(run)?;
        let mut notes = facts.notes.clone();
        if facts.status == Status::Stopped {
            notes.extend(run::log::last_error(run).map(|why| format!("The run broke off: {why}")));
        }
        Ok(Self {
            facts,
            processes: run::processes(run)?,
            curves: Curves::read(run)?,
            heads: HeadHistory::new(&run::head_metrics(run, ScoredHeads::from_json)?),
            samples: run::samples(run)?,
            settings: settings::sections(&run::config_table(run)?),
            inside: None,
            notes,
        })
    }

    /// Measures on `device` what the run's best weights do with its validation split, which takes about as long
    /// as reading 48 windows of it. If it fails, a note says why.
    pub fn look_inside(&mut self, run: &RunDir, device: &Device) {
        match inside::look(run, device) {
            Ok(inside) => self.inside = Some(inside),
            Err(error) => {
                let error = error.to_string(); // without its hint
                let reason = error.lines().next().unwrap_or_default();
                self.note(format!("Nothing can be said of heads and attention: {reason}"));
            }
        }
    }

    /// Adds a note for the reader.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// One line for each thing that is missing.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the page and the plots into the run directory.
    ///
    /// # Errors
    /// If a file cannot be written; each is replaced whole or not at all.
    pub fn write(&self, run: &RunDir) -> Result<(), ReportError> {
        for (name, picture) in self.pictures() {
            replace(&run.join(name), &picture)?;
        }
        replace(&run.join(PAGE), &self.html())
    }

    /// The plots of everything that was logged, as SVG with their file names.
    #[must_use]
    pub fn pictures(&self) -> Vec<(&'static str, String)> {
        let [loss, rate] = self.charts();
        let charts = [(layout::LOSS_SVG, loss), (layout::LEARNING_RATE_SVG, rate)].into_iter();
        let charts = charts.filter(|(_, chart)| !chart.is_empty());
        let heads = self.heads.as_ref().map(|heads| (layout::HEADS_SVG, heads.file()));
        charts.map(|(name, chart)| (name, chart.file())).chain(heads).collect()
    }

    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        // `.` is a run, too, and has a name.
        let run = &self.facts.run;
        let root = std::path::absolute(run).unwrap_or_else(|_| run.clone());
        let name = root.file_name().unwrap_or(root.as_os_str()).to_string_lossy();
        let mut page = Page::new(&name, &numbers::lead(self));
        page = page.section("Numbers", numbers::numbers(self));
        let [loss, rate] = self.charts();
        if let Some(curves) = draw::curves(&[("loss", loss), ("rate", rate)]) {
            page = page.section("Curves", curves);
        }
        if let Some(samples) = samples::samples(&self.samples, &self.curves) {
            page = page.section("What it wrote", samples);
        }
        if let Some(Inside { step, heads, .. }) = &self.inside {
            page = page.section("What each head does", draw::head_map(*step, heads));
        }
        if let Some(heads) = &self.heads {
            page = page.section("How its heads formed", heads.fragment());
        }
        if let Some(attention) = self.inside.as_ref().and_then(|inside| inside.attention.as_ref()) {
            page = page.section("Who looks at whom", draw::attention_fragment(attention));
        }
        page.section("Config", settings::settings(&self.settings)).render()
    }

    fn charts(&self) -> [Chart; 2] {
        [curves::losses(&self.curves, self.facts.best_step), curves::learning_rate(&self.curves)]
    }
}

fn replace(path: &Path, text: &str) -> Result<(), ReportError> {
    write_atomically(path, text.as_bytes()).map_err(|source| ReportError::Write { path: path.to_owned(), source })
}
