//! What the machine could do: a loop of nothing but multiply-adds, which no product of matrices can beat, and loops that
//! do nothing but read and write memory.

use std::hint::black_box;
use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use crate::gemm::MatrixUnit;
use crate::gemm::{Arithmetic, Bf16x2, Element, WithArithmetic, Word};
use crate::{MatmulPrecision, simd};

/// As many registers of sums as hide the latency of a multiply-add and fit every instruction set.
const SUMS: usize = 12;

/// Multiplies and adds in the registers of one core, with the instructions that products in `precision` use at the
/// current [`SimdLevel`](crate::SimdLevel): `rounds` times as many as hide their latency. Returns the number of
/// floating-point operations, a multiply-add counted as two.
#[must_use]
pub fn multiply_adds(precision: MatmulPrecision, rounds: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let (MatmulPrecision::Bf16, Some(unit)) = (precision, MatrixUnit::current()) {
        return unit.multiply_adds(rounds);
    }
    let mut flops = 0.0;
    match precision {
        MatmulPrecision::F32 => simd::dispatch(Loop::<f32> { rounds, flops: &mut flops, elements: PhantomData }),
        MatmulPrecision::Bf16 => simd::dispatch(Loop::<Bf16x2> { rounds, flops: &mut flops, elements: PhantomData }),
    }
    flops
}

struct Loop<'a, E> {
    rounds: usize,
    flops: &'a mut f64,
    elements: PhantomData<E>,
}

impl<E: Element> WithSimd for Loop<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        E::run(simd, self);
    }
}

impl<E: Element> WithArithmetic for Loop<'_, E> {
    type Element = E;

    #[inline(always)]
    fn with(self, arithmetic: impl Arithmetic<Element = E>) {
        *self.flops = (self.rounds * run(arithmetic, self.rounds)) as f64;
    }
}

/// Returns the operations of a round.
#[inline(always)]
fn run<A: Arithmetic>(arithmetic: A, rounds: usize) -> usize {
    let factor = arithmetic.spread(A::Element::first(&[0.5, 0.5]));
    let mut sums = [arithmetic.simd().splat_f32s(1.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = arithmetic.multiply_add(factor, factor, *sum);
        }
    }
    black_box(sums);
    2 * SUMS * A::Simd::F32_LANES * A::Element::NUMBERS
}

/// The sum of all numbers: reads memory, as generation reads weights.
#[must_use]
pub fn sum(numbers: &[f32]) -> f32 {
    // Independent partial sums, so that no addition waits for the previous one.
    let mut sums = [0.0; 64];
    let (chunks, rest) = numbers.as_chunks::<64>();
    for chunk in chunks {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum += number;
        }
    }
    sums.iter().chain(rest).sum()
}

/// `c = a + x b` for each number (the triad of STREAM): reads two numbers for each that it writes.
pub fn triad(c: &mut [f32], a: &[f32], x: f32, b: &[f32]) {
    for (c, (a, b)) in c.iter_mut().zip(a.iter().zip(b)) {
        *c = a + x * b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_once() {
        let numbers = [1.0; 1000];
        assert!((sum(&numbers) - 1000.0).abs() < f32::EPSILON);
        assert!((sum(&numbers[..63]) - 63.0).abs() < f32::EPSILON);
        let mut c = [0.0; 1000];
        triad(&mut c, &numbers, 0.5, &numbers);
        assert!(c.iter().all(|c| (c - 1.5).abs() < f32::EPSILON));
    }

    #[test]
    fn operations_are_counted() {
        for precision in [MatmulPrecision::F32, MatmulPrecision::Bf16] {
            let one = multiply_adds(precision, 1);
            assert!(one >= 2.0 * SUMS as f64, "{one}");
            assert!((multiply_adds(precision, 7) - 7.0 * one).abs() < 0.5);
        }
    }
}
