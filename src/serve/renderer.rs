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

use super::limits::{MAX_CHATS, MAX_TEXT, RENDER_MEMORY_MIB, RENDER_STACK, RENDER_TIME};
use crate::format::cut_in_the_middle;
use crate::measure::rss_mib;
use crate::tokenizer::{ChatTemplate, ChatTemplateSource, Message, Tokenizer};

/// The argument with which the program calls [`render_chats`].
pub const COMMAND: &str = "render-chats";

/// The exit codes of the process, if a limit was exceeded.
const TOO_SLOW: u8 = 3;
const TOO_LARGE: u8 = 4;

/// The maximum length of an error in characters; templates can raise their own.
const MAX_ERROR: usize = 1000;

/// How often the limits are checked while a template is rendered.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The reason why a conversation cannot be rendered.
#[derive(Debug)]
pub(super) enum RenderError {
    /// The model has no chat template.
    NoTemplate,
    /// The template is not valid, or exceeds a limit.
    Unusable(String),
    /// The template rejected the messages.
    Refused(String),
    /// Too many conversations are waiting.
    Busy,
}

/// The input of a template.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Whether the prompt ends where the next message begins, instead of with the last message.
    pub(super) add_generation_prompt: bool,
    /// Other variables.
    pub(super) variables: Map<String, Value>,
}

/// The chat template of a model, and the process that renders it. The first conversation starts the process, as does the
/// next one after a conversation that ended it.
#[derive(Debug)]
pub(super) struct Renderer {
    program: PathBuf,
    source: Option<ChatTemplateSource>,
    process: Mutex<Option<Process>>,
    permits: Semaphore,
}

impl Renderer {
    /// The renderer of a tokenizer's chat template, as a process of `program`.
    pub(super) fn new(program: PathBuf, tokenizer: &Tokenizer) -> Self {
        let (process, permits) = (Mutex::new(None), Semaphore::new(MAX_CHATS));
        Self { program, source: ChatTemplateSource::from_tokenizer(tokenizer), process, permits }
    }

    /// The prompt for a conversation; waits for earlier ones.
    pub(super) fn render(&self, conversation: &Conversation) -> Result<String, RenderError> {
        let source = self.source.as_ref().ok_or(RenderError::NoTemplate)?;
        let _permit = self.permits.try_acquire().map_err(|_| RenderError::Busy)?;
        let mut slot = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut process = match slot.take() {
            Some(process) => process,
            None => Process::start(&self.program, source)?,
        };
        let rendered = process.ask(conversation).map_err(RenderError::Unusable)?;
        *slot = Some(process);
        rendered.map_err(RenderError::Refused)
    }
}

/// A process that renders one template.
#[derive(Debug)]
struct Process {
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, source: &ChatTemplateSource) -> Result<Self, RenderError> {
        let mut command = Command::new(program);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        #[cfg(unix)] // Ctrl-C must not end it: the server finishes requests in progress
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .spawn()
            .map_err(|error| RenderError::Unusable(format!("its process cannot be started: {error}")))?;
        let replies = BufReader::new(child.stdout.take().expect("standard input and output are piped"));
        let mut process = Self { child, replies };
        process.ask(source).and_then(|parsed| parsed).map_err(RenderError::Unusable)?;
        Ok(process)
    }

    /// Sends a line; returns the reply, or the reason why the process ended.
    fn ask(&mut self, request: &(impl Serialize + ?Sized)) -> Result<Result<String, String>, String> {
        let line = serde_json::to_string(request).expect("a template and a conversation have a JSON form") + "\n";
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
            Some(TOO_SLOW) => format!("it takes longer than {} s", RENDER_TIME.as_secs()),
            Some(TOO_LARGE) => format!("it needs more than {RENDER_MEMORY_MIB} MiB of memory"),
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
#[must_use]
pub fn render_chats() -> u8 {
    let (sender, turns) = channel();
    let renderer = thread::Builder::new().stack_size(RENDER_STACK);
    match renderer.spawn(move || reply_to_lines(&sender)) {
        Ok(_) => watch(&turns), // the thread ends with the process
        Err(_) => TOO_LARGE,
    }
}

/// Replies to each line; sends to `turns` before and after each.
fn reply_to_lines(turns: &Sender<()>) -> Option<()> {
    let mut template = None;
    for line in io::stdin().lock().lines() {
        let line = line.ok()?;
        turns.send(()).ok()?;
        let reply = reply(&line, &mut template)?.map_err(|error| cut_in_the_middle(&error, MAX_ERROR));
        let reply = serde_json::to_string(&reply).ok()? + "\n";
        turns.send(()).ok()?;
        io::stdout().lock().write_all(reply.as_bytes()).ok()?;
    }
    Some(())
}

/// The reply to a line; the first line is the template. `None` if [`Process`] did not send the line.
fn reply(line: &str, template: &mut Option<ChatTemplate>) -> Option<Result<String, String>> {
    let Some(template) = template else {
        let source: ChatTemplateSource = serde_json::from_str(line).ok()?;
        let parsed = source.parse().map(|parsed| *template = Some(parsed));
        return Some(parsed.map(|()| String::new()).map_err(|error| error.to_string()));
    };
    let Conversation { messages, add_generation_prompt, variables } = serde_json::from_str(line).ok()?;
    Some(match template.render_with(&messages, add_generation_prompt, &variables) {
        Ok(text) if text.len() > MAX_TEXT => Err(format!("it makes more than {MAX_TEXT} bytes of them")),
        rendered => rendered.map_err(|error| error.to_string()),
    })
}

/// Waits until `turns` ends or a turn exceeds a limit; returns the exit code.
fn watch(turns: &Receiver<()>) -> u8 {
    while turns.recv().is_ok() {
        let since = Instant::now();
        while turns.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if since.elapsed() > RENDER_TIME {
                return TOO_SLOW;
            }
            if rss_mib().is_some_and(|rss| rss > RENDER_MEMORY_MIB) {
                return TOO_LARGE;
            }
        }
    }
    0
}
