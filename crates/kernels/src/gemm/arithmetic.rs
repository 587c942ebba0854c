//! Elements that can be multiplied, and their arithmetic with the instructions of a SIMD level.

use pulp::Simd;

use super::element::{Bf16x2, Row, WIDTH, Word, load_bits};
use super::packed::PackedRef;
use super::scratch::Scratch;
use super::transpose::SIDE;
use super::weight::Weight;

/// Elements that both factors of a product may have.
pub(crate) trait Element: Word {
    /// Whether an element is one scalar, so that a packed left matrix is also a right one.
    const LEFT_IS_RIGHT: bool = Self::SCALARS == 1;

    /// The number of columns transposed at a time: as many elements as a square is wide, or twice as many.
    const STRIP: usize;

    /// The element of the first of these scalars, padded with zeros.
    fn first(scalars: &[f32]) -> Self;

    /// Runs an operation with the CPU's fastest instructions for these elements, at a SIMD level or above.
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>);

    /// A packed left matrix, `n_columns` scalars wide, repacked as a right one; `None` if it is one already.
    fn left_as_right(left: PackedRef<'_, Self>, n_columns: usize) -> Option<Scratch<Self>>;

    /// Adds a row of a right matrix to the sums of the columns.
    fn add_to(row: &Row<Self>, sums: &mut Row);
}

/// Multiplies elements, with sums in registers of f32, and packs scalars into elements.
pub(crate) trait Arithmetic: Copy {
    type Element: Element;
    type Simd: Simd;
    type Register: Copy;

    fn simd(self) -> Self::Simd;

    /// Broadcasts an element to a register.
    fn spread(self, element: Self::Element) -> Self::Register;

    /// Loads V registers from a row, from element `column` on.
    fn load<const V: usize>(self, row: &Row<Self::Element>, column: usize) -> [Self::Register; V];

    /// `left right + sum`
    fn multiply_add(self, left: Self::Register, right: Self::Register, sum: SumRegister<Self>) -> SumRegister<Self>;

    /// Packs consecutive scalars of a row, at most a panel's: [`Element::count`] elements, the last one padded with
    /// zeros.
    fn round(self, scalars: &[f32], out: &mut Row<Self::Element>);

    /// Packs the scalars of each column, from as many rows as an element has scalars.
    fn stack(self, above: &Row, below: &Row) -> Row<Self::Element>;
}

pub(crate) type SumRegister<A> = <<A as Arithmetic>::Simd as Simd>::f32s;

/// An operation that is generic over the arithmetic.
pub(crate) trait WithArithmetic {
    type Element: Element;

    /// With `#[inline(always)]`, as [`pulp::WithSimd::with_simd`].
    fn with(self, arithmetic: impl Arithmetic<Element = Self::Element>);
}

impl Element for f32 {
    const STRIP: usize = SIDE;

    fn first(scalars: &[f32]) -> Self {
        scalars[0]
    }

    #[inline(always)]
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>) {
        operation.with(Exact(simd));
    }

    fn left_as_right(_: PackedRef<'_, Self>, _: usize) -> Option<Scratch<Self>> {
        None
    }

    #[inline(always)]
    fn add_to(row: &Row, sums: &mut Row) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Exact<S>(pub(crate) S);

impl<S: Simd> Arithmetic for Exact<S> {
    type Element = f32;
    type Simd = S;
    type Register = S::f32s;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }

    #[inline(always)]
    fn spread(self, element: f32) -> S::f32s {
        self.0.splat_f32s(element)
    }

    #[inline(always)]
    fn load<const V: usize>(self, row: &Row, column: usize) -> [S::f32s; V] {
        f32::widen::<S, V>(self.0, row, column, 0)
    }

    #[inline(always)]
    fn multiply_add(self, left: S::f32s, right: S::f32s, sum: S::f32s) -> S::f32s {
        let Self(simd) = self;
        // On a CPU without fused multiply-adds each would be a function call.
        if S::IS_SCALAR { simd.add_f32s(simd.mul_f32s(left, right), sum) } else { simd.mul_add_f32s(left, right, sum) }
    }

    #[inline(always)]
    fn round(self, scalars: &[f32], out: &mut Row) {
        out[..scalars.len()].copy_from_slice(scalars);
    }

    #[inline(always)]
    fn stack(self, above: &Row, _: &Row) -> Row {
        *above
    }
}

// No closures below: a closure is compiled for the baseline CPU, so that each of these would be a function call.

/// Pairs of bfloat16 on a CPU without instructions for them: they are widened to f32 before they are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Widened<S>(pub(super) S);

impl<S: Simd> Arithmetic for Widened<S> {
    type Element = Bf16x2;
    type Simd = S;
    type Register = [S::f32s; 2];

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }

    #[inline(always)]
    fn spread(self, element: Bf16x2) -> [S::f32s; 2] {
        let [first, second] = element.widened();
        [self.0.splat_f32s(first), self.0.splat_f32s(second)]
    }

    #[inline(always)]
    fn load<const V: usize>(self, row: &Row<Bf16x2>, column: usize) -> [[S::f32s; 2]; V] {
        let mut factors = [[self.0.splat_f32s(0.0); 2]; V];
        for (factors, pairs) in factors.iter_mut().zip(load_bits::<S, _, V>(row, column)) {
            *factors = [Bf16x2::half(self.0, pairs, 0), Bf16x2::half(self.0, pairs, 1)];
        }
        factors
    }

    #[inline(always)]
    fn multiply_add(self, left: [S::f32s; 2], right: [S::f32s; 2], sum: S::f32s) -> S::f32s {
        let exact = Exact(self.0);
        let sum = exact.multiply_add(left[0], right[0], sum);
        exact.multiply_add(left[1], right[1], sum)
    }

    #[inline(always)]
    fn round(self, scalars: &[f32], out: &mut Row<Bf16x2>) {
        let (pairs, rest) = scalars.as_chunks::<2>();
        for (out, [first, second]) in out.iter_mut().zip(pairs) {
            *out = Bf16x2::new(*first, *second);
        }
        if let [last] = rest {
            out[pairs.len()] = Bf16x2::new(*last, 0.0);
        }
    }

    #[inline(always)]
    fn stack(self, above: &Row, below: &Row) -> Row<Bf16x2> {
        let mut pairs = [Bf16x2::default(); WIDTH];
        for ((pair, above), below) in pairs.iter_mut().zip(above).zip(below) {
            *pair = Bf16x2::new(*above, *below);
        }
        pairs
    }
}
