//! JSON whose objects keep the order of their keys: the values of a schema are written in that order, and a template
//! gets tools as they were sent.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderedJson {
    /// Null, a boolean, a number or a string.
    Scalar(Value),
    /// A list.
    Array(Vec<OrderedJson>),
    /// An object; of keys that occur twice, the first counts.
    Object(Vec<(String, OrderedJson)>),
}

impl OrderedJson {
    /// The value of a key; `None` if it is missing or null, or this is not an object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let (_, value) = self.entries()?.iter().find(|(name, _)| name == key)?;
        Some(value).filter(|value| **value != Self::Scalar(Value::Null))
    }

    /// The keys and values of an object.
    #[must_use]
    pub fn entries(&self) -> Option<&[(String, Self)]> {
        if let Self::Object(entries) = self { Some(entries) } else { None }
    }

    /// The items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// A string.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Scalar(Value::String(text)) = self { Some(text) } else { None }
    }

    /// A boolean.
    #[must_use]
    pub fn boolean(&self) -> Option<bool> {
        if let Self::Scalar(Value::Bool(value)) = self { Some(*value) } else { None }
    }
}

impl fmt::Display for OrderedJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for OrderedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Scalar(value) => value.serialize(serializer),
            Self::Array(items) => items.serialize(serializer),
            Self::Object(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OrderedJson, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(OrderedJson::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedJson, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(OrderedJson::Object(entries))
    }
}
