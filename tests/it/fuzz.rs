//! External input, damaged at random: no panic, no hang, and no more memory than a small multiple of its size.
//!
//! The gate runs a few hundred cases of each; `TINDERBOX_FUZZ_TIMES` multiplies that, as in `scripts/soak.sh fuzz`, and
//! proptest keeps the seeds of failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use proptest::prelude::*;
use tinderbox::config::{Config, GenerateConfig, ModelConfig};
use tinderbox::generate::BatchGenerator;
use tinderbox::model::Gpt;
use tinderbox::report::Report;
use tinderbox::run::{self, Checkpoint, RunDir};
use tinderbox::tokenizer::Tokenizer;
use tinderbox::train::Start;

use crate::allocations::most_held;
use crate::damage::{Damage, cases, damaged, damages};
use crate::faults::tokenizer_and_tokens;
use crate::fixtures::{Folder, Place, files, text};

/// Longer than any case takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The memory allowed for any input, however short.
pub const SMALL: usize = 16 << 20;

/// The memory allowed per byte of input.
pub const MULTIPLE: usize = 4;

/// Runs `f` on an input of `n` bytes, within time and memory limits.
fn bounded<T>(n: usize, f: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let (held, out) = most_held(f);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(held < SMALL + MULTIPLE * n, "{held} bytes for {n}");
    out
}

/// The files of a one-step run: its config, tokenizers and weights.
struct Seeds {
    config: String,
    tokenizers: Vec<String>,
    weights: Vec<u8>,
    state: String,
}

static SEEDS: LazyLock<Seeds> = LazyLock::new(|| {
    let folder = Folder::with_run(&["train.max_steps=1"]);
    let checkpoint = folder.path("runs/tiny/checkpoints/step-000001");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let fixture = |name: &str| fs::read_to_string(fixtures.join(name)).expect("a fixture");
    let bpe = Tokenizer::train_bpe(280, &text());
    Seeds {
        config: folder.read("runs/tiny/config.toml"),
        tokenizers: vec![
            folder.read("runs/tiny/tokenizer.json"),
            Tokenizer::byte().to_json(),
            bpe.to_json(),
            fixture("wordpiece.json"),
        ],
        weights: fs::read(checkpoint.join("model.safetensors")).expect("read"),
        state: fs::read_to_string(checkpoint.join("state.json")).expect("read"),
    }
});

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn any_config_is_read_or_refused(damages in damages()) {
        let text = damaged(SEEDS.config.as_bytes(), &damages);
        let text = String::from_utf8_lossy(&text);
        bounded(text.len(), || Config::from_toml(&text, Path::new("c.toml"), &[]).ok());
    }

    #[test]
    fn any_override_is_taken_or_refused(
        texts in prop::collection::vec(prop_oneof![
            "\\PC{0,40}",
            "(data|model|train|generate|x)\\.[a-z_]{1,12}=\\PC{0,20}",
            "(model\\.d_model|train\\.betas|model\\.rope_scaling|data\\.sources)=[\\[\\]{}=,\"0-9a-z.e+-]{0,30}",
        ], 0..4),
    ) {
        bounded(texts.concat().len(), || Config::from_toml("data = {path = \"a\"}", Path::new("c.toml"), &texts).ok());
    }

    #[test]
    fn any_prompt_has_ids_or_an_error_and_any_ids_a_text(
        text in prop_oneof!["\\PC{0,60}", "(?s:.{0,60})", "[<|endoftext>a ]{0,60}"],
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        ids in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        which in 0..4_usize,
    ) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, &SEEDS.tokenizers[which]).expect("written");
        let tokenizer = Tokenizer::from_file(&path).expect("whole");
        let ids: Vec<u32> = ids.iter().map(|id| id.index(tokenizer.vocab_size()) as u32).collect();
        bounded(400, || {
            let _ = (tokenizer.encode(&text), tokenizer.encode_bytes(&bytes), tokenizer.encode_prompt(&bytes));
            tokenizer.decode(&ids)
        });
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn any_tokenizer_is_read_or_refused(which in 0..4_usize, damages in damages()) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("tokenizer.json");
        let json = damaged(SEEDS.tokenizers[which].as_bytes(), &damages);
        fs::write(&path, &json).expect("written");
        bounded(json.len(), || {
            if let Ok(tokenizer) = Tokenizer::from_file(&path) {
                let ids = tokenizer.encode("The cat sat.");
                ids.ok().map(|ids| tokenizer.decode(&ids));
            }
        });
    }

    #[test]
    fn any_checkpoint_is_read_or_refused(damages in damages(), of_state in damages(), header in any::<bool>()) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let seeds = &*SEEDS;
        let weights = match header {
            // The length of the header is correct, but its text is damaged.
            true => {
                let n = 8 + seeds.weights[0] as usize + 256 * seeds.weights[1] as usize;
                let json = damaged(&seeds.weights[8..n], &damages);
                [&(json.len() as u64).to_le_bytes()[..], &json, &seeds.weights[n..]].concat()
            }
            false => damaged(&seeds.weights, &damages),
        };
        for name in ["model.safetensors", "optimizer.safetensors"] {
            fs::write(folder.path().join(name), &weights).expect("written");
        }
        fs::write(folder.path().join("state.json"), damaged(seeds.state.as_bytes(), &of_state)).expect("written");
        bounded(weights.len(), || {
            Checkpoint::read_state(folder.path()).ok();
            Checkpoint::read(folder.path()).ok()
        });
    }
}

#[test]
fn sizes_in_a_header_and_ids_of_a_tokenizer_are_compared_with_the_files() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A header that would expand to forty times its size when parsed.
    let ones = "1,".repeat(4 << 20);
    let header = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{ones}1],\"data_offsets\":[0,4]}}}}");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    for name in ["model.safetensors", "optimizer.safetensors"] {
        fs::write(folder.path().join(name), &file).expect("written");
    }
    let (held, read) = most_held(|| Checkpoint::read(folder.path()));
    assert!(read.expect_err("too long").to_string().contains("header too large"));
    assert!(held < SMALL, "{held} bytes");

    let path = folder.path().join("tokenizer.json");
    let json = SEEDS.tokenizers[0].replace("\"a\": ", "\"a\": 4000000");
    assert_ne!(json, SEEDS.tokenizers[0]);
    fs::write(&path, &json).expect("written");
    let (held, read) = most_held(|| Tokenizer::from_file(&path));
    let error = read.expect_err("too many").to_string();
    assert!(error.contains("has the id 4000000"), "{error}");
    assert!(held < SMALL, "{held} bytes");
}

/// A run of ten steps, and the same run stopped after eight, with everything logged.
struct Stopped {
    place: Place,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

const END: &str = "checkpoints/step-000010";

impl Stopped {
    fn config(place: &Place) -> Config {
        place.config(&["train.tensorboard=true", "train.head_metrics=true", "train.keep_checkpoints=3"])
    }

    /// Writes the stopped run to a folder, with damage to some files.
    fn write(&self, to: &str, damages: &BTreeMap<&str, Vec<Damage>>) {
        let root = self.place.path(to);
        fs::remove_dir_all(&root).ok();
        for (path, whole) in &self.files {
            let damages = damages.get(path.to_str().expect("text"));
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, damages.map_or(whole.clone(), |damages| damaged(whole, damages))).expect("written");
        }
    }
}

static STOPPED: LazyLock<Stopped> = LazyLock::new(|| {
    let place = Place::new();
    place.train("whole", Stopped::config(&place), Start::New, None).expect("trains");
    place.train("stopped", Stopped::config(&place), Start::New, Some(8)).expect("stops");
    let mut files = files(&place.path("stopped"));
    files.insert("train.log".into(), b"step  3/10  loss 3.1\nerror: no space\n  hint: make room\n".to_vec());
    assert!(LOGS.iter().chain(&POINTERS).all(|name| files.contains_key(Path::new(name))), "{:?}", files.keys());
    Stopped { place, files }
});

const LOGS: [&str; 6] = [
    "metrics.jsonl",
    "timings.jsonl",
    "head_metrics.jsonl",
    "samples.txt",
    "train.log",
    "tensorboard/events.out.tfevents.tinderbox",
];

const POINTERS: [&str; 3] = ["last", "best", "checkpoints/step-000008/state.json"];

/// Damage to some of these files.
fn damages_to(names: &'static [&'static str]) -> impl Strategy<Value = BTreeMap<&'static str, Vec<Damage>>> {
    prop::collection::btree_map(prop::sample::select(names), damages(), 1..4)
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn any_log_is_shown_as_far_as_it_can_be_read(damages in damages_to(&LOGS)) {
        STOPPED.write("shown/run", &damages);
        let run = RunDir::open(&STOPPED.place.path("shown/run")).expect("a run");
        bounded(STOPPED.files.values().map(Vec::len).sum(), || {
            let report = Report::read(&run).expect("a report");
            drop(report.html());
            report.write(&run).expect("written");
            run::differences(&[run.clone(), run.clone()]).expect("configs");
        });
        prop_assert_eq!(run::list(&STOPPED.place.path("shown")).expect("a listing").runs.len(), 1);
    }

    #[test]
    fn any_prompt_is_continued_or_refused(
        which in 0..4_usize,
        bytes in prop_oneof![
            damages().prop_map(|damages| damaged(text().as_bytes(), &damages)),
            "\\PC{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
        ],
    ) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, &SEEDS.tokenizers[which]).expect("written");
        let tokenizer = Tokenizer::from_file(&path).expect("whole");
        let config = ModelConfig { context_length: 8, d_model: 8, n_layers: 1, n_heads: 2, n_kv_heads: 2, ..ModelConfig::default() };
        let model = Gpt::zeros(&config.with_derived(), tokenizer.vocab_size(), &Device::flex());
        let settings = GenerateConfig { max_new_tokens: 3, ..GenerateConfig::default() };
        bounded(bytes.len(), || {
            if let Ok(generator) = BatchGenerator::new(&model, &tokenizer, &settings, &bytes, 0..2) {
                generator.for_each(|round| drop(round.expect("writes")));
            }
        });
    }
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn a_run_goes_on_to_the_same_end_with_any_logs(damages in damages_to(&LOGS)) {
        let place = &STOPPED.place;
        STOPPED.write("logs", &damages);
        let began = Instant::now();
        place.train("logs", Stopped::config(place), Start::Resume, None).expect("goes on");
        prop_assert!(began.elapsed() < PATIENCE);
        prop_assert_eq!(files(&place.path("logs").join(END)).len(), 3);
        prop_assert!(files(&place.path("logs").join(END)).values().eq(files(&place.path("whole").join(END)).values()));
    }

    #[test]
    fn a_run_goes_on_to_the_same_end_or_refuses_with_any_pointers_and_state(damages in damages_to(&POINTERS)) {
        let place = &STOPPED.place;
        STOPPED.write("pointers", &damages);
        let began = Instant::now();
        if place.train("pointers", Stopped::config(place), Start::Resume, None).is_ok() {
            let weights = format!("{END}/model.safetensors");
            place.assert_same("whole", "pointers", &[&weights]);
        }
        prop_assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn any_cache_is_used_as_it_was_or_made_anew(of_each in [damages(), damages()]) {
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
            fs::write(path, damaged(whole, damages)).expect("written");
        }
        let found = bounded(caches.iter().map(|(_, whole)| whole.len()).sum(), open);
        prop_assert!(found == expected);
        prop_assert!(caches.iter().all(|(path, whole)| fs::read(path).expect("read") == *whole), "they are made anew");
    }
}
