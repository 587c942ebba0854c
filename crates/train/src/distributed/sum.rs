//! Sums over all processes (all-reduce). Each process sums one part of the numbers in the order of the ranks
//! (reduce-scatter), then all parts are gathered (all-gather). The result thus depends on the number of processes, but
//! not on the algorithms that MPI chooses.

use half::bf16;
use serde::{Deserialize, Serialize};

use super::Collective;

/// The most numbers in one exchange (16 MiB in f32), which limits the memory for the two copies of them.
pub const MOST_NUMBERS: usize = 1 << 22;

/// The type of values in messages. Sums are computed in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeDtype {
    /// The numbers as they are, in f32.
    #[default]
    F32,
    /// Rounded to 8 significant bits, as is the sum sent back, which halves the bytes.
    ///
    /// With `u = 2^-8`, the error of a sum `s` of the numbers `x` is at most `u (|s| + (1 + u) sum |x|)`, plus the
    /// rounding of f32.
    Bf16,
}

impl ExchangeDtype {
    /// The number of bytes per number.
    pub const fn n_bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::Bf16 => size_of::<bf16>(),
        }
    }

    fn pack(self, values: &[f32], bytes: &mut Vec<u8>) {
        bytes.clear();
        match self {
            Self::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::Bf16 => bytes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
        }
    }

    /// Replaces each value with the result of `combine` on the value and the number received.
    fn unpack(self, bytes: &[u8], values: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = combine(*value, f32::from_le_bytes(*bytes));
                }
            }
            Self::Bf16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = combine(*value, bf16::from_le_bytes(*bytes).to_f32());
                }
            }
        }
    }
}

/// Replaces each number with its sum over all processes, bitwise identical on every process.
pub(super) fn all_reduce(collective: &dyn Collective, values: &mut [f32], dtype: ExchangeDtype) {
    if collective.size() > 1 {
        values.chunks_mut(MOST_NUMBERS).for_each(|piece| sum_piece(collective, piece, dtype));
    }
}

fn sum_piece(collective: &dyn Collective, values: &mut [f32], dtype: ExchangeDtype) {
    let replaced = |_, arrived| arrived;
    let n_of_part = values.len().div_ceil(collective.size());
    let bytes_of_part = n_of_part * dtype.n_bytes();
    let mut own = Vec::with_capacity(bytes_of_part * collective.size());
    dtype.pack(values, &mut own);
    own.resize(bytes_of_part * collective.size(), 0); // so that all parts have the same length
    let mut arrived = vec![0; own.len()];
    collective.all_to_all(&own, &mut arrived);

    let mut sums = vec![0.0; n_of_part];
    for (rank, theirs) in arrived.chunks_exact(bytes_of_part).enumerate() {
        match rank {
            0 => dtype.unpack(theirs, &mut sums, replaced),
            _ => dtype.unpack(theirs, &mut sums, |sum, number| sum + number),
        }
    }
    dtype.pack(&sums, &mut own);
    collective.all_gather(&own, &mut arrived);
    dtype.unpack(&arrived, values, replaced);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::threads::on_ranks;

    /// The sums of the rows, as computed by each of the threads, one per row.
    fn sums(rows: &[Vec<f32>], dtype: ExchangeDtype) -> Vec<Vec<f32>> {
        let sums = on_ranks(rows.len(), |rank| {
            let mut values = rows[rank.rank()].clone();
            all_reduce(&rank, &mut values, dtype);
            values
        });
        sums.into_iter().map(Result::unwrap).collect()
    }

    /// Numbers of different magnitudes and signs, which f32 does not add exactly.
    fn rows(n_ranks: usize, length: usize) -> Vec<Vec<f32>> {
        let number = |seed: usize| {
            let mixed = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            (mixed as f32 / 8e6 - 1.0) * 10_f32.powi((mixed % 7) as i32 - 3)
        };
        (0..n_ranks).map(|rank| (0..length).map(|i| number(1 + rank * length + i)).collect()).collect()
    }

    #[test]
    fn ranks_get_sums_in_rank_order() {
        for (n_ranks, length) in [(1, 5), (2, 5), (3, 2), (4, 9), (5, 100)] {
            let rows = rows(n_ranks, length);
            let expected: Vec<u32> =
                (0..length).map(|i| rows[1..].iter().fold(rows[0][i], |sum, row| sum + row[i]).to_bits()).collect();
            for sums in sums(&rows, ExchangeDtype::F32) {
                assert_eq!(sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>(), expected, "{n_ranks} ranks");
            }
        }
    }

    #[test]
    fn bf16_sum_error_is_within_bound() {
        let u = 1.0 / 256.0;
        for n_ranks in [2, 3, 4] {
            let rows = rows(n_ranks, 1000);
            let found = sums(&rows, ExchangeDtype::Bf16);
            assert!(found.iter().all(|sums| sums == &found[0]), "all ranks have the same");
            let mut largest = 0.0_f64;
            for (i, sum) in found[0].iter().enumerate() {
                let numbers = rows.iter().map(|row| f64::from(row[i]));
                let (exact, sizes) = numbers.fold((0.0, 0.0), |(sum, sizes), x| (sum + x, sizes + x.abs()));
                let bound = u * (exact.abs() + (1.0 + u) * sizes) + 1e-6 * sizes;
                let error = (f64::from(*sum) - exact).abs();
                assert!(error <= bound, "{error} above {bound}");
                largest = largest.max(error / bound);
            }
            assert!(largest > 0.3, "it is rounded: {largest}");
        }
        let broken = sums(&[vec![f32::NAN, 1.0], vec![1.0, f32::INFINITY]], ExchangeDtype::Bf16);
        assert!(broken[1][0].is_nan() && broken[0][1].is_infinite());
    }
}
