//! The parts of a model that write to its residual stream, and the probe that replaces their values.

use std::fmt;
use std::ops::Range;

use burn::tensor::Tensor;
use serde::Serialize;

use tinderbox_model::config::ModelConfig;
use tinderbox_model::probe::{Point, Probe, Site};

/// A part of a model, or a point in its residual stream, that a probe can replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "part", rename_all = "snake_case")]
#[allow(missing_docs, reason = "layers and heads count from 0")]
pub enum ModelPart {
    /// The start of the residual stream: token and position embeddings.
    Embedding,
    /// The values gathered by one head, before the output projection.
    Head { layer: usize, head: usize },
    /// An attention layer's update of the residual stream, its bias included.
    Attention { layer: usize },
    /// A feed-forward layer's update of the residual stream, its bias included.
    Mlp { layer: usize },
    /// The residual stream after a block.
    Residual { layer: usize },
}

impl ModelPart {
    /// All parts that write to the residual stream: each layer's heads, whole attention and feed-forward layer.
    pub fn writers(config: &ModelConfig) -> Vec<Self> {
        let of_layer = |layer| {
            let heads = (0..config.n_heads).map(move |head| Self::Head { layer, head });
            heads.chain([Self::Attention { layer }, Self::Mlp { layer }])
        };
        (0..config.n_layers).flat_map(of_layer).collect()
    }

    /// The site of its values in a forward pass; a layer's heads share one.
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

impl fmt::Display for ModelPart {
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

/// The values that replace those of a part.
#[derive(Clone, Debug)]
pub enum Substitute {
    Zero,
    /// The same vector at every position: `[C]`, or for heads `[H * D]`, from which a head takes its slice.
    Mean(Tensor<1>),
    /// All values of another forward pass at the part's site, row-major.
    Recorded(Tensor<1>),
}

/// A part and the values that replace its own.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub part: ModelPart,
    /// The only position to replace, counted from 0; `None` for all.
    pub position: Option<usize>,
    /// The new values.
    pub substitute: Substitute,
}

/// A probe that replaces the values of some parts; if several replace the same value, the last takes precedence.
#[derive(Clone, Debug, Default)]
pub struct Replace(pub Vec<Replacement>);

impl Replace {
    /// Replaces these parts by zeros, at all positions.
    pub fn by_zeros(parts: &[ModelPart]) -> Self {
        let zero = |part: &ModelPart| Replacement { part: *part, position: None, substitute: Substitute::Zero };
        Self(parts.iter().map(zero).collect())
    }
}

impl Probe for Replace {
    fn visit<const D: usize>(&mut self, site: Site, mut value: Tensor<D>) -> Tensor<D> {
        for replacement in &self.0 {
            if replacement.part.site() == site {
                value = replacement.apply(value);
            }
        }
        value
    }
}

impl Replacement {
    /// # Shapes
    /// `value: [B, T, C]`, or for heads `[B, H, T, D]` -> the same
    fn apply<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        let dims = value.dims();
        let (heads, positions) = (1, D - 2);
        let ranges: [Range<usize>; D] = std::array::from_fn(|dim| match (self.part, self.position) {
            (ModelPart::Head { head, .. }, _) if dim == heads => head..head + 1,
            (_, Some(position)) if dim == positions => position..position + 1,
            _ => 0..dims[dim],
        });
        let substitute: Tensor<D> = match &self.substitute {
            Substitute::Zero => value.zeros_like(),
            Substitute::Mean(mean) => {
                let by_head = self.part.site().point == Point::Heads;
                let of_mean: [usize; D] = std::array::from_fn(|dim| match dim {
                    _ if dim == D - 1 || (by_head && dim == heads) => dims[dim],
                    _ => 1,
                });
                mean.clone().reshape(of_mean).expand(dims)
            }
            Substitute::Recorded(values) => values.clone().reshape(dims),
        };
        let substitute = substitute.slice(ranges.clone());
        value.slice_assign(ranges, substitute)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn writers_are_listed_once() {
        let config = ModelConfig { n_layers: 2, n_heads: 2, ..ModelConfig::default() }.with_derived();
        let names: Vec<String> = ModelPart::writers(&config).iter().map(ToString::to_string).collect();
        let of_layer = |layer| ["head 0", "head 1", "attention", "mlp"].map(|part| format!("layer {layer} {part}"));
        assert_eq!(names, [0, 1].map(of_layer).concat());
        let head = ModelPart::Head { layer: 1, head: 0 };
        assert_eq!(serde_json::to_string(&head).expect("a part serializes"), r#"{"part":"head","layer":1,"head":0}"#);
        assert_eq!(head.site().to_string(), "blocks.1.attention.heads");
    }

    fn counted<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn replaced<const D: usize>(
        part: ModelPart,
        position: Option<usize>,
        substitute: Substitute,
        value: Tensor<D>,
    ) -> Vec<f32> {
        let mut probe = Replace(vec![Replacement { part, position, substitute }]);
        probe.visit(part.site(), value).into_data().try_to_vec().expect("the values are f32")
    }

    #[test]
    fn replacement_touches_only_its_part_and_position() {
        use Substitute::{Mean, Recorded, Zero};
        let head = ModelPart::Head { layer: 0, head: 1 };
        for (position, substitute, expected) in [
            (None, Zero, [0.0, 0.0, 0.0, 0.0]),
            (Some(1), Zero, [5.0, 6.0, 0.0, 0.0]),
            (None, Mean(counted([4]).neg()), [-3.0, -4.0, -3.0, -4.0]),
            (Some(0), Recorded(counted([8]).neg()), [-5.0, -6.0, 7.0, 8.0]),
        ] {
            let heads = replaced(head, position, substitute, counted([1, 2, 2, 2])); // [B, H, T, D]
            assert_eq!(heads, [[1.0, 2.0, 3.0, 4.0], expected].concat());
        }
        let mlp =
            |position, substitute| replaced(ModelPart::Mlp { layer: 0 }, position, substitute, counted([1, 2, 2]));
        assert_eq!(mlp(None, Mean(counted([2]).neg())), [-1.0, -2.0, -1.0, -2.0]);
        assert_eq!(mlp(Some(1), Recorded(counted([4]).neg())), [1.0, 2.0, -3.0, -4.0]);
    }
}
