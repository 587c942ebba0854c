//! `tinderbox chat`: a conversation with a trained model, in the terminal or through a pipe.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config as EditorConfig, Editor};
use serde_json::Map;

use super::args::{Subject, program};
use super::exit::{INTERRUPTED, on_signals};
use super::next::template;
use super::numbers::{count, number};
use super::print::note;
use super::sampling::{self, Sampling};
use super::weights::Formats;
use crate::config::GenerateConfig;
use crate::format::{shell_word, without_control};
use crate::generate::{Generator, LanguageModel};
use crate::tokenizer::{ChatRenderer, Message, Tokenizer};

const EXAMPLES: &str = "\
Examples:
  tinderbox chat runs/smol
  tinderbox chat runs/smol --system \"Answer in one word.\" --temperature 0
  echo \"What is the capital of France?\" | tinderbox chat runs/smol
";

const COMMANDS: &str = "
In the conversation:
  /system TEXT      set the instructions, and start again
  /reset            forget the conversation
  /retry            generate the last answer again
  /temperature X    change the temperature; so do /top-k, /top-p, /min-p and /repetition-penalty
  /save FILE        append the conversation to a JSON Lines file
  /help             show these commands
  /quit             quit, like Ctrl-D; Ctrl-C stops an answer";

#[derive(Debug, clap::Args)]
#[command(after_help = [EXAMPLES, COMMANDS].concat())]
pub(super) struct Args {
    /// System message: instructions before the conversation [default: the template's, if any]
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens in an answer
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 512)]
    max_new_tokens: usize,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    formats: Formats,
    #[command(flatten)]
    subject: Subject,
}

/// Answers line after line until the input ends.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let is_answering = Arc::new(AtomicBool::new(false));
    end_on_signals(is_answering.clone())?;
    let opened = args.subject.open()?;
    let Some(template) = ChatRenderer::of(&opened.tokenizer) else {
        let (program, run) = (program(), shell_word(&args.subject.run));
        bail!(
            "`{}` has no chat template, which turns a conversation into a prompt\n  hint: instruct models have one; \
             `{program} generate {run}` continues a text with any model, and `{program} finetune {run} --data FILE \
             --template {}` teaches it to answer",
            args.subject.run.display(),
            template(&args.subject.run)
        );
    };
    template.parse().context("the chat template cannot be used")?;
    let settings =
        GenerateConfig { max_new_tokens: args.max_new_tokens, ..args.sampling.apply(&opened.config.generate) };
    sampling::check(&settings, "--")?;
    let model = args.formats.convert(opened.model, &opened.device.name)?;
    let mut chat = Chat { model, tokenizer: opened.tokenizer, template, settings, messages: Vec::new(), is_answering };
    chat.begin(args.system.clone());
    let mut input = Input::new()?;
    if input.is_terminal() {
        note("/help shows the commands, Ctrl-D ends the conversation");
    }
    while let Some(line) = input.read()? {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let done = match line.strip_prefix('/') {
            Some(command) => chat.command(command),
            None => chat.ask(line).map(|()| true),
        };
        match done {
            Ok(true) => {}
            Ok(false) => break,
            // An error does not end a conversation in a terminal.
            Err(error) if input.is_terminal() => note(super::exit::describe(&error)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends the program at a signal; but in a terminal, Ctrl-C while `is_answering` only stops the answer.
fn end_on_signals(is_answering: Arc<AtomicBool>) -> anyhow::Result<()> {
    let is_terminal = is_terminal();
    #[cfg(unix)]
    let mode = nix::sys::termios::tcgetattr(io::stdin()).ok().filter(|_| is_terminal);
    on_signals(move |is_ctrl_c| {
        let was_answering = is_answering.swap(false, Ordering::Relaxed);
        if is_ctrl_c && is_terminal && was_answering {
            return;
        }
        // The line editor has changed the mode, and the keys that mark what is pasted.
        #[cfg(unix)]
        if let Some(mode) = &mode {
            nix::sys::termios::tcsetattr(io::stdin(), nix::sys::termios::SetArg::TCSANOW, mode).ok();
            if !was_answering {
                writeln!(io::stdout(), "\x1b[?2004l").ok();
            }
        }
        std::process::exit(i32::from(INTERRUPTED));
    })
}

/// Whether lines come from a terminal, and answers go to it.
fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

struct Chat {
    model: LanguageModel,
    tokenizer: Tokenizer,
    template: ChatRenderer,
    settings: GenerateConfig,
    messages: Vec<Message>,
    /// Whether an answer is being generated, and is to go on.
    is_answering: Arc<AtomicBool>,
}

impl Chat {
    /// Forgets the conversation, and sets the instructions.
    fn begin(&mut self, system: Option<String>) {
        self.messages = system.map(|text| Message::new("system", text)).into_iter().collect();
    }

    /// Runs a command; returns false if it ends the conversation.
    fn command(&mut self, command: &str) -> anyhow::Result<bool> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" => return Ok(false),
            "system" => self.begin((!rest.is_empty()).then(|| rest.to_owned())),
            "reset" => {
                let system = self.messages.first().filter(|first| first.role == "system");
                self.begin(system.map(|first| first.content.clone()));
            }
            "retry" => {
                let last = self.messages.iter().rposition(|message| message.role == "user");
                let last = last.context("there is no answer yet\n  hint: ask something first")?;
                let question = self.messages.remove(last).content;
                self.messages.truncate(last);
                self.settings.seed = self.settings.seed.wrapping_add(1); // so that the answer differs
                self.ask(&question)?;
            }
            "save" => self.save(Path::new(rest))?,
            "help" => note(COMMANDS.trim_start()),
            _ => self.set(name, rest)?,
        }
        Ok(true)
    }

    /// Changes a setting of sampling.
    fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let mut settings = self.settings.clone();
        let wrong = |error: String| anyhow!("/{name} {value}: {error}");
        let changed = match name {
            "temperature" => &mut settings.temperature,
            "top-p" => &mut settings.top_p,
            "min-p" => &mut settings.min_p,
            "repetition-penalty" => &mut settings.repetition_penalty,
            "top-k" => {
                self.settings.top_k = count(value).map_err(wrong)?;
                return Ok(());
            }
            _ => bail!("there is no command /{name}\n  hint: /help shows the commands"),
        };
        *changed = number(value).map_err(wrong)?;
        sampling::check(&settings, "/")?;
        self.settings = settings;
        Ok(())
    }

    /// Answers a question, and keeps both; keeps neither on an error.
    fn ask(&mut self, question: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", question));
        self.is_answering.store(true, Ordering::Relaxed);
        let answer = self.answer();
        self.is_answering.store(false, Ordering::Relaxed);
        match answer {
            Ok(answer) => {
                self.messages.push(Message::new("assistant", answer));
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&self) -> anyhow::Result<String> {
        let prompt = self.template.render(&self.messages, true, &Map::new());
        let prompt = prompt.context("the chat template rejected the conversation")?;
        let (n_tokens, n_context) = (self.tokenizer.encode_prompt(&prompt)?.len(), self.model.config().context_length);
        if n_tokens >= n_context {
            let hint = match self.messages.iter().filter(|message| message.role == "user").count() {
                1 => "ask something shorter; the template and the system message need room, too",
                _ => "/reset starts again",
            };
            bail!(
                "the conversation has {n_tokens} tokens, and the context of the model holds {n_context}\n  hint: {hint}"
            );
        }
        let max_new_tokens = self.settings.max_new_tokens.min(n_context - n_tokens);
        let settings = GenerateConfig { max_new_tokens, ..self.settings.clone() };
        let mut stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        let mut answer = String::new();
        for piece in Generator::new(self.model.clone(), &self.tokenizer, &settings, &prompt, 0)? {
            let piece = piece?;
            match is_terminal {
                true => stdout.write_all(without_control(&piece).as_bytes())?,
                false => stdout.write_all(piece.as_bytes())?,
            }
            stdout.flush()?;
            answer.push_str(&piece);
            if !self.is_answering.load(Ordering::Relaxed) {
                break;
            }
        }
        writeln!(stdout)?;
        if is_terminal {
            let n_used = n_tokens + self.tokenizer.encode(&answer)?.len();
            note(format!("[{} of {n_context} tokens left]", n_context.saturating_sub(n_used)));
        }
        Ok(answer.trim().to_owned())
    }

    /// Appends the conversation to a file of records for fine-tuning.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        if path.as_os_str().is_empty() {
            bail!("/save needs the name of a file\n  hint: /save talk.jsonl");
        }
        let record = serde_json::json!({ "messages": self.messages });
        let mut options = fs::OpenOptions::new();
        let file = options.append(true).create(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{record}"));
        written.with_context(|| format!("cannot write `{}`", path.display()))?;
        note(format!("added to `{}`", path.display()));
        Ok(())
    }
}

enum Input {
    /// With editing and a history.
    Terminal(Box<Editor<(), DefaultHistory>>),
    Pipe(io::StdinLock<'static>),
}

impl Input {
    fn new() -> anyhow::Result<Self> {
        if !is_terminal() {
            return Ok(Self::Pipe(io::stdin().lock()));
        }
        let config = EditorConfig::builder().auto_add_history(true).build();
        Ok(Self::Terminal(Box::new(Editor::with_config(config)?)))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; `None` at the end of the input.
    fn read(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Terminal(editor) => loop {
                match editor.readline("> ") {
                    Ok(line) => return Ok(Some(line)),
                    Err(ReadlineError::Interrupted) => note("Ctrl-D or /quit ends the conversation"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            },
            Self::Pipe(input) => {
                let mut line = String::new();
                Ok((input.read_line(&mut line)? > 0).then_some(line))
            }
        }
    }
}
