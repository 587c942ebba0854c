//! The temporary memory of a tensor's update, besides its weights, gradient and running means.

use super::Operations;

/// Bytes of an f32.
const F32: f64 = 4.0;

/// Squares of a matrix's smaller side that hold its polynomials on a CPU: the Gram matrix, the product of the
/// polynomials so far, the next one, and packed copies of all three.
const SQUARES: f64 = 6.0;

/// Temporary bytes for the update of one tensor. If Muon updates it, `widths` are those of its matrices side by side.
#[must_use]
pub fn update_memory(shape: &[usize], widths: Option<&[usize]>, operations: Operations) -> f64 {
    let whole = F32 * shape.iter().map(|size| *size as f64).product::<f64>();
    let Some(widths) = widths else {
        return match operations {
            Operations::Fused => 0.0,            // AdamW in place
            Operations::Composed => 2.0 * whole, // the new means next to the old ones
        };
    };
    let n_rows = shape[0];
    let of_matrix = |width: &usize| {
        let (matrix, square) = (F32 * (n_rows * width) as f64, F32 * (n_rows.min(*width) as f64).powi(2));
        match operations {
            // In place, from a packed copy. One that is not tall is first packed by rows, where a square comes later.
            Operations::Fused if n_rows > *width => matrix + SQUARES * square,
            Operations::Fused => 2.0 * matrix + (SQUARES - 1.0) * square,
            // Each iteration needs two more matrices of the same shape, and a square one of the smaller side.
            Operations::Composed => square,
        }
    };
    let largest = widths.iter().map(of_matrix).fold(0.0, f64::max);
    match operations {
        Operations::Fused => largest,
        Operations::Composed => 2.0 * whole + largest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn muon_needs_packed_copies_and_squares_of_the_smaller_side() {
        let check = |shape: [usize; 2], widths: Option<&[usize]>, by_hand: [u32; 2]| {
            for (operations, numbers) in [Operations::Fused, Operations::Composed].into_iter().zip(by_hand) {
                let found = update_memory(&shape, widths, operations);
                assert!((found - 4.0 * f64::from(numbers)).abs() < 0.5, "{shape:?}: {found} bytes, {numbers} numbers");
            }
        };
        check([4, 8], None, [0, 2 * 32]);
        check([4, 8], Some(&[8]), [2 * 32 + 5 * 16, 2 * 32 + 16]);
        check([4, 80], Some(&[80]), [2 * 320 + 5 * 16, 2 * 320 + 16]);
        check([8, 4], Some(&[4]), [32 + 6 * 16, 2 * 32 + 16]);
        check([4, 12], Some(&[8, 4]), [2 * 32 + 5 * 16, 2 * 48 + 16]);
    }
}
