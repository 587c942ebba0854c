//! What a Parquet file says of itself: its columns, which make a tree, and where their values stand.

use std::ops::Range;

use super::thrift::{Result, Value, damaged};

/// How the values of a column are stored, of those that JSON can hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Bool,
    I32,
    I64,
    U32,
    U64,
    F32,
    F64,
    Text,
}

/// A column: its form, and the levels of a value that is there and within the innermost list.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) form: Form,
    pub(super) max_def: u32,
    pub(super) max_rep: u32,
}

/// A field, with what is in it.
pub(super) enum Node {
    /// The value of a column.
    Leaf(usize),
    Struct(Vec<(String, Node)>),
    /// A value that is there from a definition level on.
    Optional(u32, Box<Node>),
    /// Items, which are there from a definition level on, and of which all but the first have a repetition level.
    List(u32, u32, Box<Node>),
}

impl Node {
    /// Its columns, of which there is at least one.
    pub(super) fn columns(&self) -> Range<usize> {
        match self {
            Self::Leaf(column) => {
                let end = column + 1;
                *column..end
            }
            Self::Struct(fields) => fields[0].1.columns().start..fields[fields.len() - 1].1.columns().end,
            Self::Optional(_, node) | Self::List(_, _, node) => node.columns(),
        }
    }
}

/// Where the values of a column stand, for the rows of a group.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) codec: i64,
    pub(super) n_values: u64,
}

pub(super) struct RowGroup {
    pub(super) n_rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// The description at the end of a file.
#[derive(Default)]
pub(super) struct Footer {
    pub(super) fields: Vec<(String, Node)>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) groups: Vec<RowGroup>,
    /// What JSON cannot hold: fields, the paths in them, and the types.
    pub(super) refused: Vec<(String, String, &'static str)>,
}

impl Footer {
    pub(super) fn read(mut from: &[u8]) -> Result<Self> {
        let description = Value::read(&mut from)?;
        let mut footer = Self::default();
        let mut elements = description.list(2).iter();
        let root = elements.next().ok_or_else(|| damaged("it names no columns"))?;
        footer.fields = footer.read_fields(root, &mut elements, 0, 0, &[])?;
        for group in description.list(4) {
            let chunks = group.list(1).iter().map(|chunk| match chunk.get(3) {
                Some(about) if [description.get(8), chunk.get(8), chunk.get(1)].iter().all(Option::is_none) => {
                    let (values, dictionary) = (about.size(9)?, about.size(11)?);
                    let start = if dictionary > 0 { values.min(dictionary) } else { values };
                    Ok(Chunk { start, codec: about.int(4).unwrap_or(0), n_values: about.size(5)? })
                }
                _ => Err(ENCRYPTED.to_owned()),
            });
            let (n_rows, chunks) = (group.size(3)?, chunks.collect::<Result<Vec<_>>>()?);
            if chunks.len() != footer.leaves.len() {
                return Err(damaged("a row group has other columns than the file"));
            }
            footer.groups.push(RowGroup { n_rows, chunks });
        }
        Ok(footer)
    }

    /// Reads the fields of a group, which stands in groups of these names, with these levels.
    fn read_fields(
        &mut self,
        group: &Value,
        elements: &mut std::slice::Iter<'_, Value>,
        def: u32,
        rep: u32,
        path: &[&str],
    ) -> Result<Vec<(String, Node)>> {
        let mut fields: Vec<(String, Node)> = Vec::new();
        for _ in 0..group.size(5)?.max(1) {
            let element = elements.next().filter(|_| path.len() < 32);
            let element = element.ok_or_else(|| damaged("its columns are cut off, or too deep"))?;
            let Some(Value::Text(name)) = element.get(4) else { return Err(damaged("a column has no name")) };
            let name = str::from_utf8(name).map_err(|_| damaged("a name is not UTF-8"))?;
            if fields.iter().any(|(known, _)| known == name) {
                return Err(format!("has two fields of the name \"{name}\"\n  hint: rename one of them"));
            }
            let path = [path, &[name]].concat();
            let repetition = element.int(3).unwrap_or(0);
            let (def, rep) = (def + u32::from(repetition > 0), rep + u32::from(repetition == 2));
            let node = if let Some(physical) = element.int(1) {
                let form = form(physical, element);
                self.refused.extend(form.err().map(|kind| (path[0].to_owned(), path.join("."), kind)));
                self.leaves.push(Leaf { form: form.unwrap_or(Form::Text), max_def: def, max_rep: rep });
                Node::Leaf(self.leaves.len() - 1)
            } else {
                let mut inner = self.read_fields(element, elements, def, rep, &path)?;
                match annotations(element) {
                    (Some(3), _) | (_, Some(3)) if inner.len() == 1 => list(inner.remove(0)),
                    (Some(1 | 2), _) | (_, Some(2)) => {
                        self.refused.push((path[0].to_owned(), path.join("."), "map"));
                        Node::Struct(inner)
                    }
                    _ => Node::Struct(inner),
                }
            };
            fields.push((
                name.to_owned(),
                match repetition {
                    0 => node,
                    1 => Node::Optional(def, Box::new(node)),
                    _ => Node::List(def, rep, Box::new(node)),
                },
            ));
        }
        Ok(fields)
    }
}

/// What encryption and columns in other files make of a file.
pub(super) const ENCRYPTED: &str =
    "is encrypted, or has columns in other files\n  hint: write it as one file, without encryption";

/// The older and the newer annotation of a column or group.
fn annotations(element: &Value) -> (Option<i64>, Option<i64>) {
    let logical = if let Some(Value::Struct(fields)) = element.get(10) { fields.first() } else { None };
    (element.int(6), logical.map(|(number, _)| *number))
}

/// How the values of a column of a physical type are stored; or the name of a type that JSON cannot hold.
fn form(physical: i64, element: &Value) -> std::result::Result<Form, &'static str> {
    let (converted, logical) = annotations(element);
    let is_signed = element.get(10).and_then(|logical| logical.get(10)?.int(2)) != Some(0);
    let is_signed = is_signed && !matches!(converted, Some(11..=14));
    match (physical, converted, logical) {
        (_, Some(5), _) | (_, _, Some(5)) => Err("decimal"),
        (_, Some(6), _) | (_, _, Some(6)) => Err("date"),
        (_, Some(7 | 8), _) | (_, _, Some(7)) => Err("time"),
        (_, Some(9 | 10), _) | (_, _, Some(8)) | (3, ..) => Err("timestamp"),
        (0, ..) => Ok(Form::Bool),
        (1, ..) => Ok(if is_signed { Form::I32 } else { Form::U32 }),
        (2, ..) => Ok(if is_signed { Form::I64 } else { Form::U64 }),
        (4, ..) => Ok(Form::F32),
        (5, ..) => Ok(Form::F64),
        // A text, an item of an enumeration, JSON, or nothing but nulls.
        (6, Some(0 | 4 | 19), _) | (6, _, Some(1 | 4 | 11 | 12)) => Ok(Form::Text),
        _ => Err("bytes"),
    }
}

/// A list, whose one field repeats: it is the item, or has it as its only field.
fn list((name, field): (String, Node)) -> Node {
    match field {
        Node::List(def, rep, item) => match *item {
            Node::Struct(mut items) if items.len() == 1 && name != "array" && !name.ends_with("_tuple") => {
                Node::List(def, rep, Box::new(items.remove(0).1))
            }
            item => Node::List(def, rep, Box::new(item)),
        },
        field => field,
    }
}
