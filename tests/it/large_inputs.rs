//! The memory that large files take while they are read: at most four times their size, plus 16 MiB. A tokenizer takes
//! more, because the library keeps several tables.

use std::fs;
use std::path::Path;

use tinderbox::config::{Config, DataConfig, TextFormat};
use tinderbox::data::Preview;
use tinderbox::run::{Checkpoint, Curves, RunDir, RunInfo, TrainState, processes, samples};
use tinderbox::tokenizer::Tokenizer;

use crate::allocations::most_held;
use crate::fuzz::{MULTIPLE, SMALL};

/// The size limit of such files in tests.
const LONG: usize = 12 << 20;

/// `piece` with a number for each `#`, repeated up to `n_bytes`.
fn repeated(start: &str, piece: &str, end: &str, n_bytes: usize) -> String {
    let mut text = String::with_capacity(n_bytes + 64);
    text.push_str(start);
    for n in 1.. {
        if text.len() + piece.len() + end.len() > n_bytes {
            break;
        }
        text.push_str(&piece.replace('#', &n.to_string()));
    }
    text + end
}

/// Reads each file with `read`, and reports those that took more than `multiple` times their size.
fn check<T>(cases: Vec<(&str, String)>, multiple: usize, read: impl Fn(&Path) -> T) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("file");
    let mut failures = Vec::new();
    for (name, text) in cases {
        fs::write(&path, &text).expect("written");
        let (held, read) = most_held(|| read(&path));
        drop(read);
        let most = SMALL + multiple * text.len();
        eprintln!("{name}: {:.1} MiB for {:.1} MiB", held as f64 / 1048576.0, text.len() as f64 / 1048576.0);
        if held > most {
            failures.push(format!("{name}: {held} bytes for {}", text.len()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn configs() {
    let shapes = |n| {
        vec![
            ("a list", repeated("data = {path = \"a\"}\nx = [", "1,", "]", n)),
            ("tables", repeated("data = {path = \"a\"}\n", "[a#]\n", "", n)),
            ("keys", repeated("[model]\n", "a#=1\n", "", n)),
            ("lists in lists", repeated("x = ", "[", "", n)),
            ("a comment", repeated("data = {path = \"a\"}\n#", "abc ", "", n)),
        ]
    };
    let load = |path: &Path| Config::load(path, &[]).map_err(|error| error.to_string().len());
    check(shapes(125 << 10), MULTIPLE, load);
    check(shapes(LONG), 0, |path| {
        let error = Config::load(path, &[]).expect_err("too long").to_string();
        assert!(error.contains("a config has at most 128 KiB\n  hint: "), "{error}");
    });
}

#[test]
fn states() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("step-000000");
    let state = TrainState { loss_window: vec![2.945_016_6; LONG / 16], ..TrainState::default() };
    let checkpoint = Checkpoint { model: [].into(), optimizer: [].into(), state };
    checkpoint.write(&dir).expect("written");
    let whole = fs::read_to_string(dir.join("state.json")).expect("read");
    let cases = vec![
        ("losses", whole.clone()),
        ("cut losses", whole[..whole.len() / 2].to_owned()),
        ("an unknown list", repeated("{\"version\":1,\"x\":[", "1,", "1]}", LONG)),
        ("unknown keys", repeated("{\"version\":1", ",\"k#\":[{}]", "}", LONG)),
        ("lists in lists", repeated("{\"version\":", "[", "", LONG)),
    ];
    check(cases, MULTIPLE, |path| {
        fs::rename(path, dir.join("state.json")).expect("renamed");
        Checkpoint::read_state(&dir).map_err(|error| error.to_string().len())
    });
}

#[test]
fn headers_of_tensors() {
    let file = |header: String| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        assert!(file.is_ascii(), "so that the file is text");
        file.extend(header.into_bytes());
        String::from_utf8(file).expect("text")
    };
    // A length whose bytes are all ASCII.
    let n = 0x1f_7f7f;
    let padded = |header: String| file(header.clone() + &" ".repeat(n - header.len()));
    let tensor = "\"a#\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},";
    let last = "\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    let cases = vec![
        ("tensors", padded(repeated("{", tensor, last, n))),
        (
            "dimensions",
            padded(repeated("{\"a\":{\"dtype\":\"F32\",\"shape\":[", "1,", "1],\"data_offsets\":[0,4]}}", n)),
        ),
        ("a name", padded(repeated("{\"", "a", "\":1}", n))),
        ("metadata", padded(repeated("{\"__metadata__\":{", "\"#\":\"\",", "\"\":\"\"}}", n))),
    ];
    let folder = tempfile::tempdir().expect("a temporary directory");
    let dir = folder.path().join("step-000000");
    Checkpoint { model: [].into(), optimizer: [].into(), state: TrainState::default() }.write(&dir).expect("written");
    check(cases, MULTIPLE, |path| {
        fs::rename(path, dir.join("model.safetensors")).expect("renamed");
        Checkpoint::read(&dir).map_err(|error| error.to_string().len())
    });
}

#[test]
fn logs() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let root = folder.path().join("run");
    fs::create_dir(&root).expect("made");
    fs::write(root.join("config.toml"), "[data]\npath = \"a\"\n").expect("written");
    let run = RunDir::open(&root).expect("a run");
    let metrics = "{\"gradient_norm\":1.0595381259918213,\"learning_rate\":0.00009900990099009902,\"step\":#,\
                   \"tokens\":5120,\"train_loss\":2.8664432764053345}\n";
    let timings = "{\"median_step_ms\":74.368144,\"step\":#,\
                   \"tokens_per_s\":20654.004757736053,\"train_s\":89.248028473,\"wall_s\":101.743897823}\n";
    let cases = || {
        vec![
            ("metrics", repeated("", metrics, "", LONG)),
            ("timings", repeated("", timings, "", LONG)),
            ("samples", repeated("", "===== step # =====\nOnce upon a time there was\n\n", "", LONG)),
            ("a long line", repeated("{\"step\":1,\"x\":[", "1,", "1]}\n", LONG)),
            ("long lines", (repeated("{\"step\":1,\"x\":[", "1,", "1]}", 1 << 19) + "\n").repeat(LONG >> 19)),
            ("no lines", "\n".repeat(LONG)),
            ("no JSON", "x\n".repeat(LONG / 2)),
        ]
    };
    for name in ["metrics.jsonl", "timings.jsonl", "samples.txt"] {
        let read = |path: &Path| fs::rename(path, root.join(name)).expect("renamed");
        check(cases(), MULTIPLE, |path| {
            read(path);
            let shown = (RunInfo::read(&run).map(drop), processes(&run).map(drop), samples(&run).map(drop));
            (shown, Curves::read(&run).map(drop)) // one after another: the most that any of them holds
        });
        fs::remove_file(root.join(name)).expect("removed");
    }
}

/// The library keeps a vocabulary in two tables, and one of pieces also in a trie.
const MULTIPLE_OF_TOKENIZER: usize = 20;

#[test]
fn tokenizers() {
    let word = "\"t#\":#,";
    let words = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"t1\",\"vocab\":{";
    let pairs = "{\"model\":{\"type\":\"BPE\",\"vocab\":{";
    let tokens = repeated(pairs, "\"#\":#,\"a#\":#,", "\"a\":0},\"merges\":[", LONG / 4 * 3);
    let pieces = "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[";
    let cases = vec![
        ("words", repeated(words, word, "\"t0\":0}}}", LONG)),
        ("pairs", tokens.clone() + &repeated("", "[\"a\",\"#\"],", "[\"a\",\"1\"]]}}", LONG / 4)),
        ("lines of pairs", tokens + &repeated("", "\"a #\",", "\"a 1\"]}}", LONG / 5)),
        ("pieces", repeated(pieces, "[\"t#\",-1.5],", "[\"t0\",0]]}}", LONG)),
        ("a list", repeated("{\"model\":{\"x\":[", "1,", "1]}}", LONG)),
        ("lists in lists", repeated("{\"model\":", "[", "", LONG)),
        ("another file", repeated("{\"x\":[", "1,", "1]}", LONG)),
    ];
    check(cases, MULTIPLE_OF_TOKENIZER, |path| {
        Tokenizer::from_file(path).map_err(|error| error.to_string().len()).map(drop)
    });
}

/// The most memory that a record may take, as a multiple of its size.
const MULTIPLE_OF_RECORD: usize = 3;

#[test]
fn records() {
    let read = |path: &Path| {
        let (path, format) = (path.to_owned(), TextFormat::Jsonl);
        let record_limit_mib = LONG as f64 / f64::from(1 << 20);
        let source = DataConfig { path, format, record_limit_mib, ..DataConfig::default() };
        Preview::read(&source, 1, true).map_err(|error| error.to_string().len()).map(drop)
    };
    let cases = vec![
        ("a text", repeated("{\"text\":\"", "abc ", "\"}\n", LONG)),
        ("a text of escapes", repeated("{\"text\":\"", "\\u00e9", "\"}\n", LONG)),
        ("other fields", repeated("{", "\"a#\":1,", "\"text\":\"a\"}\n", LONG)),
        ("no field", repeated("{", "\"a#\":1,", "\"z\":1}\n", LONG)),
        ("a long name", repeated("{\"", "\\u00e9", "\":1}\n", LONG)),
        ("a list", repeated("{\"text\":[", "1,", "1]}\n", LONG)),
        ("no JSON", "x".repeat(LONG)),
        ("too long", "x".repeat(2 * LONG)),
    ];
    check(cases, MULTIPLE_OF_RECORD, read);
}
