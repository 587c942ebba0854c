//! `/v1/embeddings`: a vector for each text, the mean of the model's normalized residual stream over its tokens.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use burn::tensor::{Int, Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, parse};
use super::http::to_json;
use super::loaded_model::LoadedModel;
use super::prompt::{EncodedPrompt, prompts};
use crate::inspect::InspectError;
use crate::model::Gpt;

/// A request to `/v1/embeddings`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EmbeddingRequest", extend("required" = ["input"]))]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
pub(super) struct EmbeddingFields {
    /// A text, a list of tokens, or a list of either.
    #[schemars(extend("anyOf" = [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    ]))]
    input: Value,
    /// The format of vectors: a list of numbers, or the base64 of their bytes, f32 in little-endian order.
    #[schemars(extend("type" = "string", "enum" = ["float", "base64"]))]
    encoding_format: Value,
    /// Not supported: a vector is as wide as the model.
    dimensions: (),
    /// Ignored.
    user: Option<String>,
}

pub(super) struct EmbeddingRequest {
    inputs: Vec<EncodedPrompt>,
    is_base64: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Embeddings {
    #[schemars(extend("enum" = ["list"]))]
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Serialize, JsonSchema)]
#[allow(clippy::struct_field_names, reason = "OpenAI's name")]
struct Embedding {
    #[schemars(extend("enum" = ["embedding"]))]
    object: &'static str,
    index: usize,
    /// Scaled to length 1.
    embedding: Vector,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize, JsonSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingRequest {
    pub(super) fn read(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let EmbeddingFields { input, encoding_format, .. } = parse(fields, &[])?;
        Ok(Self { inputs: prompts("input", &input, model)?, is_base64: encoding_format == "base64" })
    }

    /// The response, as JSON.
    pub(super) fn answer(&self, loaded: &LoadedModel, model: &Gpt) -> Result<String, ApiError> {
        let vectors = self.inputs.iter().map(|input| embed(model, &input.tokens));
        let vectors = vectors.collect::<Result<Vec<_>, _>>()?;
        let write = |vector: Vec<f32>| match self.is_base64 {
            true => Vector::Base64(
                BASE64_STANDARD.encode(vector.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>()),
            ),
            false => Vector::Numbers(vector),
        };
        let embedding = |(index, vector)| Embedding { object: "embedding", index, embedding: write(vector) };
        let n_tokens = self.inputs.iter().map(|input| input.tokens.len()).sum();
        let answer = Embeddings {
            object: "list",
            data: vectors.into_iter().enumerate().map(embedding).collect(),
            model: loaded.name.clone(),
            usage: EmbeddingUsage { prompt_tokens: n_tokens, total_tokens: n_tokens },
        };
        Ok(to_json(&answer))
    }
}

/// The mean of the normalized residual stream over the tokens, scaled to length 1.
fn embed(model: &Gpt, tokens: &[u32]) -> Result<Vec<f32>, ApiError> {
    let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, tokens.len()]), &model.device());
    let mean = model.stream(ids).mean_dim(1).reshape([-1]); // [C]
    let mean = mean.try_into_vec_as::<f32>().map_err(InspectError::from)?;
    let length = mean.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(ApiError::failed("the model's numbers are not finite"));
    }
    #[allow(clippy::cast_possible_truncation, reason = "everything is computed in f32")]
    Ok(mean.iter().map(|x| (f64::from(*x) / length.max(f64::MIN_POSITIVE)) as f32).collect())
}
