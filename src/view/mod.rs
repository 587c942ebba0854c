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
pub(crate) mod escape;
pub(crate) mod html;
mod json;
mod kinds;
pub mod report;
pub(crate) mod sheet;
pub(crate) mod svg;
mod sweep;
pub(crate) mod terminal;
pub(crate) mod theme;
#[cfg(test)]
mod vision;

pub use html::attention::{attention_html, attention_mib, check_size};
pub use json::attention_json;
pub use sheet::Sheet;
pub use sheet::embeddings::embeddings_sheet;
pub use sheet::explanation::explanation_sheet;
pub use sheet::heads::scored_heads_sheet;
pub use sheet::html::sheets_html;
pub use sheet::map::embedding_map_sheet;
pub use sheet::measured::{ablation_sheet, lens_sheet, patching_sheet};
pub use sheet::pieces::{ReadText, compared_sheet, records_sheet, tokens_sheet};
pub use sheet::plan::plan_sheet;
pub use sheet::svg::sheets_svg;
pub use sheet::text::sheet_text;
pub use svg::attention::attention_svg;
pub use sweep::{sweep_page, sweep_table};
pub use terminal::attention::attention_text;
pub use terminal::cache::cache_table;
pub use terminal::palette::Palette;
pub use terminal::plan::{finetune_plan_table, plan_table};
pub use terminal::runs::{curves_table, gradient_norms_table, runs_side_by_side, runs_table};
pub use terminal::sparkline::sparkline;
pub use terminal::verification::verification;

/// The styles and the script of the server's page, which builds sections about texts itself, with `page.rebuild`.
#[cfg(feature = "serve")]
pub(crate) fn app_assets() -> (String, String) {
    let kinds = [&html::attention::EMPTY, &sheet::html::empty()];
    (html::style(&kinds), html::script(&kinds))
}
