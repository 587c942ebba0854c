//! A headless Chromium for tests: pages as a reader uses them, with mouse and keyboard, on wide and narrow screens, in
//! the light and dark theme.
//!
//! It is driven over a pipe with the [DevTools protocol](https://chromedevtools.github.io/devtools-protocol/), so that
//! it needs only a Chromium, and no port is opened. While a page is open, everything that it should never cause is
//! collected: console errors and warnings, exceptions, requests.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::fixtures::fs;

/// The programs to look for, in order of preference.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// How long a reply may take on the slowest machine before the browser counts as hung.
const PATIENCE: Duration = Duration::from_mins(2);
const HEIGHT: u32 = 900;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

impl Theme {
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// The screens to check every page on: widths in pixels, and themes.
pub const SCREENS: [(u32, Theme); 5] =
    [(1280, Theme::Light), (1280, Theme::Dark), (360, Theme::Light), (360, Theme::Dark), (1920, Theme::Light)];

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    messages: Receiver<Value>,
    n_commands: u64,
    /// The session of the page. Commands with it go to the page, others to the browser.
    session: Option<String>,
    /// Events received while waiting for replies, and not examined yet.
    events: VecDeque<Value>,
    problems: Vec<String>,
    address: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// A browser with an empty page; `None` without Chromium, unless `TINDERBOX_REQUIRE_BROWSER=1` demands one.
    /// `TINDERBOX_CHROMIUM` names one at another place.
    pub fn start() -> Option<Self> {
        let started = program().and_then(|program| Self::of(&program));
        started.map_err(|missing| crate::skip(&missing, "TINDERBOX_REQUIRE_BROWSER")).ok()
    }

    /// Starts a program and opens a page; says so if it does not reply, as one in its own sandbox may not.
    fn of(program: &Path) -> Result<Self, String> {
        let profile = tempfile::tempdir().expect("a temporary directory");
        // The protocol's pipe is file descriptors 3 and 4, which only a shell can set without unsafe code.
        let script = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(program)
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox", // root cannot have a sandbox
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--no-default-browser-check",
                "--no-first-run",
                "--force-device-scale-factor=1",
                "--lang=en",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let (sender, messages) = channel();
        let mut answers = BufReader::new(child.stdout.take().expect("the stream is piped"));
        thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).expect("the protocol is JSON");
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            commands: child.stdin.take(),
            child,
            messages,
            n_commands: 0,
            session: None,
            events: VecDeque::new(),
            problems: Vec::new(),
            address: String::new(),
            _profile: profile,
        };
        browser.send("Browser.getVersion", json!({}));
        if browser.messages.recv_timeout(PATIENCE).is_err() {
            return Err(format!("`{}` does not start", program.display()));
        }
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", target);
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        Ok(browser)
    }

    /// Sends a command and returns its id, which the reply has, too.
    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.n_commands += 1;
        let id = self.n_commands;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let pipe = self.commands.as_mut().expect("open until the end");
        let _ = pipe.write_all(&bytes); // one that does not read will not reply either
        id
    }

    fn command(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        loop {
            let mut answer = self.receive(method);
            if answer["id"] != json!(id) {
                self.events.push_back(answer);
                continue;
            }
            assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
            return answer["result"].take();
        }
    }

    fn receive(&mut self, waiting_for: &str) -> Value {
        let message = self.messages.recv_timeout(PATIENCE);
        message.unwrap_or_else(|error| panic!("{waiting_for}: the browser is silent: {error}"))
    }

    /// Emulates a screen `width` pixels wide on a system with this theme.
    pub fn look(&mut self, (width, theme): (u32, Theme)) {
        self.command(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false}),
        );
        let feature = json!({"name": "prefers-color-scheme", "value": theme.name()});
        self.command("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    pub fn open(&mut self, file: &Path) {
        let file = file.canonicalize().expect("the page is there");
        // Via a blank page: a reopened page is scrolled to its earlier position some time after it is loaded.
        self.navigate("about:blank");
        self.navigate(&format!("file://{}", file.display()));
    }

    /// Opens an address of a server; the page may request files from that server.
    pub fn visit(&mut self, address: &str) {
        self.load("about:blank"); // the old page may still send requests to its own server meanwhile
        self.navigate(address);
    }

    pub fn reload(&mut self) {
        let address = self.evaluate("location.href");
        self.visit(address.as_str().expect("an address"));
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it takes far too long.
    pub fn wait_for(&mut self, expression: &str) {
        for _ in 0..1200 {
            if self.evaluate(expression) == json!(true) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let page = self.evaluate("document.body.innerText");
        panic!("{expression} does not become true; {:?}\n{page}", self.take_problems());
    }

    /// Types text at the focused element, after its current content.
    pub fn insert(&mut self, text: &str) {
        self.evaluate("document.activeElement.setSelectionRange?.(1e6, 1e6)");
        self.command("Input.insertText", json!({"text": text}));
    }

    fn navigate(&mut self, address: &str) {
        self.drain();
        address.clone_into(&mut self.address);
        self.load(address);
    }

    fn load(&mut self, address: &str) {
        let opened = self.command("Page.navigate", json!({"url": address}));
        assert!(opened["errorText"].is_null(), "{opened}");
        let is_loaded = |event: &Value| event["method"] == "Page.loadEventFired";
        while !self.events.iter().any(is_loaded) {
            let event = self.receive("Page.loadEventFired");
            self.events.push_back(event);
        }
        self.drain();
    }

    /// The value of an expression, or what a promise resolves to.
    ///
    /// # Panics
    /// If it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.command("Runtime.evaluate", params);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].take()
    }

    /// The value of `expression`, in which `it` is an element, for each element that `selector` finds.
    pub fn all(&mut self, selector: &str, expression: &str) -> Vec<Value> {
        let selector = json!(selector);
        let found = self.evaluate(&format!("[...document.querySelectorAll({selector})].map((it) => {expression})"));
        match found {
            Value::Array(found) => found,
            other => panic!("{selector}: {other}"),
        }
    }

    /// The text content of the elements that `selector` finds.
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let texts = self.all(selector, "it.textContent").into_iter();
        texts.map(|text| text.as_str().expect("the field is a string").to_owned()).collect()
    }

    /// Points at the centre of the first element that `selector` finds, where a reader could.
    pub fn point(&mut self, selector: &str) -> (f64, f64) {
        let quoted = json!(selector);
        let place = self.evaluate(&format!(
            "(() => {{
                const it = document.querySelector({quoted});
                if (!it) return 'there is none';
                it.scrollIntoView({{ block: 'center', inline: 'center' }});
                const box = it.getBoundingClientRect();
                const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
                const top = document.elementFromPoint(x, y);
                return it.contains(top) ? [x, y] : `at ${{x}}, ${{y}} lies ${{top?.outerHTML}}`;
            }})()"
        ));
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else {
            panic!("cannot point at {selector}: {place}");
        };
        self.mouse("mouseMoved", x, y);
        (x, y)
    }

    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.point(selector);
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
    }

    pub fn click_at(&mut self, [x, y]: [f64; 2]) {
        for event in ["mouseMoved", "mousePressed", "mouseReleased"] {
            self.mouse(event, x, y);
        }
    }

    /// Drags from one fraction of an element's width to another.
    pub fn drag(&mut self, selector: &str, [from, to]: [f64; 2]) {
        self.point(selector); // scrolls it into view
        let quoted = json!(selector);
        let of = "((box) => [box.left, box.top + box.height / 2, box.width])";
        let place = self.evaluate(&format!("{of}(document.querySelector({quoted}).getBoundingClientRect())"));
        let at = |index: usize| place[index].as_f64().expect("a number");
        let x = |share: f64| at(0) + share * at(2);
        self.mouse("mouseMoved", x(from), at(1));
        self.mouse("mousePressed", x(from), at(1));
        self.mouse("mouseMoved", x(to), at(1));
        self.mouse("mouseReleased", x(to), at(1));
    }

    pub fn point_away(&mut self) {
        self.mouse("mouseMoved", 1.0, 1.0);
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let (button, clicks) = if kind == "mouseMoved" { ("none", 0) } else { ("left", 1) };
        let event = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": clicks});
        self.command("Input.dispatchMouseEvent", event);
    }

    /// Presses a key by its name, such as `Tab` or `ArrowDown`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "+" => 187,
            "0" => 48,
            other => panic!("`{other}` is no key that this driver knows"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if key == "Enter" {
                event["text"] = json!("\r");
            }
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// By how many pixels the page is wider than the screen.
    pub fn overflow(&mut self) -> f64 {
        let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        self.evaluate(overflow).as_f64().expect("a number")
    }

    pub fn take_problems(&mut self) -> Vec<String> {
        self.evaluate("0"); // earlier events are reported before this reply
        self.drain();
        std::mem::take(&mut self.problems)
    }

    /// Checks what must hold on every screen: nothing is wider than it, and nothing went wrong. Takes a picture.
    pub fn check(&mut self, name: &str, (width, theme): (u32, Theme)) {
        self.picture(&format!("{name}-{width}-{}", theme.name()));
        assert!(self.overflow() < 1.0, "{name} is wider than {width} pixels");
        assert_eq!(self.take_problems(), [""; 0], "{name} at {width}");
    }

    /// Opens a page on every screen, lets `read` use it, and checks it.
    pub fn read(&mut self, page: &Path, name: &str, mut read: impl FnMut(&mut Self, (u32, Theme))) {
        for screen in SCREENS {
            self.look(screen);
            self.open(page);
            read(self, screen);
            self.check(name, screen);
        }
    }

    /// Saves the whole page as a picture in the folder `TINDERBOX_SCREENSHOTS`, if that is set, for visual inspection.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("TINDERBOX_SCREENSHOTS") else { return };
        // A picture of the whole page has no scroll bar, so that the page gets its width, too.
        let size = self.evaluate("[innerWidth, document.documentElement.scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let taken = self.command("Page.captureScreenshot", json!({"captureBeyondViewport": true, "clip": clip}));
        let bytes = BASE64_STANDARD.decode(taken["data"].as_str().expect("a picture")).expect("base 64");
        fs::create_dir_all(&folder);
        fs::write(PathBuf::from(folder).join(format!("{name}.png")), bytes);
    }

    /// Searches the events for problems.
    fn drain(&mut self) {
        self.events.extend(self.messages.try_iter());
        while let Some(event) = self.events.pop_front() {
            let params = &event["params"];
            let problem = match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
                "Log.entryAdded" => Some(params["entry"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    let url = url.split('#').next().unwrap_or_default();
                    let is_own = url == self.address || site(&self.address).is_some_and(|site| url.starts_with(site));
                    let is_nothing = url.starts_with("data:") || url == "about:blank";
                    (!is_own && !is_nothing).then(|| format!("a request for {url}"))
                }
                _ => None,
            };
            self.problems.extend(problem);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It exits once its pipe is closed; only a hung one has to be killed.
        self.commands = None;
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The browser's program, or what is missing.
fn program() -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("TINDERBOX_CHROMIUM") {
        return Ok(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|name| {
        let mut files = folders.iter().map(|folder| folder.join(name));
        files.find(|file| file.is_file())
    });
    found.ok_or_else(|| format!("there is none of {} in the PATH", PROGRAMS.join(", ")))
}

/// The server of an address; `None` for a file.
fn site(address: &str) -> Option<&str> {
    let (_, path) = address.strip_prefix("http://")?.split_once('/')?;
    Some(&address[..address.len() - path.len()])
}

/// The basis of all page tests: problems are seen, and good pages have none.
#[test]
fn browser_reports_problems_of_page() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("page.html");
    browser.look((400, Theme::Dark));
    for (html, is_good) in [
        ("<p>x</p>", true),
        ("<script>console.error('x')</script>", false),
        ("<script>throw new Error('x')</script>", false),
        ("<img src='missing.png'>", false),
        ("<meta http-equiv='Content-Security-Policy' content=\"script-src 'none'\"><script>1</script>", false),
        ("<p>y</p>", true),
    ] {
        fs::write(&file, format!("<!doctype html>{html}"));
        browser.open(&file);
        let problems = browser.take_problems();
        assert_eq!(problems.is_empty(), is_good, "{html}: {problems:?}");
    }
    let dark = "matchMedia('(prefers-color-scheme: dark)').matches";
    assert_eq!(browser.evaluate(dark), json!(true));
    assert!(browser.overflow() < 1.0);
    let wide = "<!doctype html><div style='width: 500px'>x</div>";
    fs::write(&file, wide);
    browser.open(&file);
    assert!(browser.overflow() > 100.0);
}
