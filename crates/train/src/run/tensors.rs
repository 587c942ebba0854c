//! The safetensors files of a checkpoint, whose numbers are f32.

use std::collections::BTreeMap;
use std::path::Path;

use super::{RunError, cannot_read};
use tinderbox_model::LazyTensor;
use tinderbox_model::tensor_file::{self, OpenTensorsError};

/// Opens a checkpoint's file. The values of its tensors, all f32, are read on demand.
pub(super) fn open(path: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
    tensor_file::open(path).map_err(|error| match error {
        OpenTensorsError::Read(source) => cannot_read(path)(source),
        OpenTensorsError::Damaged(reason) => RunError::damaged(path, reason),
    })
}
