//! Rows of tokens that go through the model at once.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox_kernels::{IGNORE_INDEX, Targets};

/// `batch_size` rows of `seq_len` tokens each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The input tokens: `[batch_size, seq_len]`, row-major.
    pub inputs: Vec<i32>,
    /// The tokens to predict: each follows the input token at the same position, or is ignored: [`IGNORE_INDEX`].
    pub targets: Vec<i32>,
    /// The number of rows.
    pub batch_size: usize,
    /// The number of tokens in a row.
    pub seq_len: usize,
    /// The lengths of the sequences that are packed in the only row; `None` if each row is one.
    pub lengths: Option<Arc<[usize]>>,
}

impl Batch {
    /// The number of targets that are not ignored.
    pub fn n_targets(&self) -> usize {
        self.targets.iter().filter(|target| **target != IGNORE_INDEX).count()
    }

    /// Copies the input and the target tokens to a device.
    ///
    /// # Shapes
    /// inputs `[B, T]`, targets `[B T]`
    pub fn to_device(self, device: &Device) -> (Tensor<2, Int>, Targets) {
        let inputs = TensorData::new(self.inputs, [self.batch_size, self.seq_len]);
        (Tensor::from_data(inputs, device), Targets::new(self.targets, device))
    }
}
