//! Consecutive numbers on a device.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType, Device, Int, Tensor};

use crate::flex;

/// The lengths that are kept. Texts of many lengths, as in packed rows, need no more at a time.
const MOST_KEPT: usize = 64;

/// The numbers of a range, `[n]`. A GPU keeps those of each length for the next call: an upload would end the batch of
/// kernels that is submitted at once, and the addition of the first number is part of the kernel that uses it.
///
/// `dtype` is `I32` or `U32`.
pub(crate) fn positions(range: Range<usize>, dtype: DType, device: &Device) -> Tensor<1, Int> {
    type Kept = ((Device, bool, DType, usize), Tensor<1, Int>);
    static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
    let [first, n] = [range.start, range.len()].map(|n| i64::try_from(n).expect("fewer than 2^63 positions"));
    let new = |range: Range<i64>| Tensor::arange(range, (device, DType::I32)).cast(dtype);
    if flex::is_host(device) {
        return new(first..first + n);
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (device.clone(), device.is_autodiff(), dtype, range.len());
    let known = kept.iter().find(|(known, _)| *known == key).map(|(_, numbers)| numbers.clone());
    let numbers = known.unwrap_or_else(|| {
        let numbers = new(0..n);
        if kept.len() == MOST_KEPT {
            kept.remove(0);
        }
        kept.push((key, numbers.clone()));
        numbers
    });
    if first == 0 { numbers } else { numbers + first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_start_anywhere() {
        for dtype in [DType::I32, DType::U32] {
            let numbers = positions(3..7, dtype, &Device::flex());
            assert_eq!(numbers.dtype(), dtype);
            assert_eq!(numbers.into_data().iter::<i64>().collect::<Vec<_>>(), [3, 4, 5, 6]);
        }
    }
}
