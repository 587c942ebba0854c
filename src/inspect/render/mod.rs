//! How what was seen inside a model is shown: one file for each form.
//!
//! Every renderer is a function from values to text; it reads no model, and writes to nothing but what it
//! returns. Where text has colours, the caller says which a terminal can show.

mod ablation;
mod columns;
mod embeddings;
mod explanation;
mod grid;
mod html;
mod json;
mod lens;
mod patching;
mod shade;
mod svg;
mod terminal;

pub use ablation::ablation;
pub use embeddings::embeddings;
pub use explanation::explanation;
pub use html::{attention as attention_html, attention_fragment, attention_mib, check_size};
pub use json::attention as attention_json;
pub use lens::lens;
pub use patching::patching;
pub use shade::Palette;
pub use svg::attention as attention_svg;
pub use terminal::attention as attention_text;
