//! JSON Schema, as far as it can be promised: what OpenAI's strict mode takes, and objects with any keys.
//!
//! The texts of a grammar are some of the values that the schema takes, not all: the properties of an object come in the
//! order of the schema, and others than those are not written. A keyword that could be broken so is refused.

use std::collections::HashMap;

use serde_json::Value;

use crate::OrderedJson;

/// The most lists and objects around a value: `serde_json` reads twice as many.
const MAX_DEPTH: u8 = 64;

/// The most parts of a grammar.
const MAX_NODES: usize = 10_000;

/// The most schemas within each other, references included: each takes some of the stack.
const MAX_NESTING: u8 = 128;

/// Keywords that change nothing about the values.
const ANNOTATIONS: [&str; 14] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "strict",
];

/// The reason why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(pub(super) String);

/// The JSON texts that may be written.
#[derive(Debug)]
pub struct Grammar {
    pub(super) nodes: Vec<Node>,
    pub(super) objects: Vec<Vec<Property>>,
    /// Fixed parts of texts; the alternatives of [`Node::Texts`] are sorted.
    pub(super) texts: Vec<Box<[u8]>>,
    pub(super) root: u32,
    /// For each node the fewest lists and objects within each other that its values need.
    min_depths: Vec<u8>,
}

/// The values that may stand in one place.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// One of the texts `first..end`.
    Texts {
        first: u32,
        end: u32,
    },
    String,
    Number,
    Integer,
    Array(u32),
    /// An object with any keys.
    Map(u32),
    /// An object with some of these properties.
    Object(u32),
    AnyOf(Vec<u32>),
    /// A value between two texts.
    Between {
        before: u32,
        node: u32,
        after: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Property {
    /// Its name as JSON, with the colon.
    pub(super) text: u32,
    pub(super) node: u32,
    pub(super) is_required: bool,
}

/// A call of a function, of which [`Grammar::of_calls`] makes the texts.
#[derive(Clone, Debug)]
pub struct CallSchema<'a> {
    /// The text before the arguments.
    pub before: String,
    /// The schema of the arguments; `None` for any object.
    pub arguments: Option<&'a OrderedJson>,
    /// The text after them.
    pub after: String,
}

impl Grammar {
    /// The values of a schema.
    ///
    /// # Errors
    /// If the schema is wrong, takes no value, or has a keyword that cannot be promised, which the error names.
    pub fn of_schema(schema: &OrderedJson) -> Result<Self, SchemaError> {
        let mut compiler = Compiler::new(schema);
        let root = compiler.reference("#")?;
        compiler.finish(root)
    }

    /// All JSON objects.
    #[must_use]
    pub fn of_objects() -> Self {
        let empty = OrderedJson::Object(Vec::new());
        let mut compiler = Compiler::new(&empty);
        let root = compiler.any_object();
        root.and_then(|root| compiler.finish(root)).expect("a few nodes")
    }

    /// One of these calls.
    ///
    /// # Errors
    /// As for [`Grammar::of_schema`], of any of the arguments.
    pub fn of_calls(calls: &[CallSchema<'_>]) -> Result<Self, SchemaError> {
        let mut nodes = Vec::new();
        let empty = OrderedJson::Object(Vec::new());
        let mut compiler = Compiler::new(&empty);
        for CallSchema { before, arguments, after } in calls {
            let node = match arguments {
                Some(schema) => {
                    compiler.schema = schema;
                    compiler.references.clear();
                    compiler.reference("#")?
                }
                None => compiler.any_object()?,
            };
            let [before, after] = [before, after].map(|text| compiler.text(text.clone().into_bytes()));
            nodes.push(compiler.push(Node::Between { before, node, after })?);
        }
        let root = compiler.push(Node::AnyOf(nodes))?;
        compiler.finish(root)
    }

    /// Whether a value of this node may stand inside of `depth` lists and objects.
    pub(super) fn fits(&self, node: u32, depth: u8) -> bool {
        self.min_depths[node as usize].saturating_add(depth) <= MAX_DEPTH
    }
}

/// A schema that becomes a grammar.
struct Compiler<'a> {
    schema: &'a OrderedJson,
    nodes: Vec<Node>,
    objects: Vec<Vec<Property>>,
    texts: Vec<Box<[u8]>>,
    /// The nodes of the parts of the schema that `$ref` names.
    references: HashMap<String, u32>,
    any: Option<u32>,
    /// The number of schemas around the current one.
    nesting: u8,
}

fn idx(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than MAX_NODES")
}

impl<'a> Compiler<'a> {
    fn new(schema: &'a OrderedJson) -> Self {
        let (nodes, objects, texts) = (Vec::new(), Vec::new(), Vec::new());
        Self { schema, nodes, objects, texts, references: HashMap::new(), any: None, nesting: 0 }
    }

    fn push(&mut self, node: Node) -> Result<u32, SchemaError> {
        if self.nodes.len() + self.texts.len() >= MAX_NODES {
            return Err(SchemaError(format!("the schema is too large: it has more than {MAX_NODES} parts")));
        }
        self.nodes.push(node);
        Ok(idx(self.nodes.len() - 1))
    }

    fn text(&mut self, text: Vec<u8>) -> u32 {
        self.texts.push(text.into());
        idx(self.texts.len() - 1)
    }

    /// A node for one of these texts.
    fn texts(&mut self, texts: impl IntoIterator<Item = String>) -> Result<u32, SchemaError> {
        let mut texts: Vec<Box<[u8]>> = texts.into_iter().map(|text| text.into_bytes().into()).collect();
        texts.sort_unstable();
        texts.dedup();
        let first = idx(self.texts.len());
        self.texts.append(&mut texts);
        self.push(Node::Texts { first, end: idx(self.texts.len()) })
    }

    fn any(&mut self) -> Result<u32, SchemaError> {
        if let Some(any) = self.any {
            return Ok(any);
        }
        let any = self.push(Node::AnyOf(Vec::new()))?;
        self.any = Some(any);
        let words = self.texts(["null", "true", "false"].map(str::to_owned))?;
        let others = [Node::String, Node::Number, Node::Array(any), Node::Map(any)];
        let nodes: Result<Vec<u32>, _> = others.into_iter().map(|node| self.push(node)).collect();
        self.nodes[any as usize] = Node::AnyOf([vec![words], nodes?].concat());
        Ok(any)
    }

    fn any_object(&mut self) -> Result<u32, SchemaError> {
        let any = self.any()?;
        self.push(Node::Map(any))
    }

    /// The node of a part of the schema, by its path, such as `#/$defs/item`.
    fn reference(&mut self, path: &str) -> Result<u32, SchemaError> {
        if let Some(node) = self.references.get(path) {
            return Ok(*node);
        }
        let unknown =
            || SchemaError(format!("`$ref` = {path:?} is not a part of the schema, such as \"#/$defs/name\""));
        let mut schema = self.schema;
        let names = path.strip_prefix('#').ok_or_else(unknown)?;
        for name in names.split('/').skip(1) {
            schema = schema.get(&name.replace("~1", "/").replace("~0", "~")).ok_or_else(unknown)?;
        }
        let reserved = self.push(Node::AnyOf(Vec::new()))?;
        self.references.insert(path.to_owned(), reserved);
        let node = self.node(schema, path)?;
        self.nodes[reserved as usize] = Node::AnyOf(vec![node]);
        Ok(reserved)
    }

    fn node(&mut self, schema: &'a OrderedJson, path: &str) -> Result<u32, SchemaError> {
        if self.nesting == MAX_NESTING {
            return Err(too_nested());
        }
        self.nesting += 1;
        let node = self.node_within(schema, path);
        self.nesting -= 1;
        node
    }

    fn node_within(&mut self, schema: &'a OrderedJson, path: &str) -> Result<u32, SchemaError> {
        let error = |what: String| SchemaError(format!("the schema at `{path}` {what}"));
        if schema.boolean() == Some(true) {
            return self.any();
        }
        let entries = schema.entries().ok_or_else(|| error(format!("is {schema}, not an object")))?;
        let is_annotation = |key: &str| ANNOTATIONS.contains(&key);
        let constraints: Vec<&str> = entries.iter().map(|(key, _)| &**key).filter(|key| !is_annotation(key)).collect();
        let alone = |key: &str| match constraints.iter().find(|other| **other != key) {
            Some(other) => Err(error(format!("has `{key}` and `{other}`, which are not supported together"))),
            None => Ok(()),
        };
        if let Some(reference) = schema.get("$ref") {
            alone("$ref")?;
            let reference = reference.text().ok_or_else(|| error("has a `$ref` that is not a string".to_owned()))?;
            return self.reference(reference);
        }
        if let Some(choices) = schema.get("anyOf") {
            alone("anyOf")?;
            let choices = choices.items().filter(|choices| !choices.is_empty());
            let choices = choices.ok_or_else(|| error("has an `anyOf` that is not a list of schemas".to_owned()))?;
            let nodes = choices.iter().zip(0..).map(|(choice, i)| self.node(choice, &format!("{path}/anyOf/{i}")));
            let nodes = nodes.collect::<Result<_, _>>()?;
            return self.push(Node::AnyOf(nodes));
        }
        let known = ["type", "enum", "const", "properties", "required", "additionalProperties", "items"];
        if let Some(unknown) = constraints.iter().find(|key| !known.contains(key)) {
            return Err(error(format!("has `{unknown}`, which is not supported")));
        }
        let types = types(schema).ok_or_else(|| error("has a `type` that is not one of JSON".to_owned()))?;
        let values = match (schema.get("const"), schema.get("enum")) {
            (None, None) if entries.iter().any(|(key, _)| key == "const") => {
                Some(vec![OrderedJson::Scalar(Value::Null)])
            }
            (None, None) => None,
            (Some(value), None) => Some(vec![value.clone()]),
            (None, Some(values)) => {
                let values = values.items().ok_or_else(|| error("has an `enum` that is not a list".to_owned()))?;
                Some(values.to_vec())
            }
            (Some(_), Some(_)) => return Err(error("has `const` and `enum`".to_owned())),
        };
        if let Some(values) = values {
            let takes = |value: &&OrderedJson| types.is_empty() || types.iter().any(|kind| is_of(value, kind));
            let texts: Vec<String> = values.iter().filter(takes).map(ToString::to_string).collect();
            if texts.is_empty() {
                return Err(error("takes no value".to_owned()));
            }
            return self.texts(texts);
        }
        let has = |keys: &[&str]| keys.iter().any(|key| schema.get(key).is_some());
        match types[..] {
            [] if has(&["properties", "required", "additionalProperties"]) => self.typed("object", schema, path),
            [] if has(&["items"]) => self.typed("array", schema, path),
            [] => self.any(),
            [kind] => self.typed(kind, schema, path),
            _ => {
                let nodes = types.iter().map(|kind| self.typed(kind, schema, path)).collect::<Result<_, _>>()?;
                self.push(Node::AnyOf(nodes))
            }
        }
    }

    /// The node of values of one type.
    fn typed(&mut self, kind: &str, schema: &'a OrderedJson, path: &str) -> Result<u32, SchemaError> {
        let node = match kind {
            "null" => return self.texts(["null".to_owned()]),
            "boolean" => return self.texts(["true".to_owned(), "false".to_owned()]),
            "string" => Node::String,
            "integer" => Node::Integer,
            "number" => Node::Number,
            "array" => Node::Array(match schema.get("items") {
                Some(items) => self.node(items, &format!("{path}/items"))?,
                None => self.any()?,
            }),
            _ => return self.object(schema, path),
        };
        self.push(node)
    }

    fn object(&mut self, schema: &'a OrderedJson, path: &str) -> Result<u32, SchemaError> {
        let error = |what: &str| SchemaError(format!("the schema at `{path}` {what}"));
        let properties = match schema.get("properties") {
            Some(properties) => properties.entries().ok_or_else(|| error("has `properties` that are no object"))?,
            None => &[],
        };
        let required = match schema.get("required") {
            Some(names) => {
                let names = names.items().and_then(|names| names.iter().map(OrderedJson::text).collect());
                names.ok_or_else(|| error("has a `required` that is not a list of names"))?
            }
            None => Vec::new(),
        };
        if let Some(name) = required.iter().find(|name| properties.iter().all(|(known, _)| known != *name)) {
            return Err(error(&format!("requires `{name}`, which is not one of its `properties`")));
        }
        let others = schema.get("additionalProperties");
        if properties.is_empty() && others.and_then(OrderedJson::boolean) != Some(false) {
            let node = match others {
                Some(others) => self.node(others, &format!("{path}/additionalProperties"))?,
                None => self.any()?,
            };
            return self.push(Node::Map(node));
        }
        let mut compiled = Vec::new();
        for (name, property) in properties {
            let node = self.node(property, &format!("{path}/properties/{name}"))?;
            let text = self.text(format!("{}:", Value::from(&**name)).into_bytes());
            compiled.push(Property { text, node, is_required: required.contains(&&**name) });
        }
        self.objects.push(compiled);
        self.push(Node::Object(idx(self.objects.len() - 1)))
    }

    fn finish(self, root: u32) -> Result<Grammar, SchemaError> {
        let Self { nodes, objects, texts, .. } = self;
        check_loops(&nodes)?;
        let mut grammar = Grammar { min_depths: vec![u8::MAX; nodes.len()], nodes, objects, texts, root };
        while grammar.update_min_depths() {}
        match grammar.fits(root, 0) {
            true => Ok(grammar),
            false => Err(SchemaError(format!(
                "the schema takes only values with more than {MAX_DEPTH} lists and objects within each other"
            ))),
        }
    }
}

impl Grammar {
    /// Lowers the depths that others allow to be lower; false if none was.
    fn update_min_depths(&mut self) -> bool {
        let mut has_changed = false;
        for (i, node) in self.nodes.iter().enumerate() {
            let of = |node: u32| self.min_depths[node as usize];
            let depth = match node {
                Node::Texts { .. } | Node::String | Node::Number | Node::Integer => 0,
                Node::Array(_) | Node::Map(_) => 1, // it may be empty
                Node::Object(object) => {
                    let required = self.objects[*object as usize].iter().filter(|property| property.is_required);
                    required.map(|property| of(property.node)).max().unwrap_or(0).saturating_add(1)
                }
                Node::AnyOf(nodes) => nodes.iter().map(|node| of(*node)).min().unwrap_or(u8::MAX),
                Node::Between { node, .. } => of(*node),
            };
            has_changed |= depth < self.min_depths[i];
            self.min_depths[i] = depth;
        }
        has_changed
    }
}

/// Rejects a schema that is a choice between itself and others without anything around it, or a choice of choices of
/// choices: the automaton follows them all at once.
fn check_loops(nodes: &[Node]) -> Result<(), SchemaError> {
    /// The number of choices within each other, of nodes whose number is known.
    fn height(nodes: &[Node], node: u32, heights: &mut [Option<u8>], around: u8) -> Result<u8, SchemaError> {
        if around == MAX_NESTING {
            return Err(too_nested());
        }
        if let Some(height) = heights[node as usize] {
            return Ok(height);
        }
        let Node::AnyOf(choices) = &nodes[node as usize] else { return Ok(0) };
        let mut highest = 0;
        for choice in choices {
            highest = highest.max(height(nodes, *choice, heights, around + 1)?);
        }
        if highest == MAX_NESTING {
            return Err(too_nested());
        }
        heights[node as usize] = Some(highest + 1);
        Ok(highest + 1)
    }
    let mut heights = vec![None; nodes.len()];
    (0..idx(nodes.len())).try_for_each(|node| height(nodes, node, &mut heights, 0).map(drop))
}

fn too_nested() -> SchemaError {
    SchemaError(format!("a `$ref` of the schema leads back to itself, or more than {MAX_NESTING} schemas are nested"))
}

/// The types that a schema names; `None` if one is none.
fn types(schema: &OrderedJson) -> Option<Vec<&str>> {
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let types: Vec<&str> = match schema.get("type") {
        None => Vec::new(),
        Some(OrderedJson::Array(types)) => types.iter().map(OrderedJson::text).collect::<Option<_>>()?,
        Some(one) => vec![one.text()?],
    };
    types.iter().all(|kind| TYPES.contains(kind)).then_some(types)
}

fn is_of(value: &OrderedJson, kind: &str) -> bool {
    match value {
        OrderedJson::Array(_) => kind == "array",
        OrderedJson::Object(_) => kind == "object",
        OrderedJson::Scalar(Value::Null) => kind == "null",
        OrderedJson::Scalar(Value::Bool(_)) => kind == "boolean",
        OrderedJson::Scalar(Value::String(_)) => kind == "string",
        OrderedJson::Scalar(number) => {
            let is_integer = number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|x| x.fract() == 0.0);
            kind == "number" || kind == "integer" && is_integer
        }
    }
}
