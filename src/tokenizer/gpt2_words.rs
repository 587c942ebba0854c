//! The words of GPT-2's pattern, within which byte-level BPE merges.
//!
//! The pattern, in the words of a regular expression, is
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Source: Radford et al. 2019, GPT-2's `encoder.py`. A loop over characters is many times faster than
//! the regular expression and never gives up on a long run of spaces; what a letter and what a number
//! is, is asked of the `tokenizers` library, so that the words are exactly its words.

use std::sync::LazyLock;

use tokenizers::utils::SysRegex;

/// What GPT-2's pattern asks of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// Everything else.
    Other,
}

/// The length in bytes of the first word of a text that is not empty.
pub(super) fn first_word(text: &str) -> usize {
    let mut rest = text.chars();
    let first = rest.next().expect("the text is not empty");
    if first == '\'' {
        let contraction = ["s", "t", "re", "ve", "m", "ll", "d"]
            .into_iter()
            .find(|ending| text[1..].starts_with(ending));
        if let Some(ending) = contraction {
            return 1 + ending.len();
        }
    }
    let class = match class_of(first) {
        Class::Space => match rest.clone().next().map(class_of) {
            Some(class) if first == ' ' && class != Class::Space => class,
            _ => return spaces(text),
        },
        class => class,
    };
    let run = rest.as_str();
    let end = run.find(|c| class_of(c) != class).unwrap_or(run.len());
    text.len() - run.len() + end
}

/// A run of spaces leaves its last one to the word after it, unless it is the only one.
fn spaces(text: &str) -> usize {
    let Some(end) = text.find(|c| class_of(c) != Class::Space) else {
        return text.len();
    };
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if last == end { end } else { end - last }
}

/// The class of a character.
pub(super) fn class_of(character: char) -> Class {
    static BEYOND_ASCII: LazyLock<Vec<Class>> = LazyLock::new(classes);
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7f' => Class::Other,
        // Private planes and what is not assigned lie beyond the table.
        _ => BEYOND_ASCII.get(character as usize).copied().unwrap_or(Class::Other),
    }
}

/// The class of every character, by code point, up to the last that is not [`Class::Other`].
fn classes() -> Vec<Class> {
    let mut classes = Vec::new();
    // The library's tables decide; the standard library's, which may be newer, only say whom to ask.
    let of_which = |may_be: fn(char) -> bool| ('\0'..=char::MAX).filter(move |&c| may_be(c));
    let candidates = [
        (Class::Letter, r"\p{L}+", of_which(char::is_alphabetic)),
        (Class::Number, r"\p{N}+", of_which(char::is_numeric)),
        (Class::Space, r"\s+", of_which(char::is_whitespace)),
    ];
    for (class, pattern, characters) in candidates {
        let text: String = characters.collect();
        let regex = SysRegex::new(pattern).expect("a pattern of three signs");
        for (start, end) in regex.find_iter(&text) {
            for character in text[start..end].chars() {
                let index = character as usize;
                if classes.len() <= index {
                    classes.resize(index + 1, Class::Other);
                }
                classes[index] = class;
            }
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATTERN: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    fn words(mut text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        while !text.is_empty() {
            let (word, rest) = text.split_at(first_word(text));
            words.push(word);
            text = rest;
        }
        words
    }

    fn words_of_the_pattern(text: &str) -> Vec<&str> {
        let regex = SysRegex::new(PATTERN).unwrap();
        regex.find_iter(text).map(|(start, end)| &text[start..end]).collect()
    }

    #[test]
    fn words_are_those_of_the_pattern() {
        assert_eq!(
            words("I'll  say 'we've 3.14\u{e9}\t\n x!'s "),
            [
                "I", "'ll", " ", " say", " '", "we", "'ve", " 3", ".", "14", "\u{e9}", "\t\n",
                " x", "!'", "s", " "
            ]
        );
    }

    #[test]
    fn every_character_has_the_librarys_class() {
        let all: String = ('\0'..=char::MAX).collect();
        let mut found = vec![Class::Other; char::MAX as usize + 1];
        for (class, pattern) in
            [(Class::Letter, r"\p{L}"), (Class::Number, r"\p{N}"), (Class::Space, r"\s")]
        {
            let regex = SysRegex::new(pattern).unwrap();
            for (start, _) in regex.find_iter(&all) {
                let character = all[start..].chars().next().unwrap();
                found[character as usize] = class;
            }
        }
        for character in all.chars() {
            assert_eq!(class_of(character), found[character as usize], "{character:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_the_words_of_the_pattern(
            text in "(?s:.{0,30})|[a-c1 \n\t'slveremtd.!\u{e9}\u{a0}\u{2003}\u{301}\u{663}]{0,40}"
        ) {
            prop_assert_eq!(words(&text), words_of_the_pattern(&text));
        }
    }
}
