//! Text inside HTML that stays text.

/// Text as HTML, between tags or in a quoted attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\0' => html.push('\u{fffd}'), // HTML has no such character
            other => html.push(other),
        }
    }
    html
}

/// A JSON document as the content of a `<script>`: the same document, but nothing in it can end the element or
/// begin a comment. These characters stand only within strings, where they may be written by their numbers.
pub(super) fn json(document: &str) -> String {
    document.replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(
            escape("<a href=\"x\" b='y'>&amp;\0é"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;\u{fffd}é"
        );
    }

    #[test]
    fn json_says_the_same_and_ends_no_element() {
        let value = "</script><!--<script>]]>&amp;\u{2028}\\";
        let document = serde_json::to_string(value).expect("plain data");
        let escaped = json(&document);
        assert!(!escaped.contains(['<', '>', '&']), "{escaped}");
        let back: String = serde_json::from_str(&escaped).expect("still JSON");
        assert_eq!(back, value);
    }
}
