//! Exit codes, error messages, and Ctrl-C.

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::{env, io};

use anyhow::{Context, bail};

use crate::config::ConfigError;
use crate::format::cut_in_the_middle;
use crate::run::log::ERROR;
use crate::tokenizer::panic_becomes_error;

pub(super) const DONE: u8 = 0;
/// A failure that was reported on standard error.
pub(super) const FAILED: u8 = 1;
/// Wrong arguments. The exit code is the same as clap's.
pub(super) const MISUSE: u8 = 2;
/// Stopped by Ctrl-C or another signal, after saving: 128 plus the number of Ctrl-C's signal, as in shells.
pub(super) const INTERRUPTED: u8 = 130;

/// Wrong arguments that clap accepts.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Misuse(pub(super) String);

/// Turns a panic, which has printed its message, into an error.
pub(super) fn catching_panics(run: impl FnOnce() -> anyhow::Result<u8>) -> anyhow::Result<u8> {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        bail!("this is a bug in tinderbox\n  hint: please report the message above, and the command that led to it")
    })
}

/// Panics that become errors are not printed.
pub(super) fn print_only_other_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !panic_becomes_error() {
            print(panic);
        }
    }));
}

/// The path of this program. On Linux it stays valid even if the file is replaced.
pub(super) fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { env::current_exe() }
}

/// The longest line of an error message, in characters: a line quoted from a file may be very long.
const MAX_LINE: usize = 1000;
/// Longer error messages keep their first lines and their last [`LAST_LINES`].
const MAX_LINES: usize = 60;
const LAST_LINES: usize = 10;

/// The error and its causes, each once, since some messages quote their cause. Long messages are shortened.
pub(super) fn describe(error: &anyhow::Error) -> String {
    let mut text = format!("{ERROR}{error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            // After a hint, a cause gets its own line.
            let link = if text.contains('\n') { "\n  cause: " } else { ": " };
            text.push_str(link);
            text.push_str(&cause);
        }
    }
    let mut lines: Vec<String> = text.trim_end().lines().map(|line| cut_in_the_middle(line, MAX_LINE)).collect();
    if lines.len() > MAX_LINES {
        let left_out = MAX_LINES - LAST_LINES - 1..lines.len() - LAST_LINES;
        let line = format!("  ... and {} more lines", left_out.len());
        lines.splice(left_out, [line]);
    }
    lines.join("\n")
}

/// Whether an error concerns only the arguments.
pub(super) fn is_misuse(error: &anyhow::Error) -> bool {
    let is_malformed = |problems: &Vec<String>| problems.iter().all(|problem| problem.starts_with("--set "));
    match error.downcast_ref() {
        Some(ConfigError::Invalid(_, problems)) => is_malformed(problems),
        _ => error.is::<Misuse>(),
    }
}

pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Calls `handler` at each Ctrl-C.
pub(super) fn on_ctrl_c(handler: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    ctrlc::set_handler(handler).context("cannot install the Ctrl-C handler")
}

/// Calls `handler` at each signal that asks the program to end, with whether it is that of Ctrl-C, on a thread of its own.
/// The line editor's own handlers get none of them. Called before other threads start, which would get the signals.
#[cfg(unix)]
pub(super) fn on_signals(mut handler: impl FnMut(bool) + Send + 'static) -> anyhow::Result<()> {
    use nix::sys::signal::{SigSet, Signal};
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("cannot wait for signals")?;
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            handler(signal == Signal::SIGINT);
        }
    });
    Ok(())
}

/// Calls `handler` at each Ctrl-C.
#[cfg(not(unix))]
pub(super) fn on_signals(mut handler: impl FnMut(bool) + Send + 'static) -> anyhow::Result<()> {
    on_ctrl_c(move || handler(true))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn describe_prints_each_cause_once_outside_hints() {
        let cause = || io::Error::other("no luck");
        let plain = anyhow::Error::from(cause()).context("cannot read `a`");
        assert_eq!(describe(&plain), "error: cannot read `a`: no luck");
        let quoting = anyhow::Error::from(cause()).context("cannot read `a`: no luck\n  hint: try");
        assert_eq!(describe(&quoting), "error: cannot read `a`: no luck\n  hint: try");
        let hinting = anyhow::Error::from(cause()).context("cannot read `a`\n  hint: try");
        assert_eq!(describe(&hinting), "error: cannot read `a`\n  hint: try\n  cause: no luck");
        assert_eq!(describe(&anyhow!("a line of its own\n")), "error: a line of its own");
    }

    #[test]
    fn describe_shortens_long_errors() {
        let lines: Vec<String> = (1..=500).map(|n| format!("{n} {}", "x".repeat(5000))).collect();
        let text = describe(&anyhow!(lines.join("\n")));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[49]), (MAX_LINES, "  ... and 441 more lines"));
        assert!(
            lines[48].starts_with("49 xxx") && lines[50].starts_with("491 xxx") && lines[59].starts_with("500 xxx")
        );
        assert!(lines.iter().all(|line| line.chars().count() <= MAX_LINE));
    }

    #[test]
    fn panic_is_reported_as_error() {
        let error = catching_panics(|| panic!("out of bounds")).unwrap_err();
        assert!(describe(&error).starts_with("error: this is a bug in tinderbox\n  hint: "));
        assert_eq!(catching_panics(|| Ok(DONE)).unwrap(), DONE);
    }
}
