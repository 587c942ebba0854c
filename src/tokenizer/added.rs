//! Tokens that stand in a text as they are, such as `<|endoftext|>`: found before anything else is.

use std::ops::Range;

use tokenizers::AddedToken;

/// The added tokens of a tokenizer that has only plain ones.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// Longer ones before shorter ones: at one place, the longest counts.
    tokens: Vec<(Box<str>, u32)>,
    /// The bytes that a token can begin with.
    begins: [bool; 256],
}

/// A stretch of text between added tokens, or one of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Section<'a> {
    Text(&'a str),
    Token(u32),
}

impl AddedTokens {
    /// None if a token wants more than to be found where it stands.
    pub(super) fn plain(tokens: &[(u32, AddedToken)]) -> Option<Self> {
        let is_plain = |token: &AddedToken| {
            !(token.single_word || token.lstrip || token.rstrip || token.content.is_empty())
        };
        // The library looks for those that are not normalized first, in a turn of their own.
        let one_turn = tokens.windows(2).all(|pair| pair[0].1.normalized == pair[1].1.normalized);
        if !one_turn || !tokens.iter().all(|(_, token)| is_plain(token)) {
            return None;
        }
        let mut begins = [false; 256];
        let mut tokens: Vec<(Box<str>, u32)> =
            tokens.iter().map(|(id, token)| (token.content.as_str().into(), *id)).collect();
        tokens.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        for (content, _) in &tokens {
            begins[usize::from(content.as_bytes()[0])] = true;
        }
        Some(Self { tokens, begins })
    }

    /// The text taken apart, from its start to its end.
    pub(super) fn sections<'a>(&self, text: &'a str) -> impl Iterator<Item = Section<'a>> {
        let mut rest = text;
        let mut found = self.first(rest);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some((range, id)) = found.clone() else {
                return Some(Section::Text(std::mem::take(&mut rest)));
            };
            if range.start > 0 {
                let (before, from_token) = rest.split_at(range.start);
                rest = from_token;
                found = Some((0..range.len(), id));
                return Some(Section::Text(before));
            }
            rest = &rest[range.end..];
            found = self.first(rest);
            Some(Section::Token(id))
        })
    }

    /// The leftmost of the longest.
    fn first(&self, text: &str) -> Option<(Range<usize>, u32)> {
        if self.tokens.is_empty() {
            return None;
        }
        let begins = |(_, byte): &(usize, &u8)| self.begins[usize::from(**byte)];
        text.as_bytes().iter().enumerate().filter(begins).find_map(|(at, _)| {
            let here = &text.as_bytes()[at..];
            let (content, id) =
                self.tokens.iter().find(|(content, _)| here.starts_with(content.as_bytes()))?;
            Some((at..at + content.len(), *id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(contents: &[&str]) -> AddedTokens {
        let tokens: Vec<_> = (0..)
            .zip(contents)
            .map(|(id, content)| (id, AddedToken::from(*content, true)))
            .collect();
        AddedTokens::plain(&tokens).unwrap()
    }

    #[test]
    fn the_leftmost_of_the_longest_is_found() {
        let tokens = added(&["<a", "<a>", "b<"]);
        let sections: Vec<_> = tokens.sections("x<a>y<ab<<a").collect();
        assert_eq!(
            sections,
            [
                Section::Text("x"),
                Section::Token(1),
                Section::Text("y"),
                Section::Token(0),
                Section::Token(2),
                Section::Token(0),
            ]
        );
        assert_eq!(tokens.sections("").count(), 0);
        assert_eq!(added(&[]).sections("<a>").count(), 1);
    }

    #[test]
    fn tokens_that_want_more_are_not_plain() {
        let plain = |token| AddedTokens::plain(&[(0, token)]).is_some();
        let token = || AddedToken::from("<a>", true);
        assert!(plain(token()));
        assert!(!plain(token().lstrip(true)));
        assert!(!plain(token().rstrip(true)));
        assert!(!plain(token().single_word(true)));
        let turns = [(0, token()), (1, AddedToken::from("b", false))];
        assert!(AddedTokens::plain(&turns).is_none());
    }
}
