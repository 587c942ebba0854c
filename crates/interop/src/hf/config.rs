//! Converts between the `config.json` of transformers and our `[model]`. Unsupported keys that change the numbers are
//! problems; defaults are those of the transformers library, and are written out.

use serde_json::{Map, Value, json};

use super::ConfigJson;
use crate::{Family, Outgoing};
use tinderbox_model::Dtype;
use tinderbox_model::config::ModelConfig;

/// The family and the model of a config, with `vocab_size` set.
///
/// # Errors
/// The unsupported keys, each as `KEY = VALUE: SUPPORTED VALUES`.
pub(super) fn read(map: &Map<String, Value>) -> Result<(&'static Family, ModelConfig), Vec<String>> {
    let mut keys = ConfigJson::new(map);
    let name = keys.get("model_type").and_then(Value::as_str);
    let Some(family) = name.and_then(Family::from_name) else {
        let supported = format!("{} are supported", Family::names());
        match keys.get("model_type") {
            Some(value) => keys.problem("model_type", value, &supported),
            None => keys.problems.push(format!("model_type is missing: {supported}")),
        }
        return Err(keys.problems);
    };
    keys.none("quantization_config", "weights in f32, f16 or bf16 are supported");
    keys.only("is_encoder_decoder", false);
    keys.only("add_cross_attention", false);
    let mut model = family.with_biases(&family.fixed());
    for key in (family.hf.keys)() {
        key.read(&mut keys, &mut model);
    }
    model.vocab_size = Some(keys.size("vocab_size"));
    if keys.problems.is_empty() {
        keys.problems.extend(model.problems());
    }
    if keys.problems.is_empty() { Ok((family, model)) } else { Err(keys.problems) }
}

/// An object that only Tinderbox reads.
const OWN: &str = "tinderbox";
const DOCUMENT_SEPARATOR: &str = "document_separator";

pub(super) fn document_separator(map: &Map<String, Value>) -> Option<String> {
    let separator = map.get(OWN)?.get(DOCUMENT_SEPARATOR)?.as_str()?;
    (!separator.is_empty()).then(|| separator.to_owned())
}

/// The ids of the BOS and EOS tokens, `null` if there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct BosEos {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

pub(super) fn write(model: &Outgoing, dtype: Dtype, ends: BosEos) -> Value {
    let mut config = Map::new();
    for key in (model.family.hf.keys)() {
        key.write(model.model(), &mut config);
    }
    let mut config = Value::Object(config);
    let dtype = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        Dtype::F64 => "float64",
    };
    let common = json!({
        "architectures": [model.family.hf.class],
        "model_type": model.family.name(),
        "vocab_size": model.vocab_size(),
        "tie_word_embeddings": model.model().tie_embeddings,
        "bos_token_id": ends.bos,
        "eos_token_id": ends.eos,
        "use_cache": true,
        "torch_dtype": dtype,
    });
    extend(&mut config, common);
    if let Some(separator) = &model.config.data.document_separator {
        extend(&mut config, json!({ OWN: { DOCUMENT_SEPARATOR: separator } }));
    }
    config
}

pub(super) fn extend(config: &mut Value, more: Value) {
    let (Value::Object(config), Value::Object(more)) = (config, more) else { unreachable!("both are objects") };
    config.extend(more);
}
