//! Tokenizers: what the `tokenizers` library makes of the same files in Python, what holds for every kind,
//! and runs with them.
//!
//! The files and what is expected of them are written by `scripts/fixtures/tokenizer_files.py`.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;
use tinderbox::tokenizer::{DecodeStream, Tokenizer, TokenizerKind};

const FILES: [&str; 6] = [
    "trained",
    "gpt2",
    "llama3",
    "llama2",
    "unigram",
    "wordpiece",
];

fn path_of(name: &str) -> PathBuf {
    Path::new("tests/fixtures/tokenizers").join(format!("{name}.json"))
}

fn file(name: &str) -> Tokenizer {
    Tokenizer::from_file(&path_of(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// The text that the files were trained on.
fn text() -> String {
    let text = std::fs::read_to_string("data/stories.txt").unwrap();
    text.chars().take(200_000).collect()
}

/// One of every kind, with a name.
fn all() -> Vec<(&'static str, Tokenizer)> {
    let mut all: Vec<_> = FILES.iter().map(|name| (*name, file(name))).collect();
    all.push(("byte", Tokenizer::byte()));
    let alphabet = (' '..'\u{300}').chain(['\n', '\t', '\r', '\u{2003}']);
    all.push(("char", Tokenizer::char_from_alphabet(alphabet).unwrap()));
    all
}

#[test]
fn files_give_the_ids_and_texts_that_they_give_in_python() {
    let expected = std::fs::read_to_string(path_of("expected")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for name in FILES {
        let tokenizer = file(name);
        let expected = &expected["files"][name];
        assert_eq!(
            tokenizer.vocab_size() as u64,
            expected["largest_id"].as_u64().unwrap() + 1
        );
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
fn a_file_stays_as_it_is() {
    for name in FILES {
        let content = std::fs::read_to_string(path_of(name)).unwrap();
        assert_eq!(file(name).to_json(), content);
    }
}

#[test]
fn training_here_and_in_python_writes_the_same_file() {
    let trained = Tokenizer::train_bpe(600, [Ok::<_, ()>(text())]).unwrap();
    assert!(trained == file("trained"));
    assert_eq!(trained.kind(), TokenizerKind::Bpe);
    assert_eq!(file("trained").kind(), TokenizerKind::Bpe);
    assert_eq!(file("gpt2").kind(), TokenizerKind::File);
}

#[test]
fn how_a_text_is_cut_changes_nothing_in_training() {
    let text = text().replace("\n", "<|endoftext|>\n\n") + "\u{1f525} at the end ";
    let whole = Tokenizer::train_bpe(400, [Ok::<_, ()>(text.clone())]).unwrap();
    let characters: Vec<char> = text.chars().collect();
    for n in [1, 7, 1000] {
        let chunks = characters.chunks(n);
        let chunks = chunks.map(|chunk| Ok::<_, ()>(chunk.iter().collect::<String>()));
        assert!(Tokenizer::train_bpe(400, chunks).unwrap() == whole, "{n}");
    }
    assert!(
        !whole.piece(399).contains("endof"),
        "special tokens are not counted as text"
    );
}

#[test]
fn a_short_text_gives_what_tokens_there_are_in_it() {
    let trained = |text: &str| Tokenizer::train_bpe(5000, [Ok::<_, ()>(text.to_owned())]).unwrap();
    assert_eq!(trained("").vocab_size(), 257);
    assert_eq!(trained("abc").vocab_size(), 257);
    let tokenizer = trained("abc abc");
    assert!((258..270).contains(&tokenizer.vocab_size()));
    let anything = "\u{65e5}\u{672c}\0\u{1f525} x";
    let ids = tokenizer.encode(anything).unwrap();
    assert_eq!(tokenizer.decode(&ids), anything);
    let failed = Tokenizer::train_bpe(300, [Ok("a".to_owned()), Err("cannot read")]);
    assert_eq!(failed.unwrap_err(), "cannot read");
}

#[test]
fn the_end_of_a_text_is_known() {
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
fn pieces_can_be_read() {
    let tokenizer = file("trained");
    let piece = |text| tokenizer.piece(tokenizer.encode(text).unwrap()[0]);
    assert_eq!(piece(" the"), " the");
    assert_eq!(piece("\u{1f525}"), "\\xf0");
    assert_eq!(piece("<|endoftext|>"), "<|endoftext|>");
    let tokenizer = file("unigram");
    assert_eq!(
        tokenizer.piece(tokenizer.encode("the").unwrap()[0]),
        "\u{2581}the"
    );
    assert_eq!(tokenizer.token_bytes(5), None);
}

#[test]
fn texts_can_be_cut_where_it_is_known_to_be_safe() {
    let cut = |name, text: &str| file(name).cut(text);
    assert_eq!(cut("trained", "one two. \n"), Some(8));
    assert_eq!(cut("trained", "one"), None);
    assert_eq!(cut("trained", ""), None);
    // In Llama 3's pattern the full stop takes line breaks along.
    assert_eq!(cut("llama3", "one two.\n"), Some(3));
    // Its token could go on: "<extra space>".
    assert_eq!(cut("gpt2", "one <extra "), Some(3));
    assert_eq!(cut("gpt2", "one <extre "), Some(10));
    assert_eq!(cut("unigram", "one two\n"), Some(3));
    assert_eq!(cut("llama2", "one two\n"), None);
    assert!(!file("llama2").can_cut() && file("wordpiece").can_cut());
    assert_eq!(Tokenizer::byte().cut("\u{e9}"), Some(2));
}

/// Texts with what tokenizers stumble over.
fn any_text() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        "[ \n\t\r\u{a0}\u{2003}]{1,4}",
        "[a-eA-E\u{e9}]{1,5}",
        "'s|'ll|'re|'|\"|\\.|!!|\\.\n|1|23|4567",
        "(?s:.{1,3})",
        Just("<|endoftext|>".to_owned()),
        Just("<extra space>".to_owned()),
        Just("</s>".to_owned()),
        Just("the ".to_owned()),
    ];
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

/// The ids; none where a character tokenizer lacks one.
fn ids(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    match tokenizer.encode(text) {
        Ok(ids) => Some(ids),
        Err(_) if tokenizer.kind() == TokenizerKind::Char => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn ids_are_those_of_the_library(text in any_text()) {
        for name in FILES {
            let content = std::fs::read(path_of(name)).unwrap();
            let mut library = tokenizers::Tokenizer::from_bytes(&content).unwrap();
            library.with_truncation(None).unwrap().with_padding(None);
            let tokenizer = file(name);
            let found = tokenizer.encode(&text).unwrap();
            let encoding = library.encode(&*text, false).unwrap();
            prop_assert_eq!(encoding.get_ids(), &found, "{}", name);
            prop_assert_eq!(library.decode(&found, false).unwrap(), tokenizer.decode(&found));
            let is_lossless = ["trained", "gpt2", "llama3"].contains(&name);
            prop_assert!(!is_lossless || tokenizer.decode(&found) == text);
        }
    }

    #[test]
    fn a_text_that_is_cut_has_the_ids_of_the_whole(text in any_text(), more in any_text()) {
        for (name, tokenizer) in all() {
            let whole = text.clone() + &more;
            let (Some(at), Some(whole_ids)) = (tokenizer.cut(&text), ids(&tokenizer, &whole)) else {
                continue;
            };
            prop_assert!(at > 0);
            let (left, right) = whole.split_at(at);
            let parts = [ids(&tokenizer, left).unwrap(), ids(&tokenizer, right).unwrap()].concat();
            prop_assert_eq!(parts, whole_ids, "{} cut after {:?}", name, left);
        }
    }

    #[test]
    fn what_streams_is_what_is_decoded(
        text in any_text(), drawn in prop::collection::vec(any::<prop::sample::Index>(), 0..30), n_known in 0..4_usize,
    ) {
        for (name, tokenizer) in all() {
            let mut all_ids = ids(&tokenizer, &text).unwrap_or_default();
            let vocab_size = tokenizer.vocab_size();
            all_ids.extend(drawn.iter().map(|id| id.index(vocab_size) as u32));
            // What is known is a text of its own, which ends with a character.
            let known: Vec<u32> = tokenizer.encode("a the end of").unwrap().into_iter().take(n_known).collect();
            let mut stream = DecodeStream::after(&tokenizer, &known);
            let mut streamed = tokenizer.decode(&known);
            for id in &all_ids {
                streamed.push_str(&stream.push(*id));
            }
            streamed.push_str(&stream.finish());
            let whole = tokenizer.decode(&[known, all_ids].concat());
            // Only an incomplete end may be missing, which `decode` shows as replacements.
            let rest = whole.strip_prefix(streamed.as_str());
            prop_assert!(
                rest.is_some_and(|rest| rest.chars().all(|c| c == char::REPLACEMENT_CHARACTER)),
                "{}: {:?} streamed as {:?}", name, whole, streamed
            );
        }
    }
}

#[test]
fn several_threads_encode_at_once() {
    let (text, tokenizer) = (text(), file("trained"));
    let expected = tokenizer.encode(&text).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(tokenizer.encode(&text).unwrap() == expected));
        }
    });
}
