//! Renders the chat template of a model in a process of its own.
//!
//! A template comes with a model from elsewhere. It can overflow the stack, fill the memory or never end, and a thread that
//! does so cannot be stopped. The process reads and writes lines of JSON: first the template, then conversations.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::http::to_json;
use super::limits::{MAX_CHATS, MAX_TEXT};
use crate::format::cut_in_the_middle;
use crate::measure::rss_mib;
use crate::tokenizer::{ChatTemplateSource, Message, Tokenizer};

/// The argument with which the program calls [`render_chats`].
pub const COMMAND: &str = "render-chats";

/// The exit codes of the process, if a limit was exceeded.
const TOO_SLOW: u8 = 3;
const TOO_LARGE: u8 = 4;

/// The maximum length of an error in characters; templates can raise their own.
const MAX_ERROR: usize = 1000;

/// How often the limits are checked while a template is rendered.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The limits within which a chat template is rendered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RenderLimits {
    /// The time of a conversation.
    pub time: Duration,
    /// The memory of the process.
    pub memory_mib: u32,
    /// The stack in bytes.
    pub stack: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(2), memory_mib: 256, stack: 8 << 20 }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Whether the prompt ends where the next message begins, instead of with the last message.
    pub(super) add_generation_prompt: bool,
    pub(super) variables: Map<String, Value>,
}

/// The chat template of a model, and the process that renders it. The first conversation starts the process, as does the
/// next one after a conversation that ended it.
pub(super) struct Renderer {
    program: PathBuf,
    /// `None` for a model without a template.
    setup: Option<Setup>,
    process: Mutex<Option<Process>>,
    permits: Semaphore,
}

/// The first line that the process reads.
#[derive(Serialize, Deserialize)]
struct Setup {
    source: ChatTemplateSource,
    limits: RenderLimits,
}

impl Renderer {
    pub(super) fn new(program: &Path, limits: RenderLimits, tokenizer: &Tokenizer) -> Self {
        let setup = ChatTemplateSource::from_tokenizer(tokenizer).map(|source| Setup { source, limits });
        Self { program: program.to_owned(), setup, process: Mutex::new(None), permits: Semaphore::new(MAX_CHATS) }
    }

    /// The prompt that the template of `model` makes of a conversation, which is in the field `field`; waits for earlier ones.
    pub(super) fn render(&self, field: &str, model: &str, conversation: &Conversation) -> Result<String, ApiError> {
        let no_template = || ApiError::field("model", format!("`{model}` has no chat template; use /v1/completions"));
        let busy = |_| ApiError::busy(&format!("{MAX_CHATS} conversations wait for the template of `{model}`"));
        let unusable = |why| ApiError::bad_request(format!("the chat template of `{model}` cannot be used: {why}"));
        let refused =
            |why| ApiError::field(field, format!("the chat template of `{model}` does not take these: {why}"));
        let setup = self.setup.as_ref().ok_or_else(no_template)?;
        let _permit = self.permits.try_acquire().map_err(busy)?;
        let mut slot = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let process = slot.take().map_or_else(|| Process::start(&self.program, setup), Ok);
        let mut process = process.map_err(unusable)?;
        let rendered = process.ask(conversation).map_err(unusable)?;
        *slot = Some(process);
        rendered.map_err(refused)
    }
}

struct Process {
    child: Child,
    replies: BufReader<ChildStdout>,
    limits: RenderLimits,
}

impl Process {
    fn start(program: &Path, setup: &Setup) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        #[cfg(unix)] // Ctrl-C must not end it: the server finishes requests in progress
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| format!("its process cannot be started: {error}"))?;
        let replies = BufReader::new(child.stdout.take().expect("standard input and output are piped"));
        let mut process = Self { child, replies, limits: setup.limits };
        process.ask(setup).flatten()?;
        Ok(process)
    }

    /// Sends a line; returns the reply, or the reason why the process ended.
    fn ask(&mut self, request: &impl Serialize) -> Result<Result<String, String>, String> {
        let line = to_json(request) + "\n";
        let mut reply = String::new();
        let sent = self.child.stdin.as_mut().expect("standard input and output are piped").write_all(line.as_bytes());
        let replied = sent.and_then(|()| self.replies.read_line(&mut reply));
        let reply = replied.ok().and_then(|_| serde_json::from_str(&reply).ok());
        reply.ok_or_else(|| self.end())
    }

    /// Ends the process; returns the reason if it had ended by itself.
    fn end(&mut self) -> String {
        self.child.kill().ok(); // it may have ended already
        let code = self.child.wait().ok().and_then(|status| status.code());
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(TOO_SLOW) => format!("it takes longer than {} s", self.limits.time.as_secs_f64()),
            Some(TOO_LARGE) => format!("it needs more than {} MiB of memory", self.limits.memory_mib),
            _ => "it nests too deeply, or needs too much memory at once".to_owned(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The main function of the process: replies to lines on standard input until they end or a limit is exceeded. Returns the
/// exit code.
pub fn render_chats() -> u8 {
    let mut line = String::new();
    let setup = io::stdin().read_line(&mut line).ok().and_then(|_| serde_json::from_str(&line).ok());
    let Some(Setup { source, limits }) = setup else { return 0 };
    let (sender, turns) = channel();
    let renderer = thread::Builder::new().stack_size(limits.stack);
    match renderer.spawn(move || reply_to_lines(source, &sender)) {
        Ok(_) => watch(&turns, limits), // the thread ends with the process
        Err(_) => TOO_LARGE,
    }
}

/// Parses the template and renders each line with it; sends to `turns` before and after each.
fn reply_to_lines(source: ChatTemplateSource, turns: &Sender<()>) -> Option<()> {
    let reply = |reply: Result<String, String>| {
        let reply = reply.map_err(|error| cut_in_the_middle(&error, MAX_ERROR));
        turns.send(()).ok()?;
        io::stdout().lock().write_all((to_json(&reply) + "\n").as_bytes()).ok()
    };
    turns.send(()).ok()?;
    let parsed = source.parse().map_err(|error| error.to_string());
    reply(parsed.as_ref().map(|_| String::new()).map_err(String::clone))?;
    let template = parsed.ok()?;
    for line in io::stdin().lock().lines() {
        let line = line.ok()?;
        turns.send(()).ok()?;
        let Conversation { messages, add_generation_prompt, variables } = serde_json::from_str(&line).ok()?;
        reply(match template.render_with(&messages, add_generation_prompt, &variables) {
            Ok(text) if text.len() > MAX_TEXT => Err(format!("it makes more than {MAX_TEXT} bytes of them")),
            rendered => rendered.map_err(|error| error.to_string()),
        })?;
    }
    Some(())
}

/// Waits until `turns` ends or a turn exceeds a limit; returns the exit code.
fn watch(turns: &Receiver<()>, limits: RenderLimits) -> u8 {
    while turns.recv().is_ok() {
        let since = Instant::now();
        while turns.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if since.elapsed() > limits.time {
                return TOO_SLOW;
            }
            if rss_mib().is_some_and(|rss| rss > f64::from(limits.memory_mib)) {
                return TOO_LARGE;
            }
        }
    }
    0
}
