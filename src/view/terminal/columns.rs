//! Text in terminal columns: cut, wrapped and aligned.

use unicode_width::UnicodeWidthChar;

/// The number of columns of a text: 2 for characters of East Asian scripts and most emoji, 0 for combining marks.
pub(crate) fn width(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// The text in exactly `n` columns: cut with a `…`, or padded with spaces.
pub(crate) fn fit(text: &str, n: usize) -> String {
    let mut fitted = String::new();
    if width(text) <= n {
        fitted.push_str(text);
    } else if n > 0 {
        for character in text.chars() {
            if width(&fitted) + character.width().unwrap_or(0) >= n {
                break;
            }
            fitted.push(character);
        }
        fitted.push('…');
    }
    let blanks = n - width(&fitted);
    fitted + &" ".repeat(blanks)
}

/// The text in at most `n` columns: cut with a `…`, and without spaces at its end.
pub(crate) fn short(n: usize, text: &str) -> String {
    fit(text, n).trim_end().to_owned()
}

/// A name after its number, which is aligned with those up to `last`.
pub(crate) fn numbered(number: usize, last: usize, name: &str) -> String {
    let digits = last.to_string().len();
    format!("{number:>digits$} {name}")
}

/// Joins pieces into lines of at most `n` columns, broken between pieces.
pub(crate) fn flow(pieces: &[String], n: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in pieces {
        let line = lines.last_mut().expect("a text has a first line");
        if line.is_empty() || width(line) + width(piece) <= n {
            line.push_str(piece);
        } else {
            lines.push(piece.clone());
        }
    }
    lines
}

/// Pieces in lines of at most `n_columns`, the first line after `name`, the others aligned below it.
pub(crate) fn named_flow(name: &str, name_width: usize, pieces: &[String], n_columns: usize) -> String {
    let mut text = String::new();
    for (index, line) in flow(pieces, n_columns.saturating_sub(name_width + 1).max(1)).iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        text += &format!("{name:<name_width$} {line}\n");
    }
    text
}

/// A text whose lines are wrapped between words if they are too long for `n_columns`: below their last column, if it
/// begins early enough, or else indented by two blanks more than they are. Colours have no width.
pub(crate) fn folded(text: &str, n_columns: usize) -> String {
    let mut folded = String::new();
    for line in text.split_inclusive('\n') {
        let words = line.trim_end_matches('\n');
        if width(&plain(words)) <= n_columns {
            folded.push_str(line);
            continue;
        }
        let indent = words.len() - words.trim_start_matches(' ').len();
        let column = words.trim_end().rfind("  ").map_or(0, |at| width(&plain(&words[..at + 2])));
        let hang =
            if column > indent && column <= n_columns * 2 / 3 { column } else { (indent + 2).min(n_columns / 2) };
        let mut lines = vec![String::new()];
        for word in words.split_inclusive(' ') {
            let last = lines.last_mut().expect("a text has a first line");
            if last.trim().is_empty() || width(&plain(last)) + width(&plain(word.trim_end())) <= n_columns {
                last.push_str(word);
            } else {
                lines.push(" ".repeat(hang) + word);
            }
        }
        folded += &lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n");
        folded += &line[words.len()..];
    }
    folded
}

/// The text without escape codes of colours.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut parts = text.split('\u{1b}');
    plain.extend(parts.next());
    plain.extend(parts.filter_map(|part| part.split_once('m')).map(|(_, text)| text));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_below_last_column() {
        assert_eq!(folded("short\n  one two three\n", 10), "short\n  one two\n    three\n");
        assert_eq!(folded("key   12  a remark\n", 16), "key   12  a\n          remark\n");
        assert_eq!(folded("\u{1b}[31mred\u{1b}[0m word", 8), "\u{1b}[31mred\u{1b}[0m word");
        assert_eq!(folded("unbreakable words", 8), "unbreakable\n  words");
        assert_eq!(folded("", 8), "");
    }

    #[test]
    fn fit_cuts_and_pads() {
        assert_eq!(fit("ab", 4), "ab  ");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("猫の川", 6), "猫の川");
        assert_eq!(fit("猫の川", 5), "猫の…");
        assert_eq!(fit("猫の川", 4), "猫… ");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(width("e\u{301}"), 1);
    }
}
