//! What a corpus is made of, as a run tells it in its first lines.

use std::path::PathBuf;

/// One of the texts of a corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSummary {
    /// The path as it was given; `-` is standard input.
    pub path: PathBuf,
    /// Where the text of standard input is kept, so that its run can go on.
    pub kept: Option<PathBuf>,
    /// Tokens that are learned from.
    pub train_tokens: usize,
    /// Tokens that are kept for validation.
    pub val_tokens: usize,
    /// The share of training windows that are drawn from this text. In (0, 1]; 1 where it is the
    /// only one.
    pub share: f64,
}

impl SourceSummary {
    /// How often each of the text's training tokens is seen, on average, when a run draws so many
    /// tokens from all texts together.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "texts are below 2^52 tokens")]
    pub fn epochs(&self, drawn_tokens: u64) -> f64 {
        self.share * drawn_tokens as f64 / self.train_tokens.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_text_with_a_large_share_is_seen_often() {
        let summary = SourceSummary {
            path: "a.txt".into(),
            kept: None,
            train_tokens: 1000,
            val_tokens: 100,
            share: 0.75,
        };
        assert!((summary.epochs(8000) - 6.0).abs() < 1e-12);
    }
}
