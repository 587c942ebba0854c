//! `train --tui`: shows a run on the whole terminal, and restores the terminal in all cases.

use std::io::{self, BufWriter, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use super::exit::INTERRUPTED;
use crate::tokenizer::panic_becomes_error;
use crate::train::{Event as RunEvent, Interrupter};
use crate::view::dashboard::{Board, Meter, draw};

/// The time between two frames, unless a key is pressed.
const FRAME: Duration = Duration::from_millis(250);

/// The interval at which the dashboard checks whether to close while no key is pressed.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// The longest wait for the drawing thread, which a disconnected terminal may block forever.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Whether the dashboard has the terminal. It changes and frames are drawn under the lock of standard output, so that
/// nothing is drawn after the terminal was restored.
static IS_UP: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Board>>);

pub(super) struct Dashboard {
    shared: Shared,
    interrupter: Interrupter,
    closing: Arc<AtomicBool>,
    /// A channel that disconnects when the drawing thread ends.
    drawing: Option<Receiver<()>>,
}

/// Returns an error if the terminal cannot show a dashboard.
pub(super) fn check() -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        bail!("--tui needs a terminal on standard output\n  hint: leave out --tui, or do not redirect the output");
    }
    if std::env::var_os("TERM").is_some_and(|kind| kind == "dumb") {
        bail!(
            "--tui cannot draw on a terminal of type `dumb`\n  hint: leave out --tui, or \
             set TERM to the type of the terminal, such as xterm-256color"
        );
    }
    enable_raw_mode()
        .and_then(|()| disable_raw_mode())
        .context("--tui cannot read the terminal's keys\n  hint: leave out --tui")
}

/// Restores the terminal if the dashboard has it: the cursor, the previous screen and line editing.
pub(super) fn restore_terminal() {
    let mut stdout = io::stdout().lock();
    if IS_UP.swap(false, Ordering::SeqCst) {
        execute!(stdout, LeaveAlternateScreen, Show).ok(); // a closed terminal needs no restoring
        disable_raw_mode().ok();
    }
}

/// On the first Ctrl-C, asks the run to finish its step and save; on the second, exits at once.
pub(super) fn stop_or_exit(interrupter: &Interrupter) {
    if interrupter.should_stop() {
        restore_terminal();
        std::process::exit(i32::from(INTERRUPTED));
    }
    interrupter.stop(None);
}

impl Dashboard {
    /// A dashboard that is not shown yet; its keys stop the run through `interrupter`.
    pub(super) fn new(interrupter: Interrupter) -> Self {
        Self { shared: Shared::default(), interrupter, closing: Arc::default(), drawing: None }
    }

    pub(super) fn observe(&self, event: &RunEvent<'_>) {
        self.shared.with(|board| board.observe(event));
    }

    /// Takes the terminal and starts drawing.
    pub(super) fn open(&mut self) -> io::Result<()> {
        take_terminal()?;
        let (sender, receiver) = mpsc::channel();
        self.drawing = Some(receiver);
        let screen = Screen {
            shared: self.shared.clone(),
            interrupter: self.interrupter.clone(),
            closing: self.closing.clone(),
            began: Instant::now(),
            _drawing: sender,
        };
        thread::Builder::new().name("dashboard".to_owned()).spawn(|| screen.run())?;
        Ok(())
    }

    pub(super) fn note(&self, text: &str) {
        self.shared.with(|board| board.note(text));
    }

    /// Adds a sample, and its `lines` to the log for windows without a pane for samples.
    pub(super) fn sampled(&self, text: &str, lines: &str) {
        self.shared.with(|board| board.sampled(text, lines));
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(drawing) = &self.drawing {
            drawing.recv_timeout(CLOSE_WAIT).ok(); // no message is sent: the channel disconnects, or the wait times out
        }
        restore_terminal();
    }
}

impl Shared {
    fn with<T>(&self, f: impl FnOnce(&mut Board) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread that draws the dashboard and reads keys.
struct Screen {
    shared: Shared,
    interrupter: Interrupter,
    closing: Arc<AtomicBool>,
    began: Instant,
    _drawing: mpsc::Sender<()>,
}

impl Screen {
    fn run(self) {
        if self.draw_until_closed().is_err() {
            restore_terminal(); // the run continues without the dashboard
        }
    }

    fn draw_until_closed(&self) -> io::Result<()> {
        // Through a buffer, each frame is written at once.
        let backend = CrosstermBackend::new(BufWriter::new(io::stdout()));
        let mut terminal = Terminal::new(backend)?;
        let mut next_frame = Instant::now();
        let mut meter = Meter::new();
        while !self.closing.load(Ordering::SeqCst) {
            if let Some(load) = meter.read() {
                self.shared.with(|board| board.load = Some(load));
            }
            if Instant::now() >= next_frame {
                self.draw(&mut terminal)?;
                next_frame = Instant::now() + FRAME;
            }
            match next_event() {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => self.press(key),
                Some(Event::Resize(..)) => {}
                _ => continue,
            }
            next_frame = Instant::now();
        }
        Ok(())
    }

    fn draw(&self, terminal: &mut Terminal<CrosstermBackend<BufWriter<io::Stdout>>>) -> io::Result<()> {
        // A copy, so that the run need not wait for a slow terminal.
        let board = self.shared.with(|board| board.clone());
        let is_stopping = self.interrupter.should_stop();
        let _stdout = io::stdout().lock();
        if IS_UP.load(Ordering::SeqCst) {
            terminal.draw(|frame| draw(frame, &board, self.began.elapsed(), is_stopping))?;
        }
        Ok(())
    }

    fn press(&self, key: KeyEvent) {
        match key.code {
            // In raw mode, Ctrl-C does not send a signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => stop_or_exit(&self.interrupter),
            KeyCode::Char('q') if !self.interrupter.should_stop() => stop_or_exit(&self.interrupter),
            KeyCode::Up | KeyCode::Left | KeyCode::BackTab => self.shared.with(|board| board.select(-1)),
            KeyCode::Down | KeyCode::Right | KeyCode::Tab => self.shared.with(|board| board.select(1)),
            _ => {}
        }
    }
}

/// The next event within [`KEY_WAIT`], if any. If keys cannot be read, the dashboard is still drawn.
fn next_event() -> Option<Event> {
    let event = event::poll(KEY_WAIT).and_then(|is_there| is_there.then(event::read).transpose());
    event.inspect_err(|_| thread::sleep(KEY_WAIT)).unwrap_or_default()
}

fn take_terminal() -> io::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic_becomes_error() {
                restore_terminal();
            }
            print(panic);
        }));
    });
    let mut stdout = io::stdout().lock();
    enable_raw_mode()?;
    IS_UP.store(true, Ordering::SeqCst);
    execute!(stdout, EnterAlternateScreen, Hide).inspect_err(|_| restore_terminal())
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Read;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::*;
    use crate::train::Started;

    /// The variable that names the file that is there once the dashboard has been seen.
    const IS_DRAWN: &str = "TINDERBOX_TEST_IS_DRAWN";

    /// The program of the test below, which starts this test binary again in a terminal.
    #[test]
    #[ignore = "is run by `panic_restores_terminal`"]
    fn panics_under_dashboard() {
        let mut dashboard = Dashboard::new(Interrupter::new());
        let (run_dir, device) = ("runs/mine".into(), "flex".to_owned());
        dashboard.observe(&RunEvent::Started(&Started { run_dir, device, max_steps: 1, ..Started::default() }));
        dashboard.open().expect("a pseudo-terminal opens");
        let is_drawn = std::env::var_os(IS_DRAWN).expect("the other test sets it");
        while !std::path::Path::new(&is_drawn).exists() {
            thread::sleep(KEY_WAIT);
        }
        let died = thread::spawn(|| panic!("a panic on purpose")).join();
        assert!(died.is_err());
        thread::sleep(2 * FRAME); // nothing may be drawn any more
    }

    #[test]
    fn panic_restores_terminal() {
        let this = std::env::current_exe().expect("the test binary has a path");
        let mut command = CommandBuilder::new(this);
        let name = "cli::dashboard::tests::panics_under_dashboard";
        command.args([name, "--exact", "--ignored", "--nocapture", "--color=never"]);
        command.env("TERM", "xterm-256color");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let is_drawn = folder.path().join("drawn");
        command.env(IS_DRAWN, &is_drawn);
        let pty = native_pty_system().openpty(PtySize::default()).expect("a pseudo-terminal opens");
        let mut child = pty.slave.spawn_command(command).expect("the test binary starts");
        drop(pty.slave);
        let (mut output, mut bytes) = (Vec::new(), [0; 4096]);
        let mut reader = pty.master.try_clone_reader().expect("the terminal has a reader");
        // Reading ends with an error once the other side is closed.
        while let Ok(n @ 1..) = reader.read(&mut bytes) {
            output.extend(&bytes[..n]);
            if String::from_utf8_lossy(&output).contains("runs/mine") {
                std::fs::write(&is_drawn, "").expect("the file can be written");
            }
        }
        assert!(child.wait().expect("the child ended").success());
        let output = String::from_utf8_lossy(&output);
        let (_, dashboard) = output.split_once("\u{1b}[?1049h").expect("the dashboard took the terminal");
        let (dashboard, after) = dashboard.split_once("\u{1b}[?1049l").expect("the dashboard restored the terminal");
        assert!(dashboard.contains("runs/mine"), "{output:?}");
        assert!(!dashboard.contains("on purpose"), "{output:?}");
        assert!(after.contains("a panic on purpose"), "{output:?}");
        let after = after.replace("\u{1b}[?25h", "");
        assert!(!after.contains('\u{1b}'), "drawn after it: {output:?}");
        let modes = format!("{:?}", pty.master.get_termios().expect("a pseudo-terminal opens"));
        assert!(modes.contains("ICANON") && modes.contains("ISIG"), "{modes}");
    }
}
