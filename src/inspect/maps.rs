//! Attention weights on the host, and which of them someone wants to see.

use std::ops::Range;

use super::{InspectError, Prompt};

/// Who looks at whom: `[L, H, T, T]`, each row summing to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionMaps {
    /// L, how many layers there are.
    pub n_layers: usize,
    /// H, how many heads each layer has.
    pub n_heads: usize,
    /// T, how many tokens were read.
    pub n_tokens: usize,
    values: Vec<f32>,
}

impl AttentionMaps {
    /// The maps with these weights, row-major.
    ///
    /// # Panics
    /// If there are not `n_layers * n_heads * n_tokens * n_tokens` of them.
    #[must_use]
    pub fn new(n_layers: usize, n_heads: usize, n_tokens: usize, values: Vec<f32>) -> Self {
        assert_eq!(values.len(), n_layers * n_heads * n_tokens * n_tokens);
        Self { n_layers, n_heads, n_tokens, values }
    }

    /// One head's weights, row by row: `[T, T]`, queries then keys.
    ///
    /// # Panics
    /// If there is no such layer or head.
    #[must_use]
    pub fn map(&self, layer: usize, head: usize) -> &[f32] {
        assert!(layer < self.n_layers && head < self.n_heads);
        let size = self.n_tokens * self.n_tokens;
        let start = (layer * self.n_heads + head) * size;
        &self.values[start..start + size]
    }

    /// How strongly the token at `query` looks at each token, in one head: `[T]`.
    ///
    /// # Panics
    /// If there is no such layer, head or token.
    #[must_use]
    pub fn row(&self, layer: usize, head: usize, query: usize) -> &[f32] {
        let start = query * self.n_tokens;
        &self.map(layer, head)[start..start + self.n_tokens]
    }
}

/// The largest of `weights` with their positions, at most `n` of those above 0, largest first; of equals
/// the earlier.
#[must_use]
pub fn strongest(weights: &[f32], n: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = weights.iter().copied().enumerate().collect();
    order.retain(|(_, weight)| *weight > 0.0);
    order.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable
    order.truncate(n);
    order
}

/// Which heads are to be shown: those of one layer or all, one of each or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The layers, counted from 0.
    pub layers: Range<usize>,
    /// The heads of each, counted from 0.
    pub heads: Range<usize>,
}

impl Selection {
    /// One layer or all, one head or all, of a model with as many as given.
    ///
    /// # Errors
    /// If there is no such layer or head.
    pub fn new(
        layer: Option<usize>,
        head: Option<usize>,
        n_layers: usize,
        n_heads: usize,
    ) -> Result<Self, InspectError> {
        if let Some(layer) = layer {
            InspectError::check_layer(layer, n_layers)?;
        }
        if let Some(head) = head {
            InspectError::check_head(head, n_heads)?;
        }
        let one_or_all = |one: Option<usize>, n| one.map_or(0..n, |index| index..index + 1);
        Ok(Self { layers: one_or_all(layer, n_layers), heads: one_or_all(head, n_heads) })
    }

    /// The layer and head, where it is a single one.
    #[must_use]
    pub fn single(&self) -> Option<(usize, usize)> {
        (self.layers.len() == 1 && self.heads.len() == 1)
            .then_some((self.layers.start, self.heads.start))
    }
}

/// What is shown of one prompt's attention, in whichever form.
#[derive(Clone, Copy, Debug)]
pub struct AttentionView<'a> {
    /// The tokens.
    pub prompt: &'a Prompt,
    /// Who looks at whom.
    pub maps: &'a AttentionMaps,
    /// Which heads.
    pub selection: &'a Selection,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_found_by_layer_and_head() {
        let maps = AttentionMaps::new(2, 2, 2, (0..16_u8).map(f32::from).collect());
        assert_eq!(maps.map(1, 0), [8.0, 9.0, 10.0, 11.0]);
        assert_eq!(maps.row(0, 1, 1), [6.0, 7.0]);
    }

    #[test]
    fn the_strongest_come_first_and_of_equals_the_earlier() {
        let row = [0.25, 0.5, 0.25, 0.0];
        assert_eq!(strongest(&row, 2), [(1, 0.5), (0, 0.25)]);
        assert_eq!(strongest(&row, 9).len(), 3);
    }

    #[test]
    fn a_selection_is_within_the_model() {
        let select = |layer, head| Selection::new(layer, head, 2, 4);
        assert_eq!(select(None, None).expect("all").layers, 0..2);
        assert_eq!(select(Some(1), Some(3)).expect("last").single(), Some((1, 3)));
        assert_eq!(select(Some(1), None).expect("a layer").single(), None);
        assert!(matches!(
            select(Some(2), None),
            Err(InspectError::NoSuchLayer { layer: 2, n_layers: 2 })
        ));
        assert!(matches!(
            select(None, Some(4)),
            Err(InspectError::NoSuchHead { head: 4, n_heads: 4 })
        ));
    }
}
