//! The grammar's text files, read into named pools of alternatives.
//!
//! It knows the notation, not the meaning: which slots exist is the teller's business.
//!
//! ```text
//! # a comment
//! :pool_name              a pool; its alternatives follow, one per line
//! :pool_name *            the same, but an alternative may come twice in one story
//! some text               an alternative of weight 1
//! 3* some text            an alternative of weight 3
//!   and its next part     two spaces continue the line above
//! [red|2*blue|]           a choice inside an alternative; the last option here is empty
//! {slot}                  something that the teller fills in
//! leaf/leaves             a word's first and second form: singular and plural, or `two/2`
//! \n                      a new paragraph
//! ```

use std::collections::BTreeMap;

/// One alternative of a pool or of a bracket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Relative probability.
    pub weight: u64,
    /// Text with slots and brackets still in it.
    pub text: String,
}

impl Alternative {
    /// Splits a leading weight off, as in `3*text` or `3* text`.
    fn parse(raw: &str) -> Self {
        if let Some((digits, rest)) = raw.split_once('*')
            && let Ok(weight) = digits.parse()
        {
            return Self { weight, text: rest.trim_start_matches(' ').to_owned() };
        }
        Self { weight: 1, text: raw.to_owned() }
    }
}

/// A named list of alternatives.
#[derive(Debug, Default)]
pub struct Pool {
    /// The alternatives, in the order of the file.
    pub alternatives: Vec<Alternative>,
    /// Whether one story may use an alternative again before all others had their turn.
    pub repeats: bool,
}

/// All pools by name.
#[derive(Debug, Default)]
pub struct Grammar {
    pools: BTreeMap<String, Pool>,
}

impl Grammar {
    /// The grammar of the corpus, compiled into this program.
    pub fn bundled() -> Self {
        Self::parse(&[
            include_str!("grammar/words.txt"),
            include_str!("grammar/people.txt"),
            include_str!("grammar/sentences.txt"),
            include_str!("grammar/schemas.txt"),
            include_str!("grammar/scenes.txt"),
            include_str!("grammar/plots_a.txt"),
            include_str!("grammar/plots_b.txt"),
        ])
    }

    /// Reads pools from the text of grammar files.
    ///
    /// # Panics
    /// On a line outside a pool, or a pool that is defined twice: bugs in the grammar.
    pub fn parse(sources: &[&str]) -> Self {
        let mut raw: Vec<(String, bool, Vec<String>)> = Vec::new();
        for line in sources.iter().flat_map(|source| source.lines()) {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            if let Some(header) = line.strip_prefix(':') {
                let (name, repeats) = header.strip_suffix(" *").map_or((header, false), |name| (name, true));
                raw.push((name.trim().to_owned(), repeats, Vec::new()));
                continue;
            }
            let (_, _, lines) = raw.last_mut().expect("a line of the grammar stands in a pool");
            match line.strip_prefix("  ") {
                Some(more) => {
                    let last = lines.last_mut().expect("a continued line has a line above it");
                    last.push(' ');
                    last.push_str(more.trim());
                }
                None => lines.push(line.trim_end().to_owned()),
            }
        }
        let mut pools = BTreeMap::new();
        for (name, repeats, lines) in raw {
            let alternatives = lines.iter().map(|line| Alternative::parse(line)).collect();
            let twice = pools.insert(name.clone(), Pool { alternatives, repeats });
            assert!(twice.is_none(), "pool `{name}` is defined twice");
        }
        Self { pools }
    }

    /// The pool of that name, if there is one.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.get(name)
    }
}

/// A piece of an alternative's text.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Text that stands as it is.
    Literal(&'t str),
    /// The inside of `{...}`.
    Slot(&'t str),
    /// The options of `[...|...]`.
    Choice(Vec<Alternative>),
}

/// Cuts an alternative's text into pieces at its outermost slots and brackets.
///
/// # Panics
/// On a bracket or a slot that does not close: a bug in the grammar.
pub fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['[', '{']) {
        if start > 0 {
            found.push(Piece::Literal(&rest[..start]));
        }
        let inside = &rest[start + 1..];
        if rest[start..].starts_with('{') {
            let end = inside.find('}').unwrap_or_else(|| panic!("a slot does not close: {text}"));
            found.push(Piece::Slot(&inside[..end]));
            rest = &inside[end + 1..];
        } else {
            let (options, end) = options(inside).unwrap_or_else(|| panic!("a bracket does not close: {text}"));
            found.push(Piece::Choice(options));
            rest = &inside[end + 1..];
        }
    }
    if !rest.is_empty() {
        found.push(Piece::Literal(rest));
    }
    found
}

/// The options of a bracket whose opening sign is just before `inside`, and where it closes.
fn options(inside: &str) -> Option<(Vec<Alternative>, usize)> {
    let mut options = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, sign) in inside.char_indices() {
        match sign {
            '[' => depth += 1,
            ']' if depth > 0 => depth -= 1,
            ']' => {
                options.push(Alternative::parse(&inside[start..at]));
                return Some((options, at));
            }
            '|' if depth == 0 => {
                options.push(Alternative::parse(&inside[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// More expansions of one alternative than this are not all listed by the test below.
    const LISTED: usize = 60_000;

    /// All texts that an alternative can give, with its slots left as they are.
    fn expansions(text: &str) -> Vec<String> {
        let mut all = vec![String::new()];
        for piece in pieces(text) {
            let ends = match piece {
                Piece::Literal(literal) => vec![literal.to_owned()],
                Piece::Slot(slot) => vec![format!("{{{slot}}}")],
                Piece::Choice(options) => options.iter().flat_map(|option| expansions(&option.text)).collect(),
            };
            if all.len() * ends.len() > LISTED {
                return Vec::new();
            }
            all = all.iter().flat_map(|start| ends.iter().map(move |end| format!("{start}{end}"))).collect();
        }
        all
    }

    /// No bracket in the text can give one text in two ways.
    fn assert_no_option_twice(text: &str) {
        for piece in pieces(text) {
            if let Piece::Choice(options) = piece {
                assert!(options.len() > 1, "a bracket with one option in: {text}");
                let mut seen = BTreeSet::new();
                for option in &options {
                    for ending in expansions(&option.text) {
                        assert!(seen.insert(ending.clone()), "`{ending}` comes in two ways in: {text}");
                    }
                    assert_no_option_twice(&option.text);
                }
            }
        }
    }

    #[test]
    fn weights_brackets_and_slots_are_read() {
        let grammar = Grammar::parse(&[":greeting *\n3* Hello\n  [again|2*there, {h}|].\n"]);
        let pool = grammar.pool("greeting").expect("the pool was just defined");
        assert!(pool.repeats);
        assert_eq!(pool.alternatives[0].weight, 3);
        let options = ["again", "there, {h}", ""].map(str::to_owned);
        let [text_a, text_b, text_c] = options;
        assert_eq!(
            pieces(&pool.alternatives[0].text),
            [
                Piece::Literal("Hello "),
                Piece::Choice(vec![
                    Alternative { weight: 1, text: text_a },
                    Alternative { weight: 2, text: text_b },
                    Alternative { weight: 1, text: text_c },
                ]),
                Piece::Literal("."),
            ]
        );
    }

    /// Two ways to the same text would make the entropy floor too high.
    #[test]
    fn no_two_choices_of_the_bundled_grammar_give_the_same_text() {
        for (name, pool) in &Grammar::bundled().pools {
            let mut seen = BTreeSet::new();
            for alternative in &pool.alternatives {
                assert_no_option_twice(&alternative.text);
                for text in expansions(&alternative.text) {
                    assert!(seen.insert(text.clone()), "pool `{name}` can give this in two ways: {text}");
                }
            }
            assert!(!pool.alternatives.is_empty(), "pool `{name}` is empty");
        }
    }

    #[test]
    fn a_made_up_name_is_never_one_of_the_ordinary_ones() {
        use crate::cast::Names;
        let made_up: BTreeSet<String> = (0..Names::Rare.count()).map(|index| Names::Rare.name(index)).collect();
        let grammar = Grammar::bundled();
        for pool in ["name_girl", "name_boy", "name_animal"] {
            for name in &grammar.pool(pool).expect("the pool is there").alternatives {
                assert!(!made_up.contains(&name.text), "{}", name.text);
            }
        }
    }

    #[test]
    fn the_bundled_grammar_is_plain_ascii() {
        for (name, pool) in &Grammar::bundled().pools {
            for alternative in &pool.alternatives {
                assert!(alternative.text.is_ascii(), "pool `{name}`: {}", alternative.text);
            }
        }
    }
}
