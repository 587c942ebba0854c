//! GGUF's names of pre-tokenizers, and their equivalents in a `tokenizer.json`: how text is split into the words within
//! which pairs are merged.
//!
//! Sources: llama.cpp, `llama-vocab.cpp`; the `tokenizer.json` of GPT-2, OLMo, SmolLM2, Llama 3 and Qwen2.

use serde_json::{Value, json};

use tinderbox_model::tokenizer::{LLAMA_3_PATTERN, QWEN2_PATTERN};

/// The name of GPT-2's pre-tokenizer, also used for tokenizers without words.
pub(super) const GPT_2: &str = "gpt-2";

/// The steps before words are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    pub name: &'static str,
    /// The pattern that splits text into words.
    pub words: WordPattern,
    /// Whether text is first normalized to Unicode's NFC. llama.cpp does not do so.
    pub nfc: bool,
    /// Whether a word that is a token is taken whole, without merging.
    pub ignore_merges: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordPattern {
    /// GPT-2's pattern, which is built into the library.
    Gpt2,
    /// Each digit is a word, and GPT-2's pattern splits the rest.
    Digits,
    Pattern(&'static str),
}

/// All pre-tokenizers. The first of equivalent ones is written.
const ALL: [PreTokenizer; 6] = [
    PreTokenizer { name: GPT_2, words: WordPattern::Gpt2, nfc: false, ignore_merges: false },
    PreTokenizer { name: "olmo", words: WordPattern::Gpt2, nfc: true, ignore_merges: false },
    PreTokenizer { name: "smollm", words: WordPattern::Digits, nfc: false, ignore_merges: false },
    PreTokenizer { name: "llama-bpe", words: WordPattern::Pattern(LLAMA_3_PATTERN), nfc: false, ignore_merges: true },
    PreTokenizer { name: "dbrx", words: WordPattern::Pattern(LLAMA_3_PATTERN), nfc: false, ignore_merges: false },
    PreTokenizer { name: "qwen2", words: WordPattern::Pattern(QWEN2_PATTERN), nfc: true, ignore_merges: false },
];

impl PreTokenizer {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let name = match name {
            "llama3" | "llama-v3" => "llama-bpe",
            name => name,
        };
        ALL.into_iter().find(|it| it.name == name)
    }

    pub(super) fn names() -> String {
        ALL.map(|it| format!("{:?}", it.name)).join(", ")
    }

    /// The pre-tokenizer equivalent to that of a `tokenizer.json`.
    pub(super) fn of_tokenizer(file: &Value) -> Option<Self> {
        let nfc = match &file["normalizer"] {
            Value::Null => false,
            normalizer if *normalizer == json!({"type": "NFC"}) => true,
            _ => return None,
        };
        let words = WordPattern::of_tokenizer(&file["pre_tokenizer"])?;
        let ignore_merges = file["model"]["ignore_merges"].as_bool().unwrap_or(false);
        let mut same = ALL.into_iter().filter(|it| it.words == words && it.ignore_merges == ignore_merges);
        let first = same.clone().next();
        same.find(|it| it.nfc == nfc).or(first) // llama.cpp never applies NFC
    }

    pub(super) fn normalizer(self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(self) -> Value {
        match self.words {
            WordPattern::Gpt2 => byte_level(true),
            WordPattern::Digits => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]})
            }
            WordPattern::Pattern(pattern) => {
                let pattern = json!({"Regex": pattern});
                let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
                json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
            }
        }
    }
}

impl WordPattern {
    fn of_tokenizer(pre_tokenizer: &Value) -> Option<Self> {
        let parts = match pre_tokenizer["type"].as_str()? {
            "Sequence" => pre_tokenizer["pretokenizers"].as_array()?,
            _ => std::slice::from_ref(pre_tokenizer),
        };
        let (last, before) = parts.split_last()?;
        let is_byte_level = last["type"] == "ByteLevel" && last["add_prefix_space"] == false;
        let by_pattern = last["use_regex"].as_bool().unwrap_or(true);
        match before {
            _ if !is_byte_level => None,
            [] if by_pattern => Some(Self::Gpt2),
            [digits] if by_pattern => {
                (digits["type"] == "Digits" && digits["individual_digits"] == true).then_some(Self::Digits)
            }
            [split] => {
                let is_plain = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
                let pattern = split["pattern"]["Regex"].as_str().filter(|_| is_plain && !by_pattern)?;
                [LLAMA_3_PATTERN, QWEN2_PATTERN].into_iter().find(|known| *known == pattern).map(Self::Pattern)
            }
            _ => None,
        }
    }
}

/// Spells the bytes of words as characters; with `use_regex`, GPT-2's pattern splits the text first.
pub(super) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_through_their_parts() {
        for it in ALL {
            let file = json!({
                "normalizer": it.normalizer(), "pre_tokenizer": it.pre_tokenizer(),
                "model": {"ignore_merges": it.ignore_merges},
            });
            assert_eq!(PreTokenizer::of_tokenizer(&file), Some(it));
            assert_eq!(PreTokenizer::of_name(it.name), Some(it));
        }
        assert_eq!(PreTokenizer::of_name("default"), None);
        assert_eq!(PreTokenizer::of_name("tekken"), None);
    }

    #[test]
    fn other_normalizers_and_patterns_have_no_name() {
        let file = |normalizer: Value, pre_tokenizer: Value| {
            let file = json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": {}});
            PreTokenizer::of_tokenizer(&file).map(|it| it.name)
        };
        assert_eq!(file(Value::Null, byte_level(true)), Some("gpt-2"));
        assert_eq!(file(json!({"type": "NFC"}), byte_level(true)), Some("olmo"));
        assert_eq!(file(json!({"type": "Lowercase"}), byte_level(true)), None);
        assert_eq!(file(Value::Null, byte_level(false)), None);
        assert_eq!(file(Value::Null, json!({"type": "Whitespace"})), None);
        let mut prefixed = byte_level(true);
        prefixed["add_prefix_space"] = true.into();
        assert_eq!(file(Value::Null, prefixed), None);
        let mut qwen = PreTokenizer::of_name("qwen2").expect("it is known").pre_tokenizer();
        assert_eq!(file(Value::Null, qwen.clone()), Some("qwen2"), "llama.cpp does not compose characters");
        qwen["pretokenizers"][0]["pattern"]["Regex"] = "\\w+".into();
        assert_eq!(file(Value::Null, qwen), None);
    }
}
