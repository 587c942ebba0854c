//! What comes from outside, damaged at random: no panic, no hang, and no more memory than a small multiple of it.
//!
//! A gate runs some hundred cases of each; `TINDERBOX_FUZZ_CASES` asks for more, and proptest keeps the seeds of those
//! that failed.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tinderbox::config::Config;
use tinderbox::run::Checkpoint;
use tinderbox::tokenizer::Tokenizer;

use crate::allocations::most_held;

/// More than any of these takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What any of these may hold however short the input is.
const SMALL: usize = 16 << 20;

/// Memory for each byte of input: JSON is kept as values of 32 bytes.
const MULTIPLE: usize = 64;

fn cases(default: u32) -> ProptestConfig {
    let asked = std::env::var("TINDERBOX_FUZZ_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(default), ..ProptestConfig::default() }
}

/// Runs `f` on an input of `n` bytes, in bounds of time and memory.
fn bounded<T>(n: usize, f: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let (held, out) = most_held(f);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(held < SMALL + MULTIPLE * n, "{held} bytes for {n}");
    out
}

/// A change of some bytes: one replaced, a piece cut out, doubled or filled in, or a number made huge.
#[derive(Clone, Debug)]
enum Change {
    Replace(prop::sample::Index, u8),
    CutOut(prop::sample::Index, usize),
    Double(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Number(prop::sample::Index, u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<prop::sample::Index>;
    let change = prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (at(), 1..200_usize).prop_map(|(at, n)| Change::CutOut(at, n)),
        (at(), 1..200_usize).prop_map(|(at, n)| Change::Double(at, n)),
        (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), prop_oneof![Just(0), Just(400_000_000), Just(u64::MAX), any::<u64>()])
            .prop_map(|(at, number)| Change::Number(at, number)),
    ];
    prop::collection::vec(change, 1..6)
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let n_bytes = bytes.len();
        if n_bytes == 0 {
            break;
        }
        let end = |at: usize, n: usize| (at + n).min(n_bytes);
        match change {
            Change::Replace(at, byte) => bytes[at.index(n_bytes)] = *byte,
            Change::CutOut(at, n) => drop(bytes.drain(at.index(n_bytes)..end(at.index(n_bytes), *n))),
            Change::Double(at, n) => {
                let piece = bytes[at.index(n_bytes)..end(at.index(n_bytes), *n)].to_vec();
                drop(bytes.splice(at.index(n_bytes)..at.index(n_bytes), piece));
            }
            Change::Insert(at, more) => drop(bytes.splice(at.index(n_bytes)..at.index(n_bytes), more.clone())),
            Change::Number(at, number) => {
                let digits = |byte: &u8| byte.is_ascii_digit();
                let Some(start) = bytes[at.index(n_bytes)..].iter().position(digits) else { continue };
                let start = at.index(n_bytes) + start;
                let n = bytes[start..].iter().take_while(|byte| digits(byte)).count();
                drop(bytes.splice(start..start + n, number.to_string().into_bytes()));
            }
        }
    }
    bytes
}

/// A run of one step: its config, tokenizer and weights.
struct Seeds {
    config: String,
    tokenizers: Vec<String>,
    weights: Vec<u8>,
    state: String,
}

static SEEDS: LazyLock<Seeds> = LazyLock::new(|| {
    let folder = crate::cli::Folder::new();
    folder.succeed(&["train", "tiny.toml", "--set", "train.max_steps=1"]);
    let checkpoint = folder.path("runs/tiny/checkpoints/step-000001");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let fixture = |name: &str| fs::read_to_string(fixtures.join(name)).expect("a fixture");
    let bpe = Tokenizer::train_bpe(280, &crate::runs::text());
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
    fn any_config_is_read_or_refused(changes in changes()) {
        let text = changed(SEEDS.config.clone().into_bytes(), &changes);
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
    fn any_tokenizer_is_read_or_refused(which in 0..4_usize, changes in changes()) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("tokenizer.json");
        let json = changed(SEEDS.tokenizers[which].clone().into_bytes(), &changes);
        fs::write(&path, &json).expect("written");
        bounded(json.len(), || {
            if let Ok(tokenizer) = Tokenizer::from_file(&path) {
                let ids = tokenizer.encode("The cat sat.");
                ids.ok().map(|ids| tokenizer.decode(&ids));
            }
        });
    }

    #[test]
    fn any_checkpoint_is_read_or_refused(changes in changes(), of_state in changes(), header in any::<bool>()) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let seeds = &*SEEDS;
        let weights = match header {
            // The length of the header stays as it is, and its text is changed.
            true => {
                let n = 8 + seeds.weights[0] as usize + 256 * seeds.weights[1] as usize;
                let json = changed(seeds.weights[8..n].to_vec(), &changes);
                [&(json.len() as u64).to_le_bytes()[..], &json, &seeds.weights[n..]].concat()
            }
            false => changed(seeds.weights.clone(), &changes),
        };
        for name in ["model.safetensors", "optimizer.safetensors"] {
            fs::write(folder.path().join(name), &weights).expect("written");
        }
        fs::write(folder.path().join("state.json"), changed(seeds.state.clone().into_bytes(), &of_state)).expect("written");
        bounded(weights.len(), || {
            Checkpoint::read_state(folder.path()).ok();
            Checkpoint::read(folder.path()).ok()
        });
    }
}

#[test]
fn sizes_in_a_header_and_ids_of_a_tokenizer_are_compared_with_the_files() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A header that would be parsed into forty times its size.
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
