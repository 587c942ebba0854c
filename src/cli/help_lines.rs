//! Tests that every command's help has examples and every option's help states its unit and default. Manual pages and
//! shell completions are generated from the same texts.

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Cli;
use super::numbers::{is_taken_by, with_negative_numbers};

/// Words that say what a number counts. An option with another unit adds its word here.
const UNITS: &str = "tokens completions sequences records characters bytes MiB steps columns runs rounds heads \
    numbers checkpoints batches processes minutes seconds milliseconds ms probability share factor seed passes";

/// The value names of options that take a number.
const NUMBERS: &[&str] = &["N", "X"];

/// All problems in the help of `command` and its subcommands.
fn problems(command: &Command, called: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if command.get_about().is_none() {
        problems.push(format!("`{called}` has no line that says what it does"));
    }
    let examples = command.get_after_help().map(ToString::to_string);
    if !examples.is_some_and(|text| text.contains("  tinderbox ")) {
        problems.push(format!("`{called}` has no example: give it an after_help"));
    }
    let own = |arg: &&Arg| !["help", "version"].contains(&arg.get_id().as_str());
    for arg in command.get_arguments().filter(own) {
        let missing = problems_of(arg).into_iter();
        problems.extend(missing.map(|problem| format!("`{called} {arg}` {problem}")));
    }
    let subcommands = command.get_subcommands();
    // The program itself calls hidden ones.
    for subcommand in subcommands.filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
        let called = format!("{called} {}", subcommand.get_name());
        problems.extend(self::problems(subcommand, &called));
    }
    problems
}

fn problems_of(arg: &Arg) -> Vec<&'static str> {
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    if help.is_empty() {
        return vec!["has no help: give its field a doc comment"];
    }
    let mut problems = Vec::new();
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let says_what_else = !arg.get_default_values().is_empty()
        || help.contains("[default: ")
        || matches!(arg.get_action(), ArgAction::Append) && help.contains("may be repeated");
    if takes_value && !arg.is_required_set() && !says_what_else {
        problems.push(
            "does not document its default: end its help with [default: ...], give it a default_value_t, or write `may be \
             repeated` for a list",
        );
    }
    let names = arg.get_value_names().unwrap_or_default();
    let is_number = takes_value && names.iter().any(|name| NUMBERS.contains(&name.as_str()));
    // The key in `[default: ...]` must not count as the unit.
    let about = help.split("[default: ").next().unwrap_or_default();
    let mut words = about.split(|c: char| !c.is_alphabetic());
    if is_number && !words.any(|word| UNITS.split(' ').any(|unit| unit == word)) {
        problems.push("does not name its unit: use a word of UNITS, or add one");
    }
    problems
}

/// Builds a command, then returns its [`problems`].
fn problems_of_all(mut command: Command) -> Vec<String> {
    command.build();
    let called = command.get_name().to_owned();
    problems(&command, &called)
}

#[test]
fn options_document_unit_and_default() {
    let problems = problems_of_all(Cli::command());
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// The options of a command and its subcommands, each with the words that lead to it.
fn options(command: &Command, words: &[String]) -> Vec<(Vec<String>, Arg)> {
    let own = command.get_opts().map(|arg| (words.to_vec(), arg.clone()));
    let deeper = command.get_subcommands().flat_map(|command| {
        let words = [words, &[command.get_name().to_owned()]].concat();
        options(command, &words)
    });
    own.chain(deeper).collect()
}

#[test]
fn invalid_numbers_get_plain_errors() {
    let mut command = with_negative_numbers(Cli::command());
    command.build();
    let mut n_checked = 0;
    for (words, arg) in options(&command, &["tinderbox".to_owned()]) {
        let Some(option) = arg.get_long().filter(|_| is_taken_by(&arg)) else { continue };
        for typed in ["ten", "-3"] {
            let words = [&words[..], &[format!("--{option}"), typed.to_owned()]].concat();
            let Err(error) = command.clone().try_get_matches_from(&words) else {
                panic!("{words:?} is accepted");
            };
            let is_negative_number = typed == "-3" && arg.get_value_names().is_some_and(|names| names[0] == "X");
            let text = error.to_string();
            let is_plain = !["digit", "float literal", "non-zero type"].iter().any(|other| text.contains(other));
            let is_of_value = error.kind() == clap::error::ErrorKind::ValueValidation;
            assert!(is_plain && (is_of_value || is_negative_number), "{words:?}: {text}");
            n_checked += 1;
        }
    }
    assert!(n_checked > 60, "{n_checked} options");
}
