//! Text in the columns of a terminal.

/// How many columns a character takes: 2 for those of East Asian scripts and most emoji, 0 for marks on the
/// one before.
///
/// The ranges are those of Unicode's East Asian Width, coarsely.
fn width_of(character: char) -> usize {
    match character {
        '\u{300}'..='\u{36f}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1f6ff}'
        | '\u{1f900}'..='\u{1f9ff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// How many columns a text takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// The text in exactly `n` columns: cut with a `…`, or followed by blanks.
pub(super) fn fit(text: &str, n: usize) -> String {
    let mut fitted = String::new();
    let mut left = n;
    if width(text) <= n {
        fitted.push_str(text);
        left -= width(text);
    } else if n > 0 {
        for character in text.chars() {
            if width_of(character) + 1 > left {
                break;
            }
            left -= width_of(character);
            fitted.push(character);
        }
        fitted.push('…');
        left -= 1;
    }
    fitted.extend(std::iter::repeat_n(' ', left));
    fitted
}

/// Pieces one after the other in lines of at most `n` columns, broken between pieces.
pub(super) fn flow(pieces: &[String], n: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for piece in pieces {
        if used > 0 && used + width(piece) > n {
            lines.push(String::new());
            used = 0;
        }
        used += width(piece);
        lines.last_mut().expect("never empty").push_str(piece);
    }
    lines
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
