//! Normalisation of every position's vector.

use burn::tensor::{Tensor, module};

#[cfg(feature = "flex")]
use super::{fused, rows::Norm};

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, over the last dimension.
///
/// Source: Ba et al. 2016, "Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight, bias: [C]` -> `[.., C]`
#[must_use]
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if fused::is_for(&x) {
        let norm = Norm { centred: true, epsilon: fused::norm::in_f32(epsilon) };
        return fused::norm::norm(x, weight, bias, norm);
    }
    composed_layer_norm(x, weight, bias, epsilon)
}

/// `x / sqrt(mean(x^2) + epsilon) * weight`, over the last dimension.
///
/// Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
///
/// # Shapes
/// `x: [.., C]`, `weight: [C]` -> `[.., C]`
#[must_use]
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if fused::is_for(&x) {
        let norm = Norm { centred: false, epsilon: fused::norm::in_f32(epsilon) };
        return fused::norm::norm(x, weight, None, norm);
    }
    composed_rms_norm(x, weight, epsilon)
}

/// Layer norm by burn's own operations.
pub(super) fn composed_layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    module::layer_norm(x, weight, bias, epsilon)
}

/// RMS norm by burn's own operations.
pub(super) fn composed_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1); // [.., 1]
    x * (mean_square + epsilon).sqrt().recip() * weight.unsqueeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn layer_norm_centres_and_scales_and_rms_norm_only_scales() {
        let device = Device::flex();
        let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0, 4.0]], &device);
        let weight = Tensor::<1>::from_data([1.0, 1.0, 1.0, 2.0], &device);
        let bias = Tensor::<1>::from_data([0.0, 0.0, 0.5, 0.0], &device);
        let close = |got: Tensor<2>, want: [f32; 4]| {
            let got: Vec<f32> = got.into_data().try_to_vec().expect("f32");
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?} {want:?}");
        };
        let s = 1.25_f32.sqrt(); // of mean 2.5 and variance 1.25
        close(
            layer_norm(x.clone(), weight.clone(), Some(bias), 0.0),
            [-1.5 / s, -0.5 / s, 0.5 / s + 0.5, 3.0 / s],
        );
        let r = 7.5_f32.sqrt(); // of mean square 7.5
        close(rms_norm(x, weight, 0.0), [1.0 / r, 2.0 / r, 3.0 / r, 8.0 / r]);
    }
}
