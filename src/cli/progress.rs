//! The progress of a run, on a progress bar, the dashboard or in plain lines, and `train.log`.

use std::borrow::Cow;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::dashboard::Dashboard;
use super::paint::{self, MARGIN};
use super::print::note;
use crate::config::{MatmulPrecision, PrecisionChoice, precision_remark};
use crate::data::{Purpose, Reading};
use crate::format::{counted, duration, grouped, rough_duration, whole, without_control, wrapped};
use crate::optimizer::BatchSchedule;
use crate::run::layout::TRAIN_LOG;
use crate::run::step_label;
use crate::train::{Evaluation, Event, Exchange, Logged, Observer, Preferred, Started, Summary, precision};
use crate::view::sparkline;

const BAR: &str = "{wide_bar} step {human_pos}/{human_len}  {msg}{left}";
/// The same bar in amber, number 166 of the 256 terminal colours, which is visible on black and on white.
const AMBER_BAR: &str = "{wide_bar:.166/dim} step {human_pos}/{human_len}  {msg}{left}";

/// The width of the loss curve next to the bar, in columns.
const CURVE_COLUMNS: usize = 8;

/// Reading is reported only if it takes longer.
const MOMENT: Duration = Duration::from_secs(1);

/// The longest time without a line about a measurement, where no bar shows how far it is.
const SILENCE: Duration = Duration::from_secs(10);

/// The observer of a run, shared with the Ctrl-C handler.
#[derive(Clone)]
pub(super) struct Progress(Arc<Mutex<Screen>>);

struct Screen {
    surface: Surface,
    /// The lines to print again after the dashboard has closed.
    lines_to_come: Vec<String>,
    log: Option<File>,
    /// The text being read, or `None` once the first step can begin.
    reading: Option<TextProgress>,
    /// Whether the end of the run was reported.
    is_over: bool,
    max_steps: usize,
    /// The number of tokens in steps before this process resumed the run, and the batches of the whole run.
    batches: Option<(u64, BatchSchedule)>,
    /// The loss of each log interval since this process started.
    losses: Vec<f64>,
    /// The sparkline of these losses.
    curve: String,
    began: Instant,
    /// The number of steps since this process started.
    steps: usize,
    /// The measurements after everything was saved, once they have begun.
    work_at_end: Option<&'static str>,
    /// What is being measured, and when a line last said so.
    measuring: Option<(String, Instant)>,
}

enum Surface {
    /// Standard error.
    Lines,
    /// Standard error, above a progress bar.
    Bar(ProgressBar),
    Dashboard(Dashboard),
}

struct TextProgress {
    line: String,
    began: Instant,
    is_reported: bool,
}

impl Progress {
    /// Shows the run on `dashboard`, or else on standard error, with a progress bar if that is a terminal.
    pub(super) fn new(dashboard: Option<Dashboard>) -> Self {
        let surface = match dashboard {
            Some(dashboard) => Surface::Dashboard(dashboard),
            None if io::stderr().is_terminal() => Surface::Bar(ProgressBar::hidden()),
            None => Surface::Lines,
        };
        Self(Arc::new(Mutex::new(Screen {
            surface,
            lines_to_come: Vec::new(),
            log: None,
            reading: Some(TextProgress { line: String::new(), began: Instant::now(), is_reported: false }),
            is_over: false,
            max_steps: 0,
            batches: None,
            losses: Vec::new(),
            curve: String::new(),
            began: Instant::now(),
            steps: 0,
            work_at_end: None,
            measuring: None,
        })))
    }

    /// Reports the end of the run: the line about its report page, and the purpose of the next command with it.
    pub(super) fn finish(&self, summary: &Summary, report: &str, (what, next): (&str, String)) {
        let screen = &mut *self.screen();
        screen.end();
        if summary.interrupted {
            let run = summary.run_dir.display();
            let when = screen.work_at_end.map_or_else(|| "after".to_owned(), |work| format!("during {work}, after"));
            screen.line(report);
            screen.line(&format!(
                "interrupted {when} step {} of {}; everything is saved in `{run}`. Continue with\n    {next}",
                grouped(summary.steps as u64),
                grouped(screen.max_steps.max(summary.steps) as u64)
            ));
            return;
        }
        if screen.max_steps > 0 {
            // The time includes evaluation and saving, which the median step does not.
            screen.line(&format!(
                "done: {}{} steps in {}; {} tokens/s in the median step",
                grouped(screen.steps as u64),
                if screen.steps < summary.steps { " more" } else { "" },
                duration(summary.wall_s),
                whole(summary.tokens_per_s)
            ));
        }
        if let (Some(last), Some(best), Some(step)) = (summary.val_loss, summary.best_val_loss, summary.best_step) {
            let unit = if summary.preferred.is_some() { "pair" } else { "token" };
            screen.line(&format!(
                "val loss {last:.4} nats per {unit}{}, over the whole split\n\
                 best checkpoint: step {}, val loss {best:.4}",
                besides_loss(summary.val_bits_per_byte, summary.preferred),
                grouped(step as u64)
            ));
            if let Some((gzip, bits)) = summary.gzip_bits_per_byte.zip(summary.val_bits_per_byte) {
                let is_worse = bits * best / last > gzip;
                let hint = "\n  hint: the model predicts the text worse than gzip: train longer, or on more text";
                let hint = if is_worse { hint } else { "" };
                screen.line(&format!("gzip packs the same text into {gzip:.4} bits per byte{hint}"));
            }
        }
        screen.line(report);
        screen.line(&format!("{what}:\n    {next}"));
    }

    /// Removes the bar or the dashboard and writes the error to the log.
    pub(super) fn failed(&self, error: &str) {
        let mut screen = self.screen();
        screen.end();
        screen.keep(error);
    }

    /// Prints and logs a line after the end of the run.
    pub(super) fn say(&self, line: &str) {
        self.screen().line(line);
    }

    /// Shows how far a part of the comparison of a fine-tuned model with its base is.
    pub(super) fn comparing(&self, part: &str, done: usize, of: usize) {
        let mut screen = self.screen();
        screen.reading = None;
        screen.work_at_end = Some("the comparison with the base");
        screen.measure(&format!("comparing with the base: {part}"), done, of);
    }

    /// Confirms a request to stop.
    pub(super) fn stopping(&self) {
        let screen = self.screen();
        match *screen {
            Screen { is_over: true, .. } => {}
            Screen { reading: Some(_), .. } => {
                screen.show_line("stopping before the first step; press Ctrl-C again to stop at once");
            }
            Screen { work_at_end: Some(_), .. } => screen.show_line("stopping; everything is saved"),
            _ => screen.show_line("stopping after this step; press Ctrl-C again to stop at once without saving"),
        }
    }

    /// Whether the text is still being read, so that the first step cannot start.
    pub(super) fn is_reading(&self) -> bool {
        let screen = self.screen();
        screen.reading.is_some() && !screen.is_over
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Progress {
    fn observe(&mut self, event: &Event<'_>) {
        self.screen().show(event);
    }
}

impl Screen {
    fn show(&mut self, event: &Event<'_>) {
        if let Surface::Dashboard(dashboard) = &self.surface {
            dashboard.observe(event);
        }
        match event {
            Event::Reading(reading) => self.reading(reading),
            Event::Started(started) => self.start(started),
            Event::Stepped { step, loss } => self.step(*step, *loss),
            Event::Skipped { step, skipped } => {
                self.line(&format!("{}  skipped: {skipped}", step_label(*step, self.max_steps)));
            }
            Event::Logged(logged) => self.logged(logged),
            Event::Evaluating => {}
            Event::Evaluated(evaluation) => self.evaluated(evaluation),
            Event::Sampled { text, .. } => self.sampled(text),
            Event::Saved { path, is_best } => {
                let best = if *is_best { " (best)" } else { "" };
                self.line(&format!("saved `{}`{best}", path.display()));
            }
            Event::FinalEvaluation { done, of } => {
                self.work_at_end = Some("the last evaluation");
                self.measure("evaluating the whole validation split", *done, *of);
            }
            Event::StoppedEarly { evaluations, .. } => {
                self.lasting_line(format!("stopping early: no improvement in {evaluations} evaluations"));
            }
        }
    }

    /// Shows how far a measurement is: on the bar, or in a line from time to time.
    fn measure(&mut self, what: &str, done: usize, of: usize) {
        if self.measuring.as_ref().is_none_or(|(before, _)| before != what) {
            if let Surface::Bar(bar) = &mut self.surface {
                bar.finish_and_clear();
                let column = if paint::has_colors(&io::stderr()) { "{wide_bar:.166/dim}" } else { "{wide_bar}" };
                *bar = ProgressBar::new(of as u64).with_style(style(&format!("{column} {{percent}} %{{left}}")));
            }
            self.line(&format!("{what} ..."));
            self.measuring = Some((what.to_owned(), Instant::now()));
        }
        match (&self.surface, &mut self.measuring) {
            (Surface::Bar(bar), _) => bar.set_position(done as u64),
            (Surface::Lines, Some((_, said))) if said.elapsed() >= SILENCE => {
                *said = Instant::now();
                note(format!("{what}: {} %", 100 * done / of.max(1)));
            }
            _ => {}
        }
    }

    fn reading(&mut self, reading: &Reading<'_>) {
        let Some(waiting) = &mut self.reading else { return };
        let what = match reading.purpose {
            Purpose::Scan => "reading",
            Purpose::CountWords => "counting the words of",
            Purpose::FindMerges => "finding the merges of",
            Purpose::Encode => "encoding",
        };
        let line = format!("{what} `{}` ...", reading.path.display());
        if waiting.line != line {
            (waiting.line, waiting.is_reported) = (line, false);
        }
        let is_long = waiting.began.elapsed() >= MOMENT;
        if let Surface::Bar(bar) = &mut self.surface {
            if is_long && bar.is_hidden() {
                *bar = ProgressBar::new_spinner();
                bar.enable_steady_tick(Duration::from_millis(100));
            }
            let done = amount(reading.bytes, reading.of);
            bar.set_message(format!("{} {done}", waiting.line));
        } else if is_long && !std::mem::replace(&mut waiting.is_reported, true) {
            note(&waiting.line); // a dashboard opens only later
        }
    }

    fn start(&mut self, started: &Started) {
        self.reading = None;
        if let Surface::Bar(bar) = &self.surface {
            bar.finish_and_clear();
        }
        if let Surface::Dashboard(dashboard) = &mut self.surface
            && let Err(error) = dashboard.open()
        {
            self.surface = Surface::Lines;
            self.show_line(&format!("warning: cannot open the dashboard: {error}"));
        }
        self.open_log(&started.run_dir);
        self.max_steps = started.max_steps;
        self.batches = Some((started.batches.tokens_before(started.step), started.batches));
        self.began = Instant::now();
        let (verb, after) = match started.resumed {
            true => ("resuming", format!(", after step {}", grouped(started.step as u64))),
            false => ("training", String::new()),
        };
        let precision = match (started.chosen_precision, started.matmul_precision) {
            (PrecisionChoice::Auto, MatmulPrecision::F32) => ", matrices in f32 (auto)",
            (PrecisionChoice::Auto, MatmulPrecision::Bf16) => ", matrices in bf16 (auto)",
            (_, precision) => precision_remark(precision),
        };
        let ranks = match started.ranks {
            0 | 1 => String::new(),
            n => format!(", {n} ranks of {}", counted(rayon::current_num_threads() as u64, "thread")),
        };
        self.line(&format!("{verb} `{}` on {}{ranks}{precision}{after}", started.run_dir.display(), started.device));
        for damaged in &started.damaged {
            self.lasting_line(format!("warning: {damaged}; continuing without it"));
        }
        for changed in &started.changed {
            self.lasting_line(format!("note: {changed}"));
        }
        if let Some(warning) = precision::warning(started.matmul_precision) {
            self.lasting_line(format!("warning: {warning}"));
        }
        if let Some(from) = started.from.as_ref().filter(|_| !started.resumed) {
            self.line(&format!("starting from the weights of `{from}`"));
        }
        let share = started.trained_parameters as f64 / started.parameters.max(1) as f64;
        let trained = match share < 1.0 {
            true => format!(", {} of them trained ({:.1} %)", grouped(started.trained_parameters), 100.0 * share),
            false => String::new(),
        };
        self.line(&format!(
            "{} parameters{trained}; {} training and {} validation tokens; vocabulary of {}",
            grouped(started.parameters),
            grouped(started.train_tokens as u64),
            grouped(started.val_tokens as u64),
            started.vocab_size,
        ));
        self.sources(started);
        if let Surface::Bar(_) = self.surface {
            let template = if paint::has_colors(&io::stderr()) { AMBER_BAR } else { BAR };
            let bar = ProgressBar::new(started.max_steps as u64).with_style(style(template));
            let bar = bar.with_position(started.step as u64);
            bar.tick(); // starts the estimate of the remaining time at this position,
            bar.reset_eta(); // as if reaching it had taken no time
            self.surface = Surface::Bar(bar);
        }
    }

    /// Reports the share of each of several sources, and where standard input is saved.
    fn sources(&mut self, started: &Started) {
        let drawn_tokens = started.batches.tokens_before(started.max_steps);
        let is_several = started.sources.len() > 1;
        for source in &started.sources {
            if let Some(left_out) = source.about_left_out() {
                self.lasting_line(format!("note: {left_out}"));
            }
            if is_several {
                self.line(&format!(
                    "source `{}`: {} training and {} validation tokens; {:.1} % of the windows, {:.2} epochs",
                    source.path.display(),
                    grouped(source.train_tokens as u64),
                    grouped(source.val_tokens as u64),
                    100.0 * source.fraction,
                    source.epochs(drawn_tokens),
                ));
            }
            if let Some(kept) = &source.kept {
                self.line(&format!(
                    "standard input is saved as `{}`; resuming this run needs it, so delete it only once the run is \
                     finished",
                    kept.display()
                ));
            }
        }
    }

    fn step(&mut self, step: usize, loss: Option<f32>) {
        self.steps += 1;
        if let Surface::Bar(bar) = &self.surface {
            let tokens = self.batches.map_or(0, |(before, batches)| batches.tokens_before(step) - before);
            let tokens_per_s = tokens as f64 / self.began.elapsed().as_secs_f64();
            let loss = loss.map(|loss| format!("loss {loss:.3}, ")).unwrap_or_default();
            let curve = if self.curve.is_empty() { String::new() } else { format!("{} ", self.curve) };
            bar.set_message(format!("{curve}{loss}{} tokens/s", whole(tokens_per_s)));
            bar.set_position(step as u64);
        }
    }

    fn logged(&mut self, logged: &Logged) {
        let exchange = logged.exchange.as_ref().map(described).unwrap_or_default();
        let n_left = self.max_steps.saturating_sub(logged.step);
        let line = format!(
            "{}  loss {:.4}  lr {:.2e}  grad norm {:.2}  {:.1} ms/step  {} tokens/s{}{}",
            step_label(logged.step, self.max_steps),
            logged.train_loss,
            logged.learning_rate,
            logged.gradient_norm,
            logged.median_step_ms,
            whole(logged.tokens_per_s),
            exchange,
            left(self.began.elapsed().as_secs_f64() / self.steps.max(1) as f64 * n_left as f64),
        );
        self.keep(&line);
        self.losses.push(logged.train_loss);
        self.curve = sparkline(&self.losses, CURVE_COLUMNS);
        if let Surface::Lines = self.surface {
            note(line); // a bar and a dashboard show these numbers continuously
        }
    }

    /// Prints a sample as a quotation; on a terminal, its lines are wrapped within the margin.
    fn sampled(&mut self, text: &str) {
        let whole = format!("sample:{}", quotation(text, None));
        self.keep(&whole);
        match &self.surface {
            Surface::Lines => self.show_line(&whole),
            Surface::Bar(_) => self.show_line(&format!("sample:{}", quotation(text, Some(paint::n_columns())))),
            Surface::Dashboard(dashboard) => dashboard.sampled(text, &whole),
        }
    }

    fn evaluated(&mut self, evaluation: &Evaluation) {
        self.line(&format!(
            "{}  estimates: train loss {:.4}, val loss {:.4}{}{}",
            step_label(evaluation.step, self.max_steps),
            evaluation.train_loss,
            evaluation.val_loss,
            besides_loss(evaluation.val_bits_per_byte, evaluation.preferred),
            if evaluation.is_best { " (best so far)" } else { "" },
        ));
    }

    /// Prints a line and writes it to the log.
    fn line(&mut self, line: &str) {
        self.keep(line);
        self.show_line(line);
    }

    /// Prints a line as [`Screen::line`] does, and again after the dashboard has closed.
    fn lasting_line(&mut self, line: String) {
        self.line(&line);
        if let Surface::Dashboard(_) = self.surface {
            self.lines_to_come.push(line);
        }
    }

    fn show_line(&self, line: &str) {
        match &self.surface {
            Surface::Lines => note(line),
            Surface::Dashboard(_) if self.reading.is_some() => note(line),
            Surface::Bar(bar) => bar.suspend(|| note(line)),
            Surface::Dashboard(dashboard) => dashboard.note(line),
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        self.clear();
    }

    /// Removes the bar or the dashboard; later lines are printed plainly.
    fn clear(&mut self) {
        if let Surface::Bar(bar) = &self.surface {
            bar.finish_and_clear();
        }
        self.surface = Surface::Lines; // dropping a dashboard restores the terminal
        for line in self.lines_to_come.drain(..) {
            note(line);
        }
    }

    fn keep(&mut self, line: &str) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = writeln!(log, "{line}") {
            self.log = None; // one warning is enough: checkpoints and metrics have all important data
            self.lasting_line(format!("warning: cannot continue to write train.log: {error}"));
        }
    }

    fn open_log(&mut self, run_dir: &Path) {
        let path = run_dir.join(TRAIN_LOG);
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(log) => self.log = Some(log),
            Err(error) => self.lasting_line(format!("warning: cannot write `{}`: {error}", path.display())),
        }
    }
}

/// The style of a bar, in which `{left}` is the time left as soon as it is known.
pub(super) fn style(template: &str) -> ProgressStyle {
    let write = |state: &ProgressState, out: &mut dyn fmt::Write| _ = out.write_str(&left(state.eta().as_secs_f64()));
    ProgressStyle::with_template(template).expect("the template is valid").with_key("left", write)
}

/// A time left, for the end of a line; nothing below a second, which is unknown or over.
fn left(s: f64) -> String {
    if s < 1.0 { String::new() } else { format!("  {} left", rough_duration(s)) }
}

/// What is told after a validation loss.
fn besides_loss(bits_per_byte: Option<f64>, preferred: Option<Preferred>) -> String {
    let bits = bits_per_byte.map(|bits| format!(", {bits:.4} bits per byte"));
    let preferred = preferred.map(|Preferred { accuracy, margin }| {
        format!(", {:.0} % of the chosen answers preferred, by a margin of {margin:.4}", 100.0 * accuracy)
    });
    bits.or(preferred).unwrap_or_default()
}

/// The shares of time that ranks spend waiting and communicating.
fn described(exchange: &Exchange) -> String {
    let Exchange { ranks, waiting_share, communication_share } = exchange;
    let [waiting, communicating] = [waiting_share, communication_share].map(|share| 100.0 * share);
    format!("  {ranks} ranks: {waiting:.0} % waiting, {communicating:.0} % communicating")
}

/// The amount of a text read so far: `35 %`, or `120 MB` if its length is unknown.
fn amount(bytes: u64, of: Option<u64>) -> String {
    match of {
        Some(of) => format!("{} %", 100 * bytes / of.max(1)),
        None => format!("{} MB", bytes / 1_000_000),
    }
}

/// A sample with a margin, without blank lines around it and without control characters: an untrained model may
/// generate some that switch the terminal to another character set. Lines are wrapped to `n_columns`, if given.
fn quotation(text: &str, n_columns: Option<usize>) -> String {
    let lines: Vec<Cow<'_, str>> = text.lines().map(|line| without_control(line.trim_end())).collect();
    let is_written = |line: &Cow<'_, str>| !line.is_empty();
    let first = lines.iter().position(is_written).unwrap_or(0);
    let last = lines.iter().rposition(is_written).unwrap_or(0);
    let pieces = |line: &Cow<'_, str>| match n_columns {
        Some(n_columns) => wrapped(line, n_columns.saturating_sub(MARGIN.len() + 1).max(1)),
        None => vec![line.clone().into_owned()],
    };
    let quoted = |line: String| format!("\n{MARGIN} {line}").trim_end().to_owned();
    lines.iter().take(last + 1).skip(first).flat_map(pieces).map(quoted).collect()
}

#[cfg(test)]
mod tests {
    use super::{left, quotation};

    #[test]
    fn time_left_is_shown_once_known() {
        assert_eq!([0.0, 0.9, 59.0, 7300.0].map(left), ["", "", "  59 s left", "  2 h left"]);
    }

    #[test]
    fn wrapped_quotation_keeps_margin() {
        assert_eq!(quotation("The cat sat down.", Some(13)), "\n    | The cat\n    | sat\n    | down.");
    }

    #[test]
    fn quotation_removes_control_characters_and_blank_edges() {
        let quotation = |text| super::quotation(text, None);
        assert_eq!(quotation("\nThe cat \n\nsat.\r\n\n"), "\n    | The cat\n    |\n    | sat.");
        assert_eq!(quotation("a\u{1b}[31mb\tc\u{e}"), "\n    | a\u{fffd}[31mb\tc\u{fffd}");
        assert_eq!(quotation("\n"), "\n    |");
    }
}
