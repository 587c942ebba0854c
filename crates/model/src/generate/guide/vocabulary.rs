//! The tokens of a tokenizer, in an order in which the automaton reads each common beginning once.

use std::collections::BTreeSet;

use super::machine::{State, is_plain};
use super::schema::{Grammar, Node, SchemaError};
use crate::tokenizer::Tokenizer;

/// The bytes of the tokens that text is made of.
#[derive(Debug)]
pub struct Vocabulary {
    /// For each id its bytes; empty for one that cannot be a part of a text.
    bytes: Vec<Box<[u8]>>,
    /// The tokens that change nothing within a string: whole characters, and neither quotes nor backslashes.
    plain: Sorted,
    plain_mask: Mask,
    others: Sorted,
    /// The characters that are tokens; `None` if all bytes are.
    characters: Option<BTreeSet<char>>,
}

/// A set of tokens.
#[derive(Clone, Debug, Default)]
pub(in crate::generate) struct Mask(Vec<u64>);

impl Mask {
    fn none(n_ids: usize) -> Self {
        Self(vec![0; n_ids.div_ceil(64)])
    }

    pub(in crate::generate) fn has(&self, token: u32) -> bool {
        self.0.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    pub(super) fn allow(&mut self, token: u32) {
        if let Some(word) = self.0.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }
}

/// Tokens in the order of their bytes.
#[derive(Debug, Default)]
struct Sorted {
    ids: Vec<u32>,
    /// For each the number of bytes that it has in common with the one before it.
    n_common: Vec<u16>,
}

impl Sorted {
    fn new(mut ids: Vec<u32>, bytes: &[Box<[u8]>]) -> Self {
        let of = |id: &u32| &bytes[*id as usize];
        ids.sort_unstable_by_key(of);
        let common = |pair: &[u32]| of(&pair[0]).iter().zip(of(&pair[1]).iter()).take_while(|(a, b)| a == b).count();
        let common = |pair: &[u32]| u16::try_from(common(pair)).unwrap_or(u16::MAX);
        let n_common = ids.first().map(|_| 0).into_iter().chain(ids.windows(2).map(common)).collect();
        Self { ids, n_common }
    }
}

impl Vocabulary {
    /// The vocabulary of a tokenizer; `None` if the text of its tokens depends on the tokens before them.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let n_ids = tokenizer.n_ids();
        let mut bytes: Vec<Box<[u8]>> =
            (0..).take(n_ids).map(|id| tokenizer.text_bytes(id).map(Into::into)).collect::<Option<_>>()?;
        let ends = tokenizer.end_of_text().into_iter();
        for id in ends.chain(tokenizer.special_tokens()) {
            bytes[id as usize] = Box::default();
        }
        let single: BTreeSet<u8> = bytes.iter().filter(|bytes| bytes.len() == 1).map(|bytes| bytes[0]).collect();
        let characters = (single.len() < 256).then(|| {
            for piece in &mut bytes {
                if std::str::from_utf8(piece).is_err() {
                    *piece = Box::default(); // no other token may be there to complete the character
                }
            }
            let only = |bytes: &[u8]| {
                let mut characters = std::str::from_utf8(bytes).ok()?.chars();
                characters.next().filter(|_| characters.next().is_none())
            };
            bytes.iter().filter_map(|bytes| only(bytes)).collect()
        });
        let (mut plain, mut others, mut plain_mask) = (Vec::new(), Vec::new(), Mask::none(n_ids));
        for (bytes, id) in bytes.iter().zip(0..).filter(|(bytes, _)| !bytes.is_empty()) {
            let is_whole = std::str::from_utf8(bytes).is_ok();
            if is_whole && bytes.iter().all(|byte| is_plain(*byte) || *byte >= 0x80) {
                plain.push(id);
                plain_mask.allow(id);
            } else {
                others.push(id);
            }
        }
        let [plain, others] = [plain, others].map(|ids| Sorted::new(ids, &bytes));
        Some(Self { bytes, plain, plain_mask, others, characters })
    }

    /// The bytes of a token; `None` if it cannot be a part of a text.
    pub(super) fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.bytes.get(token as usize).map(|bytes| &**bytes).filter(|bytes| !bytes.is_empty())
    }

    /// Rejects a grammar for whose texts there may be no tokens.
    pub(super) fn check(&self, grammar: &Grammar) -> Result<(), SchemaError> {
        let Some(characters) = &self.characters else { return Ok(()) };
        let has_number = grammar.nodes.iter().any(|node| matches!(node, Node::Number | Node::Integer));
        let punctuation = "{}[]:,\"".chars().chain("0123456789".chars().filter(|_| has_number));
        let texts = grammar.texts.iter().filter_map(|text| std::str::from_utf8(text).ok());
        match punctuation.chain(texts.flat_map(str::chars)).find(|character| !characters.contains(character)) {
            Some(character) => Err(SchemaError(format!(
                "the model cannot write JSON of this schema: its vocabulary has no {character:?}"
            ))),
            None => Ok(()),
        }
    }

    /// The tokens that may follow.
    pub(super) fn allowed(&self, grammar: &Grammar, state: &State) -> Mask {
        let mut mask = if state.takes_characters() {
            self.plain_mask.clone()
        } else {
            let mut mask = Mask::none(self.bytes.len());
            self.read(&self.plain, grammar, state, &mut mask);
            mask
        };
        self.read(&self.others, grammar, state, &mut mask);
        mask
    }

    /// Allows the tokens of a list that may follow.
    fn read(&self, list: &Sorted, grammar: &Grammar, state: &State, mask: &mut Mask) {
        // The states after each byte of a token, up to the first byte that cannot follow.
        let mut states = vec![state.clone()];
        let mut n_read = 0;
        for (id, n_common) in list.ids.iter().zip(&list.n_common) {
            if usize::from(*n_common) > n_read {
                continue; // it has the byte that could not follow
            }
            n_read = usize::from(*n_common);
            let bytes = &self.bytes[*id as usize];
            while n_read < bytes.len() {
                if states.len() < n_read + 2 {
                    states.push(State::default());
                }
                let (before, after) = states.split_at_mut(n_read + 1);
                before[n_read].step(grammar, bytes[n_read], &mut after[0]);
                if after[0].is_dead() {
                    break;
                }
                n_read += 1;
            }
            if n_read == bytes.len() {
                mask.allow(*id);
            }
        }
    }
}
