//! `train --tui` in a terminal: the contents of the screen, and the state of the terminal afterwards.

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use serde_json::Value;
use tinderbox::format::grouped;

use crate::fixtures::{Folder, assert_transcript, set, signal, text};

/// How long a busy machine may take for what normally takes seconds.
const PATIENCE: Duration = Duration::from_mins(3);

/// Trains longer than any test runs.
const LONG: [&str; 4] = ["--set", "train.max_steps=1000000", "--set", "train.checkpoint_interval=0"];

const SHORT: [&str; 4] = ["--set", "train.max_steps=20", "--set", "train.checkpoint_interval=0"];

fn saved_step(folder: &Folder) -> usize {
    let last = folder.read("runs/tiny/last");
    last.trim().strip_prefix("step-").and_then(|step| step.parse().ok()).expect("a step")
}

fn log(folder: &Folder) -> String {
    folder.read("runs/tiny/train.log")
}

/// `tinderbox train tiny.toml --tui` with more arguments, in a terminal of 100 columns and 30 rows.
fn train(folder: &Folder, more: &[&str]) -> Terminal {
    Terminal::start(command(folder, more), (30, 100))
}

fn command(folder: &Folder, more: &[&str]) -> CommandBuilder {
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin!("tinderbox"));
    command.args([&["train", "tiny.toml", "--tui"], more].concat());
    command.cwd(folder.path(""));
    command.env_clear();
    command.env("TERM", "xterm-256color");
    command.env("NO_COLOR", "1"); // so that lines equal those in the log
    command
}

struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    shown: Arc<Mutex<Shown>>,
    /// Reads until the program closes the terminal.
    reader: Option<JoinHandle<()>>,
}

/// The output of a program, and the resulting screen.
struct Shown {
    bytes: Vec<u8>,
    parser: vt100::Parser,
}

struct Left {
    code: u32,
    /// Its output after the dashboard was closed.
    text: String,
}

impl Terminal {
    fn start(command: CommandBuilder, (rows, cols): (u16, u16)) -> Self {
        let pair = native_pty_system().openpty(pty_size(rows, cols)).expect("a terminal");
        let child = pair.slave.spawn_command(command).expect("it starts");
        drop(pair.slave); // so that reading ends with the program
        let mut output = pair.master.try_clone_reader().expect("a reader");
        let (rows, cols) = (nonzero(rows), nonzero(cols));
        let shown = Arc::new(Mutex::new(Shown { bytes: Vec::new(), parser: vt100::Parser::new(rows, cols, 0) }));
        let reading = shown.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = output.read(&mut bytes)
                && n > 0
            {
                let mut shown = reading.lock().expect("no panic");
                shown.bytes.extend(&bytes[..n]);
                shown.parser.process(&bytes[..n]);
            }
        });
        let keys = pair.master.take_writer().expect("a writer");
        Self { child, keys, master: pair.master, shown, reader: Some(reader) }
    }

    fn screen(&self) -> vt100::Screen {
        let shown = self.shown.lock().expect("no panic");
        shown.parser.screen().clone()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            let text = screen.contents();
            if is_so(&screen) {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "not {what} in time:\n{text}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for(&self, words: &str) -> String {
        self.wait(words, |screen| screen.contents().contains(words))
    }

    fn wait_for_an_evaluation(&self) -> String {
        self.wait("evaluated", |screen| values(&screen.contents(), "loss (nats/token)").len() == 2)
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("the terminal takes keys");
        self.keys.flush().expect("the terminal takes keys");
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.process_id().expect("it runs"));
    }

    fn resize(&self, rows: u16, cols: u16) {
        let mut shown = self.shown.lock().expect("no panic");
        shown.parser.screen_mut().set_size(nonzero(rows), nonzero(cols));
        drop(shown);
        self.master.resize(pty_size(rows, cols)).expect("the terminal can be resized");
    }

    /// Whether the program reads single keys, including Ctrl-C, without echo.
    fn is_raw(&self) -> bool {
        let termios = self.master.get_termios().expect("a terminal");
        let flags = format!("{:?}", termios.local_flags);
        let is_set = |flag: &&str| {
            let mut words = flags.split(|c: char| !c.is_alphanumeric());
            words.any(|word| word == *flag)
        };
        let cooked = ["ICANON", "ECHO", "ISIG"];
        let n = cooked.iter().filter(|flag| is_set(flag)).count();
        assert!(n == 0 || n == cooked.len(), "half way: {flags}");
        n == 0
    }

    /// Waits for the end, and checks that the terminal is restored.
    fn finish(mut self) -> Left {
        let began = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().expect("the process has a status") {
                break status.exit_code();
            }
            let text = self.screen().contents();
            assert!(began.elapsed() < PATIENCE, "it should end:\n{text}");
            thread::sleep(Duration::from_millis(10));
        };
        self.wait("back where it came from", |screen| !screen.alternate_screen() && !screen.hide_cursor());
        assert!(!self.is_raw(), "keys should be typed as before");
        self.reader.take().expect("not finished before").join().expect("no panic"); // the last lines may be in transit
        let written = String::from_utf8_lossy(&self.shown.lock().expect("no panic").bytes).into_owned();
        let (_, dashboard) = written.split_once(ENTER).expect("there was a dashboard");
        let (_, after) = dashboard.split_once(LEAVE).expect("and it ended");
        assert!(!after.contains(LEAVE), "once");
        let text = after.replace(SHOW_CURSOR, "").replace("\r\n", "\n");
        assert!(!text.contains('\u{1b}'), "plain lines: {text:?}");
        Left { code, text }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok(); // in case a test fails
    }
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

fn pty_size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, ..PtySize::default() }
}

fn nonzero(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).expect("not 0")
}

fn values(screen: &str, name: &str) -> Vec<String> {
    let row = screen
        .lines()
        .filter_map(|line| line.strip_prefix('│'))
        .find_map(|line| line.trim_start_matches([' ', '▸']).strip_prefix(name));
    let cells = row.and_then(|row| row.split('│').next()).unwrap_or_default();
    cells.split_whitespace().map(str::to_owned).collect()
}

/// The step in `interrupted after step 12 of 20`.
fn interrupted_step(text: &str) -> usize {
    let (_, rest) = text.split_once("interrupted after step ").unwrap_or_else(|| panic!("{text}"));
    let (step, _) = rest.split_once(" of ").expect("a step");
    step.replace(',', "").parse().expect("a number")
}

#[test]
fn dashboard_shows_new_and_resumed_runs() {
    let folder = Folder::new();
    let mut terminal = train(&folder, &LONG);
    terminal.wait_for_an_evaluation();
    let screen = terminal.wait_for("q or Ctrl-C: save and stop"); // the last line of a frame
    for words in ["runs/tiny on flex", "/1,000,000  0 %", "/100000   ", " elapsed, about ", "┌ loss (nats/token) ─"]
    {
        assert!(screen.contains(words), "no `{words}` in\n{screen}");
    }
    for name in ["learning rate", "speed (tokens/s)", "gradient norm", "peak memory (MiB)"] {
        let values = values(&screen, name);
        assert_eq!(values.len(), 1, "{name}: {screen}");
        let number: Result<f64, _> = values[0].replace(',', "").parse();
        assert!(number.is_ok_and(|number| number > 0.0), "{name}: {values:?}");
    }
    let state = terminal.screen();
    assert!(state.alternate_screen() && state.hide_cursor() && terminal.is_raw());
    terminal.wait_for("estimates: train loss");
    terminal.press(b"\x1b[B"); // down
    terminal.wait_for("┌ learning rate ─");
    terminal.press(b"\t\t\x1b[A\x1b[D\x1b[D"); // and back again
    terminal.wait_for("┌ loss (nats/token) ─");
    terminal.press(b"q");
    let left = terminal.finish();
    assert_eq!(left.code, 130, "{}", left.text);
    let step = interrupted_step(&left.text);
    assert_eq!(saved_step(&folder), step);
    let go_on = format!(
        "report: `runs/tiny/report.html`\ninterrupted after step {step} of 1000000; everything is saved in `runs/tiny`. Continue with\n    "
    );
    assert!(left.text.replace(',', "").starts_with(&go_on), "{}", left.text);
    assert!(left.text.contains(" train tiny.toml --set ") && left.text.ends_with(" --tui --resume\n"), "{}", left.text);
    assert!(log(&folder).ends_with(&left.text), "the log has it too");
    assert!(log(&folder).contains("  grad norm "), "and every logged step");

    let mut terminal = train(&folder, &[&LONG[..], &["--resume"]].concat());
    let screen = terminal.wait_for_an_evaluation();
    let (_, axis) = screen.split_once('└').expect("an axis");
    let first = grouped(step as u64);
    assert!(axis.contains(&format!(" {first} ")), "{first} is not in\n{axis}");
    terminal.press(b"q");
    let left = terminal.finish();
    assert!(interrupted_step(&left.text) > step, "{}", left.text);
}

#[test]
fn ctrl_c_and_signals_save_and_end_run() {
    let folder = Folder::new();
    for name in ["Ctrl-C", "-TERM", "-INT"] {
        let mut terminal = train(&folder, &[&LONG[..], &["--overwrite"]].concat());
        terminal.wait_for_an_evaluation();
        match name {
            "Ctrl-C" => terminal.press(b"\x03"),
            signal => terminal.signal(signal),
        }
        let left = terminal.finish();
        assert_eq!(left.code, 130, "{name}: {}", left.text);
        assert_eq!(interrupted_step(&left.text), saved_step(&folder), "{name}");
        assert!(left.text.ends_with(" --resume\n"), "{name}: {}", left.text);
    }
}

#[test]
fn second_ctrl_c_ends_at_once() {
    let folder = Folder::new();
    // An evaluation that outlasts the test: of each window of a long text.
    folder.write("text.txt", text().repeat(2000));
    let endless = [&LONG[..], &["--set", "train.eval_batches=100000000"]].concat();
    let mut terminal = train(&folder, &endless);
    terminal.wait_for("evaluating  ");
    terminal.press(b"\x03");
    terminal.wait_for("stopping after this step; press Ctrl-C again");
    terminal.press(b"q"); // which means to save
    terminal.press(b"\x1b[B");
    terminal.wait_for("┌ learning rate ─");
    terminal.press(b"\x03");
    let left = terminal.finish();
    assert_eq!((left.code, left.text.as_str()), (130, ""));
}

#[test]
fn dashboard_leaves_result_or_error_in_terminal() {
    let folder = Folder::new();
    let plain = folder.run(&[&["train", "tiny.toml", "--run-dir", "plain"][..], &SHORT].concat());
    let left = train(&folder, &SHORT).finish();
    assert_eq!(left.code, 0, "{}", left.text);
    assert!(left.text.starts_with("done: 20 steps in "), "{}", left.text);
    let results = |text: &str| {
        let is_result = |line: &&str| line.starts_with("val loss") || line.starts_with("best ch");
        text.lines().filter(is_result).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(results(&left.text).len(), 2);
    assert_eq!(results(&left.text), results(&plain.stderr), "the same weights");
    assert!(left.text.contains("\ngenerate text with it:\n    "), "{}", left.text);
    assert!(log(&folder).ends_with(&left.text), "the log has it too");

    let left = train(&folder, &["--overwrite", "--set", "optimizer.learning_rate=1e30"]).finish();
    assert_eq!(left.code, 1, "{}", left.text);
    assert!(left.text.starts_with("error: the ") && left.text.contains("so the run stopped; "), "{}", left.text);
    assert!(left.text.contains("\n  hint: lower optimizer.learning_rate"), "{}", left.text);
    assert!(log(&folder).ends_with(&left.text), "the log has it too");
}

#[test]
fn early_stop_is_reported_after_dashboard() {
    let folder = Folder::new();
    let keys = [
        "train.max_steps=500",
        "train.early_stopping_patience=2",
        "train.eval_interval=2",
        "optimizer.learning_rate=0.5",
        "schedule.kind=constant",
    ];
    let args = set(&keys);
    let left = train(&folder, &args).finish();
    assert_eq!(left.code, 0, "{}", left.text);
    let said = "stopping early: no improvement in 2 evaluations\n";
    assert!(left.text.starts_with(&format!("{said}done: ")), "{}", left.text);
    assert_eq!(log(&folder).matches(said).count(), 1);

    let train = |more: &[&str]| folder.run(&[&["train", "tiny.toml"][..], &args, more].concat());
    let ran = train(&["--overwrite", "--json"]).exits(0);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let steps = summary["steps"].as_u64().expect("steps");
    assert!(steps < 500 && summary["val_loss"].is_number(), "{summary}");
    assert_eq!(steps, saved_step(&folder) as u64, "where the run is");
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert_eq!(
        train(&["--resume"]).exits(1).stderr,
        format!(
            "error: `runs/tiny` is done: it stopped early after step {steps}, with no improvement in 2 evaluations\n  \
             hint: for more of them, raise train.early_stopping_patience with --set, or set it to 0; \
             `tinderbox report runs/tiny` makes its report again\n"
        )
    );
    let ran = train(&["--resume", "--json", "--set", "train.early_stopping_patience=3"]);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert!(summary["steps"].as_u64() > Some(steps), "{summary}");
}

#[test]
fn dashboard_follows_window_size() {
    let folder = Folder::new();
    let mut terminal = Terminal::start(command(&folder, &LONG), (5, 20));
    terminal.wait_for("loss");
    for (rows, cols) in [(1, 1), (2, 300), (100, 3), (24, 80)] {
        terminal.resize(rows, cols);
    }
    let screen = terminal.wait_for_an_evaluation();
    assert!(screen.contains("┌ loss (nats/token) ─"), "{screen}");
    terminal.resize(1, 1);
    // A key pressed at the moment of a resize is read only with the next one, because crossterm receives both at once.
    while terminal.child.try_wait().expect("a status").is_none() {
        terminal.keys.write_all(b"q").ok(); // it may just have ended
        thread::sleep(Duration::from_millis(10));
    }
    let left = terminal.finish();
    assert_eq!(left.code, 130, "{}", left.text);
}

#[test]
fn dashboard_needs_terminal() {
    let folder = Folder::new();
    assert_transcript!(folder, @r"
    $ train tiny.toml --tui
    error: --tui needs a terminal on standard output
      hint: leave out --tui, or do not redirect the output
    ");
    let said = folder.misuse(&["train", "tiny.toml", "--tui", "--json"]);
    assert!(said.contains("'--tui' cannot be used with '--json'"), "{said}");

    let mut command = command(&folder, &[]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(command, (24, 80));
    terminal.wait_for("a terminal of type `dumb`");
    assert_eq!(terminal.child.wait().expect("the process has ended").exit_code(), 1);
    assert!(!folder.path("runs").exists() && !folder.path("cache").exists());
}
