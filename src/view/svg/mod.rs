//! The parts that all SVG pictures have in common.

use std::fmt::Display;

pub(crate) mod attention;
pub(crate) mod plot;
mod png;

use crate::view::escape;

/// The styles of pictures of monospaced text; `i` is the ink, `m` is quieter.
pub(crate) const STYLE: &str = "\
svg{background:var(--paper);max-width:100%;height:auto;font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}
.i{fill:var(--ink)}.m{fill:var(--quiet)}";

/// Whether a text is a picture that was made here, by any version: as [`picture`] begins one.
#[cfg(feature = "cli")]
pub(crate) fn is_picture(text: &str) -> bool {
    let after_start = text.strip_prefix("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"");
    let parts = after_start.and_then(|rest| rest.split_once(" role=\"img\">\n<title>"));
    parts.is_some_and(|(size, rest)| !size.contains('>') && rest.contains("</title>\n<style>"))
}

/// A picture as a file; `style` and `body` are not escaped.
pub(crate) fn picture<T: Display>([width, height]: [T; 2], title: &str, style: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} \
         {height:.0}\" role=\"img\">\n<title>{title}</title>\n<style>{style}</style>\n{body}</svg>\n"
    )
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
