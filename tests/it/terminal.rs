//! Output from a model or a name cannot control the terminal that shows it.

use std::io::Read;

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

use crate::fixtures::Folder;

/// Sets a terminal's title, clipboard and colour: with ESC and with C1 codes.
const CODES: &str = "\u{1b}]0;owned\u{7}\u{1b}]52;c;b3duZWQ=\u{7}\u{9b}31m";

/// Everything that a command writes to a terminal of 60 columns, with these environment variables.
pub fn shown(folder: &Folder, args: &[&str], variables: &[(&str, &str)]) -> String {
    let pair = native_pty_system().openpty(PtySize { rows: 30, cols: 60, ..PtySize::default() }).expect("a terminal");
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin!("tinderbox"));
    command.args(args);
    command.cwd(folder.path("."));
    for unset in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "CI"] {
        command.env_remove(unset);
    }
    command.env("TERM", "xterm-256color");
    for (name, value) in variables {
        command.env(name, value);
    }
    let mut reader = pair.master.try_clone_reader().expect("readable");
    let mut child = pair.slave.spawn_command(command).expect("the binary starts");
    drop(pair.slave);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).ok(); // some systems report a closed terminal as an error
    child.wait().expect("ends");
    String::from_utf8(bytes).expect("text").replace("\r\n", "\n")
}

#[test]
fn a_terminal_is_not_controlled_by_texts_and_names() {
    let folder = Folder::with_run(&["tokenizer.kind=byte", "train.max_steps=1"]);
    let named = format!("runs/{CODES}");
    std::fs::rename(folder.path("runs/tiny"), folder.path(&named)).expect("renamed");
    let write = ["generate", &named, "--prompt", CODES, "--max-new-tokens", "3"];
    let attention = ["inspect", "attention", &named, "--prompt", "\u{1b}c owned\u{9b}31m"];
    let attention_json = [&attention[..], &["--format", "json"]].concat();
    let nothing = format!("{named}/nothing");
    for args in [&write[..], &attention, &attention_json, &["runs", "runs"], &["generate", &nothing]] {
        let shown = shown(&folder, args, &[]);
        let shown = plain(&shown);
        assert!(
            shown.contains("owned") | shown.contains(r#""o","w","n""#)
                && !shown.contains(['\u{1b}', '\u{7}', '\u{9b}']),
            "{args:?}: {shown:?}"
        );
    }
    assert!(folder.succeed(&write).starts_with(CODES), "a pipe gets it as it is");
}

/// The text without the codes that set and end a style, the only ones that Tinderbox writes in lines.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split("\u{1b}[").enumerate() {
        match part.find(|c: char| !c.is_ascii_digit() && c != ';') {
            Some(end) if index > 0 && part[end..].starts_with('m') => plain += &part[end + 1..],
            _ if index > 0 => plain.extend(["\u{1b}[", part]),
            _ => plain += part,
        }
    }
    plain
}

#[test]
fn colours_are_there_for_a_reader_who_wants_them() {
    let folder = Folder::trained();
    let write = ["generate", "runs/tiny", "--prompt", "The", "--max-new-tokens", "3"];
    let (list, wrong) = (["metrics", "runs/tiny"], ["generate", "runs/tin"]);
    let coloured = [&write[..], &list, &wrong].map(|args| shown(&folder, args, &[]));
    assert!(coloured[0].starts_with("\u{1b}[2mThe\u{1b}[0m"), "the prompt is dim: {:?}", coloured[0]);
    assert!(!coloured[0][11..].contains('\u{1b}'), "and the rest is not: {:?}", coloured[0]);
    assert!(coloured[1].starts_with("\u{1b}[1mSTEP  "), "{:?}", coloured[1]);
    assert!(coloured[1].contains("  \u{1b}[1m\u{1b}[32mbest\u{1b}[0m"), "{:?}", coloured[1]);
    assert!(coloured[2].starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m there is no run"), "{:?}", coloured[2]);
    assert!(coloured[2].contains("\n  \u{1b}[36mhint:\u{1b}[0m "), "{:?}", coloured[2]);
    for variables in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        for (args, coloured) in [&write[..], &list, &wrong].into_iter().zip(&coloured) {
            assert_eq!(shown(&folder, args, &[variables]), plain(coloured), "{variables:?}");
        }
    }
    // A pipe gets none, whatever is set.
    for args in [&write[..], &list] {
        assert!(!folder.succeed(args).contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn tables_of_numbers_glow_where_colours_are_seen() {
    let folder = Folder::trained();
    let lens = ["inspect", "lens", "runs/tiny", "--prompt", "The cat"];
    let patch = [&lens[..], &["--patch-from", "The hat", "--answer", "a", "--against", "e"]].concat();
    let ablate = ["inspect", "ablate", "runs/tiny", "--max-batches", "1"];
    for args in [&lens[..], &patch, &ablate] {
        let coloured = shown(&folder, args, &[]);
        assert!(coloured.matches("\u{1b}[38;5;").count() > 6, "{args:?}: {coloured:?}");
        assert_eq!(coloured.matches("\u{1b}[38;5;").count(), coloured.matches("\u{1b}[0m").count(), "each ends");
        let exact = shown(&folder, args, &[("COLORTERM", "truecolor")]);
        assert!(exact.contains("\u{1b}[38;2;"), "{args:?}: {exact:?}");
        let uncoloured = shown(&folder, args, &[("NO_COLOR", "1")]);
        assert_eq!(uncoloured, plain(&coloured), "{args:?}");
        assert!(uncoloured.ends_with(&folder.succeed(args)), "a pipe has none: {args:?}");
        let asked = folder.succeed(&[args, &["--color", "always"]].concat());
        assert!(coloured.ends_with(&asked), "{args:?}: {asked:?}");
    }
}

#[test]
fn training_shows_a_bar_a_curve_and_samples_with_their_margin() {
    let folder = Folder::new();
    let args = ["train", "tiny.toml", "--set", "train.sample_tokens=200"];
    let written = shown(&folder, &args, &[]);
    assert!(written.contains("\u{1b}[2m    |\u{1b}[0m "), "{written:?}");
    assert!(written.contains("\u{1b}[1m\u{1b}[32m(best so far)\u{1b}[0m"), "{written:?}");
    assert!(written.contains("\u{1b}[1m\u{1b}[32mdone:\u{1b}[0m 40 steps in "), "{written:?}");
    assert!(written.contains('▁'), "a curve: {written:?}");
    let lines: Vec<String> = written.lines().map(plain).filter(|line| line.starts_with("    | ")).collect();
    assert!(lines.len() > 10 && lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
    // The log has no colours.
    let log = folder.read("runs/tiny/train.log");
    assert!(!log.contains('\u{1b}') && log.contains("\n    | "), "{log}");
}
