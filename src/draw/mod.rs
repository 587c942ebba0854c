//! Draws maps, plots, tables and pages: for a terminal, as SVG, and as standalone HTML.
//!
//! Every function turns values into text. Nothing here reads models or files.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    reason = "a line reads better than it saves an allocation"
)]

mod attention_html;
mod attention_svg;
mod columns;
mod curves;
mod explanation;
#[cfg(feature = "serve")]
mod explanation_sheet;
mod head_history;
mod head_map;
mod head_tables;
mod packing;
mod page;
mod plot;
mod png;
mod runs;
mod sheet;
mod sheets;
mod sparkline;
mod svg;
mod sweep;
pub(crate) mod table;
mod tables;
mod terminal;
mod theme;
mod verification;
#[cfg(test)]
mod vision;

use serde::Serialize;

pub(crate) use attention_html::attention_fragment;
pub use attention_html::{attention_html, attention_mib, check_size};
pub use attention_svg::attention_svg;
pub(crate) use curves::{Chart, Series, curves};
pub use explanation::explanation;
#[cfg(feature = "serve")]
pub(crate) use explanation_sheet::explanation_sheet;
pub(crate) use head_history::HeadHistory;
pub(crate) use head_map::head_map;
pub use head_tables::{head_answers, scored_heads};
#[cfg(feature = "serve")]
pub(crate) use page::SPARK;
pub(crate) use page::{Fragment, escape, page, page_about};
pub(crate) use plot::{N_SERIES, STYLE as PLOT_STYLE, spread};
pub(crate) use runs::run_names;
pub use runs::{curves_table, runs_side_by_side, runs_table};
#[cfg(feature = "serve")]
pub(crate) use sheet::sheet_fragment;
pub use sheet::{Sheet, sheets_html, sheets_svg};
pub use sheets::{ablation_sheet, lens_sheet, patching_sheet};
pub use sparkline::sparkline;
pub use sweep::sweep_page;
pub use sweep::sweep_table;
pub use tables::{ablation, embeddings, lens, patching};
pub use terminal::{Palette, attention_text};
pub use verification::verification;

use crate::inspect::PromptAttention;

/// The styles and the script of the server's page, which builds sections about texts itself.
#[cfg(feature = "serve")]
pub(crate) fn app_assets() -> (String, String) {
    page::assets(&[&attention_html::EMPTY, &sheet::EMPTY])
}

/// `{"tokens": [T], "weights": [L][H][T][T]}`: the text of each token, and for each layer and head shown a row of
/// weights per query. Numbers are as short as possible while still read back as the same 32-bit floats.
#[must_use]
pub fn attention_json(attention: &PromptAttention) -> String {
    #[derive(Serialize)]
    struct Attention<'a> {
        tokens: &'a [String],
        weights: Vec<Vec<Vec<&'a [f32]>>>,
    }
    let PromptAttention { prompt, recording, selection, .. } = attention;
    let head = |layer, head| recording.map(layer, head).chunks(prompt.len()).collect();
    let layer = |layer| selection.heads.clone().map(|index| head(layer, index)).collect();
    let weights = selection.layers.clone().map(layer).collect();
    serde_json::to_string(&Attention { tokens: &prompt.texts, weights }).expect("plain data")
}
