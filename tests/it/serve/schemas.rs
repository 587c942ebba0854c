//! Hostile JSON schemas: each is refused, or takes a bounded amount of work, and delays nobody else.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::program::program;
use super::{ask, ask_with, beside, http};
use crate::fixtures::Folder;

/// Random numbers by an xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn size(&mut self, most: usize) -> usize {
        let most = 1 + self.below(most); // small sizes are likelier
        1 + self.below(most)
    }

    fn number(&mut self) -> Value {
        let numbers = [
            json!(0),
            json!(-1),
            json!(1),
            json!(1e300),
            json!(-1e300),
            json!(5e-324),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1_000_000_000),
            json!(0.1),
            json!("1"),
            json!(null),
            json!([]),
            json!(true),
            json!(1_234_567_891),
        ];
        numbers[self.below(numbers.len())].clone()
    }

    fn pattern(&mut self) -> String {
        let n = self.size(1000);
        let patterns = [
            format!("(.*a.{{{n}}}){{3}}"),
            format!("((a{{0,{n}}}){{0,{n}}}){{0,{n}}}b"),
            "^(([a-z]+)+)+$".to_owned(),
            format!("(a|b)*a(a|b){{{n}}}$"),
            "(".to_owned(),
            "[\\ud800-\\udfff]".to_owned(),
            format!("a{{{n}}}"),
            format!("^(.*[abc].{{{n}}}x|.*[bcd].{{{n}}}y)$"),
            "(?=a)b".to_owned(),
            "\\p{L}+".to_owned(),
            "é|日".repeat(n),
        ];
        patterns[self.below(patterns.len())].clone()
    }

    fn leaf(&mut self) -> Value {
        match self.below(9) {
            0 => json!({"type": "string", "pattern": self.pattern()}),
            1 => json!({"type": "string", "minLength": self.number(), "maxLength": self.number()}),
            2 => json!({"type": "integer", "minimum": self.number(), "maximum": self.number()}),
            3 => json!({"type": "number", "multipleOf": self.number(), "exclusiveMinimum": self.number()}),
            4 => json!({"const": self.number(), "enum": [self.number(), self.number()]}),
            5 => json!({"enum": (0..self.size(3000)).map(|at| json!({"a": at, "b": [at]})).collect::<Vec<_>>()}),
            6 => json!({"enum": (0..self.size(30_000)).map(|at| format!("v{at}")).collect::<Vec<_>>()}),
            7 => json!({"type": ["string", "number", "é".repeat(self.size(200))]}),
            _ => json!({"type": "string", "format": "date-time"}),
        }
    }

    fn properties(&mut self, most: usize) -> Map<String, Value> {
        let (n, leaf) = (self.size(most), self.leaf());
        (0..n).map(|at| (format!("p{at}"), leaf.clone())).collect()
    }

    /// A schema of one of the kinds that need the most work.
    fn schema(&mut self) -> Value {
        let n = self.size(1200);
        match self.below(9) {
            0..=2 => {
                // Definitions that each refer to the next one, once or twice.
                let kind = self.below(10);
                let level = |at: usize| {
                    let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                    match kind {
                        0 => next,
                        1 => json!({"anyOf": [next, next]}),
                        2 => json!({"allOf": [next, next]}),
                        3 => json!({"oneOf": [next, next]}),
                        4 => json!({"items": {"anyOf": [next, {"type": "null"}]}}),
                        5 => json!({"type": "object", "properties": {"a": next, "b": next}, "required": ["a"]}),
                        6 => {
                            json!({"allOf": [{"anyOf": [next, {"type": "string"}]}, {"anyOf": [next, {"type": "null"}]}]})
                        }
                        7 => json!({"$ref": next["$ref"], "type": ["integer", "array"]}),
                        8 => json!({"patternProperties": {"^a": next, "^b": next}}),
                        _ => json!({"prefixItems": [next, next], "items": next}),
                    }
                };
                let mut levels: Map<String, Value> = (0..n).map(|at| (format!("d{at}"), level(at))).collect();
                let last = if self.below(2) == 0 { self.leaf() } else { json!({"$ref": "#/$defs/d0"}) };
                levels.insert(format!("d{n}"), last);
                json!({"$ref": "#/$defs/d0", "$defs": levels})
            }
            3 => {
                json!({"properties": self.properties(2000), "minProperties": self.number(), "maxProperties": self.number()})
            }
            4 => json!({"properties": self.properties(2000), "additionalProperties": false, "required": ["p0", "x"]}),
            5 => {
                let one = |at: usize| json!({"type": "object", "properties": {format!("p{at}"): {"type": "string"}}});
                let one: Vec<Value> = (0..n).map(one).collect();
                json!({"type": "array", "items": {"anyOf": one, "minItems": self.number()}, "minItems": 1})
            }
            6 => {
                let patterns: Map<String, Value> =
                    (0..self.size(40)).map(|at| (format!("^x{at}{}", self.pattern()), json!({}))).collect();
                json!({"patternProperties": patterns, "properties": self.properties(100)})
            }
            7 => {
                let mut schema = self.leaf();
                for _ in 0..self.size(60) {
                    schema =
                        json!({"type": "array", "items": schema, "minItems": self.number(), "maxItems": self.number()});
                }
                schema
            }
            _ => {
                let any = |random: &mut Self| (0..random.size(300)).map(|_| random.leaf()).collect::<Vec<_>>();
                json!({"allOf": [{"anyOf": any(self)}, {"anyOf": any(self)}, {"not": {}, "oneOf": any(self)}]})
            }
        }
    }
}

/// The server answers before it has read a request that announces more, and closes the connection.
const LARGEST: usize = 64 << 20;

/// Asks for completions by `n` hostile schemas, and beside each for one without a schema.
fn survive(n: usize) {
    let folder = Folder::with_run(&["tokenizer.kind=\"byte\""]);
    let (server, port) = program(&folder, &["runs/tiny", "--parallel", "4"]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut statuses, mut slowest) = (std::collections::BTreeMap::new(), (Duration::ZERO, String::new()));
    let ((), n_healthy) = beside(address, || {
        for _ in 0..n {
            let schema = random.schema();
            let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
            let body = json!({"prompt": "The", "max_tokens": 24, "response_format": format}).to_string();
            if body.len() > LARGEST {
                *statuses.entry(413).or_insert(0) += 1;
                continue;
            }
            let hostile = http("POST", "/v1/completions", "", body.as_bytes());
            let began = Instant::now();
            let answer = std::thread::scope(|scope| {
                let hostile = scope.spawn(|| ask_with(port, &hostile));
                let free = ask(port, "POST", "/v1/completions", &json!({"prompt": "The", "max_tokens": 4}));
                assert_eq!(free.status, 200, "{free:?}");
                hostile.join().expect("the server answers")
            });
            if began.elapsed() > slowest.0 {
                slowest = (began.elapsed(), schema.to_string().chars().take(200).collect());
            }
            *statuses.entry(answer.status).or_insert(0) += 1;
            let body = &answer.body;
            // Some schemas are larger than the body of a request may be.
            let is_good = matches!(answer.status, 200 | 400 | 413) && body.len() < 20_000;
            assert!(is_good, "{:.2000}: {body:.2000}", schema.to_string());
        }
    });
    println!("{n} schemas: {statuses:?}, {n_healthy} times healthy, the slowest in {slowest:?}");
    assert!(n_healthy > 0 && statuses[&200] > 0 && statuses[&400] > 0, "{statuses:?}");
    server.press_ctrl_c();
    assert_eq!(server.finish().code, Some(0));
}

#[test]
fn hostile_schemas_are_refused_or_bounded() {
    survive(40);
}

#[test]
#[ignore = "it takes minutes: scripts/soak.sh schemas"]
fn thousand_hostile_schemas_are_refused_or_bounded() {
    survive(1000);
}

/// A schema in which each definition refers to the next one overflows the stack of a usual thread.
#[test]
fn chain_of_references_keeps_the_server() {
    let folder = Folder::with_run(&["tokenizer.kind=\"byte\""]);
    let (server, port) = program(&folder, &["runs/tiny"]);
    for (n, status) in [(1000, 200), (5000, 400)] {
        let level = |at: usize| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)}));
        let mut levels: Map<String, Value> = (0..n).map(level).collect();
        levels.insert(format!("d{n}"), json!({"const": "a"}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": levels});
        let format = json!({"type": "json_object", "schema": schema});
        let body = json!({"prompt": "The", "max_tokens": 9, "response_format": format});
        assert_eq!(ask(port, "POST", "/v1/completions", &body).status, status);
    }
    ask(port, "GET", "/health", &Value::Null).json(200);
    server.kill();
}
