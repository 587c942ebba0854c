//! Draws maps, plots, tables and pages: for a terminal, as SVG, and as standalone HTML.
//!
//! Every function turns values into text. Nothing here reads models or files, except [`report`], which is about a run.

#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    reason = "a line reads better than it saves an allocation"
)]

#[cfg(feature = "cli")]
pub(crate) mod dashboard;
mod html;
mod kinds;
pub mod report;
mod sheet;
mod svg;
mod sweep;
pub(crate) mod terminal;
pub(crate) mod theme;
#[cfg(test)]
mod vision;

use serde::Serialize;

#[cfg(feature = "serve")]
pub(crate) use html::SPARK;
pub(crate) use html::attention::attention_fragment;
pub use html::attention::{attention_html, attention_mib, check_size};
pub(crate) use html::curves::{Chart, PLAIN, SECONDS, STEPS, Series, curves};
pub(crate) use html::head_history::HeadHistory;
pub(crate) use html::head_map::head_map;
#[cfg(feature = "cli")]
pub(crate) use html::is_page;
pub(crate) use html::{Fragment, breakable, escape, page, page_about};
pub use sheet::embeddings::embeddings_sheet;
pub use sheet::explanation::explanation_sheet;
pub use sheet::heads::scored_heads_sheet;
pub use sheet::map::{embedding_map_sheet, embedding_map_text};
pub use sheet::measured::{ablation_sheet, lens_sheet, patching_sheet};
pub use sheet::pieces::{ReadText, compared_sheet, pieces_text, tokens_sheet};
pub use sheet::plan::plan_sheets;
#[cfg(feature = "serve")]
pub(crate) use sheet::sheet_fragment;
pub use sheet::{Sheet, sheets_html, sheets_svg};
pub use svg::attention::attention_svg;
#[cfg(feature = "cli")]
pub(crate) use svg::is_picture;
#[cfg(feature = "cli")]
pub(crate) use svg::plot::round_marks;
pub(crate) use svg::plot::{N_SERIES, Point, STYLE as PLOT_STYLE, spread};
pub use sweep::{sweep_page, sweep_table};
pub use terminal::attention::{Palette, attention_text};
pub use terminal::cache::cache_table;
#[cfg(feature = "cli")]
pub(crate) use terminal::columns::folded;
pub use terminal::explanation::explanation;
pub use terminal::heads::scored_heads;
pub use terminal::plan::{finetune_plan_table, plan_table};
pub(crate) use terminal::runs::run_names;
pub use terminal::runs::{curves_table, gradient_norms_table, runs_side_by_side, runs_table};
#[cfg(feature = "serve")]
pub(crate) use terminal::sparkline::means;
pub use terminal::sparkline::sparkline;
pub use terminal::tables::{ablation, embeddings, lens, patching};
pub use terminal::verification::verification;

use crate::inspect::PromptAttention;

/// A loss or its bits per byte, to four decimals; an estimate is marked with `~`.
pub(crate) fn loss(loss: f64, is_estimate: bool) -> String {
    format!("{}{loss:.4}", if is_estimate { "~" } else { "" })
}

/// The styles and the script of the server's page, which builds sections about texts itself, with `page.rebuild`.
#[cfg(feature = "serve")]
pub(crate) fn app_assets() -> (String, String) {
    let kinds = [&html::attention::EMPTY, &sheet::EMPTY];
    (html::style(&kinds), html::script(&kinds))
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
    let weights = selection.map(|layer, head| recording.map(layer, head).chunks(prompt.len()).collect());
    serde_json::to_string(&Attention { tokens: &prompt.texts, weights }).expect("plain data")
}
