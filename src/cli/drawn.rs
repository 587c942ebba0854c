//! Results in four formats: the output's format and file, and the colours and width of text.

use std::env;
use std::io;
use std::path::PathBuf;

use clap::ValueEnum;

use super::exit::Misuse;
use super::numbers::within;
use super::paint::n_columns;
use super::print::{folded_if_known, print, print_styled};
use super::{output, paint};
use crate::view::html::is_page;
use crate::view::svg::is_picture;
use crate::view::{self, Palette, Sheet};

/// The output format.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DrawnFormat {
    /// Tables and maps
    Text,
    /// All numbers, exact
    Json,
    /// A picture
    Svg,
    /// A page to explore in a browser
    Html,
}

/// The format and the file of the output.
#[derive(Debug, clap::Args)]
pub(super) struct DrawnOutput {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DrawnFormat::Text)]
    pub format: DrawnFormat,
    #[command(flatten)]
    pub file: File,
}

/// One result, for every format.
#[derive(Debug)]
pub(super) struct Drawn {
    pub json: String,
    pub sheet: Sheet,
}

impl DrawnOutput {
    pub(super) fn is_page(&self) -> bool {
        matches!(self.format, DrawnFormat::Html)
    }

    /// Whether the format is a picture or a page.
    pub(super) fn is_picture(&self) -> bool {
        matches!(self.format, DrawnFormat::Svg | DrawnFormat::Html)
    }

    pub(super) fn is_json(&self) -> bool {
        matches!(self.format, DrawnFormat::Json)
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.format, DrawnFormat::Text)
    }

    /// Refuses a `flag` that only text follows, if it `is_given` beside another format.
    pub(super) fn check_text(&self, flag: &str, is_given: bool) -> Result<(), Misuse> {
        match is_given && !self.is_text() {
            true => Err(Misuse(format!("{flag} is for --format text alone\n  hint: leave out one of them"))),
            false => Ok(()),
        }
    }

    /// Writes the results; pictures have a title and a line about the run, text has these colours.
    pub(super) fn write(
        &self,
        title: &str,
        about: &str,
        results: Vec<Drawn>,
        style: (Palette, usize),
    ) -> anyhow::Result<()> {
        let (documents, sheets): (Vec<_>, Vec<_>) = results.into_iter().map(|it| (it.json, it.sheet)).unzip();
        let texts: Vec<String> = sheets.iter().map(|sheet| view::sheet_text(sheet, style)).collect();
        self.write_sheets(title, about, &texts.join("\n"), &json_of(documents), &sheets)
    }

    pub(super) fn write_sheets(
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

/// The output file.
#[derive(Debug, clap::Args)]
pub(super) struct File {
    /// Output file; replaces only pages and pictures made by Tinderbox [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl File {
    pub(super) fn is_given(&self) -> bool {
        self.output.is_some()
    }

    /// Checks that the output file can be written, before anything is computed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.output.as_deref().map_or(Ok(()), |path| {
            let is_ours = |text: &str| is_page(text) || is_picture(text);
            output::check_replaced(path, "a page or a picture that Tinderbox wrote", is_ours)
        })
    }

    /// Writes `text` to the file, atomically, or to standard output.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => output::write(path, text),
            None => print(text),
        }
    }

    /// Like [`File::write`] for coloured text, whose long lines are wrapped if the width is known. The caller has
    /// removed other control characters.
    pub(super) fn write_styled(&self, text: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => output::write(path, text),
            None => print_styled(&folded_if_known(text)),
        }
    }
}

/// One document as it is, or several as an array, followed by a line break.
pub(super) fn json_of(mut documents: Vec<String>) -> String {
    match documents.len() {
        1 => documents.remove(0) + "\n",
        _ => format!("[{}]\n", documents.join(",")),
    }
}

/// When text is coloured.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never; maps use characters of increasing density
    Never,
}

/// The style of tables without colours.
pub(super) fn uncoloured() -> (Palette, usize) {
    (Palette::Characters, n_columns())
}

/// The colours of text.
#[derive(Debug, clap::Args)]
pub(super) struct Colors {
    /// When to colour text
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
}

impl Colors {
    /// Refuses colours of an output that is not text.
    pub(super) fn check(&self, output: &DrawnOutput) -> Result<(), Misuse> {
        output.check_text("--color always", matches!(self.color, Color::Always))
    }

    /// The colours of tables in text that goes to `file`, and their width.
    pub(super) fn style(&self, file: &File) -> (Palette, usize) {
        (self.palette(file.is_given()), n_columns())
    }

    /// The colours that the terminal supports. Text in a file has none unless they are requested.
    pub(super) fn palette(&self, to_file: bool) -> Palette {
        let is_wanted = match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => !to_file && paint::has_colors(&io::stdout()),
        };
        match is_wanted {
            false => Palette::Characters,
            true if env::var("COLORTERM").is_ok_and(|value| ["truecolor", "24bit"].contains(&&*value)) => {
                Palette::TrueColor
            }
            true => Palette::Ansi256,
        }
    }
}

/// The style of a map in text.
#[derive(Debug, clap::Args)]
pub(super) struct TextStyle {
    #[command(flatten)]
    pub colors: Colors,
    /// Maximum number of columns of a map in text [default: COLUMNS, else the terminal's, else 100]
    #[arg(long, value_name = "N", value_parser = |typed: &str| within(typed, 20..=usize::from(u16::MAX)))]
    width: Option<usize>,
}

impl TextStyle {
    /// Refuses colours and a width of an output that is not text.
    pub(super) fn check(&self, output: &DrawnOutput) -> Result<(), Misuse> {
        output.check_text("--width", self.width.is_some())?;
        self.colors.check(output)
    }

    pub(super) fn n_columns(&self) -> usize {
        self.width.unwrap_or_else(n_columns)
    }
}
