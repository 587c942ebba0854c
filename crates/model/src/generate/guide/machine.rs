//! The automaton that reads the texts of a grammar byte by byte.
//!
//! Its state is a set of stacks, each with what is still to come, the next part last. Every stack leads to a valid text,
//! whatever happens to the others: so their number can be limited.

use super::schema::{Grammar, Node};

/// The most stacks of a state. Schemas that need more have a choice between more objects that begin alike.
const MAX_STACKS: usize = 256;

/// The most blanks after a line break. More white space than this is never needed, and a model could write nothing else.
const MAX_INDENT: u8 = 20;

/// The most digits of a whole number, which every reader then keeps exactly, and of a fraction.
const MAX_DIGITS: u8 = 15;

/// The most digits of an exponent, which no reader then finds too large.
const MAX_EXPONENT_DIGITS: u8 = 2;

/// Something that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A value inside of `depth` lists and objects.
    Value {
        node: u32,
        depth: u8,
    },
    /// The rest of one of the texts `first..end`, which are sorted and have the same first `at` bytes.
    Texts {
        first: u32,
        end: u32,
        at: u32,
    },
    Byte(u8),
    /// White space, or none: a blank, or a line break and an indent.
    Space,
    /// So many more blanks, or fewer.
    Indent(u8),
    /// The rest of a string, with the closing quote.
    Characters,
    /// The bytes of a character that are left, and the range of the next.
    Continuation {
        left: u8,
        low: u8,
        high: u8,
    },
    /// The character after a backslash.
    Escaped,
    Number {
        at: NumberAt,
        is_integer: bool,
    },
    /// The rest of a list, whose items have this `depth`.
    Items {
        node: u32,
        depth: u8,
        is_first: bool,
    },
    /// The rest of an object, from a property on.
    Properties {
        object: u32,
        next: u32,
        depth: u8,
        is_first: bool,
    },
    /// The rest of an object with any keys.
    Entries {
        node: u32,
        depth: u8,
        is_first: bool,
    },
}

/// Where in a number, with the digits of its part so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberAt {
    Start,
    Minus,
    Zero,
    Whole(u8),
    Dot,
    Fraction(u8),
    E,
    Sign,
    Exponent(u8),
}

impl NumberAt {
    fn after(self, byte: u8, is_integer: bool) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Start, b'-') => Self::Minus,
            (Self::Start, b'0') => Self::Zero,
            (Self::Minus, b'0') if !is_integer => Self::Zero, // a reader may take -0 for a fraction
            (Self::Start | Self::Minus, b'1'..=b'9') => Self::Whole(1),
            (Self::Whole(n @ ..MAX_DIGITS), b'0'..=b'9') => Self::Whole(n + 1),
            (Self::Zero | Self::Whole(_), b'.') if !is_integer => Self::Dot,
            (Self::Dot, b'0'..=b'9') => Self::Fraction(1),
            (Self::Fraction(n @ ..MAX_DIGITS), b'0'..=b'9') => Self::Fraction(n + 1),
            (Self::Zero | Self::Whole(_) | Self::Fraction(_), b'e' | b'E') if !is_integer => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign, b'0'..=b'9') => Self::Exponent(1),
            (Self::Exponent(n @ ..MAX_EXPONENT_DIGITS), b'0'..=b'9') => Self::Exponent(n + 1),
            _ => return None,
        })
    }

    /// Whether the number may end here.
    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole(_) | Self::Fraction(_) | Self::Exponent(_))
    }

    /// Whether the number must end here.
    fn must_end(self, is_integer: bool) -> bool {
        match self {
            Self::Zero | Self::Whole(MAX_DIGITS) => is_integer,
            Self::Exponent(MAX_EXPONENT_DIGITS) => true,
            _ => false,
        }
    }
}

/// Bytes that change nothing in a string: all but the quote, the backslash, control characters and parts of characters.
pub(super) fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=0x7f if byte != b'"' && byte != b'\\')
}

/// The bytes that follow the first byte of a character, as in table 3-7 of the Unicode standard.
fn continuation(first: u8) -> Option<Part> {
    let (left, low, high) = match first {
        0xc2..=0xdf => (1, 0x80, 0xbf),
        0xe0 => (2, 0xa0, 0xbf),
        0xed => (2, 0x80, 0x9f),
        0xe1..=0xef => (2, 0x80, 0xbf),
        0xf0 => (3, 0x90, 0xbf),
        0xf1..=0xf3 => (3, 0x80, 0xbf),
        0xf4 => (3, 0x80, 0x8f),
        _ => return None,
    };
    Some(Part::Continuation { left, low, high })
}

type Stack = Vec<Part>;

/// What may follow the bytes read so far. The next part of every stack takes a byte.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    stacks: Vec<Stack>,
}

impl State {
    /// The state before the text.
    pub(super) fn first(grammar: &Grammar) -> Self {
        let mut state = Self::default();
        state.add(grammar, vec![Part::Value { node: grammar.root, depth: 0 }]);
        state
    }

    /// Whether no text can continue so.
    pub(super) fn is_dead(&self) -> bool {
        self.stacks.is_empty()
    }

    pub(super) fn may_end(&self) -> bool {
        self.stacks.iter().any(Vec::is_empty)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.stacks.iter().all(Vec::is_empty)
    }

    /// Whether any [plain](is_plain) text and any whole characters may follow.
    pub(super) fn takes_characters(&self) -> bool {
        self.stacks.iter().any(|stack| stack.last() == Some(&Part::Characters))
    }

    /// The state after these bytes.
    pub(super) fn after(&self, grammar: &Grammar, bytes: &[u8]) -> Self {
        let (mut state, mut next) = (self.clone(), Self::default());
        for byte in bytes {
            state.step(grammar, *byte, &mut next);
            std::mem::swap(&mut state, &mut next);
        }
        state
    }

    /// Makes `next` the state after one more byte.
    pub(super) fn step(&self, grammar: &Grammar, byte: u8, next: &mut Self) {
        if let [stack] = &self.stacks[..]
            && stack.last() == Some(&Part::Characters)
            && is_plain(byte)
        {
            next.stacks.resize_with(1, Stack::new);
            next.stacks[0].clone_from(stack); // without an allocation
            return;
        }
        next.stacks.clear();
        for stack in &self.stacks {
            let Some((top, below)) = stack.split_last() else { continue };
            let mut replace = |parts: &[Part]| next.add(grammar, [below, parts].concat());
            match (*top, byte) {
                (Part::Byte(expected), _) if byte == expected => replace(&[]),
                (Part::Texts { first, end, at }, _) => {
                    let texts = &grammar.texts[first as usize..end as usize];
                    let byte_at = |text: &[u8]| text[at as usize];
                    let n_below = texts.partition_point(|text| byte_at(text) < byte);
                    let n_not_above = texts.partition_point(|text| byte_at(text) <= byte);
                    if n_below < n_not_above {
                        let [from, to] = [n_below, n_not_above].map(|n| first + u32::try_from(n).expect("of texts"));
                        replace(&[Part::Texts { first: from, end: to, at: at + 1 }]);
                    }
                }
                (Part::Space, b' ')
                | (Part::Characters, b'"')
                | (Part::Escaped, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => replace(&[]),
                (Part::Space, b'\n') => replace(&[Part::Indent(MAX_INDENT)]),
                (Part::Indent(n @ 1..), b' ' | b'\t') => replace(&[Part::Indent(n - 1)]),
                (Part::Characters, b'\\') => replace(&[*top, Part::Escaped]),
                (Part::Characters, _) if is_plain(byte) => replace(&[*top]),
                (Part::Characters, _) => {
                    if let Some(rest) = continuation(byte) {
                        replace(&[*top, rest]);
                    }
                }
                (Part::Continuation { left, low, high }, _) if (low..=high).contains(&byte) => match left {
                    1 => replace(&[]),
                    _ => replace(&[Part::Continuation { left: left - 1, low: 0x80, high: 0xbf }]),
                },
                (Part::Number { at, is_integer }, _) => {
                    if let Some(at) = at.after(byte, is_integer) {
                        replace(&[Part::Number { at, is_integer }]);
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds what a stack becomes once its next part takes a byte.
    fn add(&mut self, grammar: &Grammar, mut stack: Stack) {
        if self.stacks.len() >= MAX_STACKS {
            return;
        }
        let Some(top) = stack.last().copied() else { return self.insert(stack) };
        let below = |stack: &Stack, parts: &[Part]| [&stack[..stack.len() - 1], parts].concat();
        match top {
            Part::Byte(_) | Part::Characters | Part::Continuation { .. } | Part::Escaped => self.insert(stack),
            Part::Space | Part::Indent(_) => {
                self.add(grammar, below(&stack, &[]));
                self.insert(stack);
            }
            Part::Texts { first, end, at } => {
                if grammar.texts[first as usize].len() != at as usize {
                    return self.insert(stack);
                }
                self.add(grammar, below(&stack, &[]));
                if first + 1 < end {
                    self.insert(below(&stack, &[Part::Texts { first: first + 1, end, at }]));
                }
            }
            Part::Number { at, is_integer } => {
                if at.may_end() {
                    self.add(grammar, below(&stack, &[]));
                }
                if !at.must_end(is_integer) {
                    self.insert(stack);
                }
            }
            Part::Value { node, depth } => {
                stack.pop();
                self.add_value(grammar, stack, &grammar.nodes[node as usize], depth);
            }
            Part::Items { node, depth, is_first } => {
                self.add(grammar, below(&stack, &[Part::Byte(b']'), Part::Space]));
                if grammar.fits(node, depth) {
                    let rest = [Part::Items { node, depth, is_first: false }, Part::Value { node, depth }, Part::Space];
                    self.add_next(grammar, below(&stack, &rest), is_first);
                }
            }
            Part::Entries { node, depth, is_first } => {
                self.add(grammar, below(&stack, &[Part::Byte(b'}'), Part::Space]));
                if grammar.fits(node, depth) {
                    let entry = [Part::Value { node, depth }, Part::Space, Part::Byte(b':'), Part::Characters];
                    let rest = [Part::Byte(b'"'), Part::Space];
                    let entries = [Part::Entries { node, depth, is_first: false }];
                    self.add_next(grammar, below(&stack, &[&entries[..], &entry, &rest].concat()), is_first);
                }
            }
            Part::Properties { object, next, depth, is_first } => {
                let properties = &grammar.objects[object as usize];
                for (property, after) in properties[next as usize..].iter().zip(next + 1..) {
                    let node = property.node;
                    if property.is_required || grammar.fits(node, depth) {
                        let properties = Part::Properties { object, next: after, depth, is_first: false };
                        let name = Part::Texts { first: property.text, end: property.text + 1, at: 0 };
                        let rest = [properties, Part::Value { node, depth }, Part::Space, name, Part::Space];
                        self.add_next(grammar, below(&stack, &rest), is_first);
                    }
                    if property.is_required {
                        return;
                    }
                }
                self.add(grammar, below(&stack, &[Part::Byte(b'}'), Part::Space]));
            }
        }
    }

    /// Adds a stack with the next item of a list or an object, which begins with a comma unless it is the first.
    fn add_next(&mut self, grammar: &Grammar, mut stack: Stack, is_first: bool) {
        if !is_first {
            stack.push(Part::Byte(b','));
        }
        self.add(grammar, stack);
    }

    /// Adds a stack with a value on top.
    fn add_value(&mut self, grammar: &Grammar, mut stack: Stack, node: &Node, depth: u8) {
        let number = |is_integer| Part::Number { at: NumberAt::Start, is_integer };
        let inside = depth + 1;
        match *node {
            Node::AnyOf(ref nodes) => {
                for node in nodes.iter().copied().filter(|node| grammar.fits(*node, depth)) {
                    self.add(grammar, [&stack[..], &[Part::Value { node, depth }]].concat());
                }
                return;
            }
            Node::Texts { first, end } => stack.push(Part::Texts { first, end, at: 0 }),
            Node::String => stack.extend([Part::Characters, Part::Byte(b'"')]),
            Node::Number => stack.push(number(false)),
            Node::Integer => stack.push(number(true)),
            Node::Array(node) => {
                stack.extend([Part::Items { node, depth: inside, is_first: true }, Part::Byte(b'[')]);
            }
            Node::Map(node) => {
                stack.extend([Part::Entries { node, depth: inside, is_first: true }, Part::Byte(b'{')]);
            }
            Node::Object(object) => {
                let properties = Part::Properties { object, next: 0, depth: inside, is_first: true };
                stack.extend([properties, Part::Byte(b'{')]);
            }
            Node::Between { before, node, after } => {
                let text = |text: u32| Part::Texts { first: text, end: text + 1, at: 0 };
                stack.extend([text(after), Part::Value { node, depth }, text(before)]);
            }
        }
        self.add(grammar, stack);
    }

    fn insert(&mut self, stack: Stack) {
        if self.stacks.len() < MAX_STACKS && !self.stacks.contains(&stack) {
            self.stacks.push(stack);
        }
    }
}
