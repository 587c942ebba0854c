//! A key of `config.json` and the option of `[model]` that it holds, declared once for reading and writing.

use serde_json::{Map, Value};

use super::ConfigJson;
use super::rope::{read_rope, rope_scaling};
use tinderbox_model::config::{MlpKind, ModelConfig};

type Field<T> = fn(&mut ModelConfig) -> &mut T;

/// A key. A family lists its keys in the order of reading, so that a default can follow from the keys before it.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    Size(&'static str, Field<usize>),
    SizeOr(&'static str, Field<usize>, fn(&ModelConfig) -> usize),
    NumberOr(&'static str, Field<f64>, f64),
    FlagOr(&'static str, Field<bool>, bool),
    /// The activation, by its names, the default first. The first name of a kind is written.
    Activation(&'static str, &'static [(&'static str, MlpKind)]),
    /// Only this value is supported, and it is written.
    Only(&'static str, bool),
    /// Only this value is supported; it is not written.
    Expected(&'static str, bool),
    /// Without a key: each head has its own keys and values, and an equal share of the width. The names are the keys of
    /// `d_model` and `n_heads`.
    PlainHeads(&'static str, &'static str),
    /// The keys of `RoPE`: the name of the base, and the name and the default of the fraction of a head that rotates.
    Rope(&'static str, Option<(&'static str, f64)>),
    /// One or several keys, read by the family's own function.
    Read(fn(&mut ConfigJson<'_>, &mut ModelConfig)),
    /// A key that is only written, or is read with others.
    Written(&'static str, fn(&ModelConfig) -> Value),
}

impl Key {
    /// The scaling of `RoPE`, for a family with its own function for reading it.
    pub(crate) const ROPE_SCALING: Self = Self::Written("rope_scaling", rope_scaling);

    pub(super) fn read(self, keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
        match self {
            Self::Size(key, field) => *field(model) = keys.size(key),
            Self::SizeOr(key, field, default) => *field(model) = keys.size_or(key, default(model)),
            Self::NumberOr(key, field, default) => *field(model) = keys.number_or(key, default),
            Self::FlagOr(key, field, default) => *field(model) = keys.flag_or(key, default),
            Self::Activation(key, names) => model.mlp = keys.one_of(key, names),
            Self::Only(key, expected) | Self::Expected(key, expected) => keys.only(key, expected),
            Self::PlainHeads(width, heads) => {
                model.n_kv_heads = model.n_heads;
                model.head_dim = keys.head_dim((width, model.d_model), (heads, model.n_heads));
            }
            Self::Rope(theta, fraction) => read_rope(keys, theta, fraction, model),
            Self::Read(read) => read(keys, model),
            Self::Written(..) => {}
        }
    }

    pub(super) fn write(self, model: &ModelConfig, config: &mut Map<String, Value>) {
        let mut model = model.clone();
        let mut add = |key: &str, value: Value| {
            config.insert(key.to_owned(), value);
        };
        match self {
            Self::Size(key, field) | Self::SizeOr(key, field, _) => add(key, (*field(&mut model)).into()),
            Self::NumberOr(key, field, _) => add(key, (*field(&mut model)).into()),
            Self::FlagOr(key, field, _) => add(key, (*field(&mut model)).into()),
            Self::Activation(key, names) => {
                let name =
                    names.iter().find(|(_, kind)| *kind == model.mlp).expect("the family supports the activation").0;
                add(key, name.into());
            }
            Self::Only(key, value) => add(key, value.into()),
            Self::Rope(theta, fraction) => {
                add(theta, model.rope_theta.into());
                add("rope_scaling", rope_scaling(&model));
                if let Some((key, _)) = fraction {
                    add(key, model.rotary_fraction.into());
                }
            }
            Self::Written(key, value) => add(key, value(&model)),
            Self::Expected(..) | Self::PlainHeads(..) | Self::Read(_) => {}
        }
    }
}
