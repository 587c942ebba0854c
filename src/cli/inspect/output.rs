//! The output of `inspect`: its format and file, and the colours and the width of a map in text.

use std::env;
use std::io;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::numbers::within;
use crate::cli::paint::{given_columns, n_columns};
use crate::cli::{output, paint, print, print_styled};
use crate::view::{self, Palette, Sheet};

/// The form of the output.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DrawnFormat {
    /// Tables
    Text,
    /// Every number, exact
    Json,
    /// A picture
    Svg,
    /// A page to explore in a browser
    Html,
}

/// The form and the place of the output.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct DrawnOutput {
    /// The output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DrawnFormat::Text)]
    format: DrawnFormat,
    #[command(flatten)]
    pub file: File,
}

/// One result in every format.
#[derive(Debug)]
pub(in crate::cli) struct Drawn {
    pub text: String,
    pub json: String,
    pub sheet: Sheet,
}

impl DrawnOutput {
    /// Whether a page is asked for, in which a reader can choose.
    pub(in crate::cli) fn is_page(&self) -> bool {
        matches!(self.format, DrawnFormat::Html)
    }

    /// Whether a picture is asked for, on a page or alone.
    pub(in crate::cli) fn is_picture(&self) -> bool {
        matches!(self.format, DrawnFormat::Svg | DrawnFormat::Html)
    }

    /// Writes the results; pictures have a title and a line about the run.
    pub(in crate::cli) fn write(&self, title: &str, about: &str, results: Vec<Drawn>) -> anyhow::Result<()> {
        let (mut texts, mut documents, mut sheets) = (Vec::new(), Vec::new(), Vec::new());
        for Drawn { text, json, sheet } in results {
            texts.push(text);
            documents.push(json);
            sheets.push(sheet);
        }
        self.write_sheets(title, about, &texts.join("\n"), &json_of(documents), &sheets)
    }

    /// Writes one result of several sheets.
    pub(in crate::cli) fn write_sheets(
        &self,
        title: &str,
        about: &str,
        text: &str,
        json: &str,
        sheets: &[Sheet],
    ) -> anyhow::Result<()> {
        match self.format {
            DrawnFormat::Text => self.file.write_styled(text),
            DrawnFormat::Json => self.file.write(json),
            DrawnFormat::Svg => self.file.write(&view::sheets_svg(title, about, sheets)),
            DrawnFormat::Html => self.file.write(&view::sheets_html(title, about, sheets)),
        }
    }
}

/// The place of the output.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct File {
    /// A file to write; of existing ones, only pages and pictures of Tinderbox are replaced [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl File {
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.output.is_some()
    }

    /// Checks that the output file can be written, before anything is computed.
    pub(in crate::cli) fn check(&self) -> anyhow::Result<()> {
        self.output.as_deref().map_or(Ok(()), |path| {
            let is_ours = |text: &str| view::is_page(text) || view::is_picture(text);
            output::check_replaced(path, "a page or a picture that Tinderbox wrote", is_ours)
        })
    }

    /// Writes `text` to the file, atomically, or to standard output.
    pub(in crate::cli) fn write(&self, text: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => output::write(path, text),
            None => print(text),
        }
    }

    /// As [`File::write`], of a text with colours, whose long lines are wrapped if the width is known; the caller has
    /// removed control characters from other texts in it.
    pub(in crate::cli) fn write_styled(&self, text: &str) -> anyhow::Result<()> {
        match (&self.output, given_columns()) {
            (Some(path), _) => output::write(path, text),
            (None, Some(n_columns)) => print_styled(&view::folded(text, n_columns)),
            (None, None) => print_styled(text),
        }
    }
}

/// A single document as it is, or several as an array, followed by a line break.
pub(in crate::cli) fn json_of(mut documents: Vec<String>) -> String {
    match documents.len() {
        1 => documents.remove(0) + "\n",
        _ => format!("[{}]\n", documents.join(",")),
    }
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never; maps use characters of increasing density
    Never,
}

/// The colours of text.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Colors {
    /// Whether to colour text
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
}

impl Colors {
    /// The colours of tables in text that goes to `file`, and their width.
    pub(in crate::cli) fn style(&self, file: &File) -> (Palette, usize) {
        (self.palette(file.is_given()), n_columns())
    }

    /// The colours that the terminal supports. Text in a file has none, unless they are requested.
    pub(in crate::cli) fn palette(&self, to_file: bool) -> Palette {
        let has_colors = !to_file && paint::has_colors(&io::stdout());
        palette(self.color, has_colors, |name| env::var(name).ok())
    }
}

/// The style of a map in text.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct TextStyle {
    #[command(flatten)]
    pub colors: Colors,
    /// The most columns of a map in text [default: the environment variable COLUMNS, else those of the terminal, else 100]
    #[arg(long, value_name = "N", value_parser = |typed: &str| within(typed, 20..=usize::from(u16::MAX)))]
    width: Option<usize>,
}

impl TextStyle {
    pub(in crate::cli) fn n_columns(&self) -> usize {
        self.width.unwrap_or_else(n_columns)
    }
}

/// The colours that a terminal supports according to its environment variables, given whether it shows colours at all.
fn palette(color: Color, has_colors: bool, variable: impl Fn(&str) -> Option<String>) -> Palette {
    let is = |name: &str, values: &[&str]| variable(name).is_some_and(|value| values.contains(&&*value));
    let wanted = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => has_colors,
    };
    match wanted {
        false => Palette::Characters,
        true if is("COLORTERM", &["truecolor", "24bit"]) => Palette::TrueColor,
        true => Palette::Ansi256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_follows_terminal_and_choice() {
        let with = |set: &'static [(&str, &str)], color, has_colors| {
            palette(color, has_colors, |name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[], Color::Auto, true), Palette::Ansi256);
        assert_eq!(with(&[], Color::Auto, false), Palette::Characters);
        assert_eq!(with(&[], Color::Always, false), Palette::Ansi256);
        assert_eq!(with(&[("COLORTERM", "truecolor")], Color::Auto, true), Palette::TrueColor);
        assert_eq!(with(&[("COLORTERM", "truecolor")], Color::Never, true), Palette::Characters);
    }
}
