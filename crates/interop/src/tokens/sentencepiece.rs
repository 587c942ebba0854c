//! The two methods of SentencePiece, BPE by scores and Unigram, in terms of the `tokenizers` library.
//!
//! Source: transformers, `LlamaConverter` and `SpmConverter` in `convert_slow_tokenizer.py`; where those deviate from
//! SentencePiece itself, such as in the spaces at the ends of a text, the conversion here follows SentencePiece.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::normalizers::Precompiled;

use super::{Parts, SPACE, TokenKind, VocabToken, bpe, scores};

/// The changes to a text before it is tokenized.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Normalization<'a> {
    /// A table of characters and their replacements, in SentencePiece's binary form; empty if there is none.
    pub table: &'a [u8],
    /// Whether spaces are removed at the ends of a text, and all but one between words.
    pub remove_extra_spaces: bool,
    /// Whether text is tokenized as if a space preceded it.
    pub add_space_prefix: bool,
    /// Tokens, the longest first, that are found in a text before it is changed, and neither changed nor merged.
    pub symbols: &'a [&'a str],
}

/// The most symbols that are supported: each is looked for in every text.
pub(crate) const MOST_SYMBOLS: usize = 256;

/// The score of a symbol in SentencePiece's Unigram, above that of every piece.
const SCORE_OF_SYMBOLS: f32 = -0.1;

/// BPE: merges the adjacent pair that makes the token with the highest score.
pub(crate) fn by_scores(
    tokens: &[VocabToken],
    scores: &[f32],
    normalization: Normalization<'_>,
) -> Result<Parts, String> {
    let symbols: HashSet<&str> = normalization.symbols.iter().copied().collect();
    // With a prefix, tokens are matched before spaces are replaced: only merges find those that contain a space.
    let is_merged = |token: &VocabToken| match token.kind {
        TokenKind::Normal => !symbols.contains(&*token.text),
        TokenKind::UserDefined => normalization.add_space_prefix && token.text.contains(SPACE),
        _ => false,
    };
    let merged = tokens.iter().zip(scores).filter(|(token, _)| is_merged(token));
    let pieces: Vec<(&str, f32)> = merged.map(|(token, score)| (token.text.as_str(), *score)).collect();
    let unknown = tokens.iter().find(|token| token.kind == TokenKind::Unknown);
    let settings = json!({
        "unk_token": unknown.map(|token| &token.text), "fuse_unk": true, "byte_fallback": has_bytes(tokens),
        "merges": scores::merges(&pieces),
        // Nothing else makes a symbol of several characters.
        "ignore_merges": normalization.symbols.iter().any(|symbol| symbol.chars().nth(1).is_some()),
    });
    let pre_tokenizer = normalization.isolated_symbols();
    Ok(Parts { pre_tokenizer, ..normalization.parts(bpe(tokens, settings))? })
}

/// Unigram: a text is split into the tokens with the highest sum of scores, the logarithms of their probabilities.
pub(crate) fn unigram(
    tokens: &[VocabToken],
    scores: &[f32],
    normalization: Normalization<'_>,
) -> Result<Parts, String> {
    let unknown = tokens.iter().position(|token| token.kind == TokenKind::Unknown);
    let symbols: HashSet<&str> = normalization.symbols.iter().copied().collect();
    let vocab = tokens.iter().zip(scores).map(|(token, score)| match symbols.contains(&*token.text) {
        true => (&*token.text, SCORE_OF_SYMBOLS),
        false => (&*token.text, *score),
    });
    let vocab: Vec<(&str, f32)> = vocab.collect();
    normalization.parts(json!({
        "type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": has_bytes(tokens),
    }))
}

/// Whether bytes stand in for characters without a token.
fn has_bytes(tokens: &[VocabToken]) -> bool {
    tokens.iter().any(|token| token.kind == TokenKind::Byte)
}

impl Normalization<'_> {
    fn parts(self, model: Value) -> Result<Parts, String> {
        let space = SPACE.to_string();
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": space}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.add_space_prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(Parts {
            normalizer: json!({"type": "Sequence", "normalizers": self.normalizers()?}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model,
            // The library normalizes such tokens, too, so they would begin with the space that is put before a text.
            matches_normalized: !self.add_space_prefix,
        })
    }

    /// The pre-tokenizer that keeps BPE from merging symbols with other text; Unigram has only their scores.
    fn isolated_symbols(self) -> Value {
        if self.symbols.is_empty() {
            return Value::Null;
        }
        let symbols = self.symbols.iter().map(|symbol| {
            symbol.chars().fold(String::new(), |pattern, character| match character {
                '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#' | '&'
                | '-' | '~' => {
                    format!("{pattern}\\{character}")
                }
                _ => format!("{pattern}{character}"),
            })
        });
        let pattern = symbols.collect::<Vec<_>>().join("|");
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }

    fn normalizers(self) -> Result<Vec<Value>, String> {
        let replace = |pattern: Value, by: &str| json!({"type": "Replace", "pattern": pattern, "content": by});
        let space = SPACE.to_string();
        let mut normalizers = Vec::new();
        if !self.table.is_empty() {
            if !is_table(self.table) {
                return Err("its table of characters is damaged".to_owned());
            }
            let table = Precompiled::from(self.table).map_err(|error| format!("its table of characters: {error}"))?;
            // Characters of a private plane stand for the symbols while the table is used.
            let marks: Vec<(&str, String)> =
                self.symbols.iter().zip('\u{f0000}'..).map(|(symbol, mark)| (*symbol, mark.to_string())).collect();
            normalizers.extend(marks.iter().map(|(symbol, mark)| replace(json!({"String": symbol}), mark)));
            if let Some(end) = table.transform("\r") {
                normalizers.push(replace(json!({"String": "\r"}), end)); // the library takes "\r\n" for one character
            }
            normalizers.push(json!(table));
            normalizers.extend(marks.iter().rev().map(|(symbol, mark)| replace(json!({"String": mark}), symbol)));
        }
        if self.remove_extra_spaces {
            // In Python, `^` and `$` would match at every line.
            normalizers.push(replace(json!({"Regex": format!(r"\A +|[ {SPACE}]+\z")}), ""));
            normalizers.push(replace(json!({"Regex": " {2,}"}), " "));
        }
        if self.add_space_prefix {
            normalizers.push(json!({"type": "Prepend", "prepend": space}));
        }
        normalizers.push(replace(json!({"String": " "}), &space));
        Ok(normalizers)
    }
}

/// Whether a table of characters can be searched for any text. A table holds the length of a trie in bytes; the trie, a
/// double array of 32-bit units as in Darts; and zero-terminated texts, to which its leaves point.
fn is_table(table: &[u8]) -> bool {
    let Some((n_bytes, rest)) = table.split_first_chunk::<4>() else { return false };
    let n_bytes = u32::from_le_bytes(*n_bytes) as usize;
    let Some((trie, texts)) = rest.split_at_checked(n_bytes) else { return false };
    let (units, behind) = trie.as_chunks::<4>();
    let (Some(first), Ok(texts), true) = (units.first(), std::str::from_utf8(texts), behind.is_empty()) else {
        return false;
    };
    let unit = |at: usize| units.get(at).map(|unit| u32::from_le_bytes(*unit));
    let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
    let label = |unit: u32| (unit & (1 << 31 | 0xff)) as usize;
    let mut nodes = vec![offset(u32::from_le_bytes(*first))];
    let mut is_seen = vec![false; units.len()];
    while let Some(node) = nodes.pop() {
        for byte in 1..=0xff {
            let at = node ^ byte;
            let Some(found) = unit(at) else { return false };
            if label(found) != byte {
                continue;
            }
            let next = at ^ offset(found);
            if found >> 8 & 1 == 1 {
                let text = unit(next).map(|leaf| (leaf & !(1 << 31)) as usize);
                if text.is_none_or(|text| !texts.is_char_boundary(text)) {
                    return false;
                }
            }
            if !std::mem::replace(&mut is_seen[at], true) {
                nodes.push(next);
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_table;

    /// A table that replaces `a` by the text at an index.
    fn table(text: u32) -> Vec<u8> {
        let mut units = [0_u32; 256];
        units[0x61] = 0x61 | 1 << 8 | (0x61 ^ 0x62) << 10; // has a leaf, which is at 0x62
        units[0x62] = 1 << 31 | text;
        let n_bytes = u32::try_from(4 * units.len()).expect("the length fits u32").to_le_bytes();
        n_bytes.into_iter().chain(units.into_iter().flat_map(u32::to_le_bytes)).chain(*b"b\0").collect()
    }

    #[test]
    fn damaged_tables_of_characters_are_recognised() {
        assert!(is_table(&table(0)) && is_table(&table(2)));
        assert!(!is_table(&table(3)), "beyond the texts");
        let whole = table(0);
        for length in 0..whole.len() - 2 {
            assert!(!is_table(&whole[..length]), "{length} bytes");
        }
        assert!(!is_table(&[&whole[..], &[0xff]].concat()), "not UTF-8");
        assert!(!is_table(&[0; 4]) && !is_table(&[4, 0, 0, 0, 0, 0, 0, 0]) && !is_table(&[0xff; 8]));
        let mut outside = whole;
        outside[4 + 0x61 * 4 + 2] = 0xff; // the leaf is far away
        assert!(!is_table(&outside));
    }
}
