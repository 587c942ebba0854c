//! Parsers of numeric arguments, with plain error messages.

use std::ops::RangeInclusive;

use clap::{Arg, Command};

/// The value names of options that take a number.
const VALUE_NAMES: [&str; 7] = ["N", "X", "L", "H", "NUMBER", "PORT", "TIME"];

/// Whether an option takes a number.
pub(super) fn is_taken_by(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    arg.get_long().is_some() && names.iter().any(|name| VALUE_NAMES.contains(&name.as_str()))
}

/// Accepts negative numbers as values, so that errors are about the number and not about an unknown option.
pub(super) fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_number = is_taken_by(&arg);
        if is_number { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Parses a whole number, 0 or more.
pub(super) fn count(typed: &str) -> Result<usize, String> {
    usize::try_from(seed(typed)?).map_err(|_| TOO_LARGE.to_owned())
}

pub(super) fn at_least_one(typed: &str) -> Result<usize, String> {
    within(typed, 1..=usize::MAX)
}

pub(super) fn within(typed: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let (least, most) = (*range.start(), *range.end());
    match count(typed)? {
        n if range.contains(&n) => Ok(n),
        _ if most == usize::MAX => Err(format!("it must be at least {least}")),
        _ => Err(format!("it must be at least {least} and at most {most}")),
    }
}

/// Parses a seed: a whole number, 0 or more.
pub(super) fn seed(typed: &str) -> Result<u64, String> {
    let error = match typed.parse() {
        Ok(n) => return Ok(n),
        Err(_) if !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit()) => TOO_LARGE.to_owned(),
        Err(_) => "it must be a whole number, 0 or more".to_owned(),
    };
    // Whole numbers in other notations, such as 1e3 and 10_000, get a hint.
    let meant: Result<f64, _> = typed.replace(['_', ','], "").parse();
    let is_whole = |x: &f64| (0.0..1e15).contains(x) && x.fract() == 0.0 && !typed.starts_with('-');
    Err(meant.ok().filter(is_whole).map_or(error, |x| format!("write it in digits, as in {x}")))
}

const TOO_LARGE: &str = "it is too large";

pub(super) fn number(typed: &str) -> Result<f64, String> {
    typed.parse().map_err(|_| "it must be a number, such as 0.8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_parsers_explain_errors() {
        assert_eq!((count("0"), seed("18446744073709551615")), (Ok(0), Ok(u64::MAX)));
        for (typed, expected) in [
            ("-3", "it must be a whole number, 0 or more"),
            ("", "it must be a whole number, 0 or more"),
            ("2.5", "it must be a whole number, 0 or more"),
            ("ten", "it must be a whole number, 0 or more"),
            ("nan", "it must be a whole number, 0 or more"),
            ("-0.0", "it must be a whole number, 0 or more"),
            ("1e3", "write it in digits, as in 1000"),
            ("10_000", "write it in digits, as in 10000"),
            ("4.0", "write it in digits, as in 4"),
            ("18446744073709551616", "it is too large"),
        ] {
            assert_eq!(count(typed).unwrap_err(), expected, "{typed}");
        }
        assert_eq!(at_least_one("0").unwrap_err(), "it must be at least 1");
        assert_eq!(within("21", 1..=20).unwrap_err(), "it must be at least 1 and at most 20");
        assert_eq!(within("20", 1..=20), Ok(20));
        assert_eq!(number("hot").unwrap_err(), "it must be a number, such as 0.8");
        assert_eq!(number("-1e-3"), Ok(-1e-3));
    }
}
