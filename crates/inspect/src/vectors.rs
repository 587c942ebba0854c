//! Double-precision vector arithmetic, summed in order.

pub(super) fn dot<A: Copy + Into<f64>, B: Copy + Into<f64>>(a: &[A], b: &[B]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| a.into() * b.into()).sum()
}

/// The cosine similarity of two vectors; 0 if either is zero.
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

/// The mean; NaN if there are no numbers.
pub(super) fn mean<A: Copy + Into<f64>>(numbers: &[A]) -> f64 {
    numbers.iter().map(|&x| x.into()).sum::<f64>() / numbers.len() as f64
}

/// The positions of the at most `n` largest numbers, in descending order; ties go to the earlier.
pub(super) fn largest(numbers: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a])); // stable
    order.truncate(n);
    order
}

/// The softmax. Minus infinity becomes 0.
pub(super) fn softmax(numbers: &[f64]) -> Vec<f64> {
    let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = numbers.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

pub(super) fn minus(a: &[f32], b: &[f32]) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect()
}
