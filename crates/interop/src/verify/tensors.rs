//! Compares tensors of a run with those of another project's file: equal, or different by no more than the rounding of
//! the file's number type.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::Serialize;

use crate::convert::Tensors;
use crate::gguf::TensorType;
use crate::layout::Naming;
use crate::{ForeignModel, InteropError, gguf};
use tinderbox_model::LazyTensor;

/// The comparison of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorComparison {
    /// Its name in the file.
    pub name: String,
    /// The result of the comparison.
    pub result: TensorResult,
    /// The shape of the run's tensor, or of the file's if the run has none.
    pub shape: Vec<usize>,
    /// The shape in the file, if different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_shape: Option<Vec<usize>>,
    /// The number type in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<&'static str>,
    /// The largest difference between two numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_difference: Option<f32>,
    /// The number of differing numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_different: Option<usize>,
}

/// The result of comparing a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorResult {
    /// Every number is the same, to the bit.
    Equal,
    /// The differences are within the rounding of the file's number type.
    Rounded,
    /// The differences are larger.
    Different,
    /// The shapes differ.
    Misshapen,
    /// It is not in the file.
    Missing,
    /// It is not in the run.
    Extra,
}

/// Compares all tensors of both, in name order.
pub(super) fn compare_all(ours: &Tensors, theirs: &ForeignModel) -> Result<Vec<TensorComparison>, InteropError> {
    let dtypes = dtypes(theirs)?;
    let names: BTreeSet<&String> = ours.keys().chain(theirs.tensors.keys()).collect();
    let compared = names.into_iter().map(|name| {
        let (mine, other) = (ours.get(name), theirs.tensors.get(name));
        let dtype = dtypes.get(name).copied();
        let found = |result, shape: &LazyTensor| TensorComparison {
            name: name.clone(),
            result,
            shape: shape.shape().to_vec(),
            other_shape: None,
            dtype: dtype.map(TensorType::name),
            max_difference: None,
            n_different: None,
        };
        match (mine, other) {
            (None, None) => unreachable!("the name is of one of them"),
            (Some(mine), None) => Ok(found(TensorResult::Missing, mine)),
            (None, Some(other)) => Ok(found(TensorResult::Extra, other)),
            (Some(mine), Some(other)) if mine.shape() != other.shape() => {
                let other_shape = Some(other.shape().to_vec());
                Ok(TensorComparison { other_shape, ..found(TensorResult::Misshapen, mine) })
            }
            (Some(mine), Some(other)) => {
                let Difference { max, n_different, is_rounding } =
                    compare(mine, other, dtype.unwrap_or(TensorType::F32))?;
                let result = match n_different {
                    0 => TensorResult::Equal,
                    _ if is_rounding => TensorResult::Rounded,
                    _ => TensorResult::Different,
                };
                let (max_difference, n_different) = (Some(max), Some(n_different));
                Ok(TensorComparison { max_difference, n_different, ..found(result, mine) })
            }
        }
    });
    let compared: io::Result<Vec<TensorComparison>> = compared.collect();
    compared.map_err(|source| InteropError::Read { path: theirs.path.clone(), source })
}

fn dtypes(source: &ForeignModel) -> Result<BTreeMap<String, TensorType>, InteropError> {
    if source.naming == Naming::Gguf {
        return gguf::tensor_types(&source.path);
    }
    let dtype = |(name, tensor): (&String, &LazyTensor)| Some((name.clone(), tensor.dtype()?.into()));
    Ok(source.tensors.iter().filter_map(dtype).collect())
}

struct Difference {
    max: f32,
    n_different: usize,
    is_rounding: bool,
}

/// Compares number by number; only one of the two is in memory at a time.
fn compare(mine: &LazyTensor, other: &LazyTensor, dtype: TensorType) -> io::Result<Difference> {
    let mine = mine.read()?.values;
    let mut difference = Difference { max: 0.0, n_different: 0, is_rounding: true };
    let (mut at, mut allowed) = (0, 0.0);
    other.stream(&mut |numbers| {
        for &theirs in numbers {
            let ours = mine[at];
            if at % dtype.block_len() == 0 {
                let block = &mine[at..mine.len().min(at + dtype.block_len())];
                allowed = self::allowed(dtype, block.iter().fold(0.0, |largest, x| largest.max(x.abs())));
            }
            at += 1;
            if ours.to_bits() == theirs.to_bits() {
                continue;
            }
            let off = (ours - theirs).abs();
            difference.n_different += 1;
            // NaN and infinite differences count as infinite.
            difference.max = if off.is_finite() { difference.max.max(off) } else { f32::INFINITY };
            difference.is_rounding &= off <= allowed;
        }
        Ok(())
    })?;
    Ok(difference)
}

/// The largest distance of a number of this type from its unrounded value, in a block with this `largest` number.
fn allowed(dtype: TensorType, largest: f32) -> f32 {
    // The smallest f16 numbers are further apart.
    let least = if dtype.relative_error() == 0.0 { 0.0 } else { 3e-8 };
    (largest * dtype.relative_error()).max(least) * 1.000_001
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> LazyTensor {
        let values = values.to_vec();
        LazyTensor::computed(vec![values.len()], move |sink| values.chunks(5).try_for_each(&mut *sink))
    }

    fn found(mine: &[f32], other: &[f32], dtype: TensorType) -> (f32, usize, bool) {
        let difference = compare(&tensor(mine), &tensor(other), dtype).expect("the tensors are in memory");
        (difference.max, difference.n_different, difference.is_rounding)
    }

    #[test]
    fn equal_means_equal_bits() {
        assert_eq!(found(&[1.0, -2.0], &[1.0, -2.0], TensorType::F32), (0.0, 0, true));
        assert_eq!(found(&[0.0], &[-0.0], TensorType::F32), (0.0, 1, true));
        let (max, n, is_rounding) = found(&[1.0, 2.0], &[1.0, 2.000_000_2], TensorType::F32);
        assert!(max > 0.0 && n == 1 && !is_rounding);
        let (max, _, is_rounding) = found(&[1.0], &[f32::NAN], TensorType::F16);
        assert!(max == f32::INFINITY && !is_rounding);
    }

    /// Numbers as their type rounds them, and three of them a little further.
    #[test]
    fn differences_beyond_rounding_are_detected() {
        let numbers: Vec<f32> = (0..96_u8).map(|at| (f32::from(at) * 1.7).sin() * 0.3 * f32::from(at % 7)).collect();
        for dtype in [TensorType::F16, TensorType::Bf16, TensorType::Q8_0] {
            let (mut bytes, mut rounded) = (Vec::new(), Vec::new());
            dtype.encode(&numbers, &mut bytes);
            dtype.decode(&bytes, &mut rounded);
            let (max, n, is_rounding) = found(&numbers, &rounded, dtype);
            assert!(max > 0.0 && n > 60 && is_rounding, "{dtype:?} {max} {n}");
            assert!(!found(&numbers, &rounded, TensorType::F32).2);
            for x in &mut rounded[40..44] {
                *x += max * 3.0;
            }
            assert!(!found(&numbers, &rounded, dtype).2, "{dtype:?}");
        }
    }

    #[test]
    fn rounding_to_four_bits_is_explained() {
        // As ggml computes them: d = largest / -8, and q = x / d + 8; d = (max - min) / 15, and q = (x - min) / d.
        let numbers: Vec<f32> = (0..32_u8).map(|at| (f32::from(at) * 0.7).sin()).collect();
        let largest = numbers.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("there are numbers");
        let d = largest / -8.0;
        let q4_0: Vec<f32> = numbers.iter().map(|x| ((x / d + 8.5).floor().clamp(0.0, 15.0) - 8.0) * d).collect();
        assert!(found(&numbers, &q4_0, TensorType::Q4_0).2);
        let (min, max) = numbers.iter().fold((1.0_f32, -1.0_f32), |(min, max), x| (min.min(*x), max.max(*x)));
        let d = (max - min) / 15.0;
        let q4_1: Vec<f32> = numbers.iter().map(|x| ((x - min) / d + 0.5).floor() * d + min).collect();
        assert!(found(&numbers, &q4_1, TensorType::Q4_1).2);
        assert!(!found(&numbers, &q4_1, TensorType::Q8_0).2);
    }
}
