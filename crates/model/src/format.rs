//! Formats numbers, sizes and times for display, and quotes words for a shell.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::Path;

use serde::Serializer;
use unicode_width::UnicodeWidthChar;

/// A number with thousands separators: `1,115,394`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join(",")
}

/// A count with its noun: `1 line`, `1,200 lines`.
pub fn counted(n: u64, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", grouped(n))
}

/// A number with this many decimals; zero has no sign.
pub fn fixed(x: f64, decimals: usize) -> String {
    let text = format!("{x:.decimals$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c == '0' || c == '.') => rest.to_owned(),
        _ => text,
    }
}

/// A number with this many decimals and always a sign: `+0.5000`, `-0.5000`, `+0.0000`.
pub fn signed(x: f64, decimals: usize) -> String {
    let text = fixed(x, decimals);
    if text.starts_with('-') { text } else { format!("+{text}") }
}

/// A share in percent: `12.5 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", fixed(100.0 * share, 1))
}

/// A positive number with about three significant digits and thousands separators: `0.03`, `74.8`, `19,855`.
pub fn short(x: f64) -> String {
    match x {
        _ if x >= 1000.0 => whole(x),
        _ if x >= 100.0 => format!("{x:.0}"),
        _ if x >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// A number rounded to an integer, with thousands separators: `19,855`.
pub fn whole(x: f64) -> String {
    grouped(rounded(x))
}

/// The nearest integer; 0 for a negative number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the conversion saturates")]
fn rounded(x: f64) -> u64 {
    x.round() as u64
}

/// The text, or a dash if there is none.
pub fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// A time in seconds: `8.1 s`, `2 min 5 s`, `1 h 20 min`, `12 days 3 h`.
pub fn duration(s: f64) -> String {
    match rounded(s) {
        0..60 => format!("{s:.1} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole @ 3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        whole => format!("{} days {} h", grouped(whole / 86_400), whole % 86_400 / 3600),
    }
}

/// A time in milliseconds: `1.23 ms`, `123 ms`, `12.3 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 9_999.5 => format!("{:.1} s", ms / 1e3),
        _ if ms >= 99.5 => format!("{ms:.0} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

/// A time rounded down to whole units of its largest unit: `45 s`, `2 h`, `12 d`.
pub fn rough_duration(s: f64) -> String {
    let (n, unit) = match s {
        ..60.0 => (s.max(0.0), "s"),
        ..3600.0 => (s / 60.0, "min"),
        ..86_400.0 => (s / 3600.0, "h"),
        _ => (s / 86_400.0, "d"),
    };
    format!("{:.0} {unit}", n.floor())
}

/// A number with three significant digits: `804K`, `1.23M`.
pub fn compact(n: u64) -> String {
    let mut units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")].into_iter();
    // A number that would be rounded up to the next unit uses that unit.
    let Some((size, unit)) = units.find(|(size, _)| n as f64 >= size * 0.9995) else { return n.to_string() };
    match n as f64 / size {
        x if x < 9.995 => format!("{x:.2}{unit}"),
        x if x < 99.95 => format!("{x:.1}{unit}"),
        x => format!("{x:.0}{unit}"),
    }
}

/// A size in bytes, in a suitable unit: `3.0 MiB`, `20.0 GiB`.
pub fn size(bytes: u64) -> String {
    let mib = bytes as f64 / 1_048_576.0;
    match mib {
        _ if mib >= 1024.0 * 1024.0 => format!("{:.1} TiB", mib / 1024.0 / 1024.0),
        _ if mib >= 10_240.0 => format!("{:.1} GiB", mib / 1024.0),
        _ => format!("{mib:.1} MiB"),
    }
}

/// A word, such as a path, quoted for a shell if necessary: on Windows for both cmd and PowerShell.
pub fn shell_word(word: impl AsRef<OsStr>) -> String {
    quoted(&word.as_ref().to_string_lossy(), cfg!(windows))
}

fn quoted(word: &str, on_windows: bool) -> String {
    let others = if on_windows { r"-_./=:+\" } else { "-_./=:,+@%" };
    if !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || others.contains(c)) {
        return word.to_owned();
    }
    if !on_windows {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // A program takes a doubled quote for one, and backslashes before a quote in pairs.
    let parts = word.split('"').map(|part| [part, &part[part.trim_end_matches('\\').len()..]].concat());
    format!("\"{}\"", parts.collect::<Vec<_>>().join("\"\""))
}

/// The text with terminal control characters (C0 and C1 except line breaks and tabs) replaced by U+FFFD.
pub fn without_control(text: &str) -> Cow<'_, str> {
    let controls = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(controls) { text.replace(controls, "\u{fffd}").into() } else { text.into() }
}

/// Serializes a path as a text, in which U+FFFD replaces what is not UTF-8.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The first line of a displayed value, for instance an error without its hint.
pub fn first_line(text: impl Display) -> String {
    text.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The text in at most `max` characters; in a longer text an ellipsis replaces the middle.
pub fn cut_in_the_middle(text: &str, max: usize) -> String {
    let n = text.chars().count();
    if n <= max {
        return text.to_owned();
    }
    let kept = max.saturating_sub(1);
    let head: String = text.chars().take(kept / 2).collect();
    let tail: String = text.chars().skip(n - (kept - kept / 2)).collect();
    format!("{head}\u{2026}{tail}")
}

/// A line wrapped to at most `n_columns` terminal columns, at white space where possible.
pub fn wrapped(line: &str, n_columns: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for word in line.split_inclusive(char::is_whitespace) {
        let columns: usize = word.trim_end().chars().map(columns_of).sum();
        if used > 0 && columns <= n_columns && used + columns > n_columns {
            pieces.push(String::new());
            used = 0;
        }
        for c in word.chars().map(|c| if c == '\t' { ' ' } else { c }) {
            let is_over = used + columns_of(c) > n_columns;
            if is_over && c == ' ' {
                continue; // white space at the end of a line is invisible
            }
            if is_over {
                pieces.push(String::new());
                used = 0;
            }
            used += columns_of(c);
            pieces.last_mut().expect("there is always a last piece").push(c);
        }
    }
    pieces
}

fn columns_of(c: char) -> usize {
    c.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_control_removes_terminal_codes() {
        assert_eq!(without_control("a\tb\n\u{e9} \u{202e}"), "a\tb\n\u{e9} \u{202e}");
        let codes = "\u{1b}]52;c;aGk=\u{7}\r\u{9b}31m\u{7f}";
        assert_eq!(without_control(codes), "\u{fffd}]52;c;aGk=\u{fffd}\u{fffd}\u{fffd}31m\u{fffd}");
    }

    #[test]
    fn cut_in_the_middle_keeps_both_ends() {
        assert_eq!(cut_in_the_middle("abcdefgh", 8), "abcdefgh");
        assert_eq!(cut_in_the_middle("abcdefgh", 5), "ab\u{2026}gh");
        assert_eq!(cut_in_the_middle("\u{e4}\u{f6}\u{fc}\u{df}xyz", 4), "\u{e4}\u{2026}yz");
    }

    #[test]
    fn numbers_are_shortened_and_grouped() {
        assert_eq!([7, 999, 804_096, 124_439_808].map(grouped), ["7", "999", "804,096", "124,439,808"]);
        assert_eq!([0.034, 2.7949, 74.76, 512.4, 19_855.3].map(short), ["0.03", "2.79", "74.8", "512", "19,855"]);
        assert_eq!(
            [7, 999, 1234, 804_096, 999_600, 12_345_678, 1_500_000_000].map(compact),
            ["7", "999", "1.23K", "804K", "1.00M", "12.3M", "1.50G"]
        );
        assert_eq!([1 << 20, 20 << 30, 3 << 40].map(size), ["1.0 MiB", "20.0 GiB", "3.0 TiB"]);
    }

    #[test]
    fn wrapped_breaks_between_words_or_within_long_ones() {
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(wrapped("abcdefg", 5), ["abcde", "fg"]);
        assert_eq!(wrapped("the cat sat down", 7), ["the cat", "sat ", "down"]);
        assert_eq!(wrapped("a\tb", 9), ["a b"], "a tab has no width");
        assert_eq!(wrapped("日本語", 5), ["日本", "語"], "two columns each");
        assert_eq!(wrapped("to abcdefgh", 5), ["to ab", "cdefg", "h"]);
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!([-0.0001, -0.5, 2.0].map(|x| fixed(x, 3)), ["0.000", "-0.500", "2.000"]);
        assert_eq!([-0.000_01, 0.5].map(|x| signed(x, 4)), ["+0.0000", "+0.5000"]);
        assert_eq!([-0.0001, 0.125].map(percent), ["0.0 %", "12.5 %"]);
    }

    #[test]
    fn durations_have_suitable_units() {
        assert_eq!(
            [0.04, 8.14, 59.96, 125.4, 4800.0, 1_000_000.0].map(duration),
            ["0.0 s", "8.1 s", "1 min 0 s", "2 min 5 s", "1 h 20 min", "11 days 13 h"]
        );
        assert_eq!([1.234, 123.4, 12_345.0].map(milliseconds), ["1.23 ms", "123 ms", "12.3 s"]);
        assert_eq!([-5.0, 59.9, 119.0, 7200.0, 200_000.0].map(rough_duration), ["0 s", "59 s", "1 min", "2 h", "2 d"]);
    }

    #[test]
    fn shell_word_quotes_special_characters() {
        for (word, expected) in [
            ("train.max_steps=3000", "train.max_steps=3000"),
            ("my runs/one", "'my runs/one'"),
            ("generate.stop=[\"it's\"]", r#"'generate.stop=["it'\''s"]'"#),
            ("", "''"),
        ] {
            assert_eq!(quoted(word, false), expected);
        }
        for (word, expected) in [
            (r"C:\runs\one", r"C:\runs\one"),
            ("runs/a,b", r#""runs/a,b""#),
            (r"C:\my runs\", r#""C:\my runs\\""#),
            (r#"generate.stop=["it's", "\""]"#, r#""generate.stop=[""it's"", ""\\""""]""#),
            ("", r#""""#),
        ] {
            assert_eq!(quoted(word, true), expected);
        }
    }
}
