//! Text from ids that come one at a time.

use super::Tokenizer;

/// Decodes ids one by one, and gives out whole characters only.
///
/// A character of several bytes is held back until its last byte is there, so half a character is
/// never shown; bytes that cannot become a character are U+FFFD, the replacement character. What
/// is still incomplete at the end is dropped with the stream.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    /// The beginning of a character; at most three bytes.
    held_back: Vec<u8>,
}

impl DecodeStream {
    /// A stream in which nothing was pushed yet.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            held_back: Vec::new(),
        }
    }

    /// Adds one token, and returns the characters that are complete by it; often none.
    ///
    /// # Panics
    /// If the id is not below the tokenizer's vocabulary size.
    pub fn push(&mut self, id: u32) -> String {
        self.held_back
            .extend_from_slice(self.tokenizer.token_bytes(id));
        let mut text = String::new();
        let mut n_done = 0;
        while n_done < self.held_back.len() {
            match std::str::from_utf8(&self.held_back[n_done..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    n_done = self.held_back.len();
                }
                Err(error) => {
                    let valid = &self.held_back[n_done..n_done + error.valid_up_to()];
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
        self.held_back.drain(..n_done);
        text
    }
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
        assert_eq!(
            pieces(&[0xf0, 0x9f, 0x94, 0xa5, 97]),
            ["", "", "", "\u{1f525}", "a"]
        );
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        assert_eq!(pieces(&[0xff, 97]), ["\u{fffd}", "a"]);
        assert_eq!(pieces(&[0xc3, 97]), ["", "\u{fffd}a"]);
        assert_eq!(
            pieces(&[0xe2, 0x82, 0xe2, 0x82, 0xac]),
            ["", "", "\u{fffd}", "", "\u{20ac}"]
        );
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
