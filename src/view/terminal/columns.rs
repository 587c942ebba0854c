//! Text in terminal columns: cut, wrapped and aligned.

use unicode_width::UnicodeWidthChar;

/// The most columns per line, which most terminals can show.
pub(crate) const MAX_WIDTH: usize = 100;

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
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() || width(line) + width(piece) <= n {
            line.push_str(piece);
        } else {
            lines.push(piece.clone());
        }
    }
    lines
}

/// Pieces in lines of at most [`MAX_WIDTH`], the first line after `name`, the others aligned below it.
pub(crate) fn named_flow(name: &str, name_width: usize, pieces: &[String]) -> String {
    let mut text = String::new();
    for (index, line) in flow(pieces, MAX_WIDTH - name_width - 1).iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        text += &format!("{name:<name_width$} {line}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_their_columns() {
        assert_eq!(fit("ab", 4), "ab  ");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("猫の川", 6), "猫の川");
        assert_eq!(fit("猫の川", 5), "猫の…");
        assert_eq!(fit("猫の川", 4), "猫… ");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(width("e\u{301}"), 1);
    }

    #[test]
    fn pieces_flow_into_lines() {
        let pieces = ["the", "·cat", "·sat"].map(str::to_owned);
        assert_eq!(flow(&pieces, 8), ["the·cat", "·sat"]);
        assert_eq!(flow(&pieces, 1), ["the", "·cat", "·sat"]);
    }
}
