//! Tokenizers: the results of the `tokenizers` library in Python for the same files, properties of every kind, and runs
//! with them.
//!
//! `scripts/fixtures/tokenizer_files.py` writes the files and the expected results.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value;
use tinderbox::tokenizer::{DecodeStream, Tokenizer, TokenizerKind};

use crate::fixtures::{Folder, Ran, fs, number, set};

const FILES: [&str; 6] = ["trained", "gpt2", "llama3", "llama2", "unigram", "wordpiece"];

fn path_of(name: &str) -> PathBuf {
    Path::new("tests/fixtures/tokenizers").join(format!("{name}.json"))
}

fn file(name: &str) -> Tokenizer {
    Tokenizer::from_file(&path_of(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// The text that the files were trained on.
fn text() -> String {
    let text = fs::read_to_string("data/stories.txt");
    text.chars().take(200_000).collect()
}

/// One of every kind, with a name; read once, since the property tests use them often.
fn all() -> &'static [(&'static str, Tokenizer)] {
    static ALL: LazyLock<Vec<(&'static str, Tokenizer)>> = LazyLock::new(read_all);
    &ALL
}

/// The same files opened by the library itself.
fn libraries() -> &'static [tokenizers::Tokenizer] {
    static LIBRARIES: LazyLock<Vec<tokenizers::Tokenizer>> = LazyLock::new(|| {
        let library = |(_, tokenizer): &(&str, Tokenizer)| {
            let mut library = tokenizers::Tokenizer::from_bytes(tokenizer.to_json()).unwrap();
            library.with_truncation(None).unwrap().with_padding(None);
            library
        };
        all().iter().map(library).collect()
    });
    &LIBRARIES
}

/// Characters and bytes that tokenizers stumble over.
const TRICKY: &str = "a\r\n\n\t  b\u{e9}e\u{301}\u{1f525}\0\u{feff}\u{200d}\u{2003}<s>\u{fffd} ";

fn read_all() -> Vec<(&'static str, Tokenizer)> {
    let mut all: Vec<_> = FILES.iter().map(|name| (*name, file(name))).collect();
    all.push(("byte", Tokenizer::byte()));
    let alphabet = (' '..'\u{300}').chain(TRICKY.chars());
    all.push(("char", Tokenizer::char_from_alphabet(alphabet.clone()).unwrap()));
    all.push(("ending byte", Tokenizer::byte().with_end_of_text()));
    all.push(("ending char", Tokenizer::char_from_alphabet(alphabet).unwrap().with_end_of_text()));
    all
}

#[test]
fn files_repeat_ids_and_texts_of_python() {
    let expected = fs::read_to_string(path_of("expected"));
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for name in FILES {
        let tokenizer = file(name);
        let expected = &expected["files"][name];
        assert_eq!(tokenizer.vocab_size() as u64, expected["largest_id"].as_u64().unwrap() + 1);
        let cases = expected["cases"].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            let decoded = case["decoded"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&ids), decoded, "{name}: {text:?}");
        }
    }
}

#[test]
fn bpe_training_repeats_file_of_python() {
    let trained = Tokenizer::train_bpe(600, &text());
    assert!(trained == file("trained"));
    assert_eq!(trained.kind(), TokenizerKind::Bpe);
    assert_eq!(file("trained").kind(), TokenizerKind::Bpe);
    assert_eq!(file("gpt2").kind(), TokenizerKind::File);
}

#[test]
fn short_text_trains_few_tokens() {
    let trained = |text: &str| Tokenizer::train_bpe(5000, text);
    assert_eq!(trained("").vocab_size(), 257);
    assert_eq!(trained("abc").vocab_size(), 257);
    let tokenizer = trained("abc abc");
    assert!((258..270).contains(&tokenizer.vocab_size()));
    let anything = "\u{65e5}\u{672c}\0\u{1f525} x";
    let ids = tokenizer.encode(anything).unwrap();
    assert_eq!(tokenizer.decode(&ids), anything);
    let ends = trained(&"<|endoftext|>a".repeat(9));
    assert_eq!(ends.vocab_size(), 257, "special tokens are not counted as text");
}

#[test]
fn end_of_text_token_is_found() {
    let name = |file_name| {
        let tokenizer = file(file_name);
        tokenizer.end_of_text().map(|id| tokenizer.piece(id))
    };
    assert_eq!(name("trained").as_deref(), Some("<|endoftext|>"));
    assert_eq!(name("llama3").as_deref(), Some("<|end_of_text|>"));
    assert_eq!(name("llama2").as_deref(), Some("</s>"));
    assert_eq!(name("wordpiece").as_deref(), Some("[SEP]"));
    assert_eq!(Tokenizer::byte().end_of_text(), None);
}

#[test]
fn run_keeps_tokenizer_config_and_bos() {
    let folder = Folder::new();
    fs::create_dir(folder.path("llama3"));
    fs::copy(path_of("llama3"), folder.path("llama3/tokenizer.json"));
    let config = r#"{"bos_token": "<|begin_of_text|>", "eos_token": {"content": "!"}, "chat_template": "T"}"#;
    folder.write("llama3/tokenizer_config.json", config);
    let sets = ["--set", "tokenizer.kind=file", "--set", "tokenizer.path=llama3/tokenizer.json"];
    let train = [&["train", "tiny.toml", "--overwrite", "--set", "train.max_steps=2"], &sets[..]].concat();
    folder.succeed(&train);
    let path = "runs/tiny/tokenizer_config.json";
    let kept: Value = serde_json::from_str(&folder.read(path)).unwrap();
    assert_eq!(kept["chat_template"], "T");
    assert_eq!(kept["add_bos_token"], false, "the text of this run had none");
    assert_eq!(folder.json(&["tokenizer", "info", "runs/tiny", "--json"])["end_of_text"], 0);
    // The config says what the file has, and what is given instead does not matter.
    assert!(folder.read("runs/tiny/config.toml").contains("end_of_text = true"));
    let further =
        ["train", "tiny.toml", "--resume", "--set", "tokenizer.end_of_text=false", "--set", "train.max_steps=3"];
    folder.succeed(&[&further[..], &sets[..]].concat());
    assert!(folder.read("runs/tiny/config.toml").contains("end_of_text = true"));

    let measured = || {
        let n_tokens = folder.json(&["eval", "runs/tiny", "--text", "text.txt", "--json"])["tokens"].as_u64().unwrap();
        let prompt = ["inspect", "attention", "runs/tiny", "--prompt", "The", "--format", "json"];
        (n_tokens, folder.json(&prompt)["tokens"][0].clone())
    };
    let (n_tokens, first) = measured();
    assert_eq!(first, "The");
    folder.write(path, config); // a model trained elsewhere, with such a token before each text
    assert_eq!(measured(), (n_tokens + 1, "<|begin_of_text|>".into()));
    folder.succeed(&["generate", "runs/tiny", "--prompt", "", "--max-new-tokens", "3"]);
    folder.succeed(&["train", "tiny.toml", "--overwrite", "--set", "train.max_steps=2"]);
    assert!(!folder.path(path).exists(), "it goes with the run");
}

#[test]
fn pieces_are_readable() {
    let tokenizer = file("trained");
    let piece = |text| tokenizer.piece(tokenizer.encode(text).unwrap()[0]);
    assert_eq!(piece(" the"), " the");
    assert_eq!(piece("\u{1f525}"), "\\xf0");
    assert_eq!(piece("<|endoftext|>"), "<|endoftext|>");
    let tokenizer = file("unigram");
    assert_eq!(tokenizer.piece(tokenizer.encode("the").unwrap()[0]), "\u{2581}the");
    assert_eq!(tokenizer.token_bytes(5), None);
}

#[test]
fn safe_split_finds_safe_places() {
    let cut = |name, text: &str| file(name).safe_split(text);
    assert_eq!(cut("trained", "one two. \n"), Some(8));
    assert_eq!(cut("trained", "one"), None);
    assert_eq!(cut("trained", ""), None);
    // In Llama 3's pattern line breaks after a full stop belong to its word.
    assert_eq!(cut("llama3", "one two.\n"), Some(3));
    // This could become the token "<extra space>".
    assert_eq!(cut("gpt2", "one <extra "), Some(3));
    assert_eq!(cut("gpt2", "one <extre "), Some(10));
    assert_eq!(cut("unigram", "one two\n"), Some(3));
    assert_eq!(cut("llama2", "one two\n"), None);
    assert_eq!(cut("wordpiece", "one two\n"), Some(3));
    assert_eq!(Tokenizer::byte().safe_split("\u{e9}"), Some(2));
}

/// Texts that tokenizers stumble over.
fn any_text() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        "[ \n\t\r\u{a0}\u{2003}]{1,4}",
        "[a-eA-E\u{e9}]{1,5}",
        "'s|'ll|'re|'|\"|\\.|!!|\\.\n|1|23|4567",
        "(?s:.{1,3})",
        "<\\|(endoftext\\|>)?",
        Just("<extra space>".to_owned()),
        Just("</s>".to_owned()),
        Just("the ".to_owned()),
    ];
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

/// The ids; `None` if a character tokenizer lacks a character.
fn ids(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    match tokenizer.encode(text) {
        Ok(ids) => Some(ids),
        Err(_) if tokenizer.kind() == TokenizerKind::Char => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn ids_are_those_of_library(text in any_text()) {
        for ((name, tokenizer), library) in all().iter().zip(libraries()) {
            let Some(found) = ids(tokenizer, &text) else { continue };
            prop_assert_eq!(&tokenizer.encode_bytes(text.as_bytes()).unwrap(), &found);
            let encoding = library.encode(&*text, false).unwrap();
            prop_assert_eq!(encoding.get_ids(), &found, "{}", name);
            prop_assert_eq!(library.decode(&found, false).unwrap(), tokenizer.decode(&found));
            let is_lossless = !["llama2", "unigram", "wordpiece"].contains(name);
            prop_assert!(!is_lossless || tokenizer.decode(&found) == text);
        }
    }

    #[test]
    fn split_text_keeps_ids(text in any_text(), more in any_text()) {
        for (name, tokenizer) in all() {
            let whole = text.clone() + &more;
            let (Some(at), Some(whole_ids)) = (tokenizer.safe_split(&text), ids(tokenizer, &whole)) else { continue };
            prop_assert!(at > 0);
            let (left, right) = whole.split_at(at);
            let parts = [ids(tokenizer, left).unwrap(), ids(tokenizer, right).unwrap()].concat();
            prop_assert_eq!(parts, whole_ids, "{} cut after {:?}", name, left);
        }
    }

    #[test]
    fn stream_equals_decoded_text(
        text in any_text(), drawn in prop::collection::vec(any::<prop::sample::Index>(), 0..30), n_known in 0..4_usize,
    ) {
        for (name, tokenizer) in all() {
            let mut all_ids = ids(tokenizer, &text).unwrap_or_default();
            let vocab_size = tokenizer.vocab_size();
            all_ids.extend(drawn.iter().map(|id| id.index(vocab_size) as u32));
            // The known text is separate, and ends at a character boundary.
            let known: Vec<u32> = tokenizer.encode("a the end of").unwrap().into_iter().take(n_known).collect();
            let mut stream = DecodeStream::after(tokenizer, &known);
            let mut streamed = tokenizer.decode(&known);
            for id in &all_ids {
                streamed.push_str(&stream.push(*id));
            }
            streamed.push_str(&stream.finish());
            let whole = tokenizer.decode(&[known, all_ids].concat());
            // Only an incomplete end may be missing, which `decode` shows as replacement characters.
            let rest = whole.strip_prefix(streamed.as_str());
            prop_assert!(
                rest.is_some_and(|rest| rest.chars().all(|c| c == char::REPLACEMENT_CHARACTER)),
                "{}: {:?} streamed as {:?}", name, whole, streamed
            );
        }
    }
}

#[test]
fn long_characters_and_bytes_have_ids_of_library() {
    for ((name, tokenizer), library) in all().iter().zip(libraries()).skip(FILES.len()) {
        assert_eq!(library.get_vocab_size(true), tokenizer.vocab_size());
        // A single word longer than the library's word cache holds.
        for text in [TRICKY, &TRICKY.repeat(500)] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(library.encode(text, false).unwrap().get_ids(), ids, "{name}");
            assert_eq!(library.decode(&ids, false).unwrap(), text);
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

/// A run that takes a moment, on the beginning of the stories.
const CONFIG: &str = r#"
data = { path = "text.txt", cache_dir = "cache" }
model = { context_length = 16, d_model = 16, n_layers = 1, n_heads = 2 }

[train]
device = "cpu"
max_steps = 4
batch_size = 2
log_interval = 2
eval_interval = 2
eval_batches = 1
checkpoint_interval = 2
sample_prompt = "The girl"
sample_tokens = 5
"#;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("text.txt", text().chars().take(20_000).collect::<String>());
    folder.write("tiny.toml", CONFIG);
    for name in FILES {
        fs::copy(path_of(name), folder.path(format!("{name}.json")));
    }
    folder
}

fn train_with(folder: &Folder, file: &str, more: &[&str]) -> Ran {
    let path = format!("tokenizer.path={file}");
    let args = ["train", "tiny.toml", "--run-dir", "run", "--set", "tokenizer.kind=file", "--set"];
    folder.run(&[&args[..], &[&path], more].concat())
}

#[test]
fn every_tokenizer_has_sample_prompt() {
    let folder = folder();
    folder.write("tiny.toml", CONFIG.replace("sample_prompt = \"The girl\"\n", ""));
    let short = ["--set", "train.max_steps=1", "--overwrite"];
    for name in FILES {
        train_with(&folder, &format!("{name}.json"), &short).exits(0);
        folder.succeed(&["generate", "run", "--max-new-tokens", "2"]);
    }
    for kind in
        [&["tokenizer.kind=char"][..], &["tokenizer.kind=byte"], &["tokenizer.kind=bpe", "tokenizer.vocab_size=300"]]
    {
        folder.succeed(&[&["train", "tiny.toml", "--run-dir", "run"], &*set(kind), &short].concat());
    }
    let ran = train_with(&folder, "wordpiece.json", &["--set", "train.sample_prompt=' '", "--overwrite"]).exits(1);
    assert!(ran.stderr.contains("cannot use train.sample_prompt: the tokenizer makes no token of \" \"\n  hint: "));
}

#[test]
fn bpe_run_trains_and_is_shown() {
    let folder = folder();
    let bpe = ["--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=300"];
    let train = ["train", "tiny.toml", "--run-dir", "run"];
    let report = folder.json(&[&train[..], &["--json"], &bpe].concat());
    let eval = folder.json(&["eval", "run/last", "--json"]);
    assert_eq!(eval["bits_per_byte"], report["val_bits_per_byte"]);
    let tokenizer = Tokenizer::from_file(&folder.path("run/tokenizer.json")).unwrap();
    assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (TokenizerKind::Bpe, 300));

    // Every evaluation has bits per byte that match its loss and the validation split's length.
    let text = folder.read("text.txt");
    let val = &text[text.floor_char_boundary(text.len() * 9 / 10)..];
    let tokens_per_byte = tokenizer.encode(val).unwrap().len() as f64 / val.len() as f64;
    let metrics = folder.read("run/metrics.jsonl");
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let estimates: Vec<Value> = lines.filter(|line| line["is_best"].is_boolean()).collect();
    assert_eq!(estimates.len(), 2);
    for line in estimates {
        let expected = number(&line["val_loss_estimate"]) / 2_f64.ln() * tokens_per_byte;
        let found = number(&line["val_bits_per_byte_estimate"]);
        assert!((found / expected - 1.0).abs() < 0.01, "{found} and {expected}");
    }

    let prompt = "One\u{1f525}<|endoftext|> two";
    let written = folder.succeed(&["generate", "run", "--prompt", prompt, "--max-new-tokens", "5"]);
    assert!(written.starts_with(prompt));
    let ids = folder.succeed(&["tokenizer", "encode", "run", prompt, "--ids"]);
    let mut decode = vec!["tokenizer", "decode", "run/last"];
    decode.extend(ids.split_whitespace());
    assert_eq!(folder.succeed(&decode), prompt);
    let shown = folder.succeed(&["tokenizer", "encode", "run", "a \n<|endoftext|>"]);
    assert!(shown.contains("  ·\n") && shown.contains("  0  <|endoftext|>"), "{shown}");
    let json = folder.json(&["tokenizer", "encode", "run", "The girl", "--json"]);
    assert_eq!(json["bytes"], 8);
    assert_eq!(json["ids"].as_array().unwrap().len() as u64, json["tokens"].as_u64().unwrap());
    let info = folder.succeed(&["tokenizer", "info", "run"]);
    assert!(info.starts_with("kind             bpe\ntokens           300\n"), "{info}");
    assert!(info.contains("\nadded tokens     0 <|endoftext|>\n"), "{info}");

    // Only the changed kind is reported, not keys that nobody set.
    let other = folder.fail(&[&train[..], &["--resume", "--set", "tokenizer.kind=char"]].concat());
    assert!(
        other.contains("tokenizer.kind was \"bpe\" and is now \"char\"") && !other.contains("vocab_size"),
        "{other}"
    );
}

#[test]
fn run_keeps_copy_of_tokenizer_file() {
    for name in ["gpt2", "llama2", "unigram", "wordpiece"] {
        let folder = folder();
        let file = format!("{name}.json");
        train_with(&folder, &file, &[]).exits(0);
        let own = folder.read("run/tokenizer.json");
        assert_eq!(own, fs::read_to_string(path_of(name)));
        let written = folder.succeed(&["generate", "run", "--prompt", "The girl", "--max-new-tokens", "8"]);
        assert!(written.starts_with("The girl"), "{written}");
        folder.succeed(&["eval", "run"]);

        fs::remove_file(folder.path(&file));
        train_with(&folder, "elsewhere.json", &["--resume", "--set", "train.max_steps=6"]).exits(0);
        let other = train_with(&folder, "trained.json", &["--resume", "--set", "train.max_steps=8"]);
        assert!(other.stderr.contains("the tokenizer `trained.json` has changed"), "{}", other.stderr);
    }
}

#[test]
fn vocabulary_beyond_two_bytes_trains() {
    let folder = folder();
    let mut file: Value = serde_json::from_str(&fs::read_to_string(path_of("trained"))).unwrap();
    let n_known = file["model"]["vocab"].as_object().unwrap().len();
    for id in n_known..70_000 {
        file["model"]["vocab"][format!("filler {id}")] = id.into();
    }
    let mut last = file["added_tokens"][0].clone();
    last["id"] = 70_000.into();
    last["content"] = "<|last|>".into();
    file["added_tokens"].as_array_mut().unwrap().push(last);
    folder.write("big.json", file.to_string());
    folder.write("text.txt", text().chars().take(3_000).collect::<String>().replace(". ", "<|last|>"));
    let trained = train_with(&folder, "big.json", &["--set", "train.max_steps=2"]).exits(0);
    assert!(trained.stderr.contains("vocabulary of 70001"), "{}", trained.stderr);
    let ids = folder.succeed(&["tokenizer", "encode", "run", "a<|last|>", "--ids"]);
    assert!(ids.trim_end().ends_with(" 70000"), "{ids}");
    folder.succeed(&["generate", "run", "--max-new-tokens", "3"]);
}

#[test]
fn tokenizer_mistakes_are_explained() {
    let folder = folder();
    folder.write("not.json", "hello");
    folder.write("other.json", r#"{"architectures": ["GPT2LMHeadModel"]}"#);
    let said = |file: &str| train_with(&folder, file, &[]).stderr;
    for (file, expected) in [
        ("missing.json", "check the path"),
        (".", "this is a folder"),
        ("not.json", "not JSON: expected value at line 1"),
        ("other.json", "without a `model`"),
    ] {
        let error = said(file);
        assert!(error.contains(expected) && error.contains("hint:"), "{error}");
        assert!(error.contains(&format!("`{file}`")), "{error}");
    }
    let bpe = fs::read_to_string(path_of("trained"));
    folder.write("no_tilde.json", bpe.replace("\"~\": ", "\"filler\": "));
    folder.write("text.txt", "some text with a ~\n".repeat(100));
    let error = said("no_tilde.json");
    assert!(error.contains("the character '~' (U+007E)") && error.contains("hint:"), "{error}");

    for (settings, expected) in [
        (&["tokenizer.kind=bpe", "tokenizer.vocab_size=100"][..], "vocab_size = 100 must be at least 257"),
        (&["tokenizer.vocab_size=512"], "only for tokenizer.kind = \"bpe\""),
        (&["tokenizer.path=a.json"], "only for tokenizer.kind = \"file\""),
        (&["tokenizer.kind=file"], "tokenizer.path is missing"),
        (&["tokenizer.kind=bpee"], "unknown variant `bpee`"),
    ] {
        let error = folder.fail(&[&["train", "tiny.toml"], &*set(settings)].concat());
        assert!(error.contains(expected) && error.contains("has a problem"), "only one: {error}");
    }

    for (args, expected) in [
        (&["decode", "trained.json", "600"][..], "no token 600: this tokenizer has 600\n  hint: ids are from 0 to 599"),
        (&["decode", "trained.json", "-1"], "`-1` is not an id"),
        (&["decode", "trained.json"], "no ids"),
        (&["encode", "trained.json", ""], "the text is empty"),
        (&["encode", "trained.json"], "the text is empty"),
        (&["info", "missing.json"], "check the path"),
        (&["info", "cache"], "is not a run"),
        (&["info", "missing"], "there is no run at"),
    ] {
        let error = folder.fail(&[&["tokenizer"], args].concat());
        assert!(error.contains(expected) && error.contains("hint:"), "{error}");
    }
    let mistyped = folder.misuse(&["tokenizer", "encode", "trained.json", "--jsn"]);
    assert!(mistyped.starts_with("error: unexpected argument '--jsn' found\n"), "{mistyped}");
    let dashes = folder.succeed(&["tokenizer", "encode", "trained.json", "--ids", "--", "--jsn"]);
    assert_eq!(folder.pipe(&["tokenizer", "decode", "trained.json"], &dashes).stdout, "--jsn");
    let info = folder.json(&["tokenizer", "info", "llama3.json", "--json"]);
    assert_eq!((&info["kind"], &info["end_of_text"]), (&"file".into(), &501.into()));
}
