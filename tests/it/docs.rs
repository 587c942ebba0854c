//! The pages name only commands, flags and files that exist.

use std::collections::BTreeMap;

use crate::fixtures::{Folder, fs};

/// Commands whose next word is a command, too.
const GROUPS: [&str; 5] = ["bench", "cache", "data", "inspect", "tokenizer"];

/// README, CONTRIBUTING and the pages of docs/, by their paths.
fn pages() -> BTreeMap<String, String> {
    let docs = fs::read_dir("docs").expect("docs/ is there").map(|entry| entry.expect("docs/ can be read").path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let paths = docs.chain(["README.md".into(), "CONTRIBUTING.md".into()]);
    paths.map(|path| (path.display().to_string(), fs::read_to_string(path))).collect()
}

fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase())
}

#[test]
fn pages_name_commands_and_flags_that_exist() {
    let (folder, mut helps) = (Folder::new(), BTreeMap::<Vec<String>, String>::new());
    let mut n_flags = 0;
    for (page, text) in pages() {
        let text = text.replace("\\\n", " ");
        for line in text.split("tinderbox ").skip(1).filter_map(|rest| rest.split(['\n', '`', '|', '>', '#']).next()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(command) = words.first().filter(|word| is_name(word) && **word != "help") else { continue };
            let group = words.get(1).filter(|word| GROUPS.contains(command) && is_name(word));
            let names: Vec<String> = [command].into_iter().chain(group).map(|&name| name.to_owned()).collect();
            let help = helps.entry(names).or_insert_with_key(|names| {
                let args: Vec<&str> = names.iter().map(String::as_str).chain(["--help"]).collect();
                let ran = folder.run(&args);
                assert_eq!(ran.code, Some(0), "{page}: `tinderbox {line}`: {}", ran.stderr);
                ran.stdout
            });
            for flag in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
                let flag =
                    flag.split('=').next().expect("a split has a first part").trim_end_matches([',', '.', ':', ')']);
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let exists = help.split(|c: char| !is_part(c)).any(|word| word == flag);
                assert!(exists, "{page}: `tinderbox {line}`: there is no {flag}");
                n_flags += 1;
            }
        }
    }
    assert!(helps.len() > 25 && n_flags > 100, "{} commands, {n_flags} flags", helps.len());
}

#[test]
fn pages_name_files_that_exist() {
    for (page, text) in pages() {
        for path in text.split('`').skip(1).step_by(2) {
            let is_ours =
                ["crates/", "scripts/", "examples/", "configs/", "tests/"].iter().any(|room| path.starts_with(room));
            let is_path =
                path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) && !path.contains("NAME");
            assert!(!is_ours || !is_path || std::path::Path::new(path).exists(), "{page}: there is no `{path}`");
        }
    }
}
