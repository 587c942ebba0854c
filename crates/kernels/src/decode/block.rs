//! A square of weights in each precision: how it is packed, and how it becomes numbers in registers.

use pulp::Simd;

use super::{Row, WIDTH};

/// 32 rows of a panel, as they lie in memory: numbers of f32 and u32 and nothing else.
pub(super) trait Block: Copy + Send + Sync {
    /// Whether the numbers are to be multiplied by a scale for each column.
    const SCALED: bool;

    /// The block that comes closest to these numbers.
    fn pack(values: &[Row; WIDTH]) -> Self;

    /// One number, as close as the block has it.
    fn value(&self, row: usize, column: usize) -> f32;

    /// The rows `2 pair` and `2 pair + 1`, each in V registers; unscaled.
    fn pair<S: Simd, const V: usize>(&self, simd: S, pair: usize) -> [[S::f32s; V]; 2];

    /// The scales of all columns, in V registers.
    fn scales<S: Simd, const V: usize>(&self, simd: S) -> [S::f32s; V];
}

/// Numbers as they are.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Whole(pub(super) [Row; WIDTH]);

/// The upper halves of f32, rounded to the nearest, to even where two are as near. A word of a row holds a column
/// in its lower half, and the one 16 columns further in its upper half: a shift and a mask take it apart.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Bf16([[u32; HALF]; WIDTH]);

/// Whole numbers from -127 to 127, stored 128 higher, and a scale for each column: its largest number is
/// 127 scales away from 0.
///
/// A word of two rows holds, from its lowest byte on, the first row's column, the one 16 columns further, and the
/// same of the second row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Int8 {
    scales: Row,
    pairs: [[u32; HALF]; HALF],
}

const HALF: usize = WIDTH / 2;

impl Block for Whole {
    const SCALED: bool = false;

    fn pack(values: &[Row; WIDTH]) -> Self {
        Self(*values)
    }

    fn value(&self, row: usize, column: usize) -> f32 {
        self.0[row].0[column]
    }

    #[inline(always)]
    fn pair<S: Simd, const V: usize>(&self, simd: S, pair: usize) -> [[S::f32s; V]; 2] {
        [registers(simd, &self.0[2 * pair]), registers(simd, &self.0[2 * pair + 1])]
    }

    #[inline(always)]
    fn scales<S: Simd, const V: usize>(&self, simd: S) -> [S::f32s; V] {
        [simd.splat_f32s(1.0); V]
    }
}

impl Block for Bf16 {
    const SCALED: bool = false;

    fn pack(values: &[Row; WIDTH]) -> Self {
        let word = |row: &Row, column: usize| {
            upper_half(row.0[column]) | upper_half(row.0[column + HALF]) << 16
        };
        Self(std::array::from_fn(|row| std::array::from_fn(|column| word(&values[row], column))))
    }

    fn value(&self, row: usize, column: usize) -> f32 {
        let word = self.0[row][column % HALF];
        f32::from_bits(match column < HALF {
            true => word << 16,
            false => word & 0xFFFF_0000,
        })
    }

    #[inline(always)]
    fn pair<S: Simd, const V: usize>(&self, simd: S, pair: usize) -> [[S::f32s; V]; 2] {
        let (sixteen, upper) = (simd.splat_u32s(16), simd.splat_u32s(0xFFFF_0000));
        let mut rows = [[simd.splat_f32s(0.0); V]; 2];
        for (row, words) in rows.iter_mut().zip(&self.0[2 * pair..2 * pair + 2]) {
            let (words, _) = S::as_simd_u32s(words);
            for (i, words) in words.iter().enumerate() {
                row[i] = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(*words, sixteen));
                row[V / 2 + i] = simd.transmute_f32s_u32s(simd.and_u32s(*words, upper));
            }
        }
        rows
    }

    #[inline(always)]
    fn scales<S: Simd, const V: usize>(&self, simd: S) -> [S::f32s; V] {
        [simd.splat_f32s(1.0); V]
    }
}

impl Block for Int8 {
    const SCALED: bool = true;

    fn pack(values: &[Row; WIDTH]) -> Self {
        let scales: [f32; WIDTH] = std::array::from_fn(|column| {
            let sizes = values.iter().map(|row| row.0[column].abs());
            match sizes.clone().all(f32::is_finite) {
                true => sizes.fold(0.0, f32::max) / 127.0,
                false => f32::NAN, // all of them: a damaged model is not to look like a whole one
            }
        });
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to 255, or nothing of what is not a number"
        )]
        let byte = |row: usize, column: usize| match scales[column] {
            0.0 => 128,
            // The scale of the smallest numbers there are is itself rounded.
            scale => {
                let steps = (values[row].0[column] / scale).round();
                (steps.clamp(-127.0, 127.0) + 128.0) as u32
            }
        };
        let word = |pair: usize, column: usize| {
            [2 * pair, 2 * pair + 1]
                .into_iter()
                .flat_map(|row| [byte(row, column), byte(row, column + HALF)])
                .rev()
                .fold(0, |word, byte| word << 8 | byte)
        };
        Self {
            scales: Row(scales),
            pairs: std::array::from_fn(|pair| std::array::from_fn(|column| word(pair, column))),
        }
    }

    fn value(&self, row: usize, column: usize) -> f32 {
        let bytes = self.pairs[row / 2][column % HALF].to_le_bytes();
        let byte = bytes[2 * (row % 2) + column / HALF];
        (f32::from(byte) - 128.0) * self.scales.0[column]
    }

    #[inline(always)]
    fn pair<S: Simd, const V: usize>(&self, simd: S, pair: usize) -> [[S::f32s; V]; 2] {
        // A byte in the lowest bits of 2^23 is a number by itself: no conversion is needed.
        const EXPONENT: u32 = 0x4B00_0000;
        let offset = simd.splat_f32s(8_388_608.0 + 128.0);
        let (lowest, exponent) = (simd.splat_u32s(0xFF), simd.splat_u32s(EXPONENT));
        let number = |words, shift| {
            let bytes = simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(shift));
            let bits = simd.or_u32s(simd.and_u32s(bytes, lowest), exponent);
            simd.sub_f32s(simd.transmute_f32s_u32s(bits), offset)
        };
        let mut rows = [[simd.splat_f32s(0.0); V]; 2];
        let (words, _) = S::as_simd_u32s(&self.pairs[pair]);
        for (i, words) in words.iter().enumerate() {
            rows[0][i] = number(*words, 0);
            rows[0][V / 2 + i] = number(*words, 8);
            rows[1][i] = number(*words, 16);
            rows[1][V / 2 + i] = number(*words, 24);
        }
        rows
    }

    #[inline(always)]
    fn scales<S: Simd, const V: usize>(&self, simd: S) -> [S::f32s; V] {
        registers(simd, &self.scales)
    }
}

/// A row in V registers.
#[inline(always)]
pub(super) fn registers<S: Simd, const V: usize>(simd: S, row: &Row) -> [S::f32s; V] {
    let (row, _) = S::as_simd_f32s(&row.0);
    let mut registers = [simd.splat_f32s(0.0); V];
    for (register, values) in registers.iter_mut().zip(row) {
        *register = *values;
    }
    registers
}

/// The upper half of a number's bits, once rounded to it.
fn upper_half(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() {
        return bits >> 16 | 1; // rounding could make an infinity of it
    }
    let is_odd = bits >> 16 & 1;
    (bits + 0x7FFF + is_odd) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise() -> [Row; WIDTH] {
        std::array::from_fn(|row| {
            Row(std::array::from_fn(|column| {
                let bits = (row * 77 + column * 13 + 5) as u32;
                let bits = bits.wrapping_mul(0x9E37_79B9);
                (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
            }))
        })
    }

    /// Every number of the block as the products see it.
    fn unpacked<B: Block>(block: &B) -> Vec<f32> {
        let scales: [f32; WIDTH] = block.scales(pulp::Scalar);
        (0..WIDTH / 2)
            .flat_map(|pair| block.pair::<_, WIDTH>(pulp::Scalar, pair))
            .flat_map(|row| std::iter::zip(row, scales).map(|(x, scale)| x * scale))
            .collect()
    }

    fn check<B: Block>(tolerance: impl Fn(f32, f32) -> f32) {
        let values = noise();
        let block = B::pack(&values);
        let unpacked = unpacked(&block);
        for (row, column) in (0..WIDTH).flat_map(|row| (0..WIDTH).map(move |c| (row, c))) {
            let want = values[row].0[column];
            let got = block.value(row, column);
            let largest = values.iter().fold(0.0_f32, |m, row| m.max(row.0[column].abs()));
            assert!((got - want).abs() <= tolerance(want, largest), "{got} for {want}");
            assert_eq!(unpacked[row * WIDTH + column].to_bits(), got.to_bits());
        }
    }

    #[test]
    fn numbers_come_back_as_close_as_each_precision_holds_them() {
        check::<Whole>(|_, _| 0.0);
        check::<Bf16>(|x, _| x.abs() / 256.0); // 8 bits: half a step of 2^-7
        check::<Int8>(|_, largest| largest / 127.0 * 0.500_01); // half a step
    }

    #[test]
    fn what_is_not_a_number_stays_so_and_zeros_stay_zeros() {
        assert_eq!(upper_half(f32::INFINITY), 0x7F80);
        assert!(f32::from_bits(upper_half(f32::from_bits(0x7FFF_FFFF)) << 16).is_nan());
        assert_eq!(upper_half(1.0 + 1.0 / 256.0), 0x3F80, "to even");
        assert_eq!(upper_half(1.0 + 3.0 / 256.0), 0x3F82, "to even");
        let zeros = Int8::pack(&[Row::ZERO; WIDTH]);
        assert!(unpacked(&zeros).iter().all(|x| *x == 0.0));
    }

    #[test]
    fn the_smallest_numbers_leave_their_neighbours_alone() {
        let mut values = [Row([1.0; WIDTH]); WIDTH];
        for (row, sign) in values.iter_mut().zip([1.0, -1.0].into_iter().cycle()) {
            row.0[3] = sign * f32::from_bits(190);
        }
        let numbers = unpacked(&Int8::pack(&values));
        for row in numbers.chunks_exact(WIDTH) {
            for (column, x) in row.iter().enumerate() {
                let is_small = column == 3 && x.abs() <= f32::from_bits(190);
                assert!(is_small || (x - 1.0).abs() < 1e-6, "{column}: {x}");
            }
        }
    }
}
