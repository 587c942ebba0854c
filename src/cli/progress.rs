//! What a run shows: a bar on a terminal, plain lines elsewhere, and the same lines in its `train.log`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::note;
use crate::train::{Evaluation, Event, Logged, Observer, Started, Summary};

/// The bar with the loss and the speed in its message.
const BAR: &str = "{bar:30} step {pos}/{len}  {msg}  {eta} left";

/// How to stop when only the last evaluation is left.
const STOP_LAST_EVALUATION: &str =
    "all is saved; press Ctrl-C again to stop without the last evaluation";

/// Shows a run while it goes on.
#[derive(Clone)]
pub(super) struct Progress(Arc<Mutex<Screen>>);

struct Screen {
    bar: Option<ProgressBar>,
    log: Option<File>,
    max_steps: usize,
    tokens_per_step: usize,
    began: Instant,
    /// Steps made by this process.
    steps: usize,
    /// Whether the last evaluation runs, when nothing is left to save.
    is_last_evaluation: bool,
    /// Whether someone wished to stop.
    is_stopping: bool,
}

/// Hands what happens in a run to the screen.
struct ScreenObserver(Progress);

impl Progress {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Screen {
            bar: io::stderr().is_terminal().then(ProgressBar::hidden),
            log: None,
            max_steps: 0,
            tokens_per_step: 0,
            began: Instant::now(),
            steps: 0,
            is_last_evaluation: false,
            is_stopping: false,
        })))
    }

    /// The observer that a run is given.
    pub(super) fn observer(&self) -> impl Observer + 'static {
        ScreenObserver(self.clone())
    }

    /// Says how the run ended; `next` is the command to go on with.
    pub(super) fn finish(&self, summary: &Summary, next: &str) {
        self.with(|screen| screen.finish(summary, next));
    }

    /// Clears the screen for an error, and keeps it in the log.
    pub(super) fn failed(&self, error: &str) {
        self.with(|screen| {
            screen.clear_bar();
            screen.keep(error);
        });
    }

    /// Says that a wish to stop was heard.
    pub(super) fn stopping(&self) {
        self.with(|screen| {
            screen.is_stopping = true;
            screen.show_line(if screen.is_last_evaluation {
                STOP_LAST_EVALUATION
            } else {
                "stopping after this step; press Ctrl-C again to stop at once without saving"
            });
        });
    }

    fn with(&self, f: impl FnOnce(&mut Screen)) {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Observer for ScreenObserver {
    fn observe(&mut self, event: &Event<'_>) {
        self.0.with(|screen| screen.show(event));
    }
}

impl Screen {
    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(started) => self.start(started),
            Event::Stepped { step, loss } => self.step(*step, *loss),
            Event::Logged(logged) => self.logged(logged),
            Event::Evaluated(evaluation) => self.evaluated(evaluation),
            Event::Sampled { text, .. } => {
                self.line(&format!("sample:{}", quotation(text)));
            }
            Event::Saved { path, is_best } => {
                let best = if *is_best { " (best)" } else { "" };
                self.line(&format!("saved `{}`{best}", path.display()));
            }
            Event::FinalEvaluation => {
                self.clear_bar();
                self.is_last_evaluation = true;
                self.line("evaluating the whole validation split ...");
                if self.is_stopping {
                    self.show_line(STOP_LAST_EVALUATION);
                }
            }
            Event::StoppedEarly { evaluations, .. } => {
                self.line(&format!(
                    "stopping early: {evaluations} evaluations without a better one"
                ));
            }
        }
    }

    fn start(&mut self, started: &Started) {
        self.open_log(&started.run_dir);
        self.max_steps = started.max_steps;
        self.tokens_per_step = started.tokens_per_step;
        self.began = Instant::now();
        let verb = if started.resumed {
            "resuming"
        } else {
            "training"
        };
        let after = if started.resumed {
            format!(", after step {}", started.step)
        } else {
            String::new()
        };
        self.line(&format!(
            "{verb} `{}` on {}{after}",
            started.run_dir.display(),
            started.device,
        ));
        self.line(&format!(
            "{} parameters; {} training and {} validation tokens; vocabulary of {}",
            grouped(started.parameters),
            grouped(started.train_tokens),
            grouped(started.val_tokens),
            started.vocab_size,
        ));
        if self.bar.is_some() {
            let bar = ProgressBar::new(started.max_steps as u64);
            let style = ProgressStyle::with_template(BAR).expect("a valid template");
            let bar = bar.with_style(style).with_position(started.step as u64);
            bar.tick(); // tells the estimate of the time left where it begins,
            bar.reset_eta(); // and to forget the speed at which it seemed to get there
            self.bar = Some(bar);
        }
    }

    fn step(&mut self, step: usize, loss: Option<f32>) {
        self.steps += 1;
        if let Some(bar) = &self.bar {
            #[allow(clippy::cast_precision_loss, reason = "a speed to look at")]
            let tokens_per_s =
                (self.steps * self.tokens_per_step) as f64 / self.began.elapsed().as_secs_f64();
            let loss = loss
                .map(|loss| format!("loss {loss:.3}, "))
                .unwrap_or_default();
            bar.set_message(format!("{loss}{tokens_per_s:.0} tokens/s"));
            bar.set_position(step as u64);
        }
    }

    fn logged(&mut self, logged: &Logged) {
        let line = format!(
            "{}  loss {:.4}  lr {:.2e}  grad norm {:.2}  {:.1} ms/step  {:.0} tokens/s",
            self.at(logged.step),
            logged.train_loss,
            logged.learning_rate,
            logged.gradient_norm,
            logged.median_step_ms,
            logged.tokens_per_s,
        );
        self.keep(&line);
        if self.bar.is_none() {
            note(line);
        }
    }

    fn evaluated(&mut self, evaluation: &Evaluation) {
        self.line(&format!(
            "{}  estimates: train loss {:.4}, val loss {:.4}, {:.4} bits per byte{}",
            self.at(evaluation.step),
            evaluation.train_loss,
            evaluation.val_loss,
            evaluation.val_bits_per_byte,
            if evaluation.is_best {
                " (best so far)"
            } else {
                ""
            },
        ));
    }

    fn finish(&mut self, summary: &Summary, next: &str) {
        self.clear_bar();
        if summary.interrupted {
            let run = summary.run_dir.display();
            self.line(&format!(
                "interrupted after step {} of {}; all is saved in `{run}`. Go on with\n    {next}",
                summary.steps, self.max_steps
            ));
            return;
        }
        self.line(&format!(
            "done: {}{} steps in {}, {:.0} tokens/s",
            self.steps,
            if self.steps < summary.steps {
                " more"
            } else {
                ""
            },
            duration(summary.wall_s),
            summary.tokens_per_s
        ));
        if let (Some(last), Some(best), Some(step), Some(bits)) = (
            summary.val_loss,
            summary.best_val_loss,
            summary.best_step,
            summary.val_bits_per_byte,
        ) {
            self.line(&format!(
                "val loss {last:.4} nats per token, {bits:.4} bits per byte, over the whole split\n\
                 best checkpoint: step {step}, val loss {best:.4}"
            ));
        }
        self.line(&format!("write with it:\n    {next}"));
    }

    /// `step  500/2000`
    fn at(&self, step: usize) -> String {
        let width = self.max_steps.to_string().len();
        format!("step {step:>width$}/{}", self.max_steps)
    }

    /// Shows a line above the bar, and keeps it in the log.
    fn line(&mut self, line: &str) {
        self.keep(line);
        self.show_line(line);
    }

    fn show_line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note(line)),
            None => note(line),
        }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn keep(&mut self, line: &str) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = writeln!(log, "{line}") {
            self.log = None; // say it once; what matters is in the checkpoints and the metrics
            self.show_line(&format!(
                "warning: cannot write train.log any more: {error}"
            ));
        }
    }

    fn open_log(&mut self, run_dir: &Path) {
        let path = run_dir.join("train.log");
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(log) => self.log = Some(log),
            Err(error) => {
                self.show_line(&format!(
                    "warning: cannot write `{}`: {error}",
                    path.display()
                ));
            }
        }
    }
}

/// What a model wrote, each line indented on a line of its own, without the blank ones around it.
///
/// An untrained model may write bytes that would switch a terminal to another character set.
fn quotation(text: &str) -> String {
    let visible = |c: char| match c {
        '\t' => c,
        _ if c.is_control() => char::REPLACEMENT_CHARACTER,
        _ => c,
    };
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.trim_end().chars().map(visible).collect())
        .collect();
    let is_written = |line: &String| !line.is_empty();
    let first = lines.iter().position(is_written).unwrap_or(0);
    let last = lines.iter().rposition(is_written).unwrap_or(0);
    let mut quotation = String::new();
    for line in lines.iter().take(last + 1).skip(first) {
        quotation.push_str("\n    | ");
        quotation.push_str(line);
        quotation.truncate(quotation.trim_end().len());
    }
    quotation
}

/// A time to read: `8.1 s`, `2 min 5 s`, `1 h 20 min`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a run takes fewer than 2^64 seconds, and not fewer than 0"
)]
fn duration(s: f64) -> String {
    let whole = s.round() as u64;
    match whole {
        0..60 => format!("{s:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number with its thousands apart.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::{duration, grouped, quotation};

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(804_096), "804,096");
        assert_eq!(grouped(1_115_394), "1,115,394");
    }

    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!(duration(0.04), "0.0 s");
        assert_eq!(duration(8.14), "8.1 s");
        assert_eq!(duration(59.96), "1 min 0 s");
        assert_eq!(duration(125.4), "2 min 5 s");
        assert_eq!(duration(4800.0), "1 h 20 min");
    }

    #[test]
    fn a_sample_shows_what_was_written_and_nothing_that_changes_a_terminal() {
        assert_eq!(
            quotation("\nThe cat \n\nsat.\r\n\n"),
            "\n    | The cat\n    |\n    | sat."
        );
        assert_eq!(
            quotation("a\u{1b}[31mb\tc\u{e}"),
            "\n    | a\u{fffd}[31mb\tc\u{fffd}"
        );
        assert_eq!(quotation("\n"), "\n    |");
    }
}
