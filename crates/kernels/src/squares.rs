//! Sums of squares, of which the norm of a gradient is made.

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::fused;

/// Numbers that burn sums in one go: more than these flex shares out among threads as they come, and the sum of
/// a run would differ from that of the next in its last bits.
const MOST_SUMMED: usize = 1 << 20;

/// The sum of all squares, in an order that does not depend on threads.
///
/// # Shapes
/// `[n]` -> `[1]`
///
/// # Panics
/// If there are no numbers.
#[must_use]
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    #[cfg(feature = "flex")]
    if fused::is_for(&x) {
        return fused::update::sum_of_squares(x);
    }
    composed_sum_of_squares(x)
}

/// [`sum_of_squares`] by burn's own operations.
pub(super) fn composed_sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    let parts = x.split(MOST_SUMMED, 0).into_iter();
    let squares = parts.map(|part| (part.clone() * part).sum());
    squares.reduce(|sum, square| sum + square).expect("a parameter has numbers")
}
