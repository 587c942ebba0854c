//! Guided generation: only tokens that keep a sequence a prefix of JSON of a schema are sampled.
//!
//! The grammars, and the tokens that may come next, are those of `llguidance`; this module translates to and from it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, thread};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Number, Value, json};

use crate::format::cut_in_the_middle;
use crate::tokenizer::Tokenizer;

/// White space between the parts of JSON: a space, or a line break and its indentation. Bounded, so that a model cannot
/// fill a completion with white space.
const WHITESPACE: &str = r" |\n[ \t]{0,20}";

/// The limit on the work for one token, in items of the parser: about 10 ms. `llguidance` takes a quarter of it by
/// default, which an object of 256 optional properties exceeds.
const MAX_ITEMS_PER_TOKEN: usize = 200_000;

/// The limit on the items between two characters. By default 2000, which 200 alternatives exceed.
const MAX_ITEMS_PER_ROW: usize = 5_000;

/// The limits on regular expressions: the work for one token, about 10 ms, and their states, of some 2 kB each.
const MAX_FUEL_PER_TOKEN: u64 = 100_000;
const MAX_STATES: usize = 50_000;

/// The largest schema, in JSON values, and the most patterns of names in it. `llguidance` bounds the size of a grammar, but
/// recurses into each reference, and compares each pattern with the others.
const MAX_VALUES: usize = 4096;
const PER_VALUE: usize = 4;
const MAX_NAME_PATTERNS: usize = 16;

/// The largest schema whose references are replaced by what they are combined with, and keywords that combine nothing.
const MAX_EXPANDED: usize = 1 << 15;
const ALONE: [&str; 7] = ["$defs", "definitions", "$schema", "title", "description", "default", "x-guidance"];

/// The most properties of an object that counts them, for which `llguidance` lists all of them once for each of them.
const MAX_COUNTED: usize = 64;

/// The stack of the thread that compiles a schema of the largest size, several times what it needs.
const STACK: usize = 64 << 20;

/// The maximum length of an error of `llguidance` in characters, which may quote the schema.
const MAX_ERROR: usize = 500;

/// Held while a schema is compiled: however many come at once, they take one core.
static COMPILING: Mutex<()> = Mutex::new(());

/// The reason why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

/// The JSON that may be generated.
#[derive(Clone, Debug)]
pub struct Grammar {
    rules: TopLevelGrammar,
    /// The characters of its fixed parts: names of properties, constants, the text around calls.
    characters: BTreeSet<char>,
    schemas: Vec<Value>,
    n_values: usize,
}

/// A call of a function, which [`Grammar::of_calls`] turns into a grammar.
#[derive(Clone, Debug)]
pub struct CallSchema<'a> {
    /// The text before the arguments.
    pub before: String,
    /// The schema of the arguments; `None` for any object.
    pub arguments: Option<&'a Value>,
    /// The text after them.
    pub after: String,
}

impl Grammar {
    /// The values of a schema. Properties are generated in the order of the schema.
    ///
    /// # Errors
    /// If the schema is not an object or a boolean, or is too large. Unsupported keywords are reported by [`Guide::new`].
    pub fn of_schema(schema: &Value) -> Result<Self, SchemaError> {
        let n_values = Size::of(0, [schema])?;
        let mut characters = BTreeSet::new();
        let schema = compilable(schema, &mut characters)?;
        let rules = TopLevelGrammar::from_json_schema(schema.clone());
        Ok(Self { rules, characters, schemas: vec![schema], n_values })
    }

    /// Its size, to which the memory that it needs is proportional.
    pub fn n_values(&self) -> usize {
        self.n_values
    }

    /// One of these calls.
    ///
    /// # Errors
    /// As for [`Grammar::of_schema`], of the arguments together.
    pub fn of_calls(calls: &[CallSchema<'_>]) -> Result<Self, SchemaError> {
        let n_values = Size::of(calls.len(), calls.iter().filter_map(|call| call.arguments))?;
        let mut characters = BTreeSet::new();
        let names: Vec<String> = (0..calls.len()).map(|i| format!("call_{i}")).collect();
        let mut rules = vec![format!("start: {}\n", names.join(" | "))];
        let mut schemas = Vec::new();
        for (call, name) in calls.iter().zip(&names) {
            let any_object = json!({"type": "object"});
            let arguments = compilable(call.arguments.unwrap_or(&any_object), &mut characters)?;
            let [before, after] = [&call.before, &call.after].map(|text| Value::from(text.as_str()));
            rules.push(format!(
                "{name}: {before} arguments_of_{name} {after}\narguments_of_{name}: %json {arguments}\n"
            ));
            characters.extend(call.before.chars().chain(call.after.chars()));
            schemas.push(arguments);
        }
        Ok(Self { rules: TopLevelGrammar::from_lark(rules.concat()), characters, schemas, n_values })
    }
}

/// The schema as `llguidance` compiles it. Adds the characters of its names and constants to `characters`.
fn compilable(schema: &Value, characters: &mut BTreeSet<char>) -> Result<Value, SchemaError> {
    let mut schema = if *schema == true { json!({}) } else { schema.clone() };
    name_escaped_references(&mut schema);
    let (mut has_all_of, mut problem) = (false, None);
    for_each_object(&mut schema, &mut |entries| has_all_of |= entries.contains_key("allOf"));
    for_each_object(&mut schema, &mut |entries| {
        add_fixed_characters(entries, characters);
        if !has_all_of {
            close_empty(entries);
        }
        problem = problem.take().or_else(|| inexact_constant(entries)).or_else(|| bound_integers(entries).err());
    });
    if let Some(number) = problem {
        let hint = "use a smaller one, or a string";
        return Err(SchemaError(format!("the schema has the number {number}, whose digits cannot be kept: {hint}")));
    }
    let Some(object) = schema.as_object_mut() else {
        return Err(SchemaError(format!("the schema is {schema}, not an object")));
    };
    object.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITESPACE}));
    Ok(schema)
}

/// The size of a schema.
#[derive(Default)]
struct Size {
    n_values: usize,
    n_name_patterns: usize,
    has_too_many_counted: bool,
}

impl Size {
    /// The number of values of these schemas, and `n_others`; an error if it takes too long to compile them.
    fn of<'a>(n_others: usize, schemas: impl IntoIterator<Item = &'a Value>) -> Result<usize, SchemaError> {
        let mut size = Self { n_values: n_others, ..Self::default() };
        schemas.into_iter().for_each(|schema| size.add(schema));
        let problem = match size {
            Self { n_values, .. } if n_values > MAX_VALUES => {
                format!(
                    "it has {n_values} values, where {PER_VALUE} of an enum count as one, and may have {MAX_VALUES}"
                )
            }
            Self { n_name_patterns: n, .. } if n > MAX_NAME_PATTERNS => {
                format!("it has {n} `patternProperties`, and may have {MAX_NAME_PATTERNS}")
            }
            Self { has_too_many_counted: true, .. } => {
                format!("with `minProperties` or `maxProperties`, an object may have {MAX_COUNTED} properties")
            }
            _ => return Ok(size.n_values),
        };
        Err(SchemaError(format!("the schema is too large: {problem}")))
    }

    fn add(&mut self, value: &Value) {
        self.n_values += 1;
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(entries) => self.add_entries(entries),
            _ => {}
        }
    }

    fn add_entries(&mut self, entries: &Map<String, Value>) {
        let n = |key: &str| match entries.get(key) {
            Some(Value::Object(named)) => named.len(),
            Some(Value::Array(names)) => names.len(),
            _ => 0,
        };
        self.n_name_patterns += n("patternProperties");
        let is_counted = ["minProperties", "maxProperties"].iter().any(|key| entries.contains_key(*key));
        self.has_too_many_counted |= is_counted && n("properties") + n("required") > MAX_COUNTED;
        for (key, value) in entries {
            match value.as_array().filter(|_| key == "enum") {
                Some(values) => {
                    self.n_values += values.len() / PER_VALUE; // texts and numbers become one pattern
                    for value in values.iter().filter(|value| value.is_object() || value.is_array()) {
                        self.add(value);
                    }
                }
                None => self.add(value),
            }
        }
    }
}

/// Refuses a schema of too many values once its references are followed; needs a large stack.
fn check_expanded(schema: &Value) -> Result<(), String> {
    let n_values = Expanded { root: schema, targets: HashMap::new() }.count(schema, false);
    if n_values <= MAX_EXPANDED {
        return Ok(());
    }
    Err(format!(
        "its references, combined with other parts, repeat more than {MAX_EXPANDED} values, or are not paths such as \
         `#/$defs/name`"
    ))
}

/// The values of a constant, in which nothing refers to anything.
fn count_data(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / 64,
        Value::Array(items) => items.iter().map(count_data).sum::<usize>() + 1,
        Value::Object(entries) => entries.values().map(count_data).sum::<usize>() + 1,
        _ => 1,
    }
}

/// Counts the values of a schema, with those of the references that are combined with other parts, as in an `allOf`: each
/// combination of `llguidance` has copies of both patterns.
struct Expanded<'a> {
    root: &'a Value,
    targets: HashMap<&'a str, usize>,
}

impl<'a> Expanded<'a> {
    fn count(&mut self, value: &'a Value, is_combined: bool) -> usize {
        match value {
            Value::String(text) => 1 + text.len() / 64,
            Value::Array(items) => {
                items.iter().fold(1, |n: usize, item| n.saturating_add(self.count(item, is_combined)))
            }
            Value::Object(entries) => {
                let is_combined =
                    is_combined || entries.keys().filter(|key| !ALONE.contains(&key.as_str())).count() > 1;
                entries.iter().fold(1, |n: usize, (key, value)| {
                    n.saturating_add(match (key.as_str(), value) {
                        ("$ref", Value::String(path)) if is_combined => self.target(path),
                        ("allOf", Value::Array(parts)) => self.count(value, is_combined || parts.len() > 1),
                        ("anyOf" | "oneOf", _) => self.count(value, is_combined),
                        ("const" | "enum", _) => count_data(value),
                        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                            named.values().fold(1, |n: usize, value| n.saturating_add(self.count(value, false)))
                        }
                        _ => self.count(value, false),
                    })
                })
            }
            _ => 1,
        }
    }

    fn target(&mut self, path: &'a str) -> usize {
        if let Some(known) = self.targets.get(path) {
            return *known;
        }
        self.targets.insert(path, 1); // where references form a circle
        let target = self.root.pointer(path.trim_start_matches('#'));
        let n_values = target.map_or(usize::MAX, |target| self.count(target, true));
        self.targets.insert(path, n_values);
        n_values
    }
}

/// Keywords whose values are data, not schemas, and those whose values are objects of schemas by name.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Calls `each` with every object of a schema that is not data, outer ones first.
fn for_each_object(schema: &mut Value, each: &mut dyn FnMut(&mut Map<String, Value>)) {
    match schema {
        Value::Object(entries) => {
            each(entries);
            for (key, value) in entries.iter_mut().filter(|(key, _)| !DATA.contains(&key.as_str())) {
                match value.as_object_mut().filter(|_| NAMED.contains(&key.as_str())) {
                    Some(named) => named.values_mut().for_each(|schema| for_each_object(schema, each)),
                    None => for_each_object(value, each),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_object(item, each)),
        _ => {}
    }
}

/// Whether the `type` of a schema is this one, or a list with it.
fn has_type(entries: &Map<String, Value>, name: &str) -> bool {
    let is_listed = |types: &Value| types.as_array().is_some_and(|types| types.iter().any(|it| it == name));
    entries.get("type").is_some_and(|types| types == name || is_listed(types))
}

/// Gives an object without properties none: a function without parameters is called with `{}`. Not beside keywords that
/// may add some.
fn close_empty(entries: &mut Map<String, Value>) {
    const OPEN: [&str; 8] = [
        "additionalProperties",
        "patternProperties",
        "required",
        "minProperties",
        "maxProperties",
        "$ref",
        "anyOf",
        "oneOf",
    ];
    let is_empty = entries.get("properties").and_then(Value::as_object).is_some_and(Map::is_empty);
    if is_empty && has_type(entries, "object") && !OPEN.iter().any(|key| entries.contains_key(*key)) {
        entries.insert("additionalProperties".to_owned(), false.into());
    }
}

/// The number in a constant that would be written with other digits: `llguidance` keeps numbers as f64 or i64.
fn inexact_constant(entries: &Map<String, Value>) -> Option<Number> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "this is what is tested")]
    fn find(value: &Value) -> Option<Number> {
        match value {
            Value::Number(number) => {
                let is_exact = match number.as_i64() {
                    Some(n) => (n as f64) as i64 == n,
                    None => number.as_f64().is_some_and(|x| x.fract() != 0.0 || x.abs() < 1e15),
                };
                Some(number.clone()).filter(|_| !is_exact)
            }
            Value::Array(items) => items.iter().find_map(find),
            Value::Object(entries) => entries.values().find_map(find),
            _ => None,
        }
    }
    ["const", "enum"].iter().find_map(|key| find(entries.get(*key)?))
}

/// Gives integers without a bound one of 15 digits, so that every reader of the JSON reads the same number; or, beside a
/// larger bound, of 64 bits. Rounds bounds that are no f64 inwards; an error is one that no integer of 64 bits keeps.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "llguidance keeps bounds as f64")]
fn bound_integers(entries: &mut Map<String, Value>) -> Result<(), Number> {
    const LARGEST: i64 = 999_999_999_999_999;
    let is_constant = entries.contains_key("const") || entries.contains_key("enum");
    if !has_type(entries, "integer") || has_type(entries, "number") || is_constant {
        return Ok(());
    }
    let sides = [(["minimum", "exclusiveMinimum"], -1.0), (["maximum", "exclusiveMaximum"], 1.0)];
    let is_large = |entry: Option<&Value>| entry.and_then(Value::as_f64).is_some_and(|x| x.abs() > LARGEST as f64);
    let any_large = sides.iter().flat_map(|(bounds, _)| bounds).any(|bound| is_large(entries.get(*bound)));
    let largest = if any_large { i64::MAX } else { LARGEST };
    for (bounds, sign) in sides {
        if bounds.iter().all(|bound| !entries.contains_key(*bound)) {
            entries.insert(bounds[0].to_owned(), if sign < 0.0 { -largest } else { largest }.into());
        }
        for bound in bounds {
            let Some(Value::Number(number)) = entries.get(bound).cloned() else { continue };
            let Some(x) = number.as_f64() else { continue };
            if sign * x <= i64::MIN as f64 {
                return Err(number);
            }
            let excess = number.as_i128().map_or(0, |n| x as i128 - n);
            if excess != 0 && (excess > 0) == (sign > 0.0) {
                let inner = if sign > 0.0 { x.next_down() } else { x.next_up() };
                entries.insert(bound.to_owned(), inner.into());
            }
        }
    }
    Ok(())
}

/// Copies the parts of a schema that a reference names with an escape, such as `#/$defs/a~1b`, to names without one:
/// `llguidance` does not read escapes.
fn name_escaped_references(schema: &mut Value) {
    let mut names: Vec<String> = Vec::new();
    for_each_object(schema, &mut |entries| {
        if let Some(Value::String(path)) = entries.get_mut("$ref")
            && path.contains('~')
        {
            let at = names.iter().position(|name| name == path).unwrap_or_else(|| {
                names.push(path.clone());
                names.len() - 1
            });
            *path = format!("#/$defs/escaped_reference_{at}");
        }
    });
    let targets: Vec<_> = names.iter().map(|name| schema.pointer(name.trim_start_matches('#')).cloned()).collect();
    for (at, target) in targets.into_iter().enumerate() {
        let (Some(target), Some(entries)) = (target, schema.as_object_mut()) else { continue };
        let definitions = entries.entry("$defs").or_insert_with(|| json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.insert(format!("escaped_reference_{at}"), target);
        }
    }
}

fn add_fixed_characters(entries: &Map<String, Value>, characters: &mut BTreeSet<char>) {
    if let Some(Value::Object(properties)) = entries.get("properties") {
        characters.extend(properties.keys().flat_map(|name| name.chars()));
    }
    let constants = ["enum", "const"].into_iter().filter_map(|key| entries.get(key));
    characters.extend(constants.flat_map(|value| value.to_string().chars().collect::<Vec<_>>()));
    if has_type(entries, "integer") || has_type(entries, "number") {
        characters.extend('0'..='9');
    }
}

/// The tokens of a tokenizer that text is made of.
pub struct Vocabulary {
    factory: ParserFactory,
    n_ids: usize,
    /// Whether a token can be a part of a text.
    is_text: Vec<bool>,
    /// The characters that are tokens; `None` if all bytes are.
    characters: Option<BTreeSet<char>>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("n_ids", &self.n_ids).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The vocabulary of a tokenizer; `None` if the text of its tokens depends on the tokens before them.
    ///
    /// # Panics
    /// If the tokenizer has no tokens.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let n_ids = tokenizer.n_ids();
        let mut bytes: Vec<Vec<u8>> = (0..).take(n_ids).map(|id| tokenizer.text_bytes(id)).collect::<Option<_>>()?;
        for id in tokenizer.end_of_text().into_iter().chain(tokenizer.special_tokens()) {
            bytes[id as usize].clear();
        }
        let single: BTreeSet<u8> = bytes.iter().filter(|bytes| bytes.len() == 1).map(|bytes| bytes[0]).collect();
        let characters = (single.len() < 256).then(|| {
            for piece in bytes.iter_mut().filter(|piece| std::str::from_utf8(piece).is_err()) {
                piece.clear(); // no other token may be there to complete the character
            }
            let only = |bytes: &Vec<u8>| {
                let mut characters = std::str::from_utf8(bytes).ok()?.chars();
                characters.next().filter(|_| characters.next().is_none())
            };
            bytes.iter().filter_map(only).collect()
        });
        let is_text = bytes.iter().map(|bytes| !bytes.is_empty()).collect();
        bytes.push(Vec::new()); // the end of a text, whose tokens the caller knows
        let n_words = u32::try_from(bytes.len()).expect("token ids are 32 bits");
        let trie = TokTrie::from(&TokRxInfo::new(n_words, n_words - 1), &bytes);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).expect("the slices of llguidance are valid");
        factory.quiet();
        let limits = factory.limits_mut();
        limits.step_max_items = MAX_ITEMS_PER_TOKEN;
        limits.max_items_in_row = MAX_ITEMS_PER_ROW;
        limits.step_lexer_fuel = MAX_FUEL_PER_TOKEN;
        limits.max_lexer_states = MAX_STATES;
        limits.precompute_large_lexemes = false; // its time grows with the vocabulary
        limits.verbose_errors = false;
        Some(Self { factory, n_ids, is_text, characters })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Mask(SimpleVob);

impl Mask {
    pub(super) fn has(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }
}

/// The tokens that one sequence may continue with.
#[derive(Clone)]
pub struct Guide {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Guide {
    /// The guide of a sequence that begins now. Compiles the grammar on a thread with a large stack, one at a time.
    ///
    /// # Errors
    /// If the schema has a keyword that is not supported, takes no value, or is too large, or if the vocabulary cannot
    /// spell what it needs.
    pub fn new(grammar: &Grammar, vocabulary: Arc<Vocabulary>) -> Result<Self, SchemaError> {
        if let Some(characters) = &vocabulary.characters {
            let missing = "{}[]:,\"".chars().chain(grammar.characters.iter().copied());
            if let Some(missing) = missing.into_iter().find(|character| !characters.contains(character)) {
                let message = format!("the model cannot write JSON of this schema: its vocabulary has no {missing:?}");
                return Err(SchemaError(message));
            }
        }
        let unusable = |reason: &str| {
            // It advises an option of its own.
            let reason =
                reason.replace(". Enable 'coerce_one_of' option to approximate oneOf with anyOf", "; use anyOf");
            SchemaError(format!("the schema cannot be used: {}", cut_in_the_middle(&reason, MAX_ERROR)))
        };
        let (of, Grammar { rules, schemas, .. }) = (vocabulary.clone(), grammar.clone());
        let compile = move || {
            schemas.iter().try_for_each(check_expanded)?;
            let parser = of.factory.create_parser(rules).map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(Matcher::new(Ok(parser)))
        };
        let _one = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::Builder::new().name("schema".to_owned()).stack_size(STACK).spawn(compile);
        let compiled = thread.map_err(|error| unusable(&error.to_string()))?.join();
        let bug = || unusable("it meets a bug in llguidance");
        let matcher = compiled.map_err(|_| bug())?;
        // llguidance catches its own panics.
        let matcher = matcher.map_err(|error| if error.starts_with("panic: ") { bug() } else { unusable(&error) })?;
        match matcher.get_error() {
            Some(error) => Err(unusable(&error)),
            None => Ok(Self { vocabulary, matcher }),
        }
    }

    /// Whether the sequence is complete, and nothing can follow.
    pub(super) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }

    /// The tokens that may follow; `ends` are those that end the sequence. None if the limit on the work is exceeded.
    pub(super) fn allowed(&mut self, ends: &[u32]) -> Mask {
        let n_ids = self.vocabulary.n_ids;
        let mut mask = self.matcher.compute_mask_or_eos().unwrap_or_else(|_| SimpleVob::alloc(n_ids + 1));
        let may_end = self.matcher.is_accepting().unwrap_or(false);
        for end in ends.iter().filter(|end| (**end as usize) < n_ids) {
            mask.set(*end as usize, may_end);
        }
        Mask(mask)
    }

    /// Continues with a token that was allowed; one that ends the sequence changes nothing.
    pub(super) fn advance(&mut self, token: u32) {
        if self.vocabulary.is_text.get(token as usize) == Some(&true) {
            // An error stays in the matcher, whose next mask is empty.
            let _ = self.matcher.consume_token(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guide(tokenizer: &Tokenizer, schema: &str) -> Result<Guide, SchemaError> {
        let grammar = Grammar::of_schema(&serde_json::from_str(schema).expect("the schema is JSON"))?;
        Guide::new(&grammar, Arc::new(Vocabulary::of(tokenizer).expect("the tokens are text by themselves")))
    }

    /// Whether a text is of the schema; `None` if it is a prefix of one. Tokens are bytes, whose last id ends the text.
    fn takes(schema: &str, text: &str) -> Option<bool> {
        let mut guide = guide(&Tokenizer::byte(), schema).expect(schema);
        for byte in text.bytes() {
            if !guide.allowed(&[]).has(byte.into()) {
                return Some(false);
            }
            guide.advance(byte.into());
        }
        (guide.is_complete() || guide.matcher.is_accepting().expect(schema)).then_some(true)
    }

    #[test]
    fn guide_accepts_json_of_schema() {
        let person = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]},
            "tags": {"items": {"enum": ["a", "ab", 1]}}}, "required": ["name", "age"], "additionalProperties": false}"#;
        for (text, expected) in [
            (r#"{"name":"é\n","age":7}"#, Some(true)),
            ("{\n  \"name\": \"\",\n  \"age\": null\n}", Some(true)),
            (r#" {"name":"x","age":7}"#, Some(false)),
            (r#"{"name":"x","age":-12,"tags":["a","ab",1]}"#, Some(true)),
            (r#"{"name":"x","age":-12,"tags": [ ] }"#, Some(true)),
            (r#"{"name":"x","age":-12,"tags":["a","#, None),
            (r#"{"name":"x","#, None),
            (r#"{"name":"x"}"#, Some(false)),
            (r#"{"age":7,"name":"x"}"#, Some(false)),
            (r#"{"name":"x","age":7,}"#, Some(false)),
            (r#"{"name":"x","age":7.5}"#, Some(false)),
            (r#"{"name":"x","age":01}"#, Some(false)),
            (r#"{"name":"x","age":7,"tags":["b"]}"#, Some(false)),
            (r#"{"name":"x","age":7,"more":1}"#, Some(false)),
            ("{\n\n\"name\"", Some(false)),
            (r#"{"name":"x","age":7} "#, Some(false)),
        ] {
            assert_eq!(takes(person, text), expected, "{text}");
        }
    }

    #[test]
    fn guide_accepts_values_of_keywords() {
        for (schema, good, bad) in [
            ("{}", r#"[1.5e3,{"a":[true,null]},"\\\"",-0]"#, "[1,]"),
            ("true", "[]", "[1,]"),
            (r#"{"type":"number"}"#, "-12.25E-7", "1.e"),
            (r#"{"type":"integer"}"#, "123456789012345", "1234567890123456"),
            (r#"{"type":"integer","minimum":0,"maximum":12345678901234568}"#, "12345678901234568", "-1"),
            (r#"{"type":"integer","minimum":100000000000000000}"#, "9223372036854774783", "-"),
            (
                r#"{"type":"integer","minimum":9007199254740993,"maximum":9007199254740995}"#,
                "9007199254740994",
                "9007199254740992",
            ),
            (r#"{"type":"integer","enum":[12345678901234568,3]}"#, "12345678901234568", "4"),
            (r#"{"const":[9223372036854775807]}"#, "[9223372036854775807]", "[9223372036854775806]"),
            (r#"{"const":{"$ref":"a~b","type":"integer"}}"#, r#"{"$ref":"a~b","type":"integer"}"#, "{}"),
            (r#"{"const":{"b":1,"a":[2]}}"#, r#"{"b":1,"a":[2]}"#, r#"{"a""#),
            (r#"{"const":null}"#, "null", "0"),
            (r#"{"type":"string","enum":["a",1]}"#, r#""a""#, "1"),
            (r#"{"const":null,"enum":[1,null]}"#, "null", "1"),
            (
                r#"{"properties":{"default":{"type":"integer"}},"required":["default"]}"#,
                r#"{"default":1}"#,
                r#"{"default":1234567890123456}"#,
            ),
            (r#"{"anyOf":[{"type":"boolean"},{"type":"array","items":{"type":"integer"}}]}"#, "[1, 2]", "[true]"),
            (r#"{"type":"object","additionalProperties":{"type":"integer"}}"#, r#"{"x":1, "y":2}"#, r#"{"x":"y"}"#),
            (r#"{"type":"object","properties":{},"additionalProperties":false}"#, "{ }", r#"{"a":1}"#),
            (r#"{"type":"object","properties":{}}"#, "{}", r#"{"a":1}"#),
            (r#"{"properties":{"a":{"type":"object","properties":{}}}}"#, r#"{"a":{}}"#, r#"{"a":{"b"#),
            (r#"{"type":"object","properties":{},"patternProperties":{"^b$":{}}}"#, r#"{"b":1}"#, "[]"),
            (
                r#"{"allOf":[{"type":"object","properties":{}},{"properties":{"b":{}},"required":["b"]}]}"#,
                r#"{"b":1}"#,
                "{}",
            ),
            (r#"{"type":"string","pattern":"^[a-z]{2,3}$"}"#, r#""abc""#, r#""a""#),
            (r#"{"type":"string","pattern":"b+","maxLength":3}"#, r#""abc""#, r#""aaa""#),
            (r#"{"type":"string","format":"date"}"#, r#""2024-02-29""#, r#""2024-13-01""#),
            (r#"{"type":"string","format":"time"}"#, r#""23:59:01.5Z""#, r#""24:"#),
            (r#"{"type":"string","format":"date-time"}"#, r#""2024-02-29T00:00:00+01:00""#, r#""2024-02-29 "#),
            (r#"{"type":"string","format":"duration"}"#, r#""P1DT2H""#, r#""1D"#),
            (r#"{"type":"string","format":"email"}"#, r#""a.b@c.de""#, r#""a""#),
            (r#"{"type":"string","format":"hostname"}"#, r#""a-b.c""#, r#""-"#),
            (r#"{"type":"string","format":"ipv4"}"#, r#""10.0.0.255""#, r#""10.0.0.256"#),
            (r#"{"type":"string","format":"ipv6"}"#, r#""::1""#, r#""g"#),
            (r#"{"type":"string","format":"uri"}"#, r#""http://a.b/c""#, r#""/"#),
            (r#"{"type":"string","format":"uuid"}"#, r#""123e4567-e89b-12d3-a456-426614174000""#, r#""123e45678"#),
            (r#"{"type":"string","minLength":2,"maxLength":3}"#, r#""éa""#, r#""é""#),
            (r#"{"type":"integer","minimum":3,"maximum":12}"#, "12", "13"),
            (r#"{"type":"number","exclusiveMinimum":0.5}"#, "0.75", "0.25"),
            (r#"{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":5}"#, "4", "5"),
            (r#"{"type":"number","minimum":-1,"maximum":0.5}"#, "-0.75", "0.51"),
            (r#"{"type":"integer","multipleOf":5}"#, "35", "[36]"),
            (r#"{"type":"array","items":{"type":"number","multipleOf":0.5}}"#, "[1.5, 2]", "[1.4,"),
            (r#"{"type":"array","minItems":1,"maxItems":2,"items":{"type":"null"}}"#, "[null]", "[]"),
            (
                r#"{"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false}"#,
                "[null,true]",
                "[true",
            ),
            // A tuple as pydantic 2 writes it, and in the older form.
            (
                r#"{"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"minItems":2,"maxItems":2}"#,
                "[1,null]",
                "[1]",
            ),
            (r#"{"items":[{"type":"integer"},{"type":"null"}],"minItems":2,"maxItems":2}"#, "[1,null]", "[null"),
            (
                r##"{"oneOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}],
                    "discriminator":{"propertyName":"kind","mapping":{"a":"#/$defs/A","b":"#/$defs/B"}},
                    "$defs":{"A":{"type":"object","required":["kind","x"],"additionalProperties":false,
                        "properties":{"kind":{"const":"a","type":"string"},"x":{"type":"null"}}},
                    "B":{"type":"object","required":["kind"],"additionalProperties":false,
                        "properties":{"kind":{"const":"b","type":"string"}}}}}"##,
                r#"{"kind":"a","x":null}"#,
                r#"{"kind":"b","x""#,
            ),
            (
                r##"{"properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["next"]}"##,
                r#"{"next":{"next":null}}"#,
                r#"{"next":{}}"#,
            ),
            (
                r##"{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"array","items":{"$ref":"#/$defs/a~1b"}}}}"##,
                "[[],[[]]]",
                "[1]",
            ),
        ] {
            assert_eq!((takes(schema, good), takes(schema, bad)), (Some(true), Some(false)), "{schema}");
        }
    }

    #[test]
    fn unsupported_schemas_are_refused() {
        for (schema, part) in [
            (r#"{"type":"array","uniqueItems":true}"#, "uniqueItems"),
            (r#"{"properties":{"a":{"not":{"type":"null"}}}}"#, "not"),
            (r#"{"type":"text"}"#, "text"),
            (r#"{"type":"string","enum":[1]}"#, "nsatisfiable"),
            (r#"{"const":null,"enum":[1]}"#, "nsatisfiable"),
            (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, "oneOf constraints are not supported; use anyOf"),
            (r##"{"$ref":"#/$defs/a"}"##, "$defs/a"),
            (r#"{"const":9007199254740993}"#, "the number 9007199254740993"),
            (r#"{"enum":[{"a":[12345678901234567890]}]}"#, "the number 12345678901234567890"),
            (r#"{"type":"integer","minimum":18446744073709551616}"#, "digits cannot be kept"),
            (r#"{"$ref":"http://elsewhere"}"#, "elsewhere"),
            ("[]", "not an object"),
            ("false", "not an object"),
        ] {
            let error = guide(&Tokenizer::byte(), schema).expect_err(schema).to_string();
            assert!(error.contains(part), "{schema}: {error}");
        }
    }

    /// A schema whose definitions each refer to the next one.
    fn nested(n_levels: usize, level: impl Fn(Value) -> Value) -> String {
        let next = |at: usize| json!({"$ref": format!("#/$defs/d{at}")});
        let mut levels: Map<String, Value> = (0..n_levels).map(|at| (format!("d{at}"), level(next(at + 1)))).collect();
        levels.insert(format!("d{n_levels}"), json!({"type": "integer"}));
        json!({"type": "array", "items": next(0), "$defs": levels}).to_string()
    }

    fn texts(n: usize) -> Map<String, Value> {
        (0..n).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect()
    }

    #[test]
    fn work_of_hostile_schemas_is_bounded() {
        // Alternatives that double at each of 60 levels, and as many levels as a schema may have.
        assert_eq!(takes(&nested(60, |next| json!({"anyOf": [next, next]})), "[1, 2]"), Some(true));
        assert_eq!(takes(&nested(8, |next| json!({"allOf": [next, next]})), "[1, 2]"), Some(true));
        assert_eq!(takes(&nested(2000, |next| next), "[1, 2]"), Some(true));
        assert_eq!(
            takes(&nested(500, |next| json!({"items": {"anyOf": [next, {"type": "null"}]}})), "[[null]]"),
            Some(true)
        );
        let optional = json!({"properties": texts(256), "additionalProperties": false});
        assert_eq!(takes(&optional.to_string(), r#"{"p0":"x","p255":"y"}"#), Some(true));
        let one = |at: usize| json!({"type": "object", "properties": {format!("p{at}"): {"type": "string"}}});
        let alternatives = json!({"anyOf": (0..256).map(one).collect::<Vec<_>>()});
        assert_eq!(takes(&alternatives.to_string(), r#"{"p0":"x"}"#), Some(true));
        assert_eq!(takes(r#"{"pattern":"(a|b)*a(a|b){200}$"}"#, "\"aa"), None);
        let many: Vec<usize> = (0..600_000).collect();
        let patterns: Map<String, Value> = (0..17).map(|at| (format!("^x{at}$"), json!({"type": "string"}))).collect();
        let long = "x".repeat(1 << 20);
        for (schema, part) in [
            (nested(2100, |next| next), "4207 values"),
            (json!({"enum": many}).to_string(), "150001 values"),
            (json!({"patternProperties": patterns}).to_string(), "17 `patternProperties`"),
            (json!({"minProperties": 1, "properties": texts(65)}).to_string(), "64 properties"),
            (json!({"type": long}).to_string(), "cannot be used"),
            (nested(60, |next| json!({"allOf": [next, next]})), "repeat more than 32768"),
            (nested(60, |next| json!({"anyOf": [next, next], "type": "string"})), "repeat more than 32768"),
            (nested(60, |next| json!({"allOf": [{"$ref": next["$ref"], "minLength": 1}, next]})), "repeat more than"),
            (r##"{"$defs":{"a":{"$anchor":"a"}},"allOf":[{"$ref":"#a"},{"$ref":"#a"}]}"##.to_owned(), "are not paths"),
            (json!({"minLength": "é".repeat(100)}).to_string(), "a bug in llguidance"),
        ] {
            let error = guide(&Tokenizer::byte(), &schema).expect_err(part).to_string();
            assert!(error.contains(part) && error.len() < 1000, "{part}: {error:.1000}");
        }
    }

    #[test]
    fn calls_begin_and_end_with_their_text() {
        let schema = serde_json::from_str(r#"{"properties":{"x":{"type":"integer"}},"required":["x"]}"#).unwrap();
        let call =
            |before: &str, arguments| CallSchema { before: before.to_owned(), arguments, after: "}\n>".to_owned() };
        let grammar = Grammar::of_calls(&[call("<f \"a\"\n", Some(&schema)), call("<g ", None)]).unwrap();
        let vocabulary = Arc::new(Vocabulary::of(&Tokenizer::byte()).unwrap());
        for (text, is_call) in
            [("<f \"a\"\n{\"x\": 1}}\n>", true), ("<g {}}\n>", true), ("<f {}", false), ("{}", false)]
        {
            let mut guide = Guide::new(&grammar, vocabulary.clone()).unwrap();
            let fits = text.bytes().all(|byte| {
                let fits = guide.allowed(&[]).has(byte.into());
                guide.advance(byte.into());
                fits
            });
            assert_eq!((fits, fits && guide.is_complete()), (is_call, is_call), "{text}");
        }
    }

    /// Long tokens are allowed exactly where each of their bytes is.
    #[test]
    fn tokens_are_allowed_where_their_bytes_are() {
        let sample = r#"{"name": "Ann", "age": 12, "tags": ["a", "b"], "ok": true} {"kind": null}, "日本" "#;
        let tokenizer = Tokenizer::train_bpe(330, &sample.repeat(4));
        let schema = r#"{"properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}"#;
        let byte_ids: Vec<u32> = (0..=255_u8)
            .map(|byte| {
                let id = (0..).take(tokenizer.n_ids()).find(|id| tokenizer.text_bytes(*id).as_deref() == Some(&[byte]));
                id.expect("every byte is a token")
            })
            .collect();
        for text in ["", "{", "{\"", "{\"name\": \"A", "{\"name\": \"\u{65e5}", "{\"name\":\"x\",\"age\": 1"] {
            let mut guide = guide(&tokenizer, schema).unwrap();
            text.bytes().for_each(|byte| guide.advance(byte_ids[usize::from(byte)]));
            let allowed = guide.allowed(&[]);
            for id in 0..u32::try_from(tokenizer.n_ids()).unwrap() {
                let bytes = tokenizer.text_bytes(id).unwrap_or_default();
                let mut by_bytes = guide.clone();
                let fits = guide.vocabulary.is_text[id as usize]
                    && bytes.iter().all(|byte| {
                        let id = byte_ids[usize::from(*byte)];
                        let fits = by_bytes.allowed(&[]).has(id);
                        by_bytes.advance(id);
                        fits
                    });
                assert_eq!(allowed.has(id), fits, "{text}: {bytes:?}");
            }
        }
    }

    #[test]
    fn vocabularies_without_needed_characters_are_refused() {
        let guide = |alphabet: &str, schema: &str| {
            guide(&Tokenizer::char_from_alphabet(alphabet.chars()).expect("an alphabet"), schema).map(|_| ())
        };
        let punctuation = "{}[]:,\"truefalsn";
        assert_eq!(guide(punctuation, r#"{"type":"array","items":{"type":"boolean"}}"#), Ok(()));
        for (schema, missing) in [
            (r#"{"type":"integer"}"#, "no '0'"),
            (r#"{"enum":["é"]}"#, "no 'é'"),
            (r#"{"properties":{"x":{"type":"boolean"}}}"#, "no 'x'"),
        ] {
            let error = guide(punctuation, schema).expect_err(schema).to_string();
            assert!(error.contains(missing), "{schema}: {error}");
        }
    }
}
