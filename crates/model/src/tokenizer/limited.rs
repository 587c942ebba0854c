//! Does in a process of its own, within limits, what a file from elsewhere can make overflow the stack, fill the memory or
//! never end: renders a chat template, and tries the parts of a tokenizer.
//!
//! A thread that does so cannot be stopped, and a stack that overflows ends the program. The process is the same program;
//! it reads and writes lines of JSON: first its limits, then tasks.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat_template::ChatTemplateSource;
use super::parts::Part;
use crate::format::cut_in_the_middle;
use crate::measure::{cpu_time, rss_mib};

/// The argument with which the program calls [`work_within_limits`].
pub const WITHIN_LIMITS: &str = "within-limits";

/// The exit codes of the process, if a limit was exceeded.
const TOO_SLOW: u8 = 3;
const TOO_LARGE: u8 = 4;

/// The maximum length of an error in characters; templates can raise their own.
const MAX_ERROR: usize = 1000;

/// How long a task may wait for a processor.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// How often the limits are checked during a task.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The bytes of memory for each byte of the longest task, in addition to [`Limits::memory_mib`].
const MEMORY_PER_BYTE: f64 = 16.0;

/// The limits of the process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// The processor time of a task.
    pub time: Duration,
    /// The memory of the process, besides 16 bytes for each byte of a conversation.
    pub memory_mib: u32,
    /// The stack in bytes.
    pub stack: usize,
    /// The bytes of the text that a template makes.
    pub text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(2), memory_mib: 256, stack: 8 << 20, text: 64 << 20 }
    }
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Names the `tinderbox` program. From now on templates are rendered, and tokenizers tried, in processes of it; until then
/// in this process and without limits, so a program of your own should open only files that it trusts.
pub fn set_program(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

pub(super) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// What the process is to do.
#[derive(Serialize, Deserialize)]
pub(super) enum Task<M = Vec<Value>, V = Map<String, Value>> {
    /// Parse the template of the conversations that follow.
    Template(ChatTemplateSource),
    /// Render these prefixes of a conversation: the number of messages, and whether a reply begins after them.
    Conversation {
        messages: M,
        prefixes: Vec<(usize, bool)>,
        variables: V,
    },
    Part(Part),
}

/// The text of each prefix, or the reason why the template refuses it; or the reason why the task cannot be done.
type Reply = Result<Vec<Result<String, String>>, String>;

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    replies: BufReader<ChildStdout>,
    limits: Limits,
}

impl Process {
    pub(super) fn start(program: &Path, limits: Limits) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.arg(WITHIN_LIMITS).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        #[cfg(unix)] // Ctrl-C must not end it: a server finishes requests in progress
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| format!("its process cannot be started: {error}"))?;
        let replies = BufReader::new(child.stdout.take().expect("standard input and output are piped"));
        let mut process = Self { child, replies, limits };
        process.send(&limits).map_err(|_| process.end())?;
        Ok(process)
    }

    fn send(&mut self, line: &impl Serialize) -> io::Result<()> {
        let line = serde_json::to_string(line).map_err(io::Error::other)? + "\n";
        self.child.stdin.as_mut().expect("standard input and output are piped").write_all(line.as_bytes())
    }

    /// Sends a task; returns the reply, or the reason why the process ended.
    pub(super) fn ask(&mut self, task: &impl Serialize) -> Result<Reply, String> {
        let mut reply = String::new();
        let replied = self.send(task).and_then(|()| self.replies.read_line(&mut reply));
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

impl Part {
    /// Tries it, in a process if [`set_program`] named the program; fails with a sentence about the tokenizer.
    pub(super) fn check(self) -> Result<(), String> {
        let name = match &self {
            Self::Pattern(pattern) => format!("its pattern `{}`", cut_in_the_middle(pattern, 100)),
            Self::Normalizer(_) => "its normalizer".to_owned(),
            Self::Decoder(_) => "its decoder".to_owned(),
        };
        let tried = match program() {
            None => self.try_out(),
            Some(program) => {
                let task: Task = Task::Part(self);
                Process::start(program, Limits::default()).and_then(|mut process| process.ask(&task)?.map(|_| ()))
            }
        };
        tried.map_err(|why| format!("{name} is refused: {why}"))
    }
}

/// The main function of the process: replies to lines on standard input until they end or a limit is exceeded. Returns the
/// exit code.
#[must_use]
pub fn work_within_limits() -> u8 {
    let mut line = String::new();
    let limits = io::stdin().read_line(&mut line).ok().and_then(|_| serde_json::from_str::<Limits>(&line).ok());
    let Some(limits) = limits else { return 0 };
    let (sender, turns) = channel();
    let worker = thread::Builder::new().stack_size(limits.stack);
    match worker.spawn(move || reply_to_lines(limits.text, &sender)) {
        Ok(_) => watch(&turns, limits, cpu_time), // the thread ends with the process
        Err(_) => TOO_LARGE,
    }
}

/// Replies to each line; sends to `turns` its length before, and 0 after.
fn reply_to_lines(max_text: usize, turns: &Sender<usize>) -> Option<()> {
    let mut template = None;
    for line in io::stdin().lock().lines() {
        let line = line.ok()?;
        turns.send(line.len()).ok()?;
        let task: Task = serde_json::from_str(&line).ok()?;
        let short = |error: String| cut_in_the_middle(&error, MAX_ERROR);
        let reply: Reply = match task {
            Task::Template(source) => source.parse().map_err(short).map(|parsed| {
                template = Some(parsed);
                Vec::new()
            }),
            Task::Conversation { messages, prefixes, variables } => {
                let template = template.as_ref()?;
                let render = |(n, begins_answer): (usize, bool)| {
                    let text = template.render_with(&messages[..n], begins_answer, &variables).map_err(short)?;
                    let is_short = text.len() <= max_text;
                    is_short.then_some(text).ok_or_else(|| format!("it makes more than {max_text} bytes of them"))
                };
                Ok(prefixes.into_iter().map(render).collect())
            }
            Task::Part(part) => part.try_out().map_err(short).map(|()| Vec::new()),
        };
        turns.send(0).ok()?;
        io::stdout().lock().write_all((serde_json::to_string(&reply).ok()? + "\n").as_bytes()).ok()?;
    }
    Some(())
}

/// Waits until `turns` ends or a turn exceeds a limit; returns the exit code. Where there is no `clock` of the processor,
/// waiting counts as work.
fn watch(turns: &Receiver<usize>, limits: Limits, clock: impl Fn() -> Option<Duration>) -> u8 {
    let mut longest = 0;
    while let Ok(n_bytes) = turns.recv() {
        let (since, began) = (Instant::now(), clock());
        longest = longest.max(n_bytes); // its memory may still be held
        let memory_mib = f64::from(limits.memory_mib) + longest as f64 * MEMORY_PER_BYTE / f64::from(1 << 20);
        while turns.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let worked = clock().zip(began).map_or_else(|| since.elapsed(), |(now, began)| now.saturating_sub(began));
            if worked > limits.time || since.elapsed() > limits.time + MAX_WAIT {
                return TOO_SLOW;
            }
            if rss_mib().is_some_and(|rss| rss > memory_mib) {
                return TOO_LARGE;
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn time_of_a_task_is_that_of_the_processor() {
        for (worked_ms, expected) in [(0, 0), (1, TOO_SLOW)] {
            let (sender, turns) = channel();
            sender.send(1).unwrap();
            let (sender, n_checks) = (Cell::new(Some(sender)), Cell::new(0));
            let clock = || {
                n_checks.set(n_checks.get() + 1);
                if n_checks.get() == 4 {
                    sender.take().expect("it is sent once").send(0).unwrap();
                }
                Some(Duration::from_millis(worked_ms * n_checks.get()))
            };
            let limits = Limits { time: Duration::ZERO, memory_mib: u32::MAX, ..Limits::default() };
            assert_eq!(watch(&turns, limits, clock), expected);
        }
    }
}
