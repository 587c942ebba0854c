//! Checkpoints of adapters: only what was trained is in the file, and the base is another run's checkpoint, named by its
//! path and hash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::checkpoint::MODEL;
use super::{Checkpoint, RunError, cannot_read, locate, tensors};
use crate::data::hexadecimal;
use tinderbox_model::{AdapterRows, LazyTensor, Lora, Parameter};

/// What the adapters of a checkpoint belong to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterOf {
    /// The checkpoint that they were trained on: relative to the run's directory if both runs are in one folder, so that
    /// they can be moved together.
    pub base: PathBuf,
    /// SHA-256 of the base's weights as a file, in hexadecimal.
    pub base_sha256: String,
    /// Their size and the weights that they change.
    pub lora: Lora,
}

/// Whether a tensor is one of an adapter.
pub(super) fn is_adapter(name: &str) -> bool {
    name.contains(".adapters.")
}

impl AdapterOf {
    /// Adapters of a run at `root` on the checkpoint `base`.
    pub(crate) fn new(base: &Path, root: &Path, lora: Lora) -> Result<Self, RunError> {
        let base_sha256 = sha256_of(&base.join(MODEL))?;
        let [base, root] = [base, root].map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        let beside = root.parent().and_then(|folder| base.strip_prefix(folder).ok());
        let base = beside.map_or_else(|| base.clone(), |inside| Path::new("..").join(inside));
        Ok(Self { base, base_sha256, lora })
    }

    /// The base's checkpoint, for adapters in the checkpoint `dir`.
    pub(super) fn base_of(&self, dir: &Path) -> Result<PathBuf, RunError> {
        // `RUN/checkpoints/step-N`
        let root = dir.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        let base = root.join(&self.base);
        match base.join(MODEL).is_file() {
            true => Ok(base),
            false => Err(RunError::NoBase { adapter: dir.to_owned(), base }),
        }
    }

    /// The weights of the base, for adapters in the checkpoint `dir`.
    pub(super) fn open_base(&self, dir: &Path) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let base = self.base_of(dir)?;
        let found = sha256_of(&base.join(MODEL))?;
        if found != self.base_sha256 {
            let expected = self.base_sha256.clone();
            return Err(RunError::OtherBase { adapter: dir.to_owned(), base, expected, found });
        }
        Checkpoint::whole_weights(&base)
    }

    /// The adapters in the checkpoint `dir`: where they belong, and the matrices `[in, R]` and `[R, out]`.
    ///
    /// # Errors
    /// If the base is not there, or a matrix is missing.
    pub fn tensors(&self, dir: &Path) -> Result<Vec<(AdapterRows, [LazyTensor; 2])>, RunError> {
        let mut adapters = tensors::open(&dir.join(MODEL))?;
        let base = Checkpoint::unverified_weights(&self.base_of(dir)?)?;
        let take = |rows: AdapterRows| {
            let [a, b] = [&rows.a, &rows.b].map(|row| take(&mut adapters, row, dir));
            Ok((rows, [a?, b?]))
        };
        self.rows(dir, &base)?.into_iter().map(take).collect()
    }

    /// The rows of the adapters in the table of parameters.
    fn rows(&self, dir: &Path, weights: &BTreeMap<String, LazyTensor>) -> Result<Vec<AdapterRows>, RunError> {
        let config = locate(&self.base_of(dir)?)?.run.config()?;
        let vocab_size = weights.get("token_embedding.weight").map_or(0, |tensor| tensor.shape()[0]);
        let table: Vec<Parameter> = Parameter::all(&config.model, vocab_size).collect();
        Ok(self.lora.adapters(&table))
    }

    /// The weights of the base with the changes of the adapters, which are in the checkpoint `dir`.
    pub(super) fn merged(
        &self,
        dir: &Path,
        mut adapters: BTreeMap<String, LazyTensor>,
        mut base: BTreeMap<String, LazyTensor>,
    ) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let scale = self.lora.scale();
        for rows in self.rows(dir, &base)? {
            let [a, b] = [&rows.a, &rows.b].map(|row| take(&mut adapters, row, dir));
            let (a, b) = (a?, b?);
            let Some(weight) = base.remove(&rows.weight) else { continue }; // found later, by its name
            let shape = weight.shape().to_vec();
            let columns = rows.columns.clone();
            let merged = LazyTensor::computed(shape.clone(), move |sink| {
                let (mut values, a, b) = (weight.read()?.values, a.read()?.values, b.read()?.values);
                add_product(&mut values, shape[1], columns.clone(), [&a, &b], scale);
                sink(&values)
            });
            base.insert(rows.weight, merged);
        }
        match adapters.into_keys().next() {
            Some(name) => Err(RunError::damaged(&dir.join(MODEL), format!("the run has no `{name}`"))),
            None => Ok(base),
        }
    }
}

/// Takes a matrix of an adapter, of the checkpoint `dir`.
fn take(adapters: &mut BTreeMap<String, LazyTensor>, row: &Parameter, dir: &Path) -> Result<LazyTensor, RunError> {
    let tensor = adapters.remove(&row.path).filter(|tensor| tensor.shape() == row.shape);
    tensor.ok_or_else(|| {
        let reason = format!("it has no `{}` of the shape {:?}", row.path, row.shape);
        RunError::damaged(&dir.join(MODEL), reason)
    })
}

/// Adds `scale a b` to some columns of the rows in `values`, each of `n_columns` numbers.
#[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
fn add_product(values: &mut [f32], n_columns: usize, columns: Range<usize>, [a, b]: [&[f32]; 2], scale: f64) {
    let rank = b.len() / columns.len();
    for (row, a) in values.chunks_exact_mut(n_columns).zip(a.chunks_exact(rank)) {
        let row = &mut row[columns.clone()];
        for (a, b) in a.iter().zip(b.chunks_exact(row.len())) {
            let factor = (f64::from(*a) * scale) as f32;
            row.iter_mut().zip(b).for_each(|(value, b)| *value += factor * b);
        }
    }
}

/// The hexadecimal SHA-256 of a file.
fn sha256_of(path: &Path) -> Result<String, RunError> {
    let mut hash = Sha256::new();
    let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut HashWriter(&mut hash)));
    read.map_err(cannot_read(path))?;
    Ok(hexadecimal(&hash.finalize().into()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
