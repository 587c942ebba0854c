//! Writes the toy corpus in `data/`: simple stories in which attention has something to find.
//!
//! ```text
//! make_corpus --out data                  writes data/stories.txt and data/stories.jsonl
//! make_corpus --check data                tells them again and compares; exit status 1 where they differ
//! make_corpus --baseline data/stories.txt the loss of a character trigram model on any text
//! ```
//!
//! `data/README.md` says what is in the corpus and why.

mod cast;
mod chooser;
mod corpus;
mod grammar;
mod memories;
mod notes;
mod page;
mod people;
mod teller;
mod trigram;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use corpus::Corpus;

const USAGE: &str = "usage: make_corpus --out DIR | --check DIR | --baseline FILE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["--out", folder] => write(Path::new(folder)),
        ["--check", folder] => check(Path::new(folder)),
        ["--baseline", file] => baseline(Path::new(file)),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The files of the corpus and their content.
fn files(corpus: &Corpus) -> [(&'static str, String); 2] {
    [("stories.txt", corpus.text.clone()), ("stories.jsonl", corpus.jsonl())]
}

fn write(folder: &Path) -> Result<(), String> {
    let corpus = Corpus::tell();
    fs::create_dir_all(folder).map_err(|error| format!("cannot make the folder `{}`: {error}", folder.display()))?;
    for (name, content) in files(&corpus) {
        let path = folder.join(name);
        fs::write(&path, &content).map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        println!("wrote {} ({} bytes)", path.display(), content.len());
    }
    println!("{}", corpus.summary);
    Ok(())
}

fn check(folder: &Path) -> Result<(), String> {
    let hint = format!("run `make_corpus --out {}` and look at the difference", folder.display());
    for (name, content) in files(&Corpus::tell()) {
        let path = folder.join(name);
        let found = fs::read(&path).map_err(|error| format!("cannot read `{}`: {error}; {hint}", path.display()))?;
        if found != content.as_bytes() {
            let same = found.iter().zip(content.as_bytes()).take_while(|(a, b)| a == b).count();
            let line = content.as_bytes()[..same].split(|byte| *byte == b'\n').count();
            return Err(format!("`{}` is not what the generator writes, from line {line} on; {hint}", path.display()));
        }
        println!("{} is up to date", path.display());
    }
    Ok(())
}

fn baseline(file: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    let n = text.chars().count();
    if n < 20 {
        return Err(format!("`{}` has {n} characters: too few to split off 10 %", file.display()));
    }
    let nats = trigram::validation_loss(&text);
    let bits = nats / std::f64::consts::LN_2;
    println!("character trigram (interpolated Witten-Bell), trained on the first 90 %, last 10 % of {n} characters:");
    println!("{nats:.4} nats per character, {bits:.4} bits per character");
    Ok(())
}
