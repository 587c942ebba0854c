//! The part of a layer's weight that an initialization moves from the base to its adapter. PEFT saves such adapters as
//! they are after training, and takes the part from the base again when it loads them.
//!
//! Sources: Meng et al. 2024, "PiSSA"; Büyükakyüz 2024, "OLoRA"; PEFT, `pissa_init` and `olora_init` in `layer.py`.

use tinderbox_model::parameters::HostTensor;

/// An initialization that changes the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Principal {
    /// The largest singular values and their vectors.
    Pissa,
    /// The first columns of Q and rows of R, where Q R is the weight.
    Olora,
}

/// The matrices of an adapter, `[R, in]` and `[out, R]`, whose product is multiplied by `scale` beside what is left of
/// `weight`, `[out, in]`: those of an adapter beside the whole of it, for the scale 1.
///
/// The part that is not left is a projection of the weight, so the signs of the directions do not matter.
#[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
pub(crate) fn removed([a, b]: [&HostTensor; 2], scale: f64, weight: &HostTensor, which: Principal) -> [HostTensor; 2] {
    let (rank, n_inputs, n_outputs) = (a.shape[0], a.shape[1], b.shape[0]);
    let values: Vec<f64> = weight.values.iter().copied().map(f64::from).collect();
    let rows: Vec<&[f64]> = values.chunks_exact(n_inputs).collect();
    let (directions, share) = match which {
        Principal::Pissa => (largest(&rows, rank), 1.0), // PEFT divides the singular values by the scale
        Principal::Olora => (first_columns(&rows, rank), scale),
    };
    let mut new_a = a.values.clone();
    new_a.extend(directions.iter().flat_map(|direction| weighted_sum(&rows, direction)).map(|x| x as f32));
    let of_output = |output: usize| {
        let own = b.values[output * rank..][..rank].iter().map(move |x| (f64::from(*x) * scale) as f32);
        own.chain(directions.iter().map(move |direction| (-share * direction[output]) as f32))
    };
    let new_rank = rank + directions.len();
    [
        HostTensor { shape: vec![new_rank, n_inputs], values: new_a },
        HostTensor { shape: vec![n_outputs, new_rank], values: (0..n_outputs).flat_map(of_output).collect() },
    ]
}

/// An orthonormal basis of the first columns.
fn first_columns(rows: &[&[f64]], n: usize) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for column in 0..n.min(rows[0].len()) {
        let mut next: Vec<f64> = rows.iter().map(|row| row[column]).collect();
        orthonormalize(&mut next, &basis);
        basis.push(next);
    }
    basis
}

/// The left singular vectors of the `n` largest singular values, by the method of Lanczos with full
/// orthogonalization on `W W^T`.
fn largest(rows: &[&[f64]], n: usize) -> Vec<Vec<f64>> {
    /// Of the largest eigenvalue.
    const TOLERANCE: f64 = 1e-12;
    let mut seed = 1_u64;
    let mut random = |basis: &[Vec<f64>]| {
        let mut vector: Vec<f64> = rows
            .iter()
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
            })
            .collect();
        orthonormalize(&mut vector, basis);
        vector
    };
    let (mut basis, mut diagonal, mut beside) = (Vec::<Vec<f64>>::new(), Vec::new(), Vec::new());
    let mut next = random(&basis);
    let mut check_at = 2 * n + 16;
    loop {
        let inputs = weighted_sum(rows, &next);
        let mut image: Vec<f64> = rows.iter().map(|row| dot(row, &inputs)).collect();
        diagonal.push(dot(&image, &next));
        basis.push(next);
        let length = orthonormalize(&mut image, &basis);
        let is_whole = basis.len() == rows.len();
        if is_whole || basis.len() == check_at {
            let mut pairs = eigenpairs(diagonal.clone(), beside.clone());
            pairs.sort_by(|(one, _), (other, _)| other.total_cmp(one));
            let limit = TOLERANCE * pairs[0].0;
            pairs.truncate(n);
            // A basis that nothing leads out of may lack directions of a singular value that occurs several times.
            let is_close = |(_, shares): &(f64, Vec<f64>)| length * shares[shares.len() - 1].abs() <= limit;
            if is_whole || length > limit && pairs.iter().all(is_close) {
                return pairs.iter().map(|(_, shares)| weighted_sum(&basis, shares)).collect();
            }
            check_at = check_at * 3 / 2;
        }
        beside.push(length);
        next = if length == 0.0 { random(&basis) } else { image };
    }
}

/// The eigenvalues and eigenvectors of a symmetric matrix of this diagonal and these values beside it, by QL steps with
/// implicit shifts.
///
/// Source: Dubrulle et al. 1968, "The Implicit QL Algorithm".
fn eigenpairs(mut diagonal: Vec<f64>, mut beside: Vec<f64>) -> Vec<(f64, Vec<f64>)> {
    let n = diagonal.len();
    let mut vectors: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    beside.push(0.0);
    for first in 0..n {
        loop {
            let is_apart = |i: &usize| beside[*i].abs() <= f64::EPSILON * (diagonal[*i].abs() + diagonal[i + 1].abs());
            let last = (first..n - 1).find(is_apart).unwrap_or(n - 1);
            if last == first {
                break;
            }
            let slope = (diagonal[first + 1] - diagonal[first]) / (2.0 * beside[first]);
            let mut g =
                diagonal[last] - diagonal[first] + beside[first] / (slope + libm::hypot(slope, 1.0).copysign(slope));
            let (mut sine, mut cosine, mut shift) = (1.0, 1.0, 0.0);
            let mut is_done = true;
            for i in (first..last).rev() {
                let (f, b) = (sine * beside[i], cosine * beside[i]);
                let r = libm::hypot(f, g);
                beside[i + 1] = r;
                if r == 0.0 {
                    diagonal[i + 1] -= shift;
                    is_done = false;
                    break;
                }
                (sine, cosine) = (f / r, g / r);
                g = diagonal[i + 1] - shift;
                let r = (diagonal[i] - g) * sine + 2.0 * cosine * b;
                shift = sine * r;
                diagonal[i + 1] = g + shift;
                g = cosine * r - b;
                let [one, other] = vectors.get_disjoint_mut([i, i + 1]).expect("they are two");
                for (x, y) in one.iter_mut().zip(other) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
            if is_done {
                diagonal[first] -= shift;
                beside[first] = g;
            }
            beside[last] = 0.0;
        }
    }
    diagonal.into_iter().zip(vectors).collect()
}

/// Makes a vector of length 1 that is orthogonal to an orthonormal basis, and returns the length of the part of it that
/// was. A zero stays one.
fn orthonormalize(vector: &mut [f64], basis: &[Vec<f64>]) -> f64 {
    for _ in 0..2 {
        for other in basis {
            let along = dot(vector, other);
            vector.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
        }
    }
    let length = dot(vector, vector).sqrt();
    if length > 0.0 {
        for x in vector {
            *x /= length;
        }
    }
    length
}

fn weighted_sum(rows: &[impl AsRef<[f64]>], weights: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; rows[0].as_ref().len()];
    for (row, weight) in rows.iter().zip(weights) {
        sum.iter_mut().zip(row.as_ref()).for_each(|(sum, x)| *sum += weight * x);
    }
    sum
}

/// The sum of products, in lanes that the compiler vectorizes.
fn dot(one: &[f64], other: &[f64]) -> f64 {
    let ((ones, one), (others, other)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (one, other) in ones.iter().zip(others) {
        lanes.iter_mut().zip(one.iter().zip(other)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    lanes.iter().sum::<f64>() + one.iter().zip(other).map(|(x, y)| x * y).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What PEFT 0.21.2 leaves of a weight for adapters of rank 2 and alpha 6 (`base_layer.weight` after
    /// `get_peft_model`), computed by PyTorch.
    const LEFT: [(Principal, [f32; 20]); 2] = [
        (
            Principal::Pissa,
            [
                0.193_208, 0.367_68, 1.144_991, 0.677_699, -0.454_816, -0.243_086, 0.405_613, 0.283_549, -0.002_735,
                -0.035_591, -0.167_595, -0.101_319, 0.294_019, 0.242_773, 0.164_39, 0.075_177, -0.196_01, -0.063_082,
                0.382_445, 0.248_008,
            ],
        ),
        (
            Principal::Olora,
            [
                0.0, -1.313_973, 0.763_348, 0.543_933, -0.282_24, 1.999_98, 0.432_646, 1.221_959, 1.073_146,
                -1.673_311, -1.037_369, 1.275_297, -1.912_752, 1.287_076, -0.081_718, -0.496_745, 1.536_509,
                -1.273_476, 0.897_365, 0.066_145,
            ],
        ),
    ];

    fn matrix(shape: [usize; 2], value: impl Fn(usize, usize) -> f64) -> HostTensor {
        let values = (0..shape[0]).flat_map(|i| (0..shape[1]).map(move |j| (i, j)));
        HostTensor { shape: shape.to_vec(), values: values.map(|(i, j)| value(i, j) as f32).collect() }
    }

    /// What is left of `weight`, according to [`removed`] with an adapter of zeros.
    fn left(weight: &HostTensor, rank: usize, scale: f64, which: Principal) -> Vec<f32> {
        let [n, width] = [weight.shape[0], weight.shape[1]];
        let zeros = [matrix([rank, width], |_, _| 0.0), matrix([n, rank], |_, _| 0.0)];
        let [a, b] = removed([&zeros[0], &zeros[1]], scale, weight, which);
        let r = a.shape[0];
        assert_eq!((&a.shape[..], &b.shape[..]), (&[r, width][..], &[n, r][..]));
        let product = |i: usize, j: usize| (0..r).map(|k| b.values[i * r + k] * a.values[k * width + j]).sum::<f32>();
        (0..n * width).map(|at| weight.values[at] + product(at / width, at % width)).collect()
    }

    #[test]
    fn peft_leaves_the_same_of_weights() {
        let weight = matrix([5, 4], |i, j| ((3 * i * i + 7 * j + i * j) as f64).sin());
        for (which, expected) in LEFT {
            let left = left(&weight, 2, 3.0, which);
            let is_close = left.iter().zip(expected).all(|(one, other)| (one - other).abs() < 2e-6);
            assert!(is_close, "{which:?}: {left:?}");
        }
    }

    #[test]
    fn repeated_and_missing_singular_values_are_found() {
        // 5 three times, then ones: Krylov spaces of one vector hold each value once.
        let repeated = matrix([60, 50], |i, j| if i == j { [1.0, 5.0][usize::from(i % 20 == 7)] } else { 0.0 });
        let found = left(&repeated, 3, 3.0, Principal::Pissa);
        let largest = found.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        assert!((largest - 1.0).abs() < 1e-5, "{largest}");
        for which in [Principal::Pissa, Principal::Olora] {
            // Of the ranks 2 and 0: nothing is left.
            for weight in [matrix([30, 40], |i, j| (i + j) as f64), matrix([9, 3], |_, _| 0.0)] {
                let left = left(&weight, 3, 1.0, which);
                assert!(left.iter().all(|x| x.abs() < 1e-3), "{which:?}: {left:?}");
            }
        }
    }
}
