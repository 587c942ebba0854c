//! Text from ids that come one at a time.

use super::{Inner, Tokenizer};

/// Decodes ids one by one, and gives out whole characters only: all that it gives out is the text of all ids.
///
/// A character of several bytes is held back until its last byte is there, so half a character is
/// never shown; bytes that cannot become a character are U+FFFD, the replacement character. What
/// is still incomplete at the end is dropped with the stream.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Where tokens are bytes: the beginning of a character; at most three bytes.
    Bytes(Vec<u8>),
    /// Where tokens are decoded together: some that were given out, so that those after them are not at the
    /// start of a text, and then those that were not.
    Tokens { ids: Vec<u32>, n_given: usize },
}

impl DecodeStream {
    /// A stream in which nothing was pushed yet: what it gives out stands at the start of a text.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let state = if is_bytes(tokenizer) {
            State::Bytes(Vec::new())
        } else {
            State::Tokens { ids: Vec::new(), n_given: 0 }
        };
        Self { tokenizer: tokenizer.clone(), state }
    }

    /// A stream that goes on after these ids, whose text is known already. It matters where a token at the
    /// start of a text loses the space before it.
    ///
    /// # Panics
    /// If an id is not below the tokenizer's vocabulary size.
    #[must_use]
    pub fn after(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let mut stream = Self::new(tokenizer);
        if let State::Tokens { ids: known, n_given } = &mut stream.state {
            known.extend_from_slice(context(tokenizer, ids));
            *n_given = known.len();
        }
        stream
    }

    /// Adds one token, and returns the characters that are complete by it; often none.
    ///
    /// # Panics
    /// If the id is not below the tokenizer's vocabulary size.
    pub fn push(&mut self, id: u32) -> String {
        match &mut self.state {
            State::Bytes(held_back) => {
                let bytes = self.tokenizer.token_bytes(id);
                held_back.extend_from_slice(bytes.expect("each token is bytes"));
                complete(held_back)
            }
            State::Tokens { ids, n_given } => {
                ids.push(id);
                let text = new_text(&self.tokenizer, ids, *n_given);
                // A run of tokens that are single bytes becomes text together, or none of it does.
                if is_byte_token(&self.tokenizer, id)
                    || text.is_empty()
                    || text.ends_with(char::REPLACEMENT_CHARACTER)
                {
                    return String::new();
                }
                *n_given = context(&self.tokenizer, ids).len();
                ids.drain(..ids.len() - *n_given);
                text
            }
        }
    }

    /// What was held back and is complete if nothing comes after it.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(held_back) => {
                held_back.clear();
                String::new()
            }
            State::Tokens { ids, n_given } => {
                let text = new_text(&self.tokenizer, ids, *n_given);
                *n_given = ids.len();
                text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
            }
        }
    }
}

fn is_bytes(tokenizer: &Tokenizer) -> bool {
    tokenizer.token_bytes(0).is_some()
}

fn is_byte_token(tokenizer: &Tokenizer, id: u32) -> bool {
    match &*tokenizer.inner {
        Inner::Table(_) => false,
        Inner::Library(library) => library.is_byte_token(id),
    }
}

/// What the ids after the first `n_given` add to the text of those.
fn new_text(tokenizer: &Tokenizer, ids: &[u32], n_given: usize) -> String {
    let given = tokenizer.decode(&ids[..n_given]);
    match tokenizer.decode(ids).strip_prefix(&given) {
        Some(text) => text.to_owned(),
        // What came changes what is given out already, which nothing can take back.
        None => tokenizer.decode(&ids[n_given..]),
    }
}

/// The shortest end of the ids that has a text, so that what follows does not stand at the start of one.
fn context<'a>(tokenizer: &Tokenizer, ids: &'a [u32]) -> &'a [u32] {
    let ends = (0..ids.len()).rev().map(|start| &ids[start..]);
    ends.into_iter().find(|end| !tokenizer.decode(end).is_empty()).unwrap_or(ids)
}

/// Takes whole characters, and what cannot become one, from the front.
fn complete(held_back: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut n_done = 0;
    while n_done < held_back.len() {
        match std::str::from_utf8(&held_back[n_done..]) {
            Ok(rest) => {
                text.push_str(rest);
                n_done = held_back.len();
            }
            Err(error) => {
                let valid = &held_back[n_done..n_done + error.valid_up_to()];
                text.push_str(std::str::from_utf8(valid).expect("checked just now"));
                n_done += error.valid_up_to();
                let Some(n_invalid) = error.error_len() else {
                    break; // the beginning of a character, which the next token may end
                };
                text.push(char::REPLACEMENT_CHARACTER);
                n_done += n_invalid;
            }
        }
    }
    held_back.drain(..n_done);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(ids: &[u32]) -> Vec<String> {
        let mut stream = DecodeStream::new(&Tokenizer::byte());
        ids.iter().map(|&id| stream.push(id)).collect()
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        assert_eq!(pieces(&[0xf0, 0x9f, 0x94, 0xa5, 97]), ["", "", "", "\u{1f525}", "a"]);
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        assert_eq!(pieces(&[0xff, 97]), ["\u{fffd}", "a"]);
        assert_eq!(pieces(&[0xc3, 97]), ["", "\u{fffd}a"]);
        assert_eq!(pieces(&[0xe2, 0x82, 0xe2, 0x82, 0xac]), ["", "", "\u{fffd}", "", "\u{20ac}"]);
    }

    #[test]
    fn an_incomplete_end_is_held_back() {
        assert_eq!(pieces(&[97, 0xf0, 0x9f, 0x94]), ["a", "", "", ""]);
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_whole(
            ids in prop::collection::vec(0_u32..256, 0..40),
            text in any::<String>(),
        ) {
            let ids: Vec<u32> = ids.into_iter().chain(text.bytes().map(u32::from)).collect();
            let whole = Tokenizer::byte().decode(&ids);
            let streamed = pieces(&ids).concat();
            // Only an incomplete end, which `decode` shows as one replacement, may be missing.
            let rest = whole.strip_prefix(streamed.as_str());
            prop_assert!(rest == Some("") || rest == Some("\u{fffd}"), "{whole:?} {streamed:?}");
        }
    }
}
