//! The prompt for samples: a few characters of the text itself, which its tokenizer knows.

const MAX_CHARACTERS: usize = 24;

/// Lines at least this long are preferred.
const SHORT_LINE: usize = 8;

/// The start of a line near the middle of the text, cut at a space if possible; a line break for an empty text.
pub(super) fn from_text(text: &str, max_characters: usize) -> String {
    let max_characters = max_characters.clamp(1, MAX_CHARACTERS);
    let middle = text.ceil_char_boundary(text.len() / 2);
    let (first, second) = text.split_at(middle);
    let from_middle = second.lines().skip(1).chain(first.lines());
    let not_empty = |line: &&str| !line.is_empty();
    let mut lines = from_middle.map(str::trim).filter(not_empty);
    let is_long = |line: &&str| line.chars().nth(SHORT_LINE - 1).is_some();
    let line = (lines.clone().find(is_long)).or_else(|| lines.next());
    let line = line.or_else(|| Some(second.trim()).filter(not_empty)); // no other line starts there
    line.map_or("\n", |line| beginning(line, max_characters)).to_owned()
}

/// At most `max_characters` of a line, if possible without a partial word.
fn beginning(line: &str, max_characters: usize) -> &str {
    let Some((end, next)) = line.char_indices().nth(max_characters) else { return line };
    let head = &line[..end];
    let whole_words = head.rfind(char::is_whitespace).map(|space| &head[..space]);
    let whole_words = whole_words.filter(|words| !next.is_whitespace() && words.chars().count() >= SHORT_LINE);
    whole_words.unwrap_or(head).trim_end()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prompt_starts_line_and_ends_word() {
        let text = "What is this line?\n\n\tThe quick brown fox jumps over it.\nAnd a last line.";
        assert_eq!(from_text(text, 100), "And a last line.");
        assert_eq!(from_text(text, 12), "And a last");
        assert_eq!(from_text("one line that is all of it", 12), "one line");
        assert_eq!(beginning("/// wonderfully", 12), "/// wonderfu");
        assert_eq!(from_text("\u{6625}\u{7720}\u{4e0d}\u{89c9}\u{6653}", 3), "\u{6625}\u{7720}\u{4e0d}");
        assert_eq!(from_text(" \n \n", 12), "\n");
        assert_eq!(from_text("", 12), "\n");
    }

    #[test]
    fn prompt_of_name_list_is_a_name() {
        let line = |i: u32| format!("name{i}\n");
        let names: String = (0..100).map(line).collect();
        for cut in 0..20 {
            let prompt = from_text(&names[..names.len() - cut], 24);
            assert!(names.lines().any(|name| name == prompt), "{prompt:?}");
        }
        assert_eq!(from_text("ann\nbob\n\neve\n", 24), "eve");
        assert_eq!(from_text("      x y", 24), "x y");
    }

    proptest! {
        #[test]
        fn prompt_occurs_in_text(text in any::<String>(), max_characters in 0_usize..30) {
            let prompt = from_text(&text, max_characters);
            prop_assert!(!prompt.is_empty() && prompt.chars().count() <= MAX_CHARACTERS);
            prop_assert!(prompt == "\n" || text.contains(&prompt));
        }
    }
}
