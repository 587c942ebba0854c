//! Text within HTML and SVG.

/// Escapes text for HTML or SVG, between tags or in a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\0' => html.push('\u{fffd}'), // not allowed in HTML
            other => html.push(other),
        }
    }
    html
}

/// A text whose lines may break after each visible space, and then nowhere within a word.
pub(crate) fn breakable(text: &str) -> String {
    text.replace('·', "·\u{200b}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_leaves_no_markup() {
        assert_eq!(
            escape("<a href=\"x\" b='y'>&amp;\0é"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;\u{fffd}é"
        );
    }
}
