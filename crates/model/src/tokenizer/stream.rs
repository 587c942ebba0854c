//! Incremental decoding: text in whole characters, from ids that come one at a time.

use super::{Tokenizer, text_of};

/// Decodes ids one by one, and returns whole characters only: together the text of all ids, except for an incomplete
/// character at the end. Invalid bytes become U+FFFD.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    state: HeldBack,
}

#[derive(Debug, Clone)]
enum HeldBack {
    /// Tokens decode to bytes: the start of a character, at most three bytes.
    Bytes(Vec<u8>),
    /// Tokens decode only in context: `n_given` ids whose text was returned, so that later ids are not at the start of
    /// a text, and then the ids held back.
    Tokens { ids: Vec<u32>, n_given: usize },
}

impl DecodeStream {
    /// A stream that continues after these ids. They matter for tokenizers that drop the space before the first token
    /// of a text.
    ///
    /// # Panics
    /// If an id is not below the tokenizer's vocabulary size.
    pub fn after(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let state = if tokenizer.inner.bytes.is_some() {
            HeldBack::Bytes(Vec::new())
        } else {
            let ids = context(tokenizer, ids).to_vec();
            HeldBack::Tokens { n_given: ids.len(), ids }
        };
        Self { tokenizer: tokenizer.clone(), state }
    }

    /// Adds one token and returns the characters that it completes; often none.
    ///
    /// # Panics
    /// If the id is not below the tokenizer's vocabulary size.
    pub fn push(&mut self, id: u32) -> String {
        self.push_all(&[id])
    }

    /// Adds at least one token.
    fn push_all(&mut self, new: &[u32]) -> String {
        match &mut self.state {
            HeldBack::Bytes(held_back) => {
                for id in new {
                    held_back.extend_from_slice(self.tokenizer.token_bytes(*id).expect("every token decodes to bytes"));
                }
                complete(held_back)
            }
            HeldBack::Tokens { ids, n_given } => {
                ids.extend_from_slice(new);
                // A run of single-byte tokens decodes together, or not at all: once, so that it takes linear time.
                if byte_of(&self.tokenizer, new[new.len() - 1]).is_some() {
                    return String::new();
                }
                let text = new_text(&self.tokenizer, ids, *n_given);
                if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
                    return String::new();
                }
                *n_given = context(&self.tokenizer, ids).len();
                ids.drain(..ids.len() - *n_given);
                text
            }
        }
    }

    /// The text that was held back, complete if nothing follows.
    pub fn finish(&mut self) -> String {
        let HeldBack::Tokens { ids, n_given } = &mut self.state else {
            return String::new(); // an incomplete character
        };
        let text = new_text(&self.tokenizer, ids, *n_given);
        *n_given = ids.len();
        text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
    }
}

/// The length in bytes of the text of ids that come in parts: that of [`Tokenizer::decode`] of all of them.
///
/// # Panics
/// If an id is not below the tokenizer's vocabulary size.
pub fn decoded_bytes(tokenizer: &Tokenizer, parts: impl Iterator<Item = Vec<u32>>) -> u64 {
    let mut stream = DecodeStream::after(tokenizer, &[]);
    let parts = parts.filter(|ids| !ids.is_empty());
    let sum: usize = parts.map(|ids| stream.push_all(&ids).len()).sum();
    let rest = match stream.state {
        HeldBack::Bytes(bytes) => text_of(bytes),
        HeldBack::Tokens { ids, n_given } => new_text(tokenizer, &ids, n_given),
    };
    (sum + rest.len()) as u64
}

/// The byte of a token of a single byte among tokens of text, such as `<0x0A>`.
fn byte_of(tokenizer: &Tokenizer, id: u32) -> Option<u8> {
    let token = tokenizer.inner.tokenizer.id_to_token(id)?;
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// The bytes that a token adds to a text: after the token `before`, or where a text begins. Those of all tokens of a text
/// are the text.
///
/// # Panics
/// If an id is not below the tokenizer's vocabulary size.
pub fn bytes_of_token(tokenizer: &Tokenizer, before: Option<u32>, id: u32) -> Vec<u8> {
    if let Some(bytes) = tokenizer.token_bytes(id) {
        return bytes.to_vec();
    }
    // Without a decoder for bytes it is a text like any other.
    if let Some(byte) = byte_of(tokenizer, id).filter(|_| !tokenizer.decode(&[id]).starts_with("<0x")) {
        return vec![byte];
    }
    let ids: Vec<u32> = before.into_iter().chain([id]).collect();
    new_text(tokenizer, &ids, ids.len() - 1).into_bytes()
}

/// The text that the ids after the first `n_given` add to the text of the first.
fn new_text(tokenizer: &Tokenizer, ids: &[u32], n_given: usize) -> String {
    #[cfg(test)]
    tests::N_DECODED.set(tests::N_DECODED.get() + ids.len());
    let given = tokenizer.decode(&ids[..n_given]);
    match tokenizer.decode(ids).strip_prefix(&given) {
        Some(text) => text.to_owned(),
        // The new ids change text that was already returned, which cannot be undone.
        None => tokenizer.decode(&ids[n_given..]),
    }
}

/// The shortest suffix of ids with any text: ids after it are not at the start of a text.
fn context<'a>(tokenizer: &Tokenizer, ids: &'a [u32]) -> &'a [u32] {
    let mut ends = (0..ids.len()).rev().map(|start| &ids[start..]);
    ends.find(|end| !tokenizer.decode(end).is_empty()).unwrap_or(ids)
}

/// Takes everything except an incomplete character at the end.
fn complete(held_back: &mut Vec<u8>) -> String {
    let may_go_on = |bytes: &[u8]| std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
    let last = held_back.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let n_open = if may_go_on(last) { last.len() } else { 0 };
    let open = held_back.split_off(held_back.len() - n_open);
    text_of(std::mem::replace(held_back, open))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The number of ids that [`new_text`] was given.
        pub(super) static N_DECODED: Cell<usize> = const { Cell::new(0) };
    }

    fn pieces(ids: &[u32]) -> Vec<String> {
        let mut stream = DecodeStream::after(&Tokenizer::byte(), &[]);
        ids.iter().map(|&id| stream.push(id)).collect()
    }

    fn files() -> [Tokenizer; 4] {
        ["llama2.json", "wordpiece.json", "unigram.json", "gpt2.json"].map(|name| {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers");
            Tokenizer::from_file(&folder.join(name)).expect("the file is valid")
        })
    }

    #[test]
    fn bytes_of_tokens_joined_are_the_text() {
        let texts = [
            " once upon  a time, the \u{1f525}\u{e9} \u{4e2d} of\n\ta \u{1f525}",
            "Once",
            "a",
            "\u{4e2d}a",
            "<0x41> 3.",
        ];
        for tokenizer in files().iter().chain([&Tokenizer::byte(), &Tokenizer::byte().with_end_of_text()]) {
            for ids in texts.iter().filter_map(|text| tokenizer.encode(text).ok()) {
                let before = std::iter::once(None).chain(ids.iter().copied().map(Some));
                let bytes: Vec<u8> =
                    before.zip(&ids).flat_map(|(before, id)| bytes_of_token(tokenizer, before, *id)).collect();
                assert_eq!(String::from_utf8(bytes).expect("the text is whole"), tokenizer.decode(&ids));
            }
        }
        let [llama, words, ..] = files();
        let id = |tokenizer: &Tokenizer, token: &str| tokenizer.inner.tokenizer.token_to_id(token).expect(token);
        let the = id(&llama, "\u{2581}the");
        assert_eq!(
            [None, Some(the)].map(|before| bytes_of_token(&llama, before, the)),
            [b"the".to_vec(), b" the".to_vec()]
        );
        assert_eq!(bytes_of_token(&llama, Some(the), id(&llama, "<0x8A>")), [0x8a]);
        let of = id(&words, "of");
        assert_eq!(bytes_of_token(&words, Some(of), of), b" of");
    }

    #[test]
    fn parts_decode_to_as_many_bytes_as_whole() {
        let text = " once upon a time, the \u{1f525}\u{e9} \u{4e2d} of a \u{1f525}";
        for tokenizer in [Tokenizer::byte()].into_iter().chain(files()) {
            let ids = tokenizer.encode(text).expect("it can be encoded");
            for ids in [&ids[..], &ids[..ids.len() - 1]] {
                for n in 1..6 {
                    let parts = ids.chunks(n).map(<[u32]>::to_vec);
                    assert_eq!(decoded_bytes(&tokenizer, parts), tokenizer.decode(ids).len() as u64, "{n}");
                }
            }
        }
    }

    #[test]
    fn runs_of_byte_tokens_decode_in_linear_time() {
        let [llama, ..] = files();
        let ids = llama.encode(&format!("{} end", "\u{1f525}".repeat(1000))).expect("it can be encoded");
        let n_decoded = |push: &dyn Fn() -> String| {
            N_DECODED.set(0);
            assert_eq!(push(), llama.decode(&ids));
            N_DECODED.get()
        };
        assert!(ids.len() > 4000);
        let one_by_one = n_decoded(&|| {
            let mut stream = DecodeStream::after(&llama, &[]);
            ids.iter().map(|id| stream.push(*id)).collect()
        });
        assert!(one_by_one < 2 * ids.len(), "{one_by_one} of {}", ids.len());
    }

    #[test]
    fn push_returns_whole_characters_and_replaces_invalid_bytes() {
        assert_eq!(pieces(&[0xf0, 0x9f, 0x94, 0xa5, 97]), ["", "", "", "\u{1f525}", "a"]);
        assert_eq!(pieces(&[97, 0xf0, 0x9f, 0x94]), ["a", "", "", ""]);
        assert_eq!(pieces(&[0xff, 97]), ["\u{fffd}", "a"]);
        assert_eq!(pieces(&[0xc3, 97]), ["", "\u{fffd}a"]);
        assert_eq!(pieces(&[0xe2, 0x82, 0xe2, 0x82, 0xac]), ["", "", "\u{fffd}", "", "\u{20ac}"]);
    }
}
