//! The text of a token for a person to read.

/// A piece of text on one line, with what cannot be seen made visible: `·` for a blank, `↵` for a line end,
/// `→` for a tab. What would change the line itself, as a terminal's codes do, becomes `\u{fffd}`.
#[must_use]
pub fn visible(piece: &str) -> String {
    let mut shown = String::new();
    for character in piece.chars() {
        match character {
            ' ' => shown.push('·'),
            '\n' => shown.push('↵'),
            '\t' => shown.push('→'),
            other if other.is_control() || is_format(other) => shown.push('\u{fffd}'),
            mark @ '\u{300}'..='\u{36f}' if shown.is_empty() => shown.extend(['◌', mark]),
            other => shown.push(other),
        }
    }
    shown
}

/// Whether a character has no width of its own, or turns the direction of others.
fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_has_a_sign() {
        assert_eq!(visible(" a\n\t\"\u{e9} "), "·a↵→\"\u{e9}·");
        assert_eq!(visible("\u{301}"), "◌\u{301}");
        assert_eq!(visible(" 猫"), "·猫");
    }

    #[test]
    fn nothing_changes_the_line_or_the_terminal() {
        assert_eq!(visible("\u{202e}\u{1b}[1m"), "\u{fffd}\u{fffd}[1m");
        assert_eq!(visible("\u{7}\r\u{200b}"), "\u{fffd}".repeat(3));
    }
}
