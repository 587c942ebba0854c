//! The safetensors files of a checkpoint, whose numbers are f32.

use std::collections::BTreeMap;
use std::path::Path;

use super::{RunError, cannot_read, cannot_write};
use tinderbox_model::tensor_file::{self, OpenTensorsError};
use tinderbox_model::{Dtype, LazyTensor};

/// Writes `tensors` to `path` as f32, waits until they are on the disk, and returns the CRC-32C of the file.
pub(super) fn write(path: &Path, tensors: &BTreeMap<String, LazyTensor>) -> Result<u32, RunError> {
    tensor_file::write_as(path, tensors, Dtype::F32).map_err(cannot_write(path))
}

/// Opens a checkpoint's file. The values of its tensors, all f32, are read on demand.
pub(super) fn open(path: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
    tensor_file::open(path).map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => RunError::damaged(path, reason),
    })
}
