//! Counts in formulas of real numbers.

/// How many of something there are.
pub trait Count {
    /// The count as a real number: exact below 2^53, and above it to 16 digits.
    fn real(self) -> f64;
}

impl Count for usize {
    #[allow(clippy::cast_precision_loss, reason = "16 digits are promised")]
    fn real(self) -> f64 {
        self as f64
    }
}

impl Count for u64 {
    #[allow(clippy::cast_precision_loss, reason = "16 digits are promised")]
    fn real(self) -> f64 {
        self as f64
    }
}

/// A count as a real number, [`Count::real`].
#[must_use]
pub fn real(count: impl Count) -> f64 {
    count.real()
}
