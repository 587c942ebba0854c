//! Attention as a page to explore: which token looks at which, why, and how the tokens change.
//!
//! Rust writes the numbers and describes the model; the scripts in `assets/attention` draw and answer the reader:
//! `data.js` reads the numbers, `choice.js` holds the reader's choice, `attention.js` joins the views, one file each.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use super::columns::fit;
use super::{Fragment, escape, page};
use crate::config::{ModelConfig, PositionKind};
use crate::format::counted;
use crate::inspect::{HeadSelection, InspectError, PromptAttention};
use crate::model::probe::Point;

const STYLES: &[&str] = &[
    include_str!("assets/attention/attention.css"),
    include_str!("assets/attention/head_view.css"),
    include_str!("assets/attention/model_view.css"),
    include_str!("assets/attention/neuron_view.css"),
    include_str!("assets/attention/tables.css"),
];
/// In one scope: later ones use the names of earlier ones.
const SCRIPTS: &[&str] = &[
    include_str!("assets/attention/data.js"),
    include_str!("assets/attention/choice.js"),
    include_str!("assets/attention/parts.js"),
    include_str!("assets/attention/head_view.js"),
    include_str!("assets/attention/model_view.js"),
    include_str!("assets/attention/neuron_view.js"),
    include_str!("assets/attention/similarity_view.js"),
    include_str!("assets/attention/top_view.js"),
    include_str!("assets/attention/attention.js"),
];

/// The most numbers of a page, in MiB: half of the 2^29 characters that a string of Chromium can hold.
const LIMIT_MIB: usize = 256;
/// The most columns of a heading.
const HEADING: usize = 72;

/// The page: a section for each prompt.
#[must_use]
pub fn attention_html(prompts: &[PromptAttention]) -> String {
    let lead =
        "What attention in a trained model does with a text. The tabs share one choice of layer, head and token.";
    let section = |details: &PromptAttention| {
        let heading = fit(&details.prompt.whole_pieces().concat(), HEADING);
        // A line may end after each visible blank.
        (heading.trim_end().replace('·', "·\u{200b}"), attention_fragment(details))
    };
    page("Attention: who looks at whom", lead, &prompts.iter().map(section).collect::<Vec<_>>())
}

/// One prompt's views as a section of any page.
pub(crate) fn attention_fragment(details: &PromptAttention) -> Fragment {
    let data = serde_json::to_string(&Data::new(details)).expect("plain data");
    Fragment {
        kind: "attention",
        styles: STYLES,
        scripts: SCRIPTS,
        body: format!("<p class=\"facts\">{}</p>", escape(&facts(details))),
        data: Some(data),
    }
}

/// About how large the section of a prompt with `n_tokens` is, in MiB.
#[must_use]
pub fn attention_mib(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize) -> usize {
    let n_bytes = PromptAttention::n_numbers(config, selection, n_tokens) * size_of::<f32>();
    n_bytes.div_ceil(3) * 4 / (1024 * 1024)
}

/// Checks the size of a page before it is made.
///
/// # Errors
/// If it is too large for a browser.
pub fn check_size(mib: usize) -> Result<(), InspectError> {
    match mib <= LIMIT_MIB {
        true => Ok(()),
        false => Err(InspectError::PageTooLarge { mib, limit_mib: LIMIT_MIB }),
    }
}

/// The input of the scripts. Lists of numbers are 32-bit floats, little endian, in base 64: exact and small.
#[derive(Serialize)]
struct Data<'a> {
    /// The tokens as a person reads them, `[T]`.
    tokens: &'a [String],
    /// The numbers of the layers and heads that are shown.
    layers: Vec<usize>,
    heads: Vec<usize>,
    /// The number of the head of keys that each head reads.
    kv_heads: Vec<usize>,
    head_dim: usize,
    /// The steps between a projection and the product of queries and keys, in words; may be empty.
    prepared: String,
    /// For each layer and head the weights of each token for itself and those before: `T (T + 1) / 2`, row by row.
    weights: Vec<Vec<String>>,
    /// For each layer and head the queries, `[T, D]`.
    queries: Vec<Vec<String>>,
    /// For each layer the keys by their head, `[T, D]`.
    keys: Vec<BTreeMap<usize, String>>,
    /// As [`PromptAttention::similarity`].
    similarity: Vec<String>,
}

impl<'a> Data<'a> {
    fn new(details: &'a PromptAttention) -> Self {
        let PromptAttention { prompt, selection, recording, config } = details;
        let layers: Vec<usize> = selection.layers.clone().collect();
        let heads: Vec<usize> = selection.heads.clone().collect();
        let kv_heads: Vec<usize> = heads.iter().map(|head| details.kv_head(*head)).collect();
        let triangle = |layer, head| packed((0..prompt.len()).flat_map(|at| &recording.row(layer, head, at)[..=at]));
        let vectors = |layer, point, head| {
            let tensor = recording.get(layer, point);
            packed((0..prompt.len()).flat_map(|at| tensor.vector(head, at)))
        };
        let of_heads = |of_head: &dyn Fn(usize, usize) -> String| -> Vec<Vec<String>> {
            let of_layer = |layer: &usize| heads.iter().map(|head| of_head(*layer, *head)).collect();
            layers.iter().map(of_layer).collect()
        };
        let keys = |layer: &usize| {
            let keys = kv_heads.iter().map(|head| (*head, vectors(*layer, Point::Keys, *head)));
            keys.collect::<BTreeMap<_, _>>()
        };
        Self {
            tokens: &prompt.pieces,
            head_dim: config.head_dim,
            prepared: prepared(config),
            weights: of_heads(&triangle),
            queries: of_heads(&|layer, head| vectors(layer, Point::Queries, head)),
            keys: layers.iter().map(keys).collect(),
            similarity: details.similarity().iter().map(packed).collect(),
            layers,
            heads,
            kv_heads,
        }
    }
}

fn packed<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> String {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// The steps between the projection of queries and keys and their product, in words.
fn prepared(config: &ModelConfig) -> String {
    let norm = config.qk_norm.then_some("normed in each head (qk_norm)");
    let rotation = (config.position == PositionKind::Rope).then_some("turned by their position (rope)");
    norm.into_iter().chain(rotation).collect::<Vec<_>>().join(" and ")
}

/// The prompt and the model in a few sentences.
fn facts(details: &PromptAttention) -> String {
    let PromptAttention { prompt, config, .. } = details;
    let counted = |n: usize, noun: &str| counted(n as u64, noun);
    let mut facts = counted(prompt.len(), "token");
    if prompt.n_dropped > 0 {
        let n = prompt.n_dropped;
        facts += &format!(", the last of the prompt: {n} before them did not fit the context");
    }
    facts += &format!(
        ". The model has {} of {}, with queries and keys of {}",
        counted(config.n_layers, "layer"),
        counted(config.n_heads, "head"),
        counted(config.head_dim, "number"),
    );
    let prepared = prepared(config);
    if !prepared.is_empty() {
        facts += &format!(", {prepared}");
    }
    facts.push('.');
    if config.n_kv_heads < config.n_heads {
        let group = config.n_heads / config.n_kv_heads;
        facts += &format!(" Every {group} heads share their keys.");
    }
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::inspect::Prompt;
    use crate::inspect::tests::{model, small_config};
    use crate::tokenizer::Tokenizer;

    fn details(text: &str, layer: Option<usize>, head: Option<usize>) -> PromptAttention {
        let config = ModelConfig { context_length: 64, position: PositionKind::Rope, ..small_config() };
        let prompt = Prompt::read(text, &Tokenizer::byte(), 64).expect("bytes");
        let selection = HeadSelection::new(layer, head, &config).expect("is there");
        PromptAttention::new(&model(&config), &prompt, &selection, &PromptAttention::DETAILS).expect("captured")
    }

    fn data(details: &PromptAttention) -> Value {
        serde_json::from_str(&attention_fragment(details).data.expect("data")).expect("JSON")
    }

    fn unpacked(text: &Value) -> Vec<f32> {
        let bytes = BASE64_STANDARD.decode(text.as_str().expect("packed")).expect("base 64");
        let numbers = bytes.chunks_exact(4);
        numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
    }

    #[test]
    fn every_number_is_there_to_the_bit() {
        let it = details("hello", Some(1), None);
        let data = data(&it);
        assert_eq!(data["layers"], serde_json::json!([1]));
        assert_eq!(data["heads"], serde_json::json!([0, 1, 2, 3]));
        assert_eq!(data["kv_heads"], serde_json::json!([0, 0, 1, 1]));
        let [queries, keys] = [Point::Queries, Point::Keys].map(|point| &it.recording.get(1, point).values);
        for head in 0..4 {
            let rows = (0..5).flat_map(|query| it.recording.row(1, head, query)[..=query].to_vec());
            assert_eq!(unpacked(&data["weights"][0][head]), rows.collect::<Vec<f32>>());
            assert_eq!(unpacked(&data["queries"][0][head]), queries[head * 20..(head + 1) * 20]);
        }
        for (kv_head, place) in [("0", 0..20), ("1", 20..40)] {
            assert_eq!(unpacked(&data["keys"][0][kv_head]), keys[place]);
        }
        assert_eq!(unpacked(&data["similarity"][2]), it.similarity()[2]);
    }

    #[test]
    fn one_head_has_its_own_numbers_only() {
        let it = details("hello", Some(0), Some(3));
        let data = data(&it);
        assert_eq!(data["kv_heads"], serde_json::json!([1]));
        assert_eq!(data["keys"][0].as_object().expect("by head").len(), 1);
        assert_eq!(data["weights"][0].as_array().expect("heads").len(), 1);
        assert_eq!(unpacked(&data["keys"][0]["1"]), it.recording.get(0, Point::Keys).values[20..40]);
    }

    #[test]
    fn a_prompt_stays_text() {
        let evil = "</script><script>alert(1)</script><!-- & \"'";
        let html = attention_html(&[evil, "b"].map(|text| details(text, None, None)));
        assert_eq!(html.matches("<script").count(), 3, "one, and data twice");
        assert_eq!(html.matches("</script").count(), 3);
        assert!(!html.contains("<!-- ") && !html.contains("<script>alert"));
        assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn the_model_is_described() {
        assert_eq!(
            facts(&details("hello", None, None)),
            "5 tokens. The model has 2 layers of 4 heads, with queries and keys of 4 numbers, turned by their \
             position (rope). Every 2 heads share their keys."
        );
    }

    #[test]
    fn scripts_cannot_end_their_element_and_fetch_nothing() {
        for asset in SCRIPTS.iter().chain(STYLES) {
            for forbidden in ["</", "<!--", "\r", "://", "url(", "@import"] {
                assert!(!asset.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn a_page_has_a_size_before_it_is_made() {
        let it = details("hello, and good bye", None, None);
        let data = attention_fragment(&it).data.expect("data").len();
        let bytes = PromptAttention::n_numbers(&it.config, &it.selection, it.prompt.len()) * 16 / 3;
        assert!(data >= bytes && data < bytes + 2000, "{data} {bytes}");
        assert!(check_size(LIMIT_MIB).is_ok());
        let error = check_size(LIMIT_MIB + 1).unwrap_err().to_string();
        assert!(error.contains("257 MiB") && error.contains("--layer"), "{error}");
    }
}
