//! The report of a run: one HTML page with its curves, samples, heads and config.
//!
//! A running, failed or older run has a report as far as its files allow; [`Report::notes`] says what is missing.

mod answers;
mod comparison;
mod curves;
mod heads;
mod measured;
mod numbers;
mod samples;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;

use crate::format::grouped;
use crate::inspect::ScoredHeads;
use crate::model::disk::{remove_left_over, write_atomically};
use crate::run::{
    self, BeforeAndAfter, Checkpoint, Curves, Process, RunDir, RunError, RunInfo, Sample, Status, layout,
};
use crate::view::html::attention::attention_fragment;
use crate::view::html::curves as sections;
use crate::view::html::page;
use crate::view::sheet::Sheet;
use crate::view::sheet::heads::scored_heads_sheet;
use crate::view::sheet::html::sheet_fragment;
use crate::view::sheet::svg::charts_svg;
pub use comparison::Comparison;
use measured::Measured;

/// The page, in the run directory.
pub const PAGE: &str = layout::REPORT;

/// The reason why there is no report.
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
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The contents of a report.
#[derive(Clone, Debug)]
pub struct Report {
    facts: RunInfo,
    processes: Vec<Process>,
    curves: Curves,
    heads: BTreeMap<u64, ScoredHeads>,
    samples: Vec<Sample>,
    compared: Option<BeforeAndAfter>,
    config: toml::Table,
    imported: Option<Imported>,
    measured: Option<Measured>,
    /// One line for each missing part.
    notes: Vec<String>,
}

/// A model of another project, which has no training to report.
#[derive(Clone, Debug)]
struct Imported {
    family: Option<String>,
    /// The size of its vocabulary, and whether it has a chat template.
    tokenizer: Option<(usize, bool)>,
}

impl Imported {
    /// The sections of its config that mean something.
    const SECTIONS: [&str; 3] = ["tokenizer", "model", "generate"];

    fn read(run: &RunDir) -> Self {
        let state = run.last().and_then(|last| Checkpoint::read_state(&last));
        let tokenizer = run.config().and_then(|config| run.tokenizer_of_model(&config)).ok();
        let tokenizer = tokenizer.map(|it| (it.vocab_size(), it.chat_template().is_some()));
        Self { family: state.ok().and_then(|state| state.family), tokenizer }
    }
}

impl Report {
    /// Reads the files of a run, as far as they exist.
    ///
    /// # Errors
    /// If the run's config or one of its logs cannot be read.
    pub fn read(run: &RunDir) -> Result<Self, ReportError> {
        let facts = RunInfo::read(run)?;
        let mut notes = facts.notes.clone();
        if facts.status == Status::Stopped {
            notes.extend(run::log::last_error(run).map(|why| format!("The run broke off: {why}")));
        }
        let imported = (facts.status == Status::Imported).then(|| Imported::read(run));
        let mut config = run::config_table(run)?;
        if imported.is_some() {
            config.retain(|name, _| Imported::SECTIONS.contains(&name));
        }
        Ok(Self {
            facts,
            processes: run::processes(run)?,
            curves: Curves::read(run)?,
            heads: run::head_metrics(run)?,
            samples: run::samples(run)?,
            compared: BeforeAndAfter::read(run)?,
            config,
            imported,
            measured: None,
            notes,
        })
    }

    /// Measures the run's best weights on its validation split, on `device`. This takes about as long as reading 80
    /// windows of the split. If this fails, or `goes_on` says no, a note says why.
    pub fn measure(&mut self, run: &RunDir, device: &Device, goes_on: &dyn Fn() -> bool) {
        match measured::measure(run, device, goes_on) {
            Ok(measured) => self.measured = Some(measured),
            Err(error) => {
                let error = error.to_string(); // without its hint
                let reason = error.lines().next().unwrap_or_default();
                self.note(format!("Heads and attention could not be measured: {reason}"));
            }
        }
    }

    /// Adds a note for the reader.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// One line for each missing part.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the page and the plots into the run directory.
    ///
    /// # Errors
    /// If a file cannot be written; each is replaced atomically.
    pub fn write(&self, run: &RunDir) -> Result<(), ReportError> {
        remove_left_over(run.root()); // of an earlier report that was killed
        let about = format!("{}, step {}", self.name(), grouped(self.facts.step));
        let charts = [curves::losses(&self.curves, &self.facts), curves::LEARNING_RATE.single(&self.curves)];
        let names = [layout::LOSS_SVG, layout::LEARNING_RATE_SVG];
        for (name, chart) in names.into_iter().zip(charts).filter(|(_, chart)| !chart.is_empty()) {
            replace(&run.join(name), &charts_svg(&chart.title.join(", "), vec![chart], &about))?;
        }
        let heads = heads::charts(&self.heads);
        if !heads.is_empty() {
            replace(&run.join(layout::HEADS_SVG), &charts_svg("Head scores by step", heads, &about))?;
        }
        replace(&run.join(PAGE), &self.html())
    }

    /// The page.
    pub fn html(&self) -> String {
        let losses = curves::losses(&self.curves, &self.facts);
        let [accuracy, margin, rate, norm, speed] =
            [curves::ACCURACY, curves::MARGIN, curves::LEARNING_RATE, curves::GRADIENT_NORM, curves::SPEED]
                .map(|column| column.single(&self.curves));
        let charts = [losses, accuracy, margin, rate, norm, curves::gradient_norms(&self.curves), speed];
        let measured = self.measured.as_ref();
        let heads = |Measured { step, heads, evidence, .. }: &Measured| {
            let sheet = scored_heads_sheet(heads, evidence);
            let lead = format!("The best checkpoint, step {}. {}", grouped(*step), sheet.lead);
            sheet_fragment(&Sheet { lead, ..sheet })
        };
        let attention = measured.and_then(|measured| measured.attention.as_ref());
        let newest = samples::newest("Latest sample", &self.samples).unwrap_or_default();
        let sections = [
            ("Before and after", self.compared.as_ref().map(answers::answers)),
            ("Numbers", Some(numbers::numbers(self))),
            ("Curves", sections::curves(&charts, Some(&newest))),
            ("Samples", samples::samples(&self.samples, &self.curves)),
            ("Heads", measured.map(heads)),
            ("Head scores during training", heads::history(&self.heads)),
            ("Attention", attention.map(attention_fragment)),
            ("Details", Some(numbers::details(self))),
            ("Config", Some(settings::settings(&self.config))),
        ];
        let known = sections.into_iter().filter_map(|(heading, fragment)| Some((heading, fragment?)));
        page(&self.name(), "", &numbers::lead(self), &known.collect::<Vec<_>>())
    }

    /// The name of the run, even if its path is `.`.
    fn name(&self) -> String {
        let run = &self.facts.run;
        let root = std::path::absolute(run).unwrap_or_else(|_| run.clone());
        root.file_name().unwrap_or(root.as_os_str()).to_string_lossy().into_owned()
    }
}

fn replace(path: &Path, text: &str) -> Result<(), ReportError> {
    write_atomically(path, text.as_bytes()).map_err(|source| ReportError::Write { path: path.to_owned(), source })
}
