//! Decodes the blocks of quantised types: integers of a few bits with their scales. `docs/gguf.md` has the formulas.
//!
//! Every product and sum is rounded to f32 in the order of ggml's reference, so that the numbers are the same to the
//! bit. Source: ggml, `ggml-quants.c`, the functions `dequantize_row_*`.

use half::f16;

/// The values of the four bits of `IQ4_NL` and `IQ4_XS`.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The values of the four bits of `MXFP4`, doubled: floats with one bit of mantissa.
const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn q8_0(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, quants) = scale(block);
    numbers.extend(quants.iter().map(|q| f32::from(q.cast_signed()) * d));
}

pub(super) fn q4_0(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, quants) = scale(block);
    numbers.extend(fields(quants, 16, 4).map(|q| (f32::from(q) - 8.0) * d));
}

pub(super) fn q4_1(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, rest) = scale(block);
    let (m, quants) = scale(rest);
    numbers.extend(fields(quants, 16, 4).map(|q| f32::from(q) * d + m));
}

pub(super) fn q5_0(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, rest) = scale(block);
    let (high, low) = rest.split_at(4);
    let quants = joined(fields(low, 16, 4), fields(high, 1, 1), 4);
    numbers.extend(quants.map(|q| (f32::from(q) - 16.0) * d));
}

pub(super) fn q5_1(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, rest) = scale(block);
    let (m, rest) = scale(rest);
    let (high, low) = rest.split_at(4);
    let quants = joined(fields(low, 16, 4), fields(high, 1, 1), 4);
    numbers.extend(quants.map(|q| f32::from(q) * d + m));
}

pub(super) fn q2_k(block: &[u8], numbers: &mut Vec<f32>) {
    let (scales, rest) = block.split_at(16);
    let (quants, rest) = rest.split_at(64);
    let (d, rest) = scale(rest);
    let (d_min, _) = scale(rest);
    let scales = |at: usize| (d * f32::from(scales[at] & 15), d_min * f32::from(scales[at] >> 4));
    scaled_and_shifted(fields(quants, 32, 2), 16, scales, numbers);
}

pub(super) fn q3_k(block: &[u8], numbers: &mut Vec<f32>) {
    let (high, rest) = block.split_at(32);
    let (low, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(12);
    let (d, _) = scale(d);
    let scales: [u8; 16] = array(joined(fields(&scales[..8], 8, 4), fields(&scales[8..], 4, 2), 4));
    let scales = |at: usize| d * (f32::from(scales[at]) - 32.0);
    let quants = joined(fields(low, 32, 2), fields(high, 32, 1), 2);
    scaled(quants.map(|q| f32::from(q) - 4.0), 16, scales, numbers);
}

pub(super) fn q4_k(block: &[u8], numbers: &mut Vec<f32>) {
    let (scales, quants) = block.split_at(16);
    scaled_and_shifted(fields(quants, 32, 4), 32, scales_of_32(scales), numbers);
}

pub(super) fn q5_k(block: &[u8], numbers: &mut Vec<f32>) {
    let (scales, rest) = block.split_at(16);
    let (high, low) = rest.split_at(32);
    let quants = joined(fields(low, 32, 4), fields(high, 32, 1), 4);
    scaled_and_shifted(quants, 32, scales_of_32(scales), numbers);
}

pub(super) fn q6_k(block: &[u8], numbers: &mut Vec<f32>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let (d, _) = scale(d);
    let quants = joined(fields(low, 64, 4), fields(high, 32, 2), 4);
    let scales = |at: usize| d * f32::from(scales[at].cast_signed());
    scaled(quants.map(|q| f32::from(q) - 32.0), 16, scales, numbers);
}

pub(super) fn iq4_nl(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, quants) = scale(block);
    numbers.extend(fields(quants, 16, 4).map(|q| d * f32::from(IQ4[usize::from(q)])));
}

pub(super) fn iq4_xs(block: &[u8], numbers: &mut Vec<f32>) {
    let (d, rest) = scale(block);
    let (high, rest) = rest.split_at(2);
    let (low, quants) = rest.split_at(4);
    let scales: [u8; 8] = array(joined(fields(low, 1, 4), fields(high, 1, 2), 4));
    let scales = |at: usize| d * (f32::from(scales[at]) - 32.0);
    scaled(fields(quants, 16, 4).map(|q| f32::from(IQ4[usize::from(q)])), 32, scales, numbers);
}

pub(super) fn mxfp4(block: &[u8], numbers: &mut Vec<f32>) {
    let (exponent, quants) = (u32::from(block[0]), &block[1..]);
    // 2^(exponent - 128): half of the scale, since the table is doubled. Two of them are subnormal.
    let d = f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 });
    numbers.extend(fields(quants, 16, 4).map(|q| d * f32::from(FP4[usize::from(q)])));
}

/// The f16 at the start of `bytes`, and the bytes after it.
fn scale(bytes: &[u8]) -> (f32, &[u8]) {
    let (scale, rest) = bytes.split_first_chunk().expect("a block has its scales");
    (f16::from_le_bytes(*scale).to_f32(), rest)
}

/// Integers of `width` bits. Each group of bytes gives the lowest bits of all its bytes, then the next bits of all.
fn fields(bytes: &[u8], group: usize, width: u8) -> impl Iterator<Item = u8> {
    let mask = (1 << width) - 1;
    let shifts = move || (0..8 / width).map(move |at| at * width);
    bytes
        .chunks_exact(group)
        .flat_map(move |group| shifts().flat_map(move |shift| group.iter().map(move |byte| byte >> shift & mask)))
}

/// Integers whose lowest `width` bits are in `low`, and the others in `high`.
fn joined(low: impl Iterator<Item = u8>, high: impl Iterator<Item = u8>, width: u8) -> impl Iterator<Item = u8> {
    low.zip(high).map(move |(low, high)| low | high << width)
}

fn array<const N: usize>(mut of: impl Iterator<Item = u8>) -> [u8; N] {
    std::array::from_fn(|_| of.next().expect("the block holds N integers"))
}

/// The scale and the minimum of each 32 numbers in `Q4_K` and `Q5_K`, from two f16 and 16 integers of 6 bits in 12
/// bytes: the first four of both kinds in the lower bits of bytes 0 to 7, the others in bytes 8 to 11 and the two upper
/// bits of bytes 0 to 7.
fn scales_of_32(bytes: &[u8]) -> impl Fn(usize) -> (f32, f32) {
    let (d, rest) = scale(bytes);
    let (d_min, packed) = scale(rest);
    let packed: [u8; 12] = array(packed.iter().copied());
    let integers = move |at: usize| match at {
        0..4 => (packed[at] & 63, packed[at + 4] & 63),
        _ => (packed[at + 4] & 15 | packed[at - 4] >> 6 << 4, packed[at + 4] >> 4 | packed[at] >> 6 << 4),
    };
    move |at| {
        let (scale, min) = integers(at);
        (d * f32::from(scale), d_min * f32::from(min))
    }
}

/// Appends integers; every `n` share a scale.
fn scaled(quants: impl Iterator<Item = f32>, n: usize, scale: impl Fn(usize) -> f32, numbers: &mut Vec<f32>) {
    numbers.extend(quants.enumerate().map(|(at, q)| scale(at / n) * q));
}

/// Appends integers; every `n` share a scale and a minimum, which is subtracted.
fn scaled_and_shifted(
    quants: impl Iterator<Item = u8>,
    n: usize,
    scales: impl Fn(usize) -> (f32, f32),
    numbers: &mut Vec<f32>,
) {
    numbers.extend(quants.enumerate().map(|(at, q)| {
        let (scale, min) = scales(at / n);
        scale * f32::from(q) - min
    }));
}
