//! The vocabulary in a GGUF file: tokens, their kinds, and the data that an engine needs to find them in text.
//!
//! `to_tokenizer` makes a `tokenizer.json` from it, `of_tokenizer` the reverse.

mod of_tokenizer;
mod pre_tokenizer;
mod to_tokenizer;

use super::metadata::Metadata;
use super::value::Value;
use crate::InteropError;
use crate::tokens::{TokenKind, VocabToken};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Special tokens that always end a text, as in llama.cpp, whether or not the file names them: the ends of a text, a
/// turn and a message.
const ENDS: [&str; 15] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "<end_of_utterance>",
];

/// Tokens, and the method that finds them in text.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocab {
    pub tokens: Vec<VocabToken>,
    pub model: Model,
    pub bos: Option<u32>,
    /// The EOS token. llama.cpp always has one.
    pub eos: Option<u32>,
    /// Special tokens that end a text; the EOS token may be one of them.
    pub ends: Vec<u32>,
    /// Whether `bos` is put before texts.
    pub add_bos: bool,
    /// The chat template, in Jinja, that turns a conversation into text.
    pub chat_template: Option<String>,
}

/// The method that splits text into tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// Byte-level BPE: merges pairs by rank within the words of a pre-tokenizer.
    Gpt2 {
        /// GGUF's name of the pre-tokenizer.
        pre: String,
        /// Pairs of tokens with a space between, in order of rank.
        merges: Vec<String>,
    },
    /// SentencePiece's BPE: the adjacent pair is merged that makes the token with the highest score.
    Llama {
        scores: Vec<f32>,
        /// Whether text is tokenized as if a space preceded it.
        add_space_prefix: bool,
    },
}

impl Vocab {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, InteropError> {
        let texts = metadata.required(TOKENS, metadata.strings(TOKENS)?)?;
        let kinds = match metadata.integers(KINDS)? {
            None => vec![TokenKind::Normal; texts.len()],
            Some(codes) => {
                let kind = |code| {
                    let problem = || metadata.damaged(format!("`{KINDS}` has the unknown kind {code}"));
                    TokenKind::of_code(code).ok_or_else(problem)
                };
                codes.into_iter().map(kind).collect::<Result<_, _>>()?
            }
        };
        metadata.same_length(TOKENS, texts.len(), KINDS, kinds.len())?;
        let token = |(text, kind): (&String, TokenKind)| VocabToken { text: text.clone(), kind };
        let tokens: Vec<VocabToken> = texts.iter().zip(kinds).map(token).collect();
        let id = |key: &str| match metadata.count(key)? {
            Some(id) if id >= texts.len() => {
                Err(metadata.damaged(format!("`{key}` is {id}, and there are {} tokens", texts.len())))
            }
            id => Ok(id.map(|id| u32::try_from(id).expect("it was read as one"))),
        };
        let model = Model::read(metadata, texts.len())?;
        let ends = ends(&tokens, id(EOT)?.into_iter().chain(id(EOM)?));
        Ok(Self {
            tokens,
            bos: id(BOS)?,
            eos: id(EOS)?,
            ends,
            add_bos: metadata.bool(ADD_BOS)?.unwrap_or_else(|| model.adds_bos()),
            chat_template: metadata.string(CHAT_TEMPLATE)?.map(str::to_owned),
            model,
        })
    }

    pub(super) fn with_ends(self, more: &[u32]) -> Self {
        let more = more.iter().copied().filter(|id| (*id as usize) < self.tokens.len());
        Self { ends: ends(&self.tokens, self.ends.into_iter().chain(more)), ..self }
    }

    /// The metadata entries for this vocabulary. There is room for two tokens that end a text and are not known by
    /// name.
    pub(super) fn write(self) -> Vec<(String, Value)> {
        let kinds: Vec<i32> = self.tokens.iter().map(|token| token.kind as i32).collect();
        let unknown = self.tokens.iter().position(|token| token.kind == TokenKind::Unknown);
        let is_unnamed = |id: &u32| Some(*id) != self.eos && !self.tokens[*id as usize].is_end();
        let unnamed_ends: Vec<u32> = self.ends.into_iter().filter(is_unnamed).collect();
        let texts = self.tokens.into_iter().map(|token| token.text).collect();
        let mut values = Vec::new();
        let mut add = |key: &str, value: Value| values.push((key.to_owned(), value));
        match self.model {
            Model::Gpt2 { pre, merges } => {
                add(MODEL, Value::string("gpt2"));
                add(PRE, Value::string(pre));
                add(TOKENS, Value::strings(texts));
                add(KINDS, Value::i32s(&kinds));
                add(MERGES, Value::strings(merges));
            }
            Model::Llama { scores, add_space_prefix } => {
                add(MODEL, Value::string("llama"));
                add(PRE, Value::string("default"));
                add(TOKENS, Value::strings(texts));
                add(SCORES, Value::f32s(&scores));
                add(KINDS, Value::i32s(&kinds));
                add(SPACE_PREFIX, Value::bool(add_space_prefix));
            }
        }
        let unknown = unknown.map(|id| u32::try_from(id).expect("ids are 32 bits"));
        let mut ends = unnamed_ends.into_iter();
        let (eot, eom) = (ends.next(), ends.next());
        for (key, id) in [(BOS, self.bos), (EOS, self.eos), (EOT, eot), (EOM, eom), (UNKNOWN, unknown)] {
            if let Some(id) = id {
                add(key, Value::u32(id));
            }
        }
        add(ADD_BOS, Value::bool(self.add_bos));
        add(ADD_EOS, Value::bool(false));
        if let Some(template) = self.chat_template {
            add(CHAT_TEMPLATE, Value::string(template));
        }
        values
    }
}

impl VocabToken {
    /// Whether it is known by name to end a text.
    fn is_end(&self) -> bool {
        self.kind == TokenKind::Control && ENDS.contains(&&*self.text)
    }
}

/// The tokens that are known by name to end a text, and these others.
fn ends(tokens: &[VocabToken], others: impl Iterator<Item = u32>) -> Vec<u32> {
    let named = (0..).zip(tokens).filter(|(_, token)| token.is_end()).map(|(id, _)| id);
    let mut ends: Vec<u32> = named.chain(others).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

impl Model {
    fn read(metadata: &Metadata, n_tokens: usize) -> Result<Self, InteropError> {
        match metadata.required(MODEL, metadata.string(MODEL)?)? {
            "gpt2" => Ok(Self::Gpt2 {
                pre: pre(metadata)?.to_owned(),
                merges: metadata.strings(MERGES)?.unwrap_or_default().to_vec(),
            }),
            "llama" => {
                #[allow(clippy::cast_possible_truncation, reason = "they are f32 in the file")]
                let scores: Vec<f32> = match metadata.floats(SCORES)? {
                    Some(scores) => scores.into_iter().map(|score| score as f32).collect(),
                    None => vec![0.0; n_tokens],
                };
                metadata.same_length(TOKENS, n_tokens, SCORES, scores.len())?;
                Ok(Self::Llama { scores, add_space_prefix: metadata.bool(SPACE_PREFIX)?.unwrap_or(true) })
            }
            other => Err(metadata.unsupported(MODEL, &format!("{other:?}"), "\"gpt2\" and \"llama\"")),
        }
    }

    /// Whether texts begin with a BOS token if the file does not say.
    fn adds_bos(&self) -> bool {
        match self {
            Self::Gpt2 { pre, .. } => pre == "llama-bpe",
            Self::Llama { .. } => true,
        }
    }
}

/// The name of the pre-tokenizer. For files without one, written before May 2024, llama.cpp uses a pattern of its own
/// (`LLAMA_VOCAB_PRE_TYPE_DEFAULT`), which no model uses.
fn pre(metadata: &Metadata) -> Result<&str, InteropError> {
    match metadata.string(PRE)? {
        Some(pre) if pre != "default" => Ok(pre),
        pre => Err(InteropError::NotAModel {
            path: metadata.path().to_owned(),
            reason: match pre {
                None => format!("it has no {PRE}, so it does not say how its tokenizer splits a text"),
                Some(pre) => format!("{PRE} = {pre:?} does not say how its tokenizer splits a text"),
            },
            hint: "import the model from its folder of the Hugging Face hub, or from a .gguf file that llama.cpp's \
                   convert_hf_to_gguf.py wrote from that after April 2024"
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use tinderbox_model::tokenizer::Tokenizer;

    /// Text that tokenizers stumble over.
    const HOSTILE: &str = "It's I'll  we've 'twas\n\n \t\r\n 1 22 333 4444 x86 caf\u{e9} cafe\u{301} \u{65e5}\u{672c}\u{8a9e} \
                           \u{1f525}\u{200d} nbsp\u{a0}here<|endoftext|>  </s><s> end.\n\nStart!!!  ";

    fn metadata(values: Vec<(String, Value)>) -> Metadata {
        Metadata::new(Path::new("model.gguf"), values.into_iter().collect::<BTreeMap<_, _>>())
    }

    /// A tokenizer's vocabulary after writing and reading it, and the tokenizer made from it.
    fn back(tokenizer: &Tokenizer, n_rows: usize) -> (Vocab, Tokenizer) {
        let padded = tokenizer.clone().padded_to(Some(n_rows)).expect("there are enough rows");
        let vocab = Vocab::of_tokenizer(&padded).expect("llama.cpp has an equivalent tokenizer");
        let metadata = metadata(vocab.clone().write());
        let read = Vocab::read(&metadata).expect("the vocabulary was just written");
        assert_eq!(read, vocab);
        let files = read.to_tokenizer(&metadata).expect("the vocabulary came from a tokenizer");
        (
            vocab,
            Tokenizer::from_json(files.json, Path::new("tokenizer.json"))
                .expect("the vocabulary came from a tokenizer"),
        )
    }

    fn file(name: &str) -> Tokenizer {
        Tokenizer::from_file(&Path::new("../../tests/fixtures/tokenizers").join(name)).expect("the fixture exists")
    }

    #[test]
    fn own_tokenizers_round_trip() {
        let characters = Tokenizer::char_from_alphabet(HOSTILE.chars()).expect("the alphabet is not empty");
        let ending = [characters.clone(), Tokenizer::byte()].map(Tokenizer::with_end_of_text);
        let few = Tokenizer::train_bpe(257, "aaaa");
        let trained = Tokenizer::train_bpe(300, &HOSTILE.repeat(3));
        let others = [characters, Tokenizer::byte(), few, trained, file("trained.json")];
        for tokenizer in others.into_iter().chain(ending) {
            for n_rows in [tokenizer.vocab_size(), tokenizer.vocab_size() + 7] {
                let (vocab, again) = back(&tokenizer, n_rows);
                assert_eq!(vocab.tokens.len(), n_rows);
                assert_eq!((again.kind(), &again), (tokenizer.kind(), &tokenizer));
                let last = u32::try_from(n_rows - 1).expect("the count fits u32");
                assert_eq!(vocab.eos, Some(tokenizer.end_of_text().unwrap_or(last)));
            }
        }
    }

    #[test]
    fn tokenizer_files_keep_their_ids() {
        for (name, pre) in [("gpt2.json", "gpt-2"), ("llama3.json", "llama-bpe")] {
            let tokenizer = file(name);
            let (vocab, again) = back(&tokenizer, tokenizer.vocab_size());
            assert!(matches!(&vocab.model, Model::Gpt2 { pre: found, .. } if found == pre), "{name}");
            let ids = tokenizer.encode(HOSTILE).expect("the vocabulary covers any text");
            assert_eq!(again.encode(HOSTILE).expect("the vocabulary covers any text"), ids, "{name}");
            assert_eq!((again.decode(&ids), again.added_tokens()), (tokenizer.decode(&ids), tokenizer.added_tokens()));
        }
    }

    /// A SentencePiece vocabulary of the letters of "the" and all bytes.
    fn sentencepiece() -> Vocab {
        let mut tokens = vec![
            VocabToken { text: "<unk>".to_owned(), kind: TokenKind::Unknown },
            VocabToken { text: "<s>".to_owned(), kind: TokenKind::Control },
            VocabToken { text: "</s>".to_owned(), kind: TokenKind::Control },
        ];
        tokens.extend((0..=255).map(|byte| VocabToken { text: format!("<0x{byte:02X}>"), kind: TokenKind::Byte }));
        let pieces = ["\u{2581}t", "he", "\u{2581}the", "th", "\u{2581}", "t", "h", "e", "\u{e9}"];
        tokens.extend(pieces.map(|text| VocabToken { text: text.to_owned(), kind: TokenKind::Normal }));
        let scores = (0..tokens.len()).map(|id| if id < 259 { 0.0 } else { 259.0 - id as f32 }).collect();
        let chat_template = Some("{{ messages }}".to_owned());
        Vocab {
            tokens,
            model: Model::Llama { scores, add_space_prefix: true },
            bos: Some(1),
            eos: Some(2),
            ends: Vec::new(),
            add_bos: true,
            chat_template,
        }
    }

    #[test]
    fn vocabularies_without_eos_use_last_token() {
        let characters = Tokenizer::char_from_alphabet("ab\n c".chars()).expect("the alphabet is not empty");
        let (vocab, _) = back(&characters, 5);
        assert_eq!((vocab.eos, vocab.add_bos), (Some(4), false));
        assert_eq!(vocab.tokens[1].text, "\u{2581}");
        let (padded, _) = back(&characters, 8);
        assert_eq!((padded.eos, padded.tokens[7].kind), (Some(7), TokenKind::Unused));
        let (bytes, _) = back(&Tokenizer::byte(), 256);
        assert_eq!(bytes.eos, Some(255));
        let Model::Gpt2 { merges, .. } = bytes.model else { panic!("bytes are byte-level") };
        assert_eq!(merges.len(), 1, "llama.cpp refuses none");
        let (trained, _) = back(&file("trained.json"), 600);
        assert_eq!(trained.eos, Some(0));
    }

    #[test]
    fn ends_include_named_and_listed_tokens() {
        let mut vocab = sentencepiece();
        for text in ["<|im_end|>", "<stop>", "<halt>"] {
            vocab.tokens.push(VocabToken { text: text.to_owned(), kind: TokenKind::Control });
        }
        vocab.tokens.push(VocabToken { text: "<|end|>".to_owned(), kind: TokenKind::Normal });
        let n = u32::try_from(vocab.tokens.len()).expect("the count fits u32");
        if let Model::Llama { scores, .. } = &mut vocab.model {
            scores.resize(n as usize, 0.0);
        }
        let vocab = vocab.with_ends(&[2, n - 2, n - 3, 1_000_000]);
        assert_eq!(vocab.ends, [2, n - 4, n - 3, n - 2], "one by its name, and those that are there");
        let read = Vocab::read(&metadata(vocab.write())).expect("the vocabulary was just written");
        assert_eq!((read.eos, read.ends), (Some(2), vec![n - 4, n - 3, n - 2]));
    }

    fn refused(tokenizer: &Tokenizer) -> String {
        let error = Vocab::of_tokenizer(tokenizer).expect_err("llama.cpp has no equivalent tokenizer");
        error.to_string().lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn tokenizers_unknown_to_llama_cpp_are_refused() {
        insta::assert_snapshot!(refused(&file("unigram.json")), @r#"this model cannot be a GGUF file: llama.cpp has no such tokenizer: its model is "Unigram", not BPE"#);
        insta::assert_snapshot!(refused(&file("wordpiece.json")), @r#"this model cannot be a GGUF file: llama.cpp has no such tokenizer: its model is "WordPiece", not BPE"#);
        insta::assert_snapshot!(refused(&file("llama2.json")), @"this model cannot be a GGUF file: llama.cpp has no such tokenizer: its merges are a list, and scores, as SentencePiece has them, do not say the same");
        let space = Tokenizer::char_from_alphabet("a \u{2581}".chars()).expect("the alphabet is not empty");
        insta::assert_snapshot!(refused(&space), @r#"this model cannot be a GGUF file: llama.cpp has no such tokenizer: "▁" is one of its characters, and cannot be one there"#);
        let prefixed =
            file("trained.json").to_json().replacen("\"add_prefix_space\": false", "\"add_prefix_space\": true", 1);
        let prefixed = Tokenizer::from_json(prefixed, Path::new("tokenizer.json")).expect("a tokenizer");
        insta::assert_snapshot!(refused(&prefixed), @"this model cannot be a GGUF file: llama.cpp has no such tokenizer: llama.cpp has no pre-tokenizer like its ByteLevel");
    }

    #[test]
    fn read_refuses_vocabularies_without_pre_tokenizer() {
        for (name, said) in [
            (None, "it has no tokenizer.ggml.pre, so it does not say how its tokenizer splits a text"),
            (Some("default"), "tokenizer.ggml.pre = \"default\" does not say how its tokenizer splits a text"),
        ] {
            let mut values =
                Vocab::of_tokenizer(&file("gpt2.json")).expect("llama.cpp has an equivalent tokenizer").write();
            values.retain(|(key, _)| key != PRE);
            values.extend(name.map(|name| (PRE.to_owned(), Value::string(name))));
            let error = Vocab::read(&metadata(values)).expect_err("it may be any").to_string();
            assert!(error.contains(said) && error.contains("\n  hint: import the model from its folder"), "{error}");
        }
    }

    #[test]
    fn damaged_vocabularies_are_explained() {
        let error = |key: &str, value: Value| {
            let mut values = sentencepiece().write();
            values.retain(|(other, _)| other != key);
            values.push((key.to_owned(), value));
            let metadata = metadata(values);
            let error = Vocab::read(&metadata).and_then(|vocab| vocab.to_tokenizer(&metadata)).expect_err("damaged");
            error.to_string().replace('\n', "|")
        };
        for (key, value, expected) in [
            (EOS, Value::u32(9999), "`tokenizer.ggml.eos_token_id` is 9999, and there are 268 tokens"),
            (KINDS, Value::i32s(&[1, 1]), "`tokenizer.ggml.tokens` has 268 entries, and `tokenizer.ggml.token_type` 2"),
            (KINDS, Value::i32s(&[9; 268]), "has the unknown kind 9"),
            (SCORES, Value::f32s(&[0.0]), "`tokenizer.ggml.scores` 1"),
            (MODEL, Value::string("bert"), "tokenizer.ggml.model = \"bert\": supported are \"gpt2\" and \"llama\""),
            (TOKENS, Value::strings(vec!["a".to_owned(); 268]), "the token \"a\" is in its vocabulary twice"),
        ] {
            let message = error(key, value);
            assert!(message.contains(expected), "{expected} is not in {message}");
        }
    }

    #[test]
    fn unknown_pre_tokenizers_and_invalid_merges_are_refused() {
        let error = |pre: &str, merge: &str| {
            let model = Model::Gpt2 { pre: pre.to_owned(), merges: vec![merge.to_owned()] };
            let token = |text: &str| VocabToken { text: text.to_owned(), kind: TokenKind::Normal };
            let tokens = vec![token("a"), token("b"), token("ab")];
            let vocab =
                Vocab { tokens, model, bos: None, eos: None, ends: vec![], add_bos: false, chat_template: None };
            let metadata = metadata(vocab.clone().write());
            vocab.to_tokenizer(&metadata).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(error("gpt-2", "a b"), Ok(()));
        let message = error("tekken", "a b").expect_err("unknown");
        assert!(message.contains("tokenizer.ggml.pre = \"tekken\": supported are \"gpt-2\", \"olmo\""), "{message}");
        let message = error("gpt-2", "b a").expect_err("no such token");
        assert!(message.contains("has \"b a\", and no token is the result"), "{message}");
        let message = error("gpt-2", "ab").expect_err("one token");
        assert!(message.contains("has \"ab\", which is not two tokens with a space between"), "{message}");
    }
}
