//! Attention as an interactive page: which token attends to which, why, and how the tokens change.
//!
//! Rust writes the numbers and describes the model; the scripts in `assets/attention` draw and handle input: `data.js`
//! reads the numbers, `choice.js` holds the reader's selection, `attention.js` joins the views, one file each.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::config::ModelConfig;
use crate::format::counted;
use crate::inspect::{
    FirstHead, HeadSelection, InspectError, LayerPrediction, PromptAttention, PromptDetails, differences, preparation,
    token_name,
};
use crate::model::probe::Point;
use crate::tokenizer::visible;
use crate::view::escape::{breakable, escape};
use crate::view::html::packing::{Packing, floats};
use crate::view::html::{Fragment, page};
use crate::view::terminal::columns::fit;

const STYLES: &[&str] = &[
    include_str!("../assets/attention/attention.css"),
    include_str!("../assets/attention/text_view.css"),
    include_str!("../assets/attention/head_view.css"),
    include_str!("../assets/attention/model_view.css"),
    include_str!("../assets/attention/neuron_view.css"),
    include_str!("../assets/attention/tables.css"),
];
/// Scripts in one scope: later ones use names from earlier ones.
const SCRIPTS: &[&str] = &[
    include_str!("../assets/attention/data.js"),
    include_str!("../assets/attention/choice.js"),
    include_str!("../assets/attention/heat.js"),
    include_str!("../assets/attention/parts.js"),
    include_str!("../assets/attention/lazy_rows.js"),
    include_str!("../assets/attention/tall_canvas.js"),
    include_str!("../assets/attention/head_strip.js"),
    include_str!("../assets/attention/text_view.js"),
    include_str!("../assets/attention/head_view.js"),
    include_str!("../assets/attention/large_map.js"),
    include_str!("../assets/attention/model_view.js"),
    include_str!("../assets/attention/neuron_view.js"),
    include_str!("../assets/attention/similarity_view.js"),
    include_str!("../assets/attention/top_view.js"),
    include_str!("../assets/attention/attention.js"),
];

/// The largest page, in MiB: the browser tab takes several times as much memory.
const LIMIT_MIB: usize = 512;
/// The size up to which a section has exact numbers; larger sections are coarse, so that they open fast.
const EXACT_MIB: usize = 8;
const HEADING: usize = 72;

/// A heading that was cut, without a part of its last word.
fn whole_words(heading: &str) -> String {
    let cut = heading.strip_suffix('…').and_then(|cut| cut.rsplit_once('·'));
    cut.map_or_else(|| heading.to_owned(), |(words, _)| format!("{words}·…"))
}

/// The page: a section for each prompt; `about` names a run and its step.
pub fn attention_html(prompts: &[PromptDetails], about: &str) -> String {
    let section = |details: &PromptDetails| {
        let heading = fit(&details.attention.prompt.whole_pieces().concat(), HEADING);
        (breakable(&whole_words(heading.trim_end())), attention_fragment(details))
    };
    page("Attention", about, "", &prompts.iter().map(section).collect::<Vec<_>>())
}

/// The views of one prompt, as a section of any page.
pub(crate) fn attention_fragment(details: &PromptDetails) -> Fragment {
    let PromptAttention { config, selection, prompt, .. } = &details.attention;
    fragment(details, packing(config, selection, prompt.len()))
}

pub(crate) const EMPTY: Fragment = Fragment::empty("attention", STYLES, SCRIPTS);

fn fragment(details: &PromptDetails, packing: Packing) -> Fragment {
    let (data, lists) = Data::new(details, packing);
    Fragment {
        body: format!("<p class=\"facts\">{}</p>", escape(&facts(&details.attention, packing))),
        data: Some(serde_json::to_string(&data).expect("a page's data is plain")),
        lists,
        ..EMPTY
    }
}

/// The approximate size of the section of a prompt with `n_tokens`, in MiB.
pub fn attention_mib(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize) -> usize {
    mib(config, selection, n_tokens, packing(config, selection, n_tokens))
}

/// The packing of a section's numbers, by their size.
fn packing(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize) -> Packing {
    let is_small = mib(config, selection, n_tokens, Packing::Exact) <= EXACT_MIB;
    if is_small { Packing::Exact } else { Packing::Coarse }
}

fn mib(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize, packing: Packing) -> usize {
    n_bytes(config, selection, n_tokens, packing).div_ceil(3) * 4 / (1024 * 1024)
}

/// The approximate size of a section's numbers in bytes, before base64.
fn n_bytes(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize, packing: Packing) -> usize {
    let n_heads = selection.layers.len() * selection.heads.len();
    let n_kv_heads = selection.layers.len() * selection.heads.len().min(config.n_kv_heads);
    let n_numbers = (n_heads + config.n_layers + 1) * n_tokens * (n_tokens + 1) / 2;
    match packing {
        Packing::Exact => 4 * (n_numbers + (n_heads + n_kv_heads) * n_tokens * config.head_dim),
        Packing::Coarse => n_numbers,
    }
}

/// Checks the size of a page before it is built.
///
/// # Errors
/// If it is too large for a browser.
pub fn check_size(mib: usize) -> Result<(), InspectError> {
    if mib <= LIMIT_MIB { Ok(()) } else { Err(InspectError::PageTooLarge { mib, limit_mib: LIMIT_MIB }) }
}

/// The input of the scripts. Lists of numbers are not included, only their indices in [`Fragment::lists`], so that a
/// browser reads a head's numbers when it shows them.
#[derive(Serialize)]
struct Data<'a> {
    /// The tokens in readable form, `[T]`.
    tokens: &'a [String],
    /// Their actual text, for running text.
    texts: &'a [String],
    /// The tokens in words, for sentences.
    names: Vec<String>,
    predictions: Vec<Prediction>,
    /// The same as [`PromptDetails::effects`], for the heads shown.
    effects: Option<Vec<Vec<f64>>>,
    #[serde(rename = "telling")]
    first_head: Option<&'a FirstHead>,
    /// The indices of the layers and heads shown.
    layers: Vec<usize>,
    heads: Vec<usize>,
    /// The index of the key head that each head reads.
    kv_heads: Vec<usize>,
    head_dim: usize,
    /// The steps between projection and query-key product, in words; may be empty.
    prepared: String,
    /// The factor of scores, unless it is one over the square root of `head_dim`.
    scale: Option<f64>,
    softcap: Option<f64>,
    /// The attention window of each layer, the token itself included; none for all earlier tokens.
    windows: Vec<Option<usize>>,
    packing: Packing,
    /// For each layer and head, each token's weights for itself and earlier tokens: `T (T + 1) / 2`, row by row.
    weights: Vec<Vec<usize>>,
    /// For each layer and head the queries, `[T, D]`; empty, like the keys, in a packing without vectors.
    queries: Vec<Vec<usize>>,
    /// For each layer the keys by key head, `[T, D]`.
    keys: Vec<BTreeMap<usize, usize>>,
    /// The same as [`PromptAttention::similarity`].
    similarity: Vec<usize>,
}

/// The model's prediction after a token.
#[derive(Serialize)]
struct Prediction {
    top: Vec<(String, f64)>,
    /// The probability of the actual next token, and its rank.
    came: Option<(f64, usize)>,
}

impl Prediction {
    fn new(prediction: &LayerPrediction) -> Self {
        let rounded = |probability: f64| (probability * 1e6).round() / 1e6;
        let top = prediction.top.iter().map(|guess| (visible(&guess.token), rounded(guess.probability)));
        let actual = prediction.actual.as_ref().map(|actual| (rounded(actual.entry.probability), actual.rank));
        Self { top: top.collect(), came: actual }
    }
}

impl<'a> Data<'a> {
    fn new(all: &'a PromptDetails, packing: Packing) -> (Self, Vec<String>) {
        let details = &all.attention;
        let PromptAttention { prompt, selection, recording, config } = details;
        let layers: Vec<usize> = selection.layers.clone().collect();
        let heads: Vec<usize> = selection.heads.clone().collect();
        let kv_heads: Vec<usize> = heads.iter().map(|head| details.kv_head(*head)).collect();
        let mut lists = Vec::new();
        let mut add = |list: String| {
            lists.push(list);
            lists.len() - 1
        };
        let triangle =
            |layer, head| packing.weights((0..prompt.len()).flat_map(|at| &recording.row(layer, head, at)[..=at]));
        let vectors = |layer, point, head| {
            let tensor = recording.get(layer, point);
            floats((0..prompt.len()).flat_map(|at| tensor.vector(head, at)))
        };
        let weights = selection.map(|layer, head| add(triangle(layer, head)));
        let has_vectors = packing == Packing::Exact;
        let queries = match has_vectors {
            true => selection.map(|layer, head| add(vectors(layer, Point::Queries, head))),
            false => Vec::new(),
        };
        let keys = |layer: &usize| {
            let each: BTreeSet<usize> = kv_heads.iter().copied().collect();
            each.into_iter().map(|head| (head, add(vectors(*layer, Point::Keys, head)))).collect()
        };
        let keys = layers.iter().filter(|_| has_vectors).map(keys).collect();
        let similarity = details.similarity().iter().map(|cosines| add(packing.cosines(cosines.iter()))).collect();
        let data = Self {
            tokens: &prompt.pieces,
            texts: &prompt.texts,
            names: (0..prompt.len()).map(|at| token_name(prompt, at)).collect(),
            predictions: all.predictions.iter().map(Prediction::new).collect(),
            effects: all.effects.as_ref().map(|effects| selection.map(|layer, head| effects[layer][head])),
            first_head: all.first_head.as_ref(),
            head_dim: config.head_dim,
            prepared: preparation(config),
            scale: config.attention_scale,
            softcap: config.attention_softcap,
            windows: layers.iter().map(|layer| config.attention_window_of(*layer)).collect(),
            packing,
            weights,
            queries,
            keys,
            similarity,
            layers,
            heads,
            kv_heads,
        };
        (data, lists)
    }
}

/// The prompt and the model in a few sentences.
fn facts(details: &PromptAttention, packing: Packing) -> String {
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
    let prepared = preparation(config);
    if !prepared.is_empty() {
        facts += &format!(", {prepared}");
    }
    facts.push('.');
    if config.n_kv_heads < config.n_heads {
        let group = config.n_heads / config.n_kv_heads;
        facts += &format!(" Every {group} heads share their keys.");
    }
    for sentence in differences(config) {
        facts += " ";
        facts += &sentence;
    }
    if packing == Packing::Coarse {
        facts += " The page is large: its weights are within 1/255 of the model's, and small ones nearer; choose less \
                  with --layer and --head for exact ones, and for queries and keys.";
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PositionKind;
    use crate::inspect::Prompt;
    use crate::inspect::testing::{model, small_config};
    use crate::tokenizer::Tokenizer;

    fn details(text: &str, layer: Option<usize>, head: Option<usize>) -> PromptDetails {
        let config = ModelConfig { context_length: 64, position: PositionKind::Rope, ..small_config() };
        let prompt = Prompt::read(text, &Tokenizer::byte(), 64).expect("the byte tokenizer encodes any text");
        let selection = HeadSelection::new(layer, head, &config).expect("the model has this layer and head");
        PromptDetails::new(&model(&config), &Tokenizer::byte(), &prompt, &selection)
            .expect("the flex device runs the model")
    }

    #[test]
    fn facts_name_scale_and_windows() {
        let config = ModelConfig { attention_scale: Some(1.0), attention_window: vec![0, 3], ..small_config() };
        let prompt = Prompt::read("hello", &Tokenizer::byte(), 16).expect("the byte tokenizer encodes any text");
        let selection = HeadSelection::new(Some(1), None, &config).expect("the model has this layer and head");
        let it = PromptDetails::new(&model(&config), &Tokenizer::byte(), &prompt, &selection)
            .expect("the flex device runs the model");
        let data = attention_fragment(&it).data.expect("the fragment has data");
        assert!(data.contains("\"scale\":1.0") && data.contains("\"windows\":[3]"), "{data}");
        assert_eq!(
            facts(&it.attention, Packing::Exact),
            "5 tokens. The model has 2 layers of 4 heads, with queries and keys of 4 numbers. Every 2 heads share their \
             keys. Scores are q · k times 1, not over √d. Layer by layer a token sees the last 0, 3 tokens; 0 means all."
        );
    }

    #[test]
    fn assets_fetch_nothing() {
        for asset in SCRIPTS.iter().chain(STYLES) {
            for forbidden in ["</", "<!--", "\r", "://", "url(", "@import"] {
                assert!(!asset.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn page_size_is_known_in_advance() {
        let it = details(&"hello, and good bye".repeat(3), None, None);
        let size = |packing| fragment(&it, packing).lists.concat().len();
        let PromptAttention { config, selection, prompt, .. } = &it.attention;
        for packing in [Packing::Exact, Packing::Coarse] {
            let expected = n_bytes(config, selection, prompt.len(), packing).div_ceil(3) * 4;
            assert!((expected..expected + 200).contains(&size(packing)), "{packing:?}");
        }
        assert!(check_size(LIMIT_MIB).is_ok());
        let error = check_size(LIMIT_MIB + 1).unwrap_err().to_string();
        assert!(error.contains("513 MiB") && error.contains("--layer"), "{error}");
    }

    #[test]
    fn long_prompts_are_rounded() {
        let config = ModelConfig { n_layers: 12, n_heads: 3, n_kv_heads: 3, d_model: 192, ..small_config() };
        let all = HeadSelection::new(None, None, &config).expect("the model has this layer and head");
        assert_eq!([128, 1024].map(|n| packing(&config, &all, n)), [Packing::Exact, Packing::Coarse]);
        let one = HeadSelection::new(Some(0), Some(0), &config).expect("the model has this layer and head");
        assert!(attention_mib(&config, &all, 1024) <= 34 && attention_mib(&config, &one, 1024) <= 25);
        assert!(facts(&details("hello", None, None).attention, Packing::Coarse).contains("within 1/255"));
    }
}
