//! `/app/view`: the sections of `tinderbox inspect` about a text, for the server's page.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, parse, wrong};
use super::inspect::{check_position, check_weights, last_head, tokens};
use super::loaded_model::LoadedModel;
use crate::inspect::{
    Answer, Attribution, Explanation, HeadSelection, Lens, Patching, Prompt, PromptDetails, effects, head_of_token,
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
    view: String,
    token: Option<usize>,
    layer: Option<usize>,
    head: Option<usize>,
}

/// A request for a view.
#[derive(Debug)]
pub(super) struct ViewRequest {
    prompt: Vec<u32>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Attention,
    /// The rise of the loss without each head; it has no chart.
    Effects,
    Lens {
        token: usize,
    },
    Patching {
        token: usize,
        from: Vec<u32>,
    },
    /// A token in one of these heads.
    Explain {
        token: usize,
        heads: HeadSelection,
    },
}

impl ViewRequest {
    pub(super) fn read(fields: Fields, model: &LoadedModel) -> Result<Self, ApiError> {
        let ViewFields { prompt, from, view, token, layer, head } = parse(fields, &last_head(&model.config))?;
        let prompt = tokens("prompt", &prompt, model)?;
        check_position("token", token, prompt.len())?;
        let token = token.unwrap_or(prompt.len() - 1);
        let kind = match &*view {
            "attention" => Kind::Attention,
            "effects" => Kind::Effects,
            "lens" => Kind::Lens { token },
            "patching" => Kind::Patching { token, from: tokens("from", &from, model)? },
            "explain" => {
                let heads =
                    HeadSelection::new(layer, head, &model.config).expect("the layer and the head were checked");
                Kind::Explain { token, heads }
            }
            _ => return Err(wrong("view", &view.into(), "attention, effects, lens, patching or explain")),
        };
        check_weights(&model.config, prompt.len())?;
        Ok(Self { prompt, kind })
    }

    /// The parts of the section, as JSON.
    pub(super) fn answer(&self, hosted: &LoadedModel, model: &Gpt) -> Result<String, ApiError> {
        let tokenizer = &hosted.tokenizer;
        let prompt = Prompt::of_ids(self.prompt.clone(), tokenizer);
        let fragment = match &self.kind {
            Kind::Effects => return Ok(json!({"effects": effects(model, &prompt)?}).to_string()),
            Kind::Attention => {
                let all = HeadSelection::new(None, None, &hosted.config)?;
                attention_fragment(&PromptDetails::quick(model, tokenizer, &prompt, &all)?)
            }
            Kind::Lens { token } => {
                let answer = Answer::likeliest(model, tokenizer, &prompt, *token)?;
                let lens = Lens::new(model, tokenizer, &prompt, N_TOP)?;
                let attribution = Attribution::new(model, &prompt, *token, answer, None)?;
                sheet_fragment(&view::lens_sheet(&lens, &[attribution], *token, &prompt, true))
            }
            Kind::Explain { token, heads } => {
                let [layer, head] = head_of_token(model, tokenizer, &prompt, heads, *token)?;
                let explanation = Explanation::new(model, &prompt, [layer, head, *token])?;
                sheet_fragment(&view::explanation_sheet(&explanation, &prompt))
            }
            Kind::Patching { token, from } => {
                let from = Prompt::of_ids(from.clone(), tokenizer);
                Patching::check([&prompt, &from], *token)?;
                let likeliest = |prompt: &Prompt| Answer::likeliest(model, tokenizer, prompt, *token);
                let answers = [likeliest(&prompt)?, likeliest(&from)?];
                let patching = Patching::new(model, [&prompt, &from], *token, answers)?;
                sheet_fragment(&view::patching_sheet(&patching, [&prompt, &from]))
            }
        };
        let data: Option<Value> = fragment.data.map(Value::String); // a string, which the browser parses once
        Ok(json!({"html": fragment.body, "data": data, "lists": fragment.lists}).to_string())
    }
}
