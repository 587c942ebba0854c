//! The right matrix of a product: packed before it, or by the tasks that multiply it.
//!
//! A weight is packed for one product only, since the backward pass needs it transposed. Packed as a whole, it would be
//! written to memory and read again; a task that packs a part multiplies it while it is in the cache (as BLIS packs its
//! matrix B).

use std::ops::Range;

use super::arithmetic::Element;
use super::element::{Row, Word, n_panels};
use super::matrix::Matrix;
use super::pack::pack_right;
use super::packed::PackedRef;

/// A matrix that tasks pack in parts.
pub(crate) trait PackSource<E>: Sync {
    fn shape(&self) -> [usize; 2];

    /// Packs a part, panel after panel, for the right side of products. Its rows and columns begin with whole panels.
    fn pack(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [Row<E>]);
}

impl<E: Element> PackSource<E> for Matrix<'_> {
    fn shape(&self) -> [usize; 2] {
        [self.n_rows(), self.n_columns()]
    }

    fn pack(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [Row<E>]) {
        pack_right(self.rows(rows.start, rows.len()).columns(columns), out);
    }
}

#[derive(Clone, Copy)]
pub(crate) enum RightMatrix<'a, E> {
    Packed(PackedRef<'a, E>),
    /// Columns of a source, from the first on.
    Unpacked {
        source: &'a dyn PackSource<E>,
        first: usize,
        n_columns: usize,
    },
}

impl<'a, E> From<PackedRef<'a, E>> for RightMatrix<'a, E> {
    fn from(packed: PackedRef<'a, E>) -> Self {
        Self::Packed(packed)
    }
}

impl<'a, E> From<&'a dyn PackSource<E>> for RightMatrix<'a, E> {
    fn from(source: &'a dyn PackSource<E>) -> Self {
        Self::Unpacked { source, first: 0, n_columns: source.shape()[1] }
    }
}

impl<'a, E: Element> From<&'a Matrix<'a>> for RightMatrix<'a, E> {
    fn from(matrix: &'a Matrix<'a>) -> Self {
        Self::from(matrix as &dyn PackSource<E>)
    }
}

impl<'a, E: Word> RightMatrix<'a, E> {
    pub(super) fn is_packed(self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// The number of rows of elements.
    pub(super) fn n_rows(self) -> usize {
        match self {
            Self::Packed(packed) => packed.n_rows(),
            Self::Unpacked { source, .. } => E::count(source.shape()[0]),
        }
    }

    pub(super) fn n_columns(self) -> usize {
        match self {
            Self::Packed(packed) => packed.n_columns(),
            Self::Unpacked { n_columns, .. } => n_columns,
        }
    }

    /// A range of columns that begins with the first one of a panel.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        match self {
            Self::Packed(packed) => Self::Packed(packed.columns(range)),
            Self::Unpacked { source, first, n_columns } => {
                assert!(range.start <= range.end && range.end <= n_columns, "{range:?}");
                Self::Unpacked { source, first: first + range.start, n_columns: range.len() }
            }
        }
    }

    /// Some rows of elements, packed to `scratch` if they are not yet.
    #[inline(always)]
    pub(super) fn packed_rows<'b>(self, range: Range<usize>, scratch: &'b mut [Row<E>]) -> PackedRef<'b, E>
    where
        'a: 'b,
    {
        match self {
            Self::Packed(packed) => packed.rows(range),
            Self::Unpacked { source, first, n_columns } => {
                let out = &mut scratch[..range.len() * n_panels(n_columns)];
                let end = source.shape()[0].min(range.end * E::SCALARS);
                source.pack(range.start * E::SCALARS..end, first..first + n_columns, out);
                PackedRef::new(out, [range.len(), n_columns])
            }
        }
    }
}
