//! `tinderbox tokenizer`: encodes text, decodes tokens, and describes a tokenizer.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use super::drawn::{Colors, Drawn, DrawnOutput};
use super::inspect::prompts::{about, place};
use super::print::{note, print, print_json};
use crate::format::grouped;
use crate::inspect::{self, Prompt};
use crate::run::{self, RunDir, Trained};
use crate::tokenizer::{Tokenizer, visible};
use crate::view::{self, ReadText};

/// The number of tokens that `info` lists.
const N_SHOWN: usize = 8;

/// `show` draws up to this many tokens.
const MAX_SHOWN: usize = 4096;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox tokenizer encode runs/quickstart \"The bank\"
  tinderbox tokenizer info runs/quickstart")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print the tokens of a text, one per line
    Encode(Encode),
    /// Show a text split into tokens, coloured by how well the run's model predicts them
    Show(Show),
    /// Print the text of token ids
    Decode(Decode),
    /// Describe a tokenizer, with its longest tokens
    Info(Info),
}

/// A tokenizer and a text for it.
#[derive(Debug, clap::Args)]
struct Given {
    /// Run directory, a checkpoint in it, or a tokenizer.json
    run: PathBuf,
    /// Text; precede it with -- if it begins with a dash [default: standard input]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    /// File with the text in UTF-8, or - for standard input [default: TEXT, or standard input]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Given {
    fn read(&self) -> anyhow::Result<Vec<u8>> {
        let text = match (&self.text, &self.file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) if path != Path::new("-") => {
                fs::read(path).with_context(|| format!("cannot read the text `{}`", path.display()))?
            }
            (None, _) => read_stdin("a text, or --file with the path of one")?,
        };
        if text.is_empty() {
            bail!("the text is empty\n  hint: give at least one character");
        }
        Ok(text)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox tokenizer encode runs/quickstart \"The bank\"
  tinderbox tokenizer encode runs/quickstart --file my.txt --ids")]
struct Encode {
    #[command(flatten)]
    given: Given,
    /// Print only the ids, on one line
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox tokenizer show runs/quickstart \"The bank of the river\"
  tinderbox tokenizer show runs/quickstart --file my.txt --format html --output my.html")]
struct Show {
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    colors: Colors,
    #[command(flatten)]
    output: DrawnOutput,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox tokenizer decode runs/quickstart 31 47 44")]
struct Decode {
    /// Run directory, a checkpoint in it, or a tokenizer.json
    run: PathBuf,
    /// Token ids, separated by spaces or commas [default: standard input]
    #[arg(allow_negative_numbers = true)]
    ids: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox tokenizer info runs/quickstart")]
struct Info {
    /// Run directory, a checkpoint in it, or a tokenizer.json
    run: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Encode(args) => encode(args),
        Action::Show(args) => show(args),
        Action::Decode(args) => decode(args),
        Action::Info(args) => info(args),
    }
}

fn encode(args: &Encode) -> anyhow::Result<()> {
    let tokenizer = open(&args.given.run)?;
    let text = args.given.read()?;
    let ids = tokenizer.encode_bytes(&text).context("cannot encode the text")?;
    let (n_tokens, n_bytes) = (ids.len(), text.len());
    let bytes_per_token = n_bytes as f64 / n_tokens.max(1) as f64;
    if args.ids {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        return print(&(ids.join(" ") + "\n"));
    }
    if args.json {
        return print_json(&json!({
            "tokens": n_tokens, "bytes": n_bytes, "bytes_per_token": bytes_per_token,
            "ids": ids, "pieces": pieces(&tokenizer, &ids),
        }));
    }
    let lines = lines(&tokenizer, &ids);
    print(&format!("{lines}\n{n_tokens} tokens of {n_bytes} bytes: {bytes_per_token:.2} bytes per token\n"))
}

/// Shows the tokens in place, with the bits of each if the run has a model.
fn show(args: &Show) -> anyhow::Result<()> {
    args.colors.check(&args.output)?;
    args.output.file.check()?;
    let path = &args.given.run;
    let tokenizer = open(path)?;
    let text = args.given.read()?;
    let mut ids = tokenizer.encode_bytes(&text).context("cannot encode the text")?;
    if ids.len() > MAX_SHOWN {
        note(format!(
            "note: the first {} of {} tokens are shown",
            grouped(MAX_SHOWN as u64),
            grouped(ids.len() as u64)
        ));
        ids.truncate(MAX_SHOWN);
    }
    let prompt = Prompt::of_ids(ids, &tokenizer);
    let opened = if run::locate(path).is_ok() { Some(Trained::open(path, None)?) } else { None };
    let bits = match &opened {
        Some(opened) => inspect::bits(&opened.model, &opened.tokenizer, &prompt)?,
        None => Vec::new(),
    };
    let name = opened.as_ref().map_or_else(|| path.display().to_string(), place);
    let sheet = view::tokens_sheet(&ReadText { name, prompt: &prompt, bits: bits.clone() });
    let drawn = Drawn { json: json!({ "tokens": prompt.texts, "ids": prompt.ids, "bits": bits }).to_string(), sheet };
    args.output.write(
        "A text in its tokens",
        &opened.as_ref().map(about).unwrap_or_default(),
        vec![drawn],
        args.colors.style(&args.output.file),
    )
}

fn decode(args: &Decode) -> anyhow::Result<()> {
    let tokenizer = open(&args.run)?;
    let words = match args.ids.as_slice() {
        [] => String::from_utf8_lossy(&read_stdin("ids, such as 5 0 12")?).into_owned(),
        words => words.join(" "),
    };
    let n_ids = tokenizer.vocab_size();
    let last = n_ids - 1;
    let mut ids = Vec::new();
    let words = words.split(|c: char| c.is_whitespace() || c == ',');
    for word in words.filter(|word| !word.is_empty()) {
        match word.parse::<u32>() {
            Ok(id) if (id as usize) < n_ids => ids.push(id),
            Ok(_) => bail!("there is no token {word}: this tokenizer has {n_ids}\n  hint: ids are from 0 to {last}"),
            Err(_) => bail!("`{word}` is not an id\n  hint: ids are whole numbers from 0 to {last}"),
        }
    }
    if ids.is_empty() {
        bail!("there are no ids to decode\n  hint: give at least one, such as 0");
    }
    let text = tokenizer.decode(&ids);
    // On a terminal, a line break separates the text from the shell's prompt.
    let is_unfinished = io::stdout().is_terminal() && !text.ends_with('\n');
    print(&(text + if is_unfinished { "\n" } else { "" }))
}

fn info(args: &Info) -> anyhow::Result<()> {
    let tokenizer = open(&args.run)?;
    let kind = serde_json::to_value(tokenizer.kind())?;
    let added = tokenizer.added_tokens();
    let longest = longest(&tokenizer, &added);
    if args.json {
        let added: Vec<_> = added.iter().map(|(id, content)| json!({ "id": id, "content": content })).collect();
        return print_json(&json!({
            "kind": kind, "vocab_size": tokenizer.vocab_size(), "end_of_text": tokenizer.end_of_text(),
            "added_tokens": added, "longest": pieces(&tokenizer, &longest),
        }));
    }
    let name = |id| format!("{id} {}", visible(&tokenizer.piece(id)));
    let mut facts = vec![
        ("kind", kind.as_str().unwrap_or_default().to_owned()),
        ("tokens", tokenizer.vocab_size().to_string()),
        ("end of text", tokenizer.end_of_text().map_or_else(|| "none".to_owned(), name)),
    ];
    if !added.is_empty() {
        let mut names: Vec<String> = added.iter().take(N_SHOWN).map(|(id, _)| name(*id)).collect();
        if added.len() > N_SHOWN {
            names.push(format!("and {} more", added.len() - N_SHOWN));
        }
        facts.push(("added tokens", names.join(", ")));
    }
    let facts: Vec<String> = facts.into_iter().map(|(name, fact)| format!("{name:<17}{fact}\n")).collect();
    print(&format!("{}\nlongest\n{}", facts.concat(), lines(&tokenizer, &longest)))
}

/// Opens the tokenizer of a run, of a folder with a tokenizer.json, or of a tokenizer file.
fn open(path: &Path) -> anyhow::Result<Tokenizer> {
    let within = path.join("tokenizer.json");
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let is_in_run = RunDir::open(path.parent().unwrap_or(path)).is_ok(); // true for `best` and `last`
    if is_json || (path.is_file() && !is_in_run) {
        Ok(Tokenizer::from_file(path)?)
    } else if within.is_file() {
        Ok(Tokenizer::from_file(&within)?) // also of a run before its first checkpoint
    } else {
        Ok(run::locate(path)?.run.tokenizer()?)
    }
}

fn read_stdin(wanted: &str) -> anyhow::Result<Vec<u8>> {
    let mut stdin = io::stdin().lock();
    if stdin.is_terminal() {
        bail!("there is nothing to read\n  hint: give {wanted}, or use a pipe");
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|id| tokenizer.piece(*id)).collect()
}

/// The id and the text of each token, one token per line.
fn lines(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let width = (tokenizer.vocab_size() - 1).to_string().len();
    let line = |id: &u32| format!("{id:>width$}  {}\n", visible(&tokenizer.piece(*id)));
    ids.iter().map(line).collect::<Vec<_>>().concat()
}

/// The longest tokens, longest first, without added tokens.
fn longest(tokenizer: &Tokenizer, added: &[(u32, String)]) -> Vec<u32> {
    let is_added = |id: &u32| added.binary_search_by_key(id, |(id, _)| *id).is_ok();
    let mut ids: Vec<u32> = (0..).take(tokenizer.vocab_size()).filter(|id| !is_added(id)).collect();
    let length = |id| tokenizer.token_bytes(id).map_or_else(|| tokenizer.piece(id).chars().count(), <[u8]>::len);
    ids.sort_by_cached_key(|id| std::cmp::Reverse(length(*id)));
    ids.truncate(N_SHOWN);
    ids
}
