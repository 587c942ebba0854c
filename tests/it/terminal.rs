//! What comes from a model or a name does not control the terminal that it is shown in.

use std::io::Read;

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

use crate::cli::Folder;

/// Sets the title, the clipboard and the colour of a terminal: as ESC and as C1.
const CODES: &str = "\u{1b}]0;owned\u{7}\u{1b}]52;c;b3duZWQ=\u{7}\u{9b}31m";

/// Everything that a command writes to a terminal.
fn shown(folder: &Folder, args: &[&str]) -> String {
    let pair = native_pty_system().openpty(PtySize { rows: 30, cols: 200, ..PtySize::default() }).expect("a terminal");
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin!("tinderbox"));
    command.args(args);
    command.cwd(folder.path("."));
    let mut reader = pair.master.try_clone_reader().expect("readable");
    let mut child = pair.slave.spawn_command(command).expect("the binary starts");
    drop(pair.slave);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).ok(); // an error is how some systems say that the other side is closed
    child.wait().expect("ends");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn a_terminal_is_not_controlled_by_texts_and_names() {
    let folder = Folder::new();
    folder.succeed(&["train", "tiny.toml", "--set", "tokenizer.kind=byte", "--set", "train.max_steps=1"]);
    let named = format!("runs/{CODES}");
    std::fs::rename(folder.path("runs/tiny"), folder.path(&named)).expect("renamed");
    let write = ["generate", &named, "--prompt", CODES, "--max-new-tokens", "3"];
    for args in [&write[..], &["runs", "runs"], &["generate", &format!("{named}/nothing")]] {
        let shown = shown(&folder, args);
        assert!(shown.contains("owned") && !shown.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{args:?}: {shown:?}");
    }
    assert!(folder.succeed(&write).starts_with(CODES), "a pipe gets it as it is");
}
