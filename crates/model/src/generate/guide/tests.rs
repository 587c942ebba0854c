use serde_json::json;

use super::*;
use crate::tokenizer::Tokenizer;

fn grammar(schema: &str) -> Result<Grammar, SchemaError> {
    Grammar::of_schema(&serde_json::from_str(schema).expect("JSON"))
}

/// Whether a text is one of the schema; `None` if it is the beginning of one.
fn takes(schema: &str, text: &str) -> Option<bool> {
    let grammar = grammar(schema).expect(schema);
    let state = State::first(&grammar).after(&grammar, text.as_bytes());
    match state.is_dead() {
        true => Some(false),
        false => state.may_end().then_some(true),
    }
}

#[test]
fn texts_are_those_of_the_schema() {
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
    for (schema, good, bad) in [
        ("{}", r#"[1.5e3,{"a":[true,null]},"\\\"",-0]"#, "[1,]"),
        (r#"{"type":"number"}"#, "-12.25E-7", "1.e"),
        (r#"{"type":"integer"}"#, "123456789012345", "1234567890123456"),
        (r#"{"const":{"b":1,"a":[2]}}"#, r#"{"b":1,"a":[2]}"#, r#"{"a""#),
        (r#"{"const":null}"#, "null", "0"),
        (r#"{"type":"string","enum":["a",1]}"#, r#""a""#, "1"),
        (r#"{"anyOf":[{"type":"boolean"},{"type":"array","items":{"type":"integer"}}]}"#, "[1, 2]", "[true]"),
        (r#"{"type":"object","additionalProperties":{"type":"integer"}}"#, r#"{"x":1, "y":2}"#, r#"{"x":"y"}"#),
        (r#"{"type":"object","properties":{},"additionalProperties":false}"#, "{ }", r#"{"a":1}"#),
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
fn nothing_is_nested_deeper_than_a_reader_follows() {
    assert_eq!(takes("{}", &"[".repeat(64)), None);
    assert_eq!(takes("{}", &"[".repeat(65)), Some(false));
    let list = r##"{"type":"object","properties":{"n":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["n"]}"##;
    assert_eq!(takes(list, &r#"{"n":"#.repeat(64)), None);
    assert_eq!(takes(list, &(r#"{"n":"#.repeat(64) + "{")), Some(false));
    assert_eq!(takes(list, &(r#"{"n":"#.repeat(64) + "null" + &"}".repeat(64))), Some(true));
}

#[test]
fn a_schema_that_cannot_be_promised_is_refused() {
    for (schema, part) in [
        (r#"{"type":"string","minLength":2}"#, "the schema at `#` has `minLength`, which is not supported"),
        (r#"{"properties":{"a":{"items":{"pattern":"x"}}}}"#, "`#/properties/a/items` has `pattern`"),
        (r#"{"oneOf":[{"type":"null"}]}"#, "`oneOf`"),
        (r#"{"anyOf":[{}],"type":"object"}"#, "has `anyOf` and `type`"),
        (r#"{"type":"text"}"#, "has a `type` that is not one of JSON"),
        (r#"{"type":"string","enum":[1]}"#, "takes no value"),
        (r#"{"properties":{"a":{}},"required":["b"]}"#, "requires `b`"),
        (r##"{"$ref":"#/$defs/a"}"##, "is not a part of the schema"),
        (r#"{"$ref":"http://elsewhere"}"#, "is not a part of the schema"),
        (r##"{"$ref":"#"}"##, "leads back to itself"),
        (r##"{"anyOf":[{"$ref":"#"},{"type":"null"}]}"##, "leads back to itself"),
        (r##"{"properties":{"a":{"$ref":"#"}},"required":["a"]}"##, "more than 64 lists and objects"),
        ("[]", "not an object"),
        ("false", "not an object"),
    ] {
        let error = grammar(schema).expect_err(schema).to_string();
        assert!(error.contains(part), "{schema}: {error}");
    }
    let chain = |n: usize| {
        let definition = |i| (format!("d{i}"), json!({"anyOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {}]}));
        let mut definitions: serde_json::Map<_, _> = (0..n).map(definition).collect();
        definitions.insert(format!("d{n}"), json!({}));
        // Backwards, so that each is known when the next one needs it.
        let properties: serde_json::Map<_, _> =
            (0..n).map(|i| (format!("{i:05}"), json!({"$ref": format!("#/$defs/d{}", n - i)}))).collect();
        json!({"$defs": definitions, "properties": properties}).to_string()
    };
    grammar(&chain(20)).expect("a short chain");
    let error = grammar(&chain(1000)).expect_err("a long chain").to_string();
    assert!(error.contains("nested"), "{error}");
    let large = json!({"enum": (0..20_000).collect::<Vec<_>>()}).to_string();
    assert!(grammar(&large).expect_err("large").to_string().contains("too large"));
}

/// The tokens that may follow a text, one by one and through the order of the vocabulary.
fn compare(tokenizer: &Tokenizer, schema: &str, text: &str) -> usize {
    let grammar = Arc::new(grammar(schema).expect(schema));
    let vocabulary = Arc::new(Vocabulary::of(tokenizer).expect("bytes"));
    let mut guide = Guide::new(grammar.clone(), vocabulary.clone()).expect("it can spell this");
    guide.state = guide.state.after(&grammar, text.as_bytes());
    let allowed = guide.allowed(&[0]);
    let mut n = 0;
    for token in 0..u32::try_from(tokenizer.n_ids()).unwrap() {
        let bytes = vocabulary.bytes(token);
        let expected = bytes.is_some_and(|bytes| !guide.state.after(&grammar, bytes).is_dead());
        let expected = expected || token == 0 && guide.state.may_end();
        assert_eq!(allowed.has(token), expected, "{schema} {text:?} {:?}", tokenizer.piece(token));
        n += usize::from(expected);
    }
    n
}

#[test]
fn the_order_of_the_vocabulary_finds_what_one_by_one_finds() {
    let text =
        r#"{"name": "Ann", "age": 12, "tags": ["a", "b"]} {"name": "Öl", "age": null}, "日本" [1, 2, 3] "name": "#;
    let bpe = Tokenizer::train_bpe(340, &text.repeat(5));
    let schema = r#"{"properties":{"name":{"type":"string"},"age":{"type":"integer"},"tags":{"items":{}}}}"#;
    let any = "{}";
    for (schema, text) in [
        (schema, ""),
        (schema, "{"),
        (schema, "{\"na"),
        (schema, "{\"name\": \"x"),
        (schema, "{\"name\": \"x\\"),
        (schema, "{\"name\": \"x\","),
        (schema, "{\"age\": 1"),
        (schema, "{\"tags\": [\"x\", "),
        (schema, "{\"name\": \"x\"}"),
        (any, ""),
        (any, "[\"a"),
    ] {
        assert!(compare(&bpe, schema, text) > 0, "{text}");
    }
    // Nothing but its end may follow a complete text.
    assert_eq!(compare(&bpe, schema, "{\"name\": \"x\"}"), 1);
    // Within a character only its last bytes may follow.
    let grammar = Arc::new(grammar(any).unwrap());
    let mut guide = Guide::new(grammar.clone(), Arc::new(Vocabulary::of(&bpe).unwrap())).unwrap();
    guide.state = guide.state.after(&grammar, b"\"\xe6");
    let allowed = guide.allowed(&[]);
    for token in (0..340).filter(|token| allowed.has(*token)) {
        assert!((0x80..=0xbf).contains(&bpe.token_bytes(token).unwrap()[0]), "{token}");
    }
}

#[test]
fn a_vocabulary_must_spell_what_the_schema_needs() {
    let guide = |alphabet: &str, schema: &str| {
        let tokenizer = Tokenizer::char_from_alphabet(alphabet.chars()).unwrap();
        let vocabulary = Vocabulary::of(&tokenizer).expect("characters");
        Guide::new(Arc::new(grammar(schema).unwrap()), Arc::new(vocabulary))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let punctuation = "{}[]:,\" truefalsn";
    assert_eq!(guide(punctuation, r#"{"type":"array","items":{"type":"boolean"}}"#), Ok(()));
    for (schema, missing) in [
        (r#"{"type":"integer"}"#, "'0'"),
        (r#"{"properties":{"age":{"type":"boolean"}}}"#, "'g'"),
        (r#"{"enum":["é"]}"#, "'é'"),
    ] {
        let error = guide(punctuation, schema).expect_err(schema);
        assert!(error.contains(missing), "{error}");
    }
    assert!(guide("truefalsn", r#"{"type":"boolean"}"#).is_err(), "a plain rule: all punctuation");
}
