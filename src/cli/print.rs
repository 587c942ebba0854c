//! Results on standard output, and notes on standard error.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::paint;
use crate::format::without_control;
use crate::view::terminal::columns::folded;

/// Writes a line to standard error. On a terminal, control characters are removed, and notes and warnings are wrapped.
/// A closed standard error does not stop the program.
pub(super) fn note(line: impl Display) {
    let mut line = line.to_string();
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() && ["note: ", "warning: "].iter().any(|kind| line.starts_with(kind)) {
        line = folded(&line, paint::n_columns());
    }
    let written = match stderr.is_terminal() {
        true if paint::has_colors(&stderr) => writeln!(stderr, "{}", paint::message(&without_control(&line))),
        true => writeln!(stderr, "{}", without_control(&line)),
        false => writeln!(stderr, "{line}"),
    };
    written.ok();
}

/// Notes that the model reads only the end of a prompt.
pub(super) fn note_cut_prompt(n_read: usize, n_dropped: usize) {
    note(format!(
        "note: the prompt has {} tokens and the model's context holds {n_read}: only the last {n_read} are read",
        n_read + n_dropped,
    ));
}

/// Notes each line after its kind, such as `warning`.
pub(super) fn note_each(kind: &str, lines: impl IntoIterator<Item = impl Display>) {
    lines.into_iter().for_each(|line| note(format!("{kind}: {line}")));
}

/// Prints a result. On a terminal, control characters are removed, since names and texts may come from untrusted files.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    if io::stdout().is_terminal() { print_styled(&without_control(text)) } else { print_styled(text) }
}

/// The text with long lines wrapped between words, if the width is known.
pub(super) fn folded_if_known(text: &str) -> Cow<'_, str> {
    paint::given_columns().map_or(text.into(), |n_columns| folded(text, n_columns).into())
}

/// Prints a table, with colours if standard output shows them, and wrapped like [`folded_if_known`].
pub(super) fn print_table(text: &str) -> anyhow::Result<()> {
    match paint::has_colors(&io::stdout()) {
        true => print_styled(&paint::table(&folded(&without_control(text), paint::n_columns()))),
        false => print(&folded_if_known(text)),
    }
}

/// Prints a result with its colours; the caller has removed control characters from other texts in it.
pub(super) fn print_styled(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}
