//! The printable character that stands for each byte in a byte-level vocabulary.

use std::sync::LazyLock;

/// Each byte with its character: itself where it is printable, and otherwise the next free one from
/// U+0100 on.
///
/// Source: Radford et al. 2019, `bytes_to_unicode` in GPT-2's `encoder.py`.
pub(super) fn alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut free = '\u{100}'..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (byte, char::from(byte)),
        _ => (byte, free.next().expect("there are more characters than bytes")),
    })
}

/// A text, with the character of each of its bytes.
pub(super) fn spelled(text: &str) -> String {
    static CHARACTERS: LazyLock<Vec<char>> =
        LazyLock::new(|| alphabet().map(|(_, character)| character).collect());
    text.bytes().map(|byte| CHARACTERS[usize::from(byte)]).collect()
}

/// The bytes that a token's characters stand for. A token with any other character, such as a special one
/// with a space in it, stands for itself.
pub(super) fn meant(token: &str) -> Vec<u8> {
    static BYTES: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
        let mut bytes = vec![None; 0x200];
        for (byte, character) in alphabet() {
            bytes[character as usize] = Some(byte);
        }
        bytes
    });
    let byte = |character: char| BYTES.get(character as usize).copied().flatten();
    token
        .chars()
        .map(byte)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn the_alphabet_is_the_librarys() {
        let ours: BTreeSet<char> = alphabet().map(|(_, character)| character).collect();
        assert_eq!(ours.len(), 256);
        assert!(ours.iter().all(|c| ByteLevel::alphabet().contains(c)));
    }

    #[test]
    fn what_is_spelled_means_the_same_again() {
        let text = "a b\n\u{e9}\u{1f525}\0";
        assert_eq!(spelled("a b\n"), "a\u{120}b\u{10a}");
        assert_eq!(meant(&spelled(text)), text.as_bytes());
        assert_eq!(meant("<a b>"), b"<a b>");
    }
}
