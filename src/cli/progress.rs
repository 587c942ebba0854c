//! What a run shows: a bar on a terminal, plain lines elsewhere, and the same lines in its `train.log`.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::train::{Evaluation, Event, Logged, Observer, Started, Summary};

/// The bar with the loss and the speed in its message.
const BAR: &str = "{bar:30} {pos}/{len}  {msg}  {eta} left";

/// Shows a run while it goes on.
#[derive(Clone)]
pub(super) struct Progress(Arc<Mutex<Screen>>);

struct Screen {
    bar: Option<ProgressBar>,
    log: Option<File>,
    max_steps: usize,
    tokens_per_step: usize,
    began: Instant,
    steps: usize,
}

/// Hands what happens in a run to the screen.
struct ScreenObserver(Progress);

impl Progress {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Screen {
            bar: std::io::stderr().is_terminal().then(ProgressBar::hidden),
            log: None,
            max_steps: 0,
            tokens_per_step: 0,
            began: Instant::now(),
            steps: 0,
        })))
    }

    /// The observer that a run is given.
    pub(super) fn observer(&self) -> impl Observer + 'static {
        ScreenObserver(self.clone())
    }

    /// Says how the run ended; `resume` is the command that goes on.
    pub(super) fn finish(&self, summary: &Summary, resume: &str) {
        self.with(|screen| screen.finish(summary, resume));
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
                let indented: String = text.lines().map(|line| format!("\n    | {line}")).collect();
                self.line(&format!("sample:{indented}"));
            }
            Event::Saved { path, is_best } => {
                let best = if *is_best { " (best)" } else { "" };
                self.line(&format!("saved `{}`{best}", path.display()));
            }
            Event::FinalEvaluation => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
                self.line("evaluating the whole validation split ...");
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
        self.line(&format!(
            "{verb} `{}` on {}: {} parameters, {} training and {} validation tokens, vocabulary of {}",
            started.run_dir.display(),
            started.device,
            grouped(started.parameters),
            grouped(started.train_tokens),
            grouped(started.val_tokens),
            started.vocab_size,
        ));
        if started.resumed {
            self.line(&format!("going on after step {}", started.step));
        }
        if self.bar.is_some() {
            let bar = ProgressBar::new(started.max_steps as u64);
            let style = ProgressStyle::with_template(BAR).expect("a valid template");
            self.bar = Some(bar.with_style(style).with_position(started.step as u64));
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
            eprintln!("{line}");
        }
    }

    fn evaluated(&mut self, evaluation: &Evaluation) {
        self.line(&format!(
            "{}  estimates: train loss {:.4}, val loss {:.4}{}",
            self.at(evaluation.step),
            evaluation.train_loss,
            evaluation.val_loss,
            if evaluation.is_best {
                " (best so far)"
            } else {
                ""
            },
        ));
    }

    fn finish(&mut self, summary: &Summary, resume: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let run = summary.run_dir.display();
        if summary.interrupted {
            self.line(&format!(
                "interrupted after step {} of {}; all is saved in `{run}`. Go on with\n    {resume}",
                summary.steps, self.max_steps
            ));
            return;
        }
        self.line(&format!(
            "done: {} steps in {:.0} s ({:.0} tokens/s)",
            summary.steps, summary.wall_s, summary.tokens_per_s
        ));
        if let (Some(last), Some(best), Some(step), Some(bits)) = (
            summary.val_loss,
            summary.best_val_loss,
            summary.best_step,
            summary.val_bits_per_byte,
        ) {
            self.line(&format!(
                "loss on the whole validation split: {last:.4} nats per token, {bits:.4} bits per byte; \
                 best checkpoint: {best:.4}, of step {step}"
            ));
        }
        self.line(&format!(
            "write with it:\n    tinderbox generate {run} --prompt \"...\""
        ));
    }

    /// `step  500/2000`
    fn at(&self, step: usize) -> String {
        let width = self.max_steps.to_string().len();
        format!("step {step:>width$}/{}", self.max_steps)
    }

    /// Shows a line above the bar, and keeps it in the log.
    fn line(&mut self, line: &str) {
        self.keep(line);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    fn keep(&mut self, line: &str) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = writeln!(log, "{line}") {
            self.log = None; // say it once; what matters is in the checkpoints and the metrics
            eprintln!("warning: cannot write train.log any more: {error}");
        }
    }

    fn open_log(&mut self, run_dir: &Path) {
        let path = run_dir.join("train.log");
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(log) => self.log = Some(log),
            Err(error) => eprintln!("warning: cannot write `{}`: {error}", path.display()),
        }
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
    use super::grouped;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(804_096), "804,096");
        assert_eq!(grouped(1_115_394), "1,115,394");
    }
}
