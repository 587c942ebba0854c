//! Output from a model or a name cannot control the terminal that shows it.

use std::collections::BTreeSet;
use std::io::Read;

use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use unicode_width::UnicodeWidthStr;

use crate::fixtures::{Folder, Ran, fs, signal};

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
    let mut reader = pair.master.try_clone_reader().expect("the terminal can be read");
    let mut child = pair.slave.spawn_command(command).expect("the binary starts");
    drop(pair.slave);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).ok(); // some systems report a closed terminal as an error
    child.wait().expect("the program ends");
    String::from_utf8(bytes).expect("the bytes are UTF-8").replace("\r\n", "\n")
}

/// Every line fits, and every word of letters is one of the wide output: none is broken, and none is lost in a cut.
#[test]
fn eighty_columns_break_no_word() {
    let folder = Folder::trained();
    let prompt = ["--prompt", "The cat sat"];
    let one = ["--layer", "0", "--head", "1"];
    let of_run = |command: &str, more: &[&str]| {
        let args = ["inspect", command, "runs/tiny"].into_iter().chain(prompt).chain(more.iter().copied());
        args.map(str::to_owned).collect::<Vec<_>>()
    };
    let typed = |args: &str| args.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let commands = [
        typed("runs"),
        typed("runs runs/tiny runs/tiny"),
        typed("metrics runs/tiny"),
        typed("plan tiny.toml --no-measure"),
        typed("plan tiny.toml --no-measure --set model.attention_window=[8]"),
        typed("inspect heads runs/tiny"),
        typed("inspect ablate runs/tiny --max-batches 1"),
        typed("tokenizer info runs/tiny"),
        typed("tokenizer show runs/tiny --file text.txt"),
        typed("inspect map runs/tiny"),
        of_run("compare", &["runs/tiny/last"]),
        typed("eval runs/tiny"),
        typed("devices"),
        of_run("attention", &[]),
        of_run("attention", &one),
        of_run("lens", &[]),
        of_run("lens", &["--token", "3"]),
        of_run("lens", &["--patch-from", "The dog sat", "--answer", "a", "--against", "e"]),
        of_run("explain", &one),
        of_run("embeddings", &["--word", "cat", "--context", "sat", "--positions"]),
    ];
    for args in commands {
        let at = |n_columns: &str| {
            let mut command = folder.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
            command.env("COLUMNS", n_columns);
            Ran::of(command).exits(0).stdout
        };
        let (narrow, wide) = (at("80"), at("400"));
        let too_long = narrow.lines().find(|line| line.width() > 80);
        assert_eq!(too_long, None, "{args:?}\n{narrow}");
        let words = |text: &str| -> BTreeSet<String> {
            let all = text.split(|c: char| !c.is_alphabetic() && c != '…');
            all.filter(|word| word.chars().count() > 2).map(str::to_owned).collect()
        };
        let known = words(&wide);
        let broken: Vec<String> = words(&narrow).into_iter().filter(|word| !known.contains(word)).collect();
        assert!(broken.iter().all(|word| word.ends_with('…')), "{args:?}: {broken:?}\n{narrow}");
    }
}

#[test]
fn texts_and_names_cannot_control_terminal() {
    let folder = Folder::with_run(&["tokenizer.kind=byte", "train.max_steps=1"]);
    let named = format!("runs/{CODES}");
    fs::rename(folder.path("runs/tiny"), folder.path(&named));
    let write = ["generate", &named, "--prompt", CODES, "--max-new-tokens", "3"];
    let attention = ["inspect", "attention", &named, "--prompt", "\u{1b}c owned\u{9b}31m"];
    let attention_json = [&attention[..], &["--format", "json"]].concat();
    let nothing = format!("{named}/nothing");
    for args in [&write[..], &attention, &attention_json, &["runs", "runs"], &["generate", &nothing]] {
        let shown = shown(&folder, args, &[("COLUMNS", "100")]);
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
fn colors_follow_terminal_and_variables() {
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
fn tables_are_colored_in_terminals() {
    let folder = Folder::trained();
    let lens = ["inspect", "lens", "runs/tiny", "--prompt", "The cat"];
    let patch = [&lens[..], &["--patch-from", "The hat", "--answer", "a", "--against", "e"]].concat();
    let ablate = ["inspect", "ablate", "runs/tiny", "--max-batches", "1"];
    for args in [&lens[..], &patch, &ablate] {
        let wide = ("COLUMNS", "100");
        let coloured = shown(&folder, args, &[wide]);
        assert!(coloured.matches("\u{1b}[38;5;").count() > 6, "{args:?}: {coloured:?}");
        assert_eq!(coloured.matches("\u{1b}[38;5;").count(), coloured.matches("\u{1b}[0m").count(), "each ends");
        let exact = shown(&folder, args, &[wide, ("COLORTERM", "truecolor")]);
        assert!(exact.contains("\u{1b}[38;2;"), "{args:?}: {exact:?}");
        let uncoloured = shown(&folder, args, &[wide, ("NO_COLOR", "1")]);
        assert_eq!(uncoloured, plain(&coloured), "{args:?}");
        assert!(uncoloured.ends_with(&folder.succeed(args)), "a pipe has none: {args:?}");
        let asked = folder.succeed(&[args, &["--color", "always"]].concat());
        assert!(coloured.ends_with(&asked), "{args:?}: {asked:?}");
    }
}

#[test]
fn training_shows_bar_curve_and_samples() {
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

/// The line editor has changed the mode of the terminal when they come.
#[test]
fn signals_end_chat_and_restore_terminal() {
    let folder = crate::finetune::folder();
    for name in ["-INT", "-TERM", "-HUP"] {
        let pair = native_pty_system().openpty(PtySize::default()).expect("a terminal");
        let mode = || format!("{:?}", pair.master.get_termios().expect("a terminal has a mode"));
        let before = mode();
        let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin!("tinderbox"));
        command.args(["chat", "runs/base"]);
        command.cwd(folder.path("."));
        command.env("TERM", "xterm-256color");
        let mut reader = pair.master.try_clone_reader().expect("the terminal can be read");
        let mut child = pair.slave.spawn_command(command).expect("the binary starts");
        let (mut seen, mut bytes) = (String::new(), [0; 256]);
        while !seen.contains("> ") {
            let n = reader.read(&mut bytes).expect("the terminal can be read");
            assert!(n > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
        assert_ne!(mode(), before);
        signal(name, child.process_id().expect("it runs"));
        assert_eq!(child.wait().expect("the program ends").exit_code(), 130, "{name}: {seen}");
        assert_eq!(mode(), before, "{name}");
    }
}
