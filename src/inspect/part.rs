//! The parts of a model that write to its residual stream.

use std::fmt;

use serde::Serialize;

use crate::config::ModelConfig;
use crate::model::probe::{Point, Site};

/// A part of a model, or a place in its residual stream, whose values can be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum Part {
    /// The vectors of the tokens (and positions): where the residual stream begins.
    Embedding,
    /// What one head gathers, before the output projection.
    Head {
        /// The layer, counted from 0.
        layer: usize,
        /// The head, counted from 0.
        head: usize,
    },
    /// What a whole attention layer adds to the residual stream, its bias included.
    Attention {
        /// The layer, counted from 0.
        layer: usize,
    },
    /// What a feed-forward layer adds to the residual stream, its bias included.
    Mlp {
        /// The layer, counted from 0.
        layer: usize,
    },
    /// The residual stream after a block.
    Residual {
        /// The layer, counted from 0.
        layer: usize,
    },
}

impl Part {
    /// Every part that writes to the residual stream between the embedding and the end: the heads of each
    /// layer, then its attention as a whole, then its feed-forward layer.
    #[must_use]
    pub fn writers(config: &ModelConfig) -> Vec<Self> {
        let of_layer = |layer| {
            let heads = (0..config.n_heads).map(move |head| Self::Head { layer, head });
            heads.chain([Self::Attention { layer }, Self::Mlp { layer }])
        };
        (0..config.n_layers).flat_map(of_layer).collect()
    }

    /// Where a forward pass shows its values: those of a head beside the other heads' of its layer.
    #[must_use]
    pub fn site(self) -> Site {
        let (block_idx, point) = match self {
            Self::Embedding => (None, Point::Embedding),
            Self::Head { layer, .. } => (Some(layer), Point::Heads),
            Self::Attention { layer } => (Some(layer), Point::Attention),
            Self::Mlp { layer } => (Some(layer), Point::Mlp),
            Self::Residual { layer } => (Some(layer), Point::Residual),
        };
        Site { block_idx, point }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("embedding"),
            Self::Head { layer, head } => write!(f, "layer {layer} head {head}"),
            Self::Attention { layer } => write!(f, "layer {layer} attention"),
            Self::Mlp { layer } => write!(f, "layer {layer} mlp"),
            Self::Residual { layer } => write!(f, "after layer {layer}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writer_is_named_once() {
        let config = ModelConfig { n_layers: 2, n_heads: 2, ..ModelConfig::default() };
        let names: Vec<String> = Part::writers(&config).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "layer 0 head 0",
                "layer 0 head 1",
                "layer 0 attention",
                "layer 0 mlp",
                "layer 1 head 0",
                "layer 1 head 1",
                "layer 1 attention",
                "layer 1 mlp",
            ]
        );
        let head = Part::Head { layer: 1, head: 0 };
        assert_eq!(
            serde_json::to_string(&head).expect("plain data"),
            r#"{"part":"head","layer":1,"head":0}"#
        );
        assert_eq!(head.site().to_string(), "blocks.1.attention.heads");
    }
}
