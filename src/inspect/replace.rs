//! A forward pass in which what some parts write is replaced.

use std::ops::Range;

use burn::tensor::Tensor;

use super::Part;
use crate::model::probe::{Point, Probe, Site};

/// What stands in for a part's values.
#[derive(Clone, Debug)]
pub enum Substitute {
    /// Nothing: zeros.
    Zero,
    /// The same vector in every row and at every position: the last dimension of the part's site, `[C]`, or
    /// that of each head, `[H * D]`, of which a head takes its own.
    Mean(Tensor<1>),
    /// The values that another pass had at the part's site, row-major, as many as there are in this one.
    Recorded(Tensor<1>),
}

/// One part whose values are replaced.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The part.
    pub part: Part,
    /// The only position at which they are replaced, counted from 0; none: at every one.
    pub position: Option<usize>,
    /// What stands in for them.
    pub substitute: Substitute,
}

/// A probe that replaces what some parts write, and changes nothing else.
#[derive(Clone, Debug, Default)]
pub struct Replace {
    replacements: Vec<Replacement>,
}

impl Replace {
    /// A probe with these replacements; where several are of one value, the last holds.
    #[must_use]
    pub fn new(replacements: Vec<Replacement>) -> Self {
        Self { replacements }
    }
}

impl Probe for Replace {
    fn visit<const D: usize>(&mut self, site: Site, mut value: Tensor<D>) -> Tensor<D> {
        for replacement in &self.replacements {
            if replacement.part.site() == site {
                value = replacement.apply(value);
            }
        }
        value
    }
}

impl Replacement {
    /// # Shapes
    /// `value: [B, T, C]`, or `[B, H, T, D]` where heads stand side by side -> the same
    fn apply<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        let dims = value.dims();
        let (heads, positions) = (1, D - 2);
        let ranges: [Range<usize>; D] =
            std::array::from_fn(|dim| match (self.part, self.position) {
                (Part::Head { head, .. }, _) if dim == heads => head..head + 1,
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

    fn counted<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        let n: usize = shape.iter().product();
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn replaced<const D: usize>(
        part: Part,
        position: Option<usize>,
        substitute: Substitute,
        value: Tensor<D>,
    ) -> Vec<f32> {
        let mut probe = Replace::new(vec![Replacement { part, position, substitute }]);
        let value = probe.visit(part.site(), value);
        value.into_data().try_to_vec().expect("f32")
    }

    #[test]
    fn only_the_part_at_its_positions_is_replaced() {
        let head = Part::Head { layer: 0, head: 1 };
        let heads = counted([1, 2, 2, 2]); // [B, H, T, D]
        let zero = replaced(head, None, Substitute::Zero, heads.clone());
        assert_eq!(zero, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
        let one = replaced(head, Some(1), Substitute::Zero, heads.clone());
        assert_eq!(one, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]);
        let mean = Substitute::Mean(counted([4]).neg());
        let mean = replaced(head, None, mean, heads.clone());
        assert_eq!(mean, [1.0, 2.0, 3.0, 4.0, -3.0, -4.0, -3.0, -4.0]);
        let recorded = Substitute::Recorded(counted([8]).neg());
        let recorded = replaced(head, Some(0), recorded, heads);
        assert_eq!(recorded, [1.0, 2.0, 3.0, 4.0, -5.0, -6.0, 7.0, 8.0]);

        let mlp = Part::Mlp { layer: 0 };
        let added = counted([1, 2, 2]); // [B, T, C]
        let mean = replaced(mlp, None, Substitute::Mean(counted([2]).neg()), added.clone());
        assert_eq!(mean, [-1.0, -2.0, -1.0, -2.0]);
        let recorded = replaced(mlp, Some(1), Substitute::Recorded(counted([4]).neg()), added);
        assert_eq!(recorded, [1.0, 2.0, -3.0, -4.0]);
    }

    #[test]
    fn other_sites_pass_as_they_are() {
        let mut probe = Replace::new(vec![Replacement {
            part: Part::Mlp { layer: 1 },
            position: None,
            substitute: Substitute::Zero,
        }]);
        for other in [Part::Mlp { layer: 0 }, Part::Attention { layer: 1 }] {
            let seen = probe.visit(other.site(), counted([1, 1, 2])).into_data();
            assert_eq!(seen.try_to_vec::<f32>().expect("f32"), [1.0, 2.0]);
        }
    }
}
