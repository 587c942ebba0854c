//! Texts in every form: compressed, as records, in folders, through a pipe, several at once.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use insta::assert_snapshot;
use tinderbox::config::{Config, DataConfig, ModelConfig, TokenizerConfig, TokenizerKind};
use tinderbox::data::{Corpus, Estimate, OpenOptions, Split};

use crate::runs::text;

/// A tiny model; each test adds its own `[data]`.
const CONFIG: &str = r#"
model = { context_length = 16, d_model = 16, n_layers = 1, n_heads = 2 }
schedule = { warmup_steps = 3 }

[train]
device = "flex"
max_steps = 6
batch_size = 4
log_interval = 2
eval_interval = 3
eval_batches = 2
sample_tokens = 0

[data]
cache_dir = "cache"
"#;

/// A folder in which the program is started.
struct Folder(crate::cli::Folder);

impl Deref for Folder {
    type Target = crate::cli::Folder;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Folder {
    /// A folder with a text and a config with these lines under `[data]`.
    fn new(data: &str) -> Self {
        let folder = Self(crate::cli::Folder::new());
        folder.write("tiny.toml", CONFIG.to_owned() + data);
        folder
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The standard error of a command that succeeds.
    fn succeed(&self, args: &[&str]) -> String {
        succeeded(self.command(args).output().expect("the binary starts"))
    }

    /// Runs a command with this standard input.
    fn pipe(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(args);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn().expect("starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input).expect("taken");
        drop(stdin);
        child.wait_with_output().expect("ends")
    }

    /// The corpus of a path in this folder.
    fn corpus(&self, path: &str, kind: TokenizerKind) -> Corpus {
        let data = DataConfig { path: self.path(path), cache_dir: Some(self.path("cache")), ..DataConfig::default() };
        let tokenizer = TokenizerConfig { kind, vocab_size: Some(300), ..TokenizerConfig::default() };
        let model = ModelConfig { context_length: 16, ..ModelConfig::default() };
        let config = Config { data, tokenizer, model, ..Config::default() };
        Corpus::open(&config, OpenOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

fn succeeded(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    stderr
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("in memory");
    encoder.finish().expect("in memory")
}

fn ids(split: &Split) -> Vec<Vec<i32>> {
    let texts = split.texts().map(|tokens| {
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids
    });
    texts.collect()
}

const KINDS: [TokenizerKind; 3] = [TokenizerKind::Char, TokenizerKind::Byte, TokenizerKind::Bpe];

#[test]
fn a_text_is_the_same_however_it_is_kept() {
    let folder = Folder::new("");
    let whole = text();
    let (first, second) = whole.split_at(whole.find('\n').expect("lines") + 1);
    folder.write("plain/a.txt", first);
    folder.write("plain/b.txt", second);
    folder.write("packed/a.txt.gz", gzip(first.as_bytes()));
    let half = second.len() / 2;
    let members = [&second.as_bytes()[..half], &second.as_bytes()[half..]].map(gzip);
    folder.write("packed/b", members.concat());
    let record = |text: &str| serde_json::json!({ "id": 7, "text": text }).to_string() + "\r\n";
    folder.write("records/a.jsonl", record(first) + "\n" + &record(second));
    folder.write("mixed/a.jsonl.gz", gzip(record(first).as_bytes()));
    folder.write("mixed/b.txt", second);
    for kind in KINDS {
        let plain = folder.corpus("plain", kind);
        for other in ["packed", "records", "mixed"] {
            let other = folder.corpus(other, kind);
            assert_eq!(other.text_sha256, plain.text_sha256);
            assert_eq!(other.tokenizer, plain.tokenizer);
            assert_eq!(ids(&other.train), ids(&plain.train));
            assert_eq!(ids(&other.val), ids(&plain.val));
        }
        if kind != TokenizerKind::Bpe {
            let single = folder.corpus("text.txt", kind);
            assert_eq!(ids(&single.train), ids(&plain.train), "one file after the other");
        }
    }
}

#[test]
fn documents_of_characters_and_bytes_end_with_a_token() {
    let folder = Folder::new("");
    let documents: Vec<String> = (0..30)
        .map(|i| format!("{i} st\u{f6}ries{}\n\n", ["", " <|endoftext|> and <|end"][i % 2].repeat(i % 3)))
        .collect();
    let (mut records, mut names) = (String::new(), 10..);
    for document in &documents {
        records.push_str(&(serde_json::json!({ "text": document }).to_string() + "\n"));
        folder.write(&format!("files/{}.txt", names.next().expect("endless")), document);
    }
    folder.write("records.jsonl", records);
    folder.write("one.txt", documents.concat());
    for (kind, val_fraction) in [(TokenizerKind::Char, 0.1), (TokenizerKind::Char, 0.43), (TokenizerKind::Byte, 0.2)] {
        let config = |path: &str| {
            let document_separator = (path == "one.txt").then(|| "\n\n".to_owned());
            let (path, cache_dir) = (folder.path(path), Some(folder.path("cache")));
            let data = DataConfig { path, cache_dir, val_fraction, document_separator, ..DataConfig::default() };
            let tokenizer = TokenizerConfig { kind, end_of_text: true, ..TokenizerConfig::default() };
            let model = ModelConfig { context_length: 16, ..ModelConfig::default() };
            Config { data, tokenizer, model, ..Config::default() }
        };
        let open = |config: &Config| Corpus::open(config, OpenOptions::default()).expect("a corpus");
        let corpus = open(&config("files"));
        let end = corpus.tokenizer.end_of_text().expect("it was asked for");
        // The split is that of the text, to the character or byte; each half is encoded document by document.
        let ends = documents.iter().scan(0, |end, document| {
            Some((*end, {
                *end += document.len();
                *end
            }))
        });
        let text = documents.concat();
        let n_units = if kind == TokenizerKind::Char { text.chars().count() } else { text.len() };
        let n_train = ((1.0 - val_fraction) * n_units as f64) as usize;
        let split = match kind {
            TokenizerKind::Char => text.char_indices().nth(n_train).expect("some is left").0,
            _ => n_train,
        };
        let mut expected = [Vec::new(), Vec::new()];
        for (start, end_at) in ends {
            for (half, range) in
                [start.min(split)..end_at.min(split), start.max(split)..end_at.max(split)].into_iter().enumerate()
            {
                let ids = corpus.tokenizer.encode_bytes(&text.as_bytes()[range]).expect("its own text");
                expected[half].extend(ids.into_iter().map(u32::cast_signed));
            }
            expected[usize::from(end_at > split)].push(end.cast_signed());
        }
        assert_eq!([ids(&corpus.train).concat(), ids(&corpus.val).concat()], expected);
        for path in ["files", "records.jsonl", "one.txt"] {
            let config = config(path);
            let other = open(&config);
            assert_eq!(other.text_sha256, corpus.text_sha256, "{path}");
            assert_eq!([ids(&other.train).concat(), ids(&other.val).concat()], expected, "{path}");
            let estimate = Estimate::read(&config, |error| panic!("{error}")).expect("read");
            let n_tokens = [estimate.train_tokens, estimate.val_tokens].map(|n| n as usize);
            assert_eq!(n_tokens, expected.each_ref().map(Vec::len), "{path}");
        }
        let mut without = config("files");
        without.tokenizer.end_of_text = false;
        let plain = open(&without);
        assert!(plain.tokenizer.end_of_text().is_none() && plain.text_sha256 != corpus.text_sha256);
    }
}

#[test]
fn line_ends_stay_and_a_byte_order_mark_goes() {
    let folder = Folder::new("");
    let text = "\u{feff}a\r\nb\r\n".to_owned() + &"abc\r\n".repeat(20);
    folder.write("windows.txt", &text);
    let corpus = folder.corpus("windows.txt", TokenizerKind::Char);
    let read = ids(&corpus.train).concat();
    let read: Vec<u32> = read.into_iter().map(i32::cast_unsigned).collect();
    assert!(corpus.tokenizer.decode(&read).starts_with("a\r\nb\r\nabc\r\n"));
    let bytes = folder.corpus("windows.txt", TokenizerKind::Byte);
    assert_eq!(ids(&bytes.train)[0][..3], [0xef, 0xbb, 0xbf]);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let folder = Folder::new("path = \"text.txt\"\n");
    folder.write("text.txt", text().repeat(60)); // several chunks
    let cached = |cache: &str| {
        let paths = fs::read_dir(folder.path(cache)).expect("listed");
        let paths = paths.map(|entry| entry.expect("listed").path());
        let contents = paths.map(|path| (path.file_name().map(ToOwned::to_owned), path));
        contents.map(|(name, path)| (name, fs::read(path).expect("read"))).collect::<BTreeMap<_, _>>()
    };
    for kind in ["char", "byte", "bpe"] {
        let of_threads = ["1", "5"].map(|n_threads| {
            let cache = format!("cache-{kind}-{n_threads}");
            let settings = [format!("data.cache_dir={cache}"), format!("tokenizer.kind={kind}")];
            let [cache_dir, kind] = settings.each_ref().map(String::as_str);
            let args = ["train", "tiny.toml", "--overwrite", "--set", cache_dir, "--set", kind];
            let mut command = folder.command(&args);
            command.args(["--set", "train.max_steps=1", "--set", "generate.max_new_tokens=1"]);
            command.env("RAYON_NUM_THREADS", n_threads);
            succeeded(command.output().expect("starts"));
            cached(&cache)
        });
        assert!(of_threads[0].len() > 1, "a token file, and the lock");
        assert!(of_threads[1] == of_threads[0], "{kind}");
    }
}

#[test]
fn a_run_on_standard_input_is_one_on_a_file_and_goes_on_without_it() {
    let folder = Folder::new("path = \"-\"\n");
    let of_file = ["--set", "data.path=text.txt", "--run-dir", "of-file"];
    folder.succeed(&[&["train", "tiny.toml"], &of_file[..]].concat());

    let stopped = ["train", "tiny.toml", "--set", "train.max_steps=3"];
    let keep = ["--set", "schedule.kind=constant", "--run-dir"];
    folder.succeed(&[&["train", "tiny.toml", "--set", "data.path=text.txt"], &keep[..], &["whole"]].concat());
    let args = [&stopped[..], &keep[..], &["piped"]].concat();
    let said = succeeded(folder.pipe(&args, &gzip(text().as_bytes())));
    assert!(said.contains("standard input is kept as `cache/"), "{said}");
    let going_on = [&["train", "tiny.toml", "--resume"], &keep[..], &["piped"]].concat();
    folder.succeed(&going_on);
    let weights = "checkpoints/step-000006/model.safetensors";
    assert!(
        folder.read(&format!("piped/{weights}")) == folder.read(&format!("whole/{weights}")),
        "stopped and resumed is the same as not"
    );
    folder.succeed(&["eval", "piped"]);

    let kept = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|it| it == "text");
    let entries = fs::read_dir(folder.path("cache")).expect("listed").flatten();
    let kept: Vec<PathBuf> = entries.filter(kept).map(|entry| entry.path()).collect();
    assert_eq!(kept.len(), 1);
    fs::remove_file(&kept[0]).expect("removed");
    let said = folder.fail(&["eval", "piped"]);
    assert!(said.contains("came through standard input") && said.contains("is gone"), "{said}");
    let longer = [&going_on[..], &["--set", "train.max_steps=8", "--set", "data.path=text.txt"]];
    folder.succeed(&longer.concat());
}

#[test]
fn records_come_through_standard_input_where_the_config_says_so() {
    let folder = Folder::new("path = \"-\"\nformat = \"jsonl\"\ntext_field = \"body\"\n");
    let lines = text().lines().map(|line| serde_json::json!({ "body": line }).to_string() + "\n").collect::<String>();
    succeeded(folder.pipe(&["train", "tiny.toml"], lines.as_bytes()));
    let eval = ["eval", "runs/tiny", "--text", "-", "--json"];
    let found = folder.pipe(&eval, lines.as_bytes()).stdout;
    let bytes = folder.pipe(&["tokenizer", "encode", "runs/tiny", "--file", "-", "--ids"], b"The");
    assert_eq!(bytes.stdout.split(|byte| *byte == b' ').count(), 3);
    folder.write("a.jsonl", &lines);
    let of_file = folder.pipe(&["eval", "runs/tiny", "--text", "a.jsonl", "--json"], b"");
    assert!(!found.is_empty() && found == of_file.stdout, "records, as the run has them");
    let auto = ["train", "tiny.toml", "--overwrite", "--set", "data.format=auto"];
    let output = folder.pipe(&auto, lines.as_bytes());
    assert_snapshot!(String::from_utf8(output.stderr).expect("UTF-8"), @r#"
    error: the first line of standard input is a record of JSON Lines, with a field "body"
      hint: data.format = "jsonl" reads that field of each line as the text, data.format = "text" reads the lines as they are; the name of a file would decide
    "#);
    let output = folder.pipe(&["train", "tiny.toml", "--overwrite"], b"{\"text\": 1}\n");
    assert_snapshot!(String::from_utf8(output.stderr).expect("UTF-8"), @r#"
    error: line 1 of `-` has no field "body", only "text"
      hint: data.text_field names the one that holds the text
    "#);
    let output = folder.pipe(&["train", "tiny.toml", "--overwrite"], b"");
    assert_snapshot!(String::from_utf8(output.stderr).expect("UTF-8"), @r#"
    error: the text `-` is empty
      hint: put text into it, or name another
    "#);
}

#[cfg(unix)]
#[test]
fn a_terminal_is_not_waited_for() {
    use portable_pty::{CommandBuilder, PtySize, native_pty_system};
    use std::io::Read;

    let folder = Folder::new("path = \"-\"\n");
    let pty = native_pty_system().openpty(PtySize::default()).expect("a terminal");
    let mut command = CommandBuilder::new(assert_cmd::cargo::cargo_bin!("tinderbox"));
    command.args(["train", "tiny.toml"]);
    command.cwd(folder.path("."));
    let mut child = pty.slave.spawn_command(command).expect("starts");
    drop(pty.slave);
    let mut said = Vec::new();
    let mut reader = pty.master.try_clone_reader().expect("readable");
    let _ = reader.read_to_end(&mut said); // some systems report a closed terminal as an error
    assert_eq!(child.wait().expect("ends").exit_code(), 1);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("standard input, which is a terminal"), "{said}");
}

#[test]
fn several_sources_are_drawn_by_their_weights() {
    let sources = "[[data.sources]]\npath = \"text.txt\"\nweight = 3\n\
                   [[data.sources]]\npath = \"other.jsonl\"\ntext_field = \"body\"\n";
    let folder = Folder::new(sources);
    let numbers: Vec<String> = (0..1000).map(|n: u32| n.to_string()).collect();
    let body = numbers.join(" ") + " ";
    folder.write("other.jsonl", serde_json::json!({ "body": body }).to_string());
    let said = folder.succeed(&["train", "tiny.toml"]);
    let lines = said.lines().filter(|line| line.starts_with("source "));
    assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r"
    source `text.txt`: 8,591 training and 955 validation tokens; 75.0 % of the windows, 0.03 epochs
    source `other.jsonl`: 3,501 training and 389 validation tokens; 25.0 % of the windows, 0.03 epochs
    ");
    // The weights are part of the run; the locations of the texts are not.
    let resume = |sources: &str| {
        folder.write("tiny.toml", CONFIG.to_owned() + sources);
        folder.command(&["train", "tiny.toml", "--resume", "--set", "train.max_steps=8"])
    };
    let output = resume(&sources.replace("= 3", "= 2")).output().expect("starts");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains("the weights of data.sources were [3.0, 1.0] and are now [2.0, 1.0]"), "{said}");
    fs::rename(folder.path("text.txt"), folder.path("moved.txt")).expect("moved");
    succeeded(resume(&sources.replace("text.txt", "moved.txt")).output().expect("starts"));
    folder.succeed(&["eval", "runs/tiny", "--split", "train"]);
}

#[test]
fn one_source_is_drawn_as_a_path_is() {
    let folder = Folder::new("[[data.sources]]\npath = \"text.txt\"\nweight = 0.3\n");
    folder.succeed(&["train", "tiny.toml"]);
    folder.write("tiny.toml", CONFIG.to_owned() + "path = \"text.txt\"\n");
    folder.succeed(&["train", "tiny.toml", "--run-dir", "other"]);
    let weights = "checkpoints/step-000006/model.safetensors";
    assert!(folder.read(&format!("runs/tiny/{weights}")) == folder.read(&format!("other/{weights}")));
}

#[test]
fn any_text_can_be_evaluated() {
    let folder = Folder::new("path = \"text.txt\"\n");
    folder.succeed(&["train", "tiny.toml"]);
    let whole = text();
    folder.write("a.txt.gz", gzip(whole.as_bytes()));
    folder.write("a.jsonl", serde_json::json!({ "text": whole }).to_string());
    folder.write("folder/a.txt", &whole);
    let losses = |path: &str| {
        let args = ["eval", "runs/tiny", "--json", "--text", path];
        let output = folder.pipe(&args, whole.as_bytes());
        let stdout = String::from_utf8(output.stdout.clone()).expect("UTF-8");
        succeeded(output);
        stdout
    };
    let plain = losses("text.txt");
    assert!(plain.contains(&format!("\"tokens\":{}", whole.len() - 1)), "{plain}");
    for path in ["a.txt.gz", "a.jsonl", "folder", "-"] {
        assert_eq!(losses(path), plain, "{path}");
    }
}

#[test]
fn mistakes_are_answered_with_a_way_out() {
    let folder = Folder::new("path = \"text.txt\"\n");
    folder.write("stories/tales.txt", text());
    folder.write("report.docx", b"PK\x03\x04 and so on");
    folder.write("cut.txt.gz", &gzip(text().as_bytes())[..100]);
    folder.write("a.jsonl", "{\"text\": \"x\"}\n\n{\"body\": \"x\", \"title\": \"y\"}\n");
    folder.write("b.jsonl", "{\"text\": \"x\"}\n[\"x\"]\n");
    folder.write("c.jsonl", "{\"text\": null}\n");
    folder.write("d.jsonl", "{\n  \"text\": \"x\"\n}\n");
    let said = [
        "stories/tale.txt",
        "elsewhere/tale.txt",
        "report.docx",
        "cut.txt.gz",
        "a.jsonl",
        "b.jsonl",
        "c.jsonl",
        "d.jsonl",
    ]
    .map(|path| folder.fail(&["train", "tiny.toml", "--set", &format!("data.path={path}")]));
    assert_snapshot!(said.concat(), @r#"
    error: there is no file or folder `stories/tale.txt`
      hint: did you mean `stories/tales.txt`?
    error: there is no file or folder `elsewhere/tale.txt`
      hint: relative paths start at the working directory
    error: `report.docx` is not text, but an Office document or e-book
      hint: save it as plain text (UTF-8)
    error: `cut.txt.gz` is not a complete gzip file: incomplete deflate stream
      hint: download or compress it again; `gzip -t` checks whether it is complete
    error: line 3 of `a.jsonl` has no field "text", only "body", "title"
      hint: data.text_field names the one that holds the text
    error: line 2 of `b.jsonl` is a list, not an object
      hint: JSON Lines is one object a line, such as {"text": "..."}; format = "text" under [data] takes the file as it is
    error: line 1 of `c.jsonl` has null in its field "text", not a text
      hint: data.text_field names the field that holds the text
    error: line 1 of `d.jsonl` is not JSON: EOF while parsing an object
      hint: JSON Lines is one object a line, such as {"text": "..."}; format = "text" under [data] takes the file as it is
    "#);
    let both = "data.sources=[{path=\"a\", weight=0}, {path=\"-\"}, {path=\"a\", text_field=\"\"}]";
    assert_snapshot!(folder.fail(&["train", "tiny.toml", "--set", both]), @r#"
    error: the config `tiny.toml` has 5 problems:
      - data.path = "text.txt" must not be there beside [[data.sources]]: name it as one of them, or leave them out
      - data.sources[0].weight = 0 must be above 0 and at most 1e15: only how weights compare matters
      - data.sources[1].path = "-": standard input can only be the one text of data.path; save it to a file first
      - data.sources[2].text_field = "" must name the field of a JSON Lines record that holds its text
      - data.sources[2].path = "a" is data.sources[0] already: raise its weight instead
    "#);
    let sources = "data.sources=[{path=\"stories\"}, {path=\"stories/tales.txt\"}]";
    let args = ["train", "tiny.toml", "--set", "data.path=", "--set", sources];
    assert_snapshot!(folder.fail(&args), @r#"
    error: `stories/tales.txt` is in two sources, `stories` and `stories/tales.txt`: what one keeps for validation, the other would train on
      hint: name each file in one of them; a weight says how often it is drawn
    "#);
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_and_a_file_that_may_not_be_read() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = Folder::new("path = \"texts\"\n");
    folder.write("texts/a.txt", text());
    symlink("gone.txt", folder.path("texts/b.txt")).expect("linked");
    assert_snapshot!(folder.fail(&["train", "tiny.toml"]), @r"
    error: `texts/b.txt` is a link to `gone.txt`, which is not there
      hint: remove the link, or put back what it leads to
    ");
    fs::remove_file(folder.path("texts/b.txt")).expect("removed");
    let path = folder.path("texts/a.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("set");
    if fs::read(&path).is_err() {
        // root can read everything
        assert_snapshot!(folder.fail(&["train", "tiny.toml"]), @r"
        error: cannot read the text `texts/a.txt`: Permission denied (os error 13)
          hint: check that you may read it
        ");
    }
}

/// A file size limit simulates a full disk.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_leaves_no_token_file() {
    let folder = Folder::new("path = \"text.txt\"\n");
    folder.write("text.txt", text().repeat(100));
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" train tiny.toml"; // 50 or 100 KiB
    let binary: &Path = assert_cmd::cargo::cargo_bin!("tinderbox");
    shell.args(["-c", script]).arg(binary).current_dir(folder.path("."));
    let output = shell.output().expect("starts");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot keep the encoded text in `cache/"), "{said}");
    assert!(said.contains("make room there"), "{said}");
    let left = fs::read_dir(folder.path("cache")).expect("listed").count();
    assert_eq!(left, 0, "nothing half-written is left");
    folder.succeed(&["train", "tiny.toml"]);
}

#[test]
fn the_cache_stays_below_its_limit() {
    let folder = Folder::new("path = \"text.txt\"\ncache_limit_gib = 2e-5\n"); // 21 KiB: a single file of 18 KiB
    let n_files = || {
        let entries = fs::read_dir(folder.path("cache")).expect("listed").flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "tokens")).count()
    };
    folder.succeed(&["train", "tiny.toml"]);
    assert_eq!(n_files(), 1);
    folder.write("text.txt", text().replace(" old.", " OLD."));
    folder.succeed(&["train", "tiny.toml", "--overwrite"]);
    assert_eq!(n_files(), 1, "that of the other text is gone");
    folder.succeed(&["eval", "runs/tiny"]);
}
