//! Every kind of file that is read, damaged in every way and made very long: whatever is read is whole or refused,
//! nothing panics, and no file takes more memory than a small multiple of its size.
//!
//! The gate tries 20 to 400 random damages of each kind; `TINDERBOX_FUZZ_TIMES` multiplies that, as in
//! `scripts/soak.sh fuzz`, and proptest keeps the seeds of failures.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use rayon::prelude::*;
use tinderbox::config::{Config, DataConfig, GenerateConfig, ModelConfig, TextFormat};
use tinderbox::data::Preview;
use tinderbox::generate::BatchGenerator;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{self, ForeignModel, Outgoing};
use tinderbox::model::{Gpt, parameters};
use tinderbox::report::Report;
use tinderbox::run::{self, Checkpoint, Curves, RunDir, RunInfo, TrainState, Trained, processes, samples};
use tinderbox::tokenizer::Tokenizer;
use tinderbox::train::Start;

use crate::allocations::most_held;
use crate::faults::tokenizer_and_tokens;
use crate::fixtures::{Folder, Model, Place, copy, files, fs, import, text};

/// A change to some bytes: its kind, two places, a length and a number.
pub type Damage = (u8, [Index; 2], usize, u64);

pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let sizes = vec![0, 1, 1 << 20, 400_000_000, 1 << 31, 1 << 40, u64::MAX];
    let numbers = prop_oneof![prop::sample::select(sizes), 0..70_u64, any::<u64>()];
    prop::collection::vec((0..10_u8, any::<[Index; 2]>(), 1..200_usize, numbers), 1..6)
}

pub fn damaged(whole: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for (kind, places, n, number) in damages {
        let n_bytes = bytes.len();
        if n_bytes == 0 {
            break;
        }
        let [at, other] = places.map(|place| place.index(n_bytes));
        let piece = at..(at + n).min(n_bytes);
        let binary = number.to_le_bytes();
        match kind {
            0 => bytes[at] ^= 1 << (n % 8),
            1..=3 => {
                bytes[at..].iter_mut().zip(&binary[..[1, 4, 8][*kind as usize - 1]]).for_each(|(old, new)| *old = *new);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(piece)),
            6 => {
                let again = bytes[piece].repeat(n % 50);
                drop(bytes.splice(at..at, again));
            }
            7 => {
                let n = (n_bytes - at.max(other)).min(*n);
                (0..n.min(at.abs_diff(other))).for_each(|i| bytes.swap(at + i, other + i));
            }
            8 => drop(bytes.splice(at..at, binary.into_iter().take(n % 9))),
            // Replaces the next decimal number.
            _ => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let start = bytes[at..].iter().position(is_digit).map_or(n_bytes, |ahead| at + ahead);
                let n_digits = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
                if n_digits > 0 {
                    drop(bytes.splice(start..start + n_digits, number.to_string().into_bytes()));
                }
            }
        }
    }
    bytes
}

/// `whole` with one bit flipped, at each of about `n` evenly spread places, and truncated at as many.
fn everywhere(whole: &[u8], n: usize) -> impl Iterator<Item = Vec<u8>> {
    let places = move |length: usize| (0..n.min(length)).map(move |i| i * length / n.min(length));
    let flipped = places(whole.len()).map(|at| {
        let mut flipped = whole.to_vec();
        flipped[at] ^= 1 << (at % 8);
        flipped
    });
    flipped.chain(places(whole.len()).map(|at| whole[..at].to_vec()))
}

/// The number of cases per test; `TINDERBOX_FUZZ_TIMES` multiplies it.
pub fn cases(n: u32) -> ProptestConfig {
    let times: u32 = std::env::var("TINDERBOX_FUZZ_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    ProptestConfig { cases: n * times, source_file: Some(file!()), ..ProptestConfig::default() }
}

/// The memory allowed for any file, however short.
const SMALL: usize = 16 << 20;

/// The length of long files, which are allowed half of [`SMALL`].
const LONG: usize = 6 << 20;

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

/// A row of the table: a kind of file, and its reader.
struct Kind<R> {
    /// The place of the file that `read` reads.
    path: PathBuf,
    whole: Vec<Vec<u8>>,
    /// The length of what stands before the values; half of the damages are within it.
    n_header: fn(&[u8]) -> usize,
    /// Corrects what says how long a damaged header is.
    measure: fn(&mut Vec<u8>, usize),
    n_cases: u32,
    /// The memory that a file of this length may take.
    allowed: fn(usize) -> usize,
    read: R,
}

impl<R: Fn() -> Result<(), String>> Kind<R> {
    fn text(path: PathBuf, whole: Vec<String>, n_cases: u32, read: R) -> Self {
        let whole = whole.into_iter().map(String::into_bytes).collect();
        let allowed = |n| SMALL + 4 * n;
        Self { path, whole, n_header: <[u8]>::len, measure: |_, _| {}, n_cases, allowed, read }
    }

    /// Reads whole files, which succeeds, and damaged ones.
    fn bears_damage(&self) -> &Self {
        for whole in &self.whole {
            self.read(whole).expect("the file is whole");
        }
        let how = (0..self.whole.len(), damages(), any::<bool>());
        let ran = TestRunner::new(cases(self.n_cases)).run(&how, |(which, damages, in_header)| {
            let whole = &self.whole[which];
            let n = (self.n_header)(whole);
            let (before, after) = whole.split_at(if in_header { n } else { whole.len() });
            let mut bytes = damaged(before, &damages);
            if in_header {
                let n_damaged = bytes.len();
                (self.measure)(&mut bytes, n_damaged);
            }
            self.read(&[&bytes, after].concat()).ok();
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// Reads long files; those with an expected error are refused with it.
    fn bears_length<const N: usize>(&self, files: [(&str, String, &str); N]) {
        for (name, file, expected) in files {
            let found = self.read(file.as_bytes());
            let is_expected = found.as_ref().is_err_and(|error| error.contains(expected));
            assert!(expected.is_empty() || is_expected, "{name}: {found:?}");
        }
    }

    fn read(&self, file: &[u8]) -> Result<(), String> {
        fs::write(&self.path, file);
        let (held, found) = most_held(&self.read);
        if file.len() > 1 << 20 {
            eprintln!("{:.1} MiB for {:.1} MiB", held as f64 / 1_048_576.0, file.len() as f64 / 1_048_576.0);
        }
        let allowed = (self.allowed)(file.len()) - if file.len() > LONG / 2 { SMALL / 2 } else { 0 };
        assert!(held < allowed, "{held} bytes for {}: {found:?}", file.len());
        found
    }
}

/// The result of a reader, without what it read.
fn outcome<T, E: Display>(result: Result<T, E>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// The length of the header of a safetensors file, with the number that says it.
fn safetensors_header(file: &[u8]) -> usize {
    8 + usize::try_from(u64::from_le_bytes(file[..8].try_into().expect("8 bytes"))).expect("the header fits memory")
}

/// The files of a one-step run: its config, tokenizers and weights.
struct Seeds {
    folder: Folder,
    tokenizers: Vec<String>,
}

static SEEDS: LazyLock<Seeds> = LazyLock::new(|| {
    let folder = Folder::with_run(&["train.max_steps=1"]);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let wordpiece = fs::read_to_string(fixtures.join("wordpiece.json"));
    let (byte, bpe) = (Tokenizer::byte().to_json(), Tokenizer::train_bpe(280, &text()).to_json());
    Seeds { tokenizers: vec![folder.read("runs/tiny/tokenizer.json"), byte, bpe, wordpiece], folder }
});

fn tokenizer(which: usize) -> Tokenizer {
    Tokenizer::from_json(SEEDS.tokenizers[which].clone(), Path::new("tokenizer.json")).expect("a whole tokenizer")
}

#[test]
fn damaged_configs_are_read_or_refused() {
    let folder = Folder::new();
    let path = folder.path("c.toml");
    let read = || outcome(Config::load(&path, &[]));
    let mut configs = Kind::text(path.clone(), vec![SEEDS.folder.read("runs/tiny/config.toml")], 300, read);
    configs.allowed = |n| SMALL + 4 * n.min(128 << 10);
    let long = |n, expected| {
        [
            ("a list", repeated("data = {path = \"a\"}\nx = [", "1,", "]", n), expected),
            ("tables", repeated("data = {path = \"a\"}\n", "[a#]\n", "", n), expected),
            ("keys", repeated("[model]\n", "a#=1\n", "", n), expected),
            ("lists in lists", repeated("x = ", "[", "", n), expected),
            ("a comment", repeated("data = {path = \"a\"}\n#", "abc ", "", n), expected),
        ]
    };
    configs.bears_damage().bears_length(long(125 << 10, ""));
    configs.bears_length(long(LONG, "a config has at most 128 KiB\n  hint: "));
}

#[test]
fn damaged_tokenizers_are_read_or_refused() {
    let folder = Folder::new();
    let path = folder.path("tokenizer.json");
    let read = || {
        let tokenizer = Tokenizer::from_file(&path).map_err(|error| error.to_string())?;
        tokenizer.encode("The cat sat.").ok().map(|ids| tokenizer.decode(&ids));
        Ok(())
    };
    let mut kind = Kind::text(path.clone(), SEEDS.tokenizers.clone(), 150, read);
    // The library keeps a vocabulary in two tables, and one of pieces also in a trie.
    kind.allowed = |n| SMALL + 20 * n;
    let words = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"t1\",\"vocab\":{";
    let pairs = "{\"model\":{\"type\":\"BPE\",\"vocab\":{";
    let tokens = repeated(pairs, "\"#\":#,\"a#\":#,", "\"a\":0},\"merges\":[", LONG / 4 * 3);
    let pieces = "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[";
    let far = SEEDS.tokenizers[0].replace("\"a\": ", "\"a\": 4000000");
    kind.bears_damage().bears_length([
        ("words", repeated(words, "\"t#\":#,", "\"t0\":0}}}", LONG), ""),
        ("pairs", tokens.clone() + &repeated("", "[\"a\",\"#\"],", "[\"a\",\"1\"]]}}", LONG / 4), ""),
        ("lines of pairs", tokens + &repeated("", "\"a #\",", "\"a 1\"]}}", LONG / 5), ""),
        ("pieces", repeated(pieces, "[\"t#\",-1.5],", "[\"t0\",0]]}}", LONG), ""),
        ("a list", repeated("{\"model\":{\"x\":[", "1,", "1]}}", LONG), ""),
        ("lists in lists", repeated("{\"model\":", "[", "", LONG), ""),
        ("another file", repeated("{\"x\":[", "1,", "1]}", LONG), ""),
        ("a far id", far, "has the id 4000000"),
    ]);
}

#[test]
fn damaged_states_are_read_or_refused() {
    let folder = Folder::new();
    let dir = folder.path("step-000000");
    let state = TrainState { loss_window: vec![2.945_016_6; LONG / 16], ..TrainState::default() };
    let write = |state: &TrainState| {
        Checkpoint { model: [].into(), optimizer: [].into(), state: state.clone() }
            .write(&dir)
            .expect("it can be written");
        fs::read_to_string(dir.join("state.json"))
    };
    let long = write(&state);
    fs::remove_dir_all(&dir);
    let whole = write(&TrainState { loss_window: vec![2.5; 9], ..TrainState::default() });
    let read = || outcome(Checkpoint::read_state(&dir));
    Kind::text(dir.join("state.json"), vec![whole], 150, read).bears_damage().bears_length([
        ("losses", long.clone(), ""),
        ("cut losses", long[..long.len() / 2].to_owned(), ""),
        ("an unknown list", repeated("{\"version\":1,\"x\":[", "1,", "1]}", LONG), ""),
        ("unknown keys", repeated("{\"version\":1", ",\"k#\":[{}]", "}", LONG), ""),
        ("lists in lists", repeated("{\"version\":", "[", "", LONG), ""),
    ]);
}

#[test]
fn damaged_weights_are_read_or_refused() {
    let folder = Folder::new();
    let dir = folder.path("step-000001");
    copy(&SEEDS.folder.path("runs/tiny/checkpoints/step-000001"), &dir);
    let path = dir.join("model.safetensors");
    let kind = Kind {
        whole: vec![fs::read(&path)],
        path,
        n_header: safetensors_header,
        measure: |file, n| {
            let json = n.saturating_sub(8) as u64;
            file.iter_mut().zip(json.to_le_bytes()).for_each(|(old, new)| *old = new);
        },
        n_cases: 150,
        allowed: |n| SMALL + 4 * n,
        read: || outcome(Checkpoint::read(&dir)),
    };
    let file = |header: String| {
        assert!(header.is_ascii(), "so that the file is text");
        let length = (header.len() as u64).to_le_bytes().to_vec();
        String::from_utf8(length).expect("a length whose bytes are ASCII") + &header
    };
    let n = 0x1f_7f7f;
    let padded = |header: String| file(header.clone() + &" ".repeat(n - header.len()));
    let tensor = "\"a#\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},";
    let last = "\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    let [start, end] = ["{\"a\":{\"dtype\":\"F32\",\"shape\":[", "1],\"data_offsets\":[0,4]}}"];
    let too_long = repeated(start, "1,", end, 0x7f_7f00);
    let too_long = too_long.clone() + &" ".repeat(0x7f_7f7f - too_long.len());
    kind.bears_damage().bears_length([
        ("tensors", padded(repeated("{", tensor, last, n)), ""),
        ("dimensions", padded(repeated(start, "1,", end, n)), ""),
        ("a name", padded(repeated("{\"", "a", "\":1}", n)), ""),
        ("metadata", padded(repeated("{\"__metadata__\":{", "\"#\":\"\",", "\"\":\"\"}}", n)), ""),
        ("a header that is too long", file(too_long), "header too large"),
    ]);
}

/// Reads a model of another project, and makes a run of it.
fn import_again(path: &Path, folder: &Folder) -> Result<(), String> {
    let source = ForeignModel::open(path).map_err(|error| error.to_string())?;
    outcome(interop::import(&source, "there", &folder.path("again"), true))
}

#[test]
fn damaged_hugging_face_models_are_imported_or_refused() {
    let folder = Folder::new();
    let model = Model::of("llama");
    let path = model.path().join("model.safetensors");
    let kind = Kind {
        whole: vec![fs::read(&path)],
        path,
        n_header: safetensors_header,
        measure: |_, _| {},
        n_cases: 400,
        allowed: |n| 40 * n.max(20 << 10) + (1 << 20),
        read: || import_again(model.path(), &folder),
    };
    kind.bears_damage();
}

#[test]
fn damaged_gguf_files_are_imported_or_refused() {
    let folder = Folder::new();
    let outgoing = Outgoing::open(&import(&Model::for_gguf("llama"), &folder)).expect("a run");
    let path = gguf::export(&outgoing, TensorType::F16, &folder.path("it.gguf"), false).expect("it can be written");
    let kind = Kind {
        path: path.clone(),
        whole: vec![fs::read(&path)],
        n_header: |file| {
            let last = b"output_norm.weight";
            let at = file.windows(last.len()).position(|window| window == last);
            at.expect("the file has this tensor") + last.len() + 24
        },
        measure: |_, _| {},
        n_cases: 400,
        allowed: |n| 40 * n.max(20 << 10) + (1 << 20),
        read: || import_again(&path, &folder),
    };
    kind.bears_damage();

    // Extreme values of every setting.
    let (prefix, whole) = (b"llama.", &kind.whole[0]);
    let keys = whole.windows(prefix.len()).enumerate().filter(|(_, window)| window == prefix).map(|it| it.0);
    let keys: Vec<usize> = keys.collect();
    assert!(keys.len() > 8, "{keys:?}");
    for key in keys {
        let length = usize::try_from(u64::from_le_bytes(whole[key - 8..key].try_into().expect("8 bytes")));
        let end = key + length.expect("a key fits memory");
        let name = String::from_utf8_lossy(&whole[key..end]);
        let value = end + 4; // after its type
        for new in [0_u32, 1, 3, u32::MAX, f32::NAN.to_bits(), f32::INFINITY.to_bits(), (-1.0_f32).to_bits()] {
            let mut bytes = whole.clone();
            bytes[value..value + 4].copy_from_slice(&new.to_le_bytes());
            match kind.read(&bytes) {
                // `llama.vocab_size` is ignored: the rows of the embedding determine it.
                Ok(()) => assert!(new != u32::MAX || name == "llama.vocab_size", "{name}"),
                Err(error) => assert!(error.contains("it.gguf"), "{name}: {error}"),
            }
        }
    }
}

#[test]
fn damaged_records_are_read_or_refused() {
    let folder = Folder::new();
    let path = folder.path("records.jsonl");
    let record_limit_mib = LONG as f64 / f64::from(1 << 20);
    let source =
        DataConfig { path: path.clone(), format: TextFormat::Jsonl, record_limit_mib, ..DataConfig::default() };
    let read = || outcome(Preview::read(&source, 1, true));
    let mut kind = Kind::text(path, vec!["{\"text\": \"The cat sat.\", \"n\": 12}\n".repeat(9)], 150, read);
    kind.allowed = |n| SMALL + 3 * n;
    kind.bears_damage().bears_length([
        ("a text", repeated("{\"text\":\"", "abc ", "\"}\n", LONG), ""),
        ("a text of escapes", repeated("{\"text\":\"", "\\u00e9", "\"}\n", LONG), ""),
        ("other fields", repeated("{", "\"a#\":1,", "\"text\":\"a\"}\n", LONG), ""),
        ("no field", repeated("{", "\"a#\":1,", "\"z\":1}\n", LONG), ""),
        ("a long name", repeated("{\"", "\\u00e9", "\":1}\n", LONG), ""),
        ("a list", repeated("{\"text\":[", "1,", "1]}\n", LONG), ""),
        ("no JSON", "x".repeat(LONG), ""),
        ("too long", "x".repeat(2 * LONG), ""),
    ]);
}

#[test]
fn damaged_parquet_files_are_read_or_refused() {
    let folder = Folder::new();
    let path = folder.path("records.parquet");
    let text_field = "id".to_owned();
    let source = DataConfig { path: path.clone(), text_field, record_limit_mib: 1.0, ..DataConfig::default() };
    let kind = Kind {
        path,
        whole: vec![fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet/talk.parquet"))],
        n_header: <[u8]>::len,
        measure: |_, _| {},
        n_cases: 400,
        allowed: |n| SMALL + 4 * n + (16 << 20), // pages of four records, packed and not
        read: || outcome(Preview::read(&source, 1 << 20, true)),
    };
    kind.bears_damage();
}

/// A run of ten steps, and the same run stopped after eight, with everything logged.
struct Stopped {
    place: Place,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

const END: &str = "checkpoints/step-000010";

const LOGS: [&str; 6] = [
    "metrics.jsonl",
    "timings.jsonl",
    "head_metrics.jsonl",
    "samples.txt",
    "train.log",
    "tensorboard/events.out.tfevents.tinderbox",
];

/// The logs, and the files that say where a run stands.
const DAMAGED: [&str; 9] =
    [LOGS[0], LOGS[1], LOGS[2], LOGS[3], LOGS[4], LOGS[5], "last", "best", "checkpoints/step-000008/state.json"];

static STOPPED: LazyLock<Stopped> = LazyLock::new(|| {
    let place = Place::new();
    place.train("whole", Stopped::config(&place), Start::New, None).expect("the run trains");
    place.train("stopped", Stopped::config(&place), Start::New, Some(8)).expect("the run stops as asked");
    let mut files = files(&place.path("stopped"));
    files.insert("train.log".into(), b"step  3/10  loss 3.1\nerror: no space\n  hint: make room\n".to_vec());
    assert!(DAMAGED.iter().all(|name| files.contains_key(Path::new(name))), "{:?}", files.keys());
    Stopped { place, files }
});

impl Stopped {
    fn config(place: &Place) -> Config {
        place.config(&["train.tensorboard=true", "train.head_metrics=true", "train.keep_checkpoints=3"])
    }

    /// Writes the stopped run to a folder, with damage to some files.
    fn write(&self, to: &str, damages: &BTreeMap<&str, Vec<Damage>>) {
        let root = self.place.path(to);
        std::fs::remove_dir_all(&root).ok();
        for (path, whole) in &self.files {
            let damages = damages.get(path.to_str().expect("names of a run are UTF-8"));
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder"));
            fs::write(path, damages.map_or(whole.clone(), |damages| damaged(whole, damages)));
        }
    }
}

#[test]
fn damaged_logs_are_shown_as_far_as_they_can_be_read() {
    let runs = STOPPED.place.path("shown");
    STOPPED.write("shown/run", &BTreeMap::new());
    let run = RunDir::open(&runs.join("run")).expect("a run");
    let metrics = "{\"gradient_norm\":1.0595381259918213,\"learning_rate\":0.00009900990099009902,\"step\":#,\
                   \"tokens\":5120,\"train_loss\":2.8664432764053345}\n";
    let timings = "{\"median_step_ms\":74.368144,\"step\":#,\
                   \"tokens_per_s\":20654.004757736053,\"train_s\":89.248028473,\"wall_s\":101.743897823}\n";
    for name in LOGS {
        let path = runs.join("run").join(name);
        let whole = STOPPED.files[Path::new(name)].clone();
        let mut kind = Kind::text(path.clone(), vec![], 20, || {
            let shown = (RunInfo::read(&run).map(drop), processes(&run).map(drop), samples(&run).map(drop));
            drop((shown, Curves::read(&run).map(drop))); // one after another: the most that any of them holds
            assert_eq!(run::list(&runs).expect("a listing").runs.len(), 1);
            if fs::metadata(&path).expect("a log").len() < 1 << 20 {
                let report = Report::read(&run).expect("a report");
                drop(report.html());
                report.write(&run).expect("it can be written");
                run::differences(&[run.clone(), run.clone()]).expect("the runs have configs");
            }
            Ok(())
        });
        kind.whole.push(whole.clone());
        kind.bears_damage();
        if ["metrics.jsonl", "timings.jsonl", "samples.txt"].contains(&name) {
            let long_line = repeated("{\"step\":1,\"x\":[", "1,", "1]}", 1 << 19) + "\n";
            kind.bears_length([
                ("metrics", repeated("", metrics, "", LONG), ""),
                ("timings", repeated("", timings, "", LONG), ""),
                ("samples", repeated("", "===== step # =====\nOnce upon a time there was\n\n", "", LONG), ""),
                ("a long line", repeated("{\"step\":1,\"x\":[", "1,", "1]}\n", LONG), ""),
                ("long lines", long_line.repeat(LONG >> 19), ""),
                ("no lines", "\n".repeat(LONG), ""),
                ("no JSON", "x\n".repeat(LONG / 2), ""),
            ]);
        }
        fs::write(&path, whole);
    }
}

/// Uses everything that a run's best checkpoint is used for.
fn in_use(run: &Path) -> Result<(String, BTreeMap<String, parameters::HostTensor>), String> {
    let trained = Trained::open(run, None).map_err(|error| error.to_string())?;
    Ok((trained.tokenizer.to_json(), parameters::read(&trained.model)))
}

#[test]
fn damage_anywhere_in_run_is_noticed_or_harmless() {
    let place = Place::new();
    let settings = ["train.max_steps=4", "train.tensorboard=true", "train.head_metrics=true", "model.n_layers=1"];
    place.trained("run", &settings);
    let expected = in_use(&place.path("run")).expect("it is whole");
    let whole = files(&place.path("run"));
    let damaged: Vec<_> = whole.iter().filter(|(name, _)| !name.ends_with(".lock")).enumerate().collect();
    let (n_noticed, n_harmless) = (AtomicUsize::new(0), AtomicUsize::new(0));
    damaged.into_par_iter().for_each(|(n, (name, whole))| {
        let root = place.path(&format!("damaged-{n}"));
        copy(&place.path("run"), &root);
        for damaged in everywhere(whole, 40) {
            fs::write(root.join(name), &damaged);
            match in_use(&root) {
                Err(error) => {
                    assert!(error.contains("\n  hint: ") || name.ends_with("config.toml"), "{error}");
                    n_noticed.fetch_add(1, Ordering::Relaxed);
                }
                // The config is meant to be read and edited.
                Ok(_) if name.ends_with("config.toml") => {}
                Ok(found) => {
                    assert!(found == expected, "{} is used although it is damaged", name.display());
                    n_harmless.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let (n_noticed, n_harmless) = (n_noticed.into_inner(), n_harmless.into_inner());
    assert!(n_noticed > 200 && n_harmless > 200, "{n_noticed} noticed, {n_harmless} harmless");
}

proptest! {
    #![proptest_config(cases(60))]

    /// Damaged logs never prevent it; a damaged state or pointer may.
    #[test]
    fn damaged_runs_resume_to_same_end_or_refuse(
        damages in prop::collection::btree_map(prop::sample::select(&DAMAGED[..]), damages(), 1..4),
    ) {
        let place = &STOPPED.place;
        STOPPED.write("again", &damages);
        let only_logs = damages.keys().all(|name| LOGS.contains(name));
        match place.train("again", Stopped::config(place), Start::Resume, None) {
            Ok(_) if only_logs => {
                let [whole, again] = ["whole", "again"].map(|run| files(&place.path(run).join(END)));
                prop_assert!(again.len() == 3 && again.values().eq(whole.values()));
            }
            Ok(_) => place.assert_same("whole", "again", &[&format!("{END}/model.safetensors")]),
            Err(error) => prop_assert!(!only_logs, "{error}"),
        }
    }
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn damaged_caches_are_made_anew(of_each in [damages(), damages()]) {
        let place = &STOPPED.place;
        let cache_dir = format!("data.cache_dir={:?}", place.path("fuzzed"));
        let config = place.config(&["tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=300", &cache_dir]);
        let open = || tokenizer_and_tokens(&config);
        let expected = open();
        let is_note = |name: &Path| name.extension().is_some_and(|it| it == "note");
        let caches = files(&place.path("fuzzed")).into_iter();
        let caches = caches.filter(|(name, whole)| !whole.is_empty() && !is_note(name));
        let caches: Vec<_> = caches.map(|(name, whole)| (place.path("fuzzed").join(name), whole)).collect();
        prop_assert_eq!(caches.len(), 2, "tokens and a tokenizer");
        for ((path, whole), damages) in caches.iter().zip(&of_each) {
            fs::write(path, damaged(whole, damages));
        }
        let (held, found) = most_held(open);
        prop_assert!(held < SMALL + 4 * caches.iter().map(|(_, whole)| whole.len()).sum::<usize>());
        prop_assert!(found == expected);
        prop_assert!(caches.iter().all(|(path, whole)| fs::read(path) == *whole));
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn any_override_is_taken_or_refused(
        texts in prop::collection::vec(prop_oneof![
            "\\PC{0,40}",
            "(data|model|train|generate|x)\\.[a-z_]{1,12}=\\PC{0,20}",
            "(model\\.d_model|train\\.betas|model\\.rope_scaling|data\\.sources)=[\\[\\]{}=,\"0-9a-z.e+-]{0,30}",
        ], 0..4),
    ) {
        let (held, _) = most_held(|| Config::from_toml("data = {path = \"a\"}", Path::new("c.toml"), &texts).ok());
        prop_assert!(held < SMALL);
    }

    #[test]
    fn any_prompt_is_continued_or_refused(
        which in 0..4_usize,
        bytes in prop_oneof![
            damages().prop_map(|damages| damaged(text().as_bytes(), &damages)),
            "\\PC{0,60}".prop_map(String::into_bytes),
            "[<|endoftext>a ]{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
        ],
        ids in prop::collection::vec(any::<Index>(), 0..30),
    ) {
        let tokenizer = tokenizer(which);
        let ids: Vec<u32> = ids.iter().map(|id| id.index(tokenizer.vocab_size()) as u32).collect();
        let config = ModelConfig { context_length: 8, d_model: 8, n_layers: 1, n_heads: 2, n_kv_heads: 2, ..ModelConfig::default() };
        let model = Gpt::zeros(&config.with_derived(), tokenizer.vocab_size(), &Device::flex());
        let settings = GenerateConfig { max_new_tokens: 3, ..GenerateConfig::default() };
        let (held, ()) = most_held(|| {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (tokenizer.encode(&text), tokenizer.encode_bytes(&bytes), tokenizer.decode(&ids));
            if let Ok(generator) = BatchGenerator::new(&model, &tokenizer, &settings, &bytes, 0..2) {
                generator.for_each(|round| drop(round.expect("the model generates")));
            }
        });
        prop_assert!(held < SMALL + 4 * bytes.len());
    }
}
