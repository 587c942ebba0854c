//! The parts that all SVG pictures have in common.

use std::fmt::Display;

pub(crate) mod attention;
pub(crate) mod chart;
pub(crate) mod plot;

use crate::view::escape::escape;
use crate::view::terminal::columns::width;

/// The styles of pictures of monospaced text; `i` is the ink, `m` is quieter.
pub(crate) const STYLE: &str = "\
svg{background:var(--paper);max-width:100%;height:auto;font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}
.i{fill:var(--ink)}.m{fill:var(--quiet)}
";

/// All sizes are in pixels.
pub(crate) const MARGIN: f64 = 24.0;
pub(crate) const SIZE: f64 = 13.0;
/// The width of a character in monospaced fonts of this size.
pub(crate) const ADVANCE: f64 = 8.0;

/// SVG elements with the origin at their upper left corner, their width and their height.
pub(crate) type Drawing = (String, [f64; 2]);

/// Whether a text is a picture that was made here, by any version: as [`picture`] begins one.
#[cfg(feature = "cli")]
pub(crate) fn is_picture(text: &str) -> bool {
    let after_start = text.strip_prefix("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"");
    let parts = after_start.and_then(|rest| rest.split_once(" role=\"img\">\n<title>"));
    parts.is_some_and(|(size, rest)| !size.contains('>') && rest.contains("</title>\n<style>"))
}

/// A picture as a file, built from top to bottom.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// SVG elements, not to be escaped.
    pub body: String,
    /// The width of the content so far, and its lower end.
    pub width: f64,
    pub y: f64,
    size: f64,
}

impl Stack {
    /// An empty picture of at least this width, with this font size, and a line about its run.
    pub fn new(width: f64, size: f64, about: &str) -> Self {
        let mut stack = Self { body: String::new(), width, y: MARGIN, size };
        stack.line("m", about);
        stack
    }

    /// Adds a line of text of a class.
    pub fn line(&mut self, class: &str, line: &str) {
        self.body += &text(class, [MARGIN, self.y + 1.1 * self.size], Some(self.size), Anchor::Start, line);
        self.width = self.width.max(ADVANCE / SIZE * self.size * width(line) as f64);
        self.y += 1.5 * self.size;
    }

    /// Adds a drawing.
    pub fn drawing(&mut self, (body, [width, height]): Drawing) {
        self.body += &format!("<g transform=\"translate({MARGIN} {:.1})\">\n{body}</g>\n", self.y);
        self.width = self.width.max(width);
        self.y += height;
    }

    /// The picture; `style` is not escaped.
    pub fn finish(self, title: &str, style: &str) -> String {
        let (width, height) = (self.width + 2.0 * MARGIN, self.y + MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 \
             {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>{style}</style>\n{}</svg>\n",
            escape(title),
            self.body
        )
    }
}

/// The point of a text that is placed, as `text-anchor`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of text; without a size, its class determines it.
pub(crate) fn text<T: Display>(class: &str, [x, y]: [T; 2], size: Option<T>, anchor: Anchor, line: &str) -> String {
    let size = size.map_or(String::new(), |size| format!(" font-size=\"{size:.1}\""));
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let line = escape(line);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{size}{anchor}>{line}</text>\n")
}
