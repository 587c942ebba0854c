//! GPT-2's alphabet of bytes: a printable character for each, as byte-level vocabularies spell them.

use std::sync::LazyLock;

/// Each byte with its printable character in a byte-level vocabulary: the byte itself if printable, or else the next
/// free character from U+0100 on.
///
/// Source: Radford et al. 2019, `bytes_to_unicode` in GPT-2's `encoder.py`.
pub(super) fn byte_alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut free = '\u{100}'..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (byte, char::from(byte)),
        _ => (byte, free.next().expect("there are more characters than bytes")),
    })
}

pub(super) fn spell(text: &str) -> String {
    static CHARACTERS: LazyLock<Vec<char>> =
        LazyLock::new(|| byte_alphabet().map(|(_, character)| character).collect());
    text.bytes().map(|byte| CHARACTERS[usize::from(byte)]).collect()
}

/// The bytes that a token's characters spell. A token with any other character, such as `<a b>`, is its own text.
pub(super) fn unspell(token: String) -> Vec<u8> {
    static BYTES: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
        let mut bytes = vec![None; 0x200];
        byte_alphabet().for_each(|(byte, character)| bytes[character as usize] = Some(byte));
        bytes
    });
    let byte = |character: char| BYTES.get(character as usize).copied().flatten();
    let bytes: Option<Vec<u8>> = token.chars().map(byte).collect();
    bytes.unwrap_or_else(|| token.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn bytes_are_spelled_as_in_library() {
        let ours: BTreeSet<char> = byte_alphabet().map(|(_, character)| character).collect();
        assert_eq!(ours.len(), 256);
        assert!(ours.iter().all(|c| ByteLevel::alphabet().contains(c)));
        let text = "a b\n\u{e9}\u{1f525}\0";
        assert_eq!(spell("a b\n"), "a\u{120}b\u{10a}");
        assert_eq!(unspell(spell(text)), text.as_bytes());
        assert_eq!(unspell("<a b>".to_owned()), b"<a b>");
    }
}
