//! The elements of weights that are multiplied with rows of f32. They are widened in registers.

use pulp::{Scalar, Simd};

use super::element::{Bf16x2, Row, WIDTH, Word, load_bits};

/// Elements of a right matrix whose left matrix is in f32, in blocks of 32 rows of scalars.
pub(crate) trait Weight: Word {
    /// Whether a block has a scale per column, in a row after its scalars.
    const SCALED: bool = false;

    /// The number of rows of elements in a block.
    const ROWS: usize = WIDTH / Self::SCALARS + Self::SCALED as usize;

    /// Quantizes these scalars to a block.
    fn pack(scalars: &[Row; WIDTH], out: &mut [Row<Self>]);

    /// Scalar `i` of each element from `column` on, in V registers, not yet scaled.
    fn widen<S: Simd, const V: usize>(simd: S, row: &Row<Self>, column: usize, i: usize) -> [S::f32s; V];

    fn value(block: &[Row<Self>], row: usize, column: usize) -> f32 {
        let i = row % Self::SCALARS;
        let [scalar] = Self::widen::<_, 1>(Scalar, &block[row / Self::SCALARS], column, i);
        let [scale] = scales::<_, _, 1>(Scalar, block, column);
        scalar * scale
    }
}

#[inline(always)]
pub(crate) fn scales<S: Simd, W: Weight, const V: usize>(simd: S, block: &[Row<W>], column: usize) -> [S::f32s; V] {
    let mut scales = [simd.splat_f32s(1.0); V];
    if W::SCALED {
        let bits = load_bits::<S, W, V>(&block[W::ROWS - 1], column);
        for (scale, bits) in scales.iter_mut().zip(bits) {
            *scale = simd.transmute_f32s_u32s(bits);
        }
    }
    scales
}

impl Weight for f32 {
    fn pack(scalars: &[Row; WIDTH], out: &mut [Row]) {
        out.copy_from_slice(scalars);
    }

    #[inline(always)]
    fn widen<S: Simd, const V: usize>(_: S, row: &Row, column: usize, _: usize) -> [S::f32s; V] {
        let (registers, _) = S::as_simd_f32s(&row[column..column + V * S::F32_LANES]);
        registers.try_into().expect("V registers")
    }
}

impl Weight for Bf16x2 {
    fn pack(scalars: &[Row; WIDTH], out: &mut [Row<Self>]) {
        for (out, [first, second]) in out.iter_mut().zip(scalars.as_chunks().0) {
            *out = std::array::from_fn(|column| Self::new(first[column], second[column]));
        }
    }

    #[inline(always)]
    fn widen<S: Simd, const V: usize>(simd: S, row: &Row<Self>, column: usize, i: usize) -> [S::f32s; V] {
        let mut scalars = [simd.splat_f32s(0.0); V];
        for (scalars, pairs) in scalars.iter_mut().zip(load_bits::<S, _, V>(row, column)) {
            *scalars = Self::half(simd, pairs, i);
        }
        scalars
    }
}

impl Int8x4 {
    /// Its scalars, each with 128 added.
    pub(super) fn bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// The scale of a column, if this element holds one.
    pub(super) fn scale(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// Four integers from -127 to 127, each stored in a byte with 128 added, the first in the lowest byte. The largest
/// magnitude in a block's column is 127 times its scale.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Int8x4(u32);

// SAFETY: a u32 has the size and alignment of an f32, and every bit pattern is valid.
unsafe impl Word for Int8x4 {
    const SCALARS: usize = 4;
}

impl Weight for Int8x4 {
    const SCALED: bool = true;

    fn pack(scalars: &[Row; WIDTH], out: &mut [Row<Self>]) {
        let scales: Row = std::array::from_fn(|column| {
            let sizes = scalars.iter().map(|row| row[column].abs());
            match sizes.clone().all(f32::is_finite) {
                true => sizes.fold(0.0, f32::max) / 127.0,
                false => f32::NAN, // so that the column of a damaged model does not look intact
            }
        });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 255, and 0 for NaN")]
        let byte = |scalar: f32, scale: f32| match scale {
            0.0 => 128,
            // Clamped, because a subnormal scale is itself rounded.
            scale => ((scalar / scale).round().clamp(-127.0, 127.0) + 128.0) as u8,
        };
        let (scale_row, rows) = out.split_last_mut().expect("a block ends with its scales");
        for (out, scalars) in rows.iter_mut().zip(scalars.as_chunks::<4>().0) {
            *out = std::array::from_fn(|column| {
                let bytes = scalars.map(|row| byte(row[column], scales[column]));
                Self(u32::from_le_bytes(bytes))
            });
        }
        *scale_row = scales.map(|scale| Self(scale.to_bits()));
    }

    #[inline(always)]
    fn widen<S: Simd, const V: usize>(simd: S, row: &Row<Self>, column: usize, i: usize) -> [S::f32s; V] {
        // A byte in the lowest bits of 2^23 is the float of that integer plus 2^23: no conversion is needed.
        let exponent = simd.splat_u32s(0x4B00_0000);
        let offset = simd.splat_f32s(8_388_608.0 + 128.0);
        #[allow(clippy::cast_possible_truncation, reason = "one of four")]
        let shift = simd.splat_u32s(8 * i as u32);
        let mut scalars = [offset; V];
        for (scalars, bits) in scalars.iter_mut().zip(load_bits::<S, _, V>(row, column)) {
            let bytes = simd.wrapping_dyn_shr_u32s(bits, shift);
            let bits = simd.or_u32s(simd.and_u32s(bytes, simd.splat_u32s(0xFF)), exponent);
            *scalars = simd.sub_f32s(simd.transmute_f32s_u32s(bits), offset);
        }
        scalars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    const ZEROS: [Row; WIDTH] = [[0.0; WIDTH]; WIDTH];

    fn packed<W: Weight>(scalars: &[Row; WIDTH]) -> Vec<Row<W>> {
        let mut block = vec![[W::default(); WIDTH]; W::ROWS];
        W::pack(scalars, &mut block);
        block
    }

    fn check<W: Weight>(tolerance: impl Fn(f32, f32) -> f32) {
        let noise = noise(WIDTH * WIDTH, 1);
        let scalars: &[Row; WIDTH] = noise.as_chunks().0.try_into().expect("the noise fills a block");
        let block = packed::<W>(scalars);
        for (row, column) in (0..WIDTH).flat_map(|row| (0..WIDTH).map(move |c| (row, c))) {
            let (want, got) = (scalars[row][column], W::value(&block, row, column));
            let largest = scalars.iter().fold(0.0_f32, |m, row| m.max(row[column].abs()));
            assert!((got - want).abs() <= tolerance(want, largest), "{got} for {want}");
        }
    }

    #[test]
    fn weights_round_to_half_a_step() {
        check::<f32>(|_, _| 0.0);
        check::<Bf16x2>(|x, _| x.abs() / 256.0); // 8 bits: half a step of 2^-7
        check::<Int8x4>(|_, largest| largest / 127.0 * 0.500_01); // half a step
    }

    #[test]
    fn int8_keeps_zeros_and_isolates_subnormal_columns() {
        let zeros = packed::<Int8x4>(&ZEROS);
        assert!((0..WIDTH).all(|i| Int8x4::value(&zeros, i, i) == 0.0));
        let mut scalars = [[1.0; WIDTH]; WIDTH];
        for (row, sign) in scalars.iter_mut().zip([1.0, -1.0].into_iter().cycle()) {
            row[3] = sign * f32::from_bits(190);
        }
        let block = packed::<Int8x4>(&scalars);
        for (row, column) in (0..WIDTH).flat_map(|row| (0..WIDTH).map(move |c| (row, c))) {
            let x = Int8x4::value(&block, row, column);
            let is_small = column == 3 && x.abs() <= f32::from_bits(190);
            assert!(is_small || (x - 1.0).abs() < 1e-6, "{column}: {x}");
        }
    }
}
