//! `/app/view`: the sections of `tinderbox inspect` about a text, for the server's page.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, parse};
use super::inspect::{check_position, check_weights, last_head, recorded_bytes, tokens};
use super::limits::INSPECTION;
use super::loaded_model::LoadedModel;
use crate::config::ModelConfig;
use crate::inspect::{
    Answer, Attribution, Explanation, HeadSelection, Lens, Patching, PredictionGraph, Prompt, PromptDetails, effects,
    head_of_token,
};
use crate::model::Gpt;
use crate::view;
use crate::view::html::attention::attention_fragment;
use crate::view::sheet::html::sheet_fragment;

/// The number of most probable tokens in each cell of the lens.
const N_TOP: usize = 5;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ViewFields {
    /// A text or a list of token ids.
    prompt: Value,
    /// The other text of patching.
    from: Value,
    view: View,
    token: Option<usize>,
    layer: Option<usize>,
    head: Option<usize>,
}

#[derive(Default, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "lowercase")]
enum View {
    #[default]
    Attention,
    Effects, // the rise of the loss without each head; it has no chart
    Lens,
    Patching,
    Explain,
}

/// A request for a view.
pub(super) struct ViewRequest {
    view: View,
    prompt: Vec<u32>,
    /// The other text of patching.
    from: Option<Vec<u32>>,
    token: usize,
    /// The heads to explain.
    heads: HeadSelection,
}

impl ViewRequest {
    pub(super) fn read(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let ViewFields { prompt, from, view, token, layer, head } = parse(fields, &last_head(&model.config))?;
        let prompt = tokens("prompt", &prompt, model)?;
        check_position("token", token, prompt.len())?;
        check_weights(&model.config, prompt.len())?;
        let from = (view == View::Patching).then(|| tokens("from", &from, model)).transpose()?;
        let heads = HeadSelection::new(layer, head, &model.config).expect("the layer and the head were checked");
        Ok(Self { view, token: token.unwrap_or(prompt.len() - 1), prompt, from, heads })
    }

    /// The memory for the response, and for what is computed.
    pub(super) fn n_bytes(&self, config: &ModelConfig) -> usize {
        INSPECTION + recorded_bytes(config, self.prompt.len())
    }

    /// The parts of the section, as JSON.
    pub(super) fn answer(&self, hosted: &LoadedModel, model: &Gpt) -> Result<String, ApiError> {
        let tokenizer = &hosted.tokenizer;
        let prompt = Prompt::of_ids(self.prompt.clone(), tokenizer);
        let token = self.token;
        let fragment = match self.view {
            View::Effects => return Ok(json!({"effects": effects(model, &prompt)?}).to_string()),
            View::Attention => {
                let all = HeadSelection::new(None, None, &hosted.config)?;
                attention_fragment(&PromptDetails::quick(model, tokenizer, &prompt, &all)?)
            }
            View::Lens => {
                let answer = Answer::likeliest(model, tokenizer, &prompt, token)?;
                let lens = Lens::new(model, tokenizer, &prompt, N_TOP)?;
                let graph = match PredictionGraph::is_quick(model, &prompt) {
                    true => Some(PredictionGraph::new(model, &prompt, token, answer.clone(), None)?),
                    false => None,
                };
                let attribution = Attribution::new(model, &prompt, token, answer, None)?;
                sheet_fragment(&view::lens_sheet(&lens, &[attribution], token, &prompt, true, graph.as_ref()))
            }
            View::Explain => {
                let [layer, head] = head_of_token(model, tokenizer, &prompt, &self.heads, token)?;
                let explanation = Explanation::new(model, &prompt, [layer, head, token])?;
                sheet_fragment(&view::explanation_sheet(&explanation, &prompt))
            }
            View::Patching => {
                let from = Prompt::of_ids(self.from.clone().expect("patching has two texts"), tokenizer);
                Patching::check([&prompt, &from], token)?;
                let likeliest = |prompt: &Prompt| Answer::likeliest(model, tokenizer, prompt, token);
                let answers = [likeliest(&prompt)?, likeliest(&from)?];
                let patching = Patching::new(model, [&prompt, &from], token, answers)?;
                sheet_fragment(&view::patching_sheet(&patching, [&prompt, &from]))
            }
        };
        let data: Option<Value> = fragment.data.map(Value::String); // a string, which the browser parses once
        Ok(json!({"html": fragment.body, "data": data, "lists": fragment.lists}).to_string())
    }
}
