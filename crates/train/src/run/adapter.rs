//! Checkpoints of adapters: only what was trained is in the file, and the base is another run's checkpoint, named by its
//! path and hash.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dependents::{record, seen_from};
use super::layout::{MODEL, locate};
use super::{RunError, cannot_read};
use crate::data::hexadecimal;
use tinderbox_model::disk;
use tinderbox_model::generate::engine::Engine;
use tinderbox_model::{AdapterRows, LazyTensor, Lora, Parameter, Role, TOKEN_ROWS};

/// An adapter with its values.
#[derive(Clone, Debug)]
pub struct AdapterTensors {
    /// Where it belongs.
    pub rows: AdapterRows,
    /// `[in, R]`
    pub a: LazyTensor,
    /// `[R, columns]`
    pub b: LazyTensor,
    /// `[columns]`
    pub magnitude: Option<LazyTensor>,
}

/// The base of a checkpoint's adapters.
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

/// Adapters apart from the weights that they change.
#[derive(Clone, Debug)]
pub struct Adapters {
    /// Their size and the weights that they change.
    pub lora: Lora,
    /// Their matrices, by path in the table of parameters.
    pub tensors: BTreeMap<String, LazyTensor>,
}

impl Adapters {
    /// Adds the adapters to `engine`, whose weights are those of the checkpoint `base`, and returns their
    /// [index](Engine::add_adapters).
    pub fn add_to(mut self, engine: &mut Engine, base: &Path) -> Result<usize, RunError> {
        let values = |row: &Parameter| -> Result<Vec<f32>, RunError> {
            let tensor = take(&mut self.tensors, row, base)?;
            Ok(tensor.read().map_err(cannot_read(&base.join(MODEL)))?.values)
        };
        let idx = engine.add_adapters(&self.lora, values)?;
        self.check_all_taken(base).map(|()| idx)
    }

    /// Returns an error if the model has no place for some of them.
    fn check_all_taken(&self, from: &Path) -> Result<(), RunError> {
        let has_no = |name| RunError::damaged(&from.join(MODEL), format!("the run has no `{name}`"));
        self.tensors.keys().next().map_or(Ok(()), |name| Err(has_no(name)))
    }

    /// `weights` with the changes of the adapters, which come from `from`. `table` is that of the model without them.
    pub(super) fn merged_into(
        mut self,
        mut weights: BTreeMap<String, LazyTensor>,
        table: &[Parameter],
        from: &Path,
    ) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let scale = self.lora.scale();
        for rows in self.lora.adapters(table) {
            let AdapterTensors { rows, a, b, magnitude } = AdapterTensors::take(&mut self.tensors, rows, from)?;
            let Some(weight) = weights.remove(&rows.weight) else { continue }; // found later, by its name
            let shape = weight.shape().to_vec();
            let columns = rows.columns.clone();
            let merged = LazyTensor::computed(shape.clone(), move |sink| {
                let (mut values, a, b) = (weight.read()?.values, a.read()?.values, b.read()?.values);
                add_product(&mut values, shape[1], columns.clone(), [&a, &b], scale);
                if let Some(magnitude) = &magnitude {
                    set_lengths(&mut values, shape[1], columns.clone(), &magnitude.read()?.values);
                }
                sink(&values)
            });
            weights.insert(rows.weight, merged);
        }
        for row in self.lora.token_rows(table) {
            let rows = take(&mut self.tensors, &row, from)?;
            let path = row.path.replace(TOKEN_ROWS, "weight");
            let Some(weight) = weights.remove(&path) else { continue };
            let (shape, tokens) = (weight.shape().to_vec(), self.lora.tokens.clone());
            let is_embedding = table.iter().any(|row| row.path == path && row.role == Role::TokenEmbedding);
            let merged = LazyTensor::computed(shape.clone(), move |sink| {
                let (mut values, rows) = (weight.read()?.values, rows.read()?.values);
                for (token, row) in tokens.iter().zip(rows.chunks_exact(rows.len() / tokens.len())) {
                    for (i, change) in row.iter().enumerate() {
                        let token = *token as usize;
                        values[if is_embedding { token * shape[1] + i } else { i * shape[1] + token }] += change;
                    }
                }
                sink(&values)
            });
            weights.insert(path, merged);
        }
        self.check_all_taken(from).map(|()| weights)
    }
}

/// Whether a tensor is one of an adapter, or the changes of some tokens' vectors.
pub(super) fn is_adapter(name: &str) -> bool {
    name.contains(".adapters.") || name.ends_with(TOKEN_ROWS)
}

impl AdapterOf {
    /// Adapters of a run at `root` on the checkpoint `base`.
    pub fn new(base: &Path, root: &Path, lora: Lora) -> Result<Self, RunError> {
        let base_sha256 = sha256_of(&base.join(MODEL))?;
        record(base, root);
        Ok(Self { base: seen_from(root, base), base_sha256, lora })
    }

    /// The path of the base's checkpoint, for adapters in the checkpoint `dir`.
    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        // `RUN/checkpoints/step-N`
        let root = dir.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        root.join(&self.base)
    }

    /// The same, if it is there.
    pub(super) fn base_of(&self, dir: &Path) -> Result<PathBuf, RunError> {
        let base = self.path(dir);
        if base.join(MODEL).is_file() { Ok(base) } else { Err(RunError::NoBase { adapter: dir.to_owned(), base }) }
    }

    /// Compares the weights of the checkpoint `base` with those that the adapters in the checkpoint `dir` belong to.
    pub(super) fn check(&self, dir: &Path, base: &Path) -> Result<(), RunError> {
        let found = sha256_of(&base.join(MODEL))?;
        if found == self.base_sha256 {
            return Ok(());
        }
        let expected = self.base_sha256.clone();
        Err(RunError::OtherBase { adapter: dir.to_owned(), base: base.to_owned(), expected, found })
    }

    /// The table of the base's parameters, given its `weights`.
    pub(super) fn table(&self, dir: &Path, weights: &BTreeMap<String, LazyTensor>) -> Result<Vec<Parameter>, RunError> {
        let config = locate(&self.base_of(dir)?)?.run.config()?;
        let vocab_size = weights.get("token_embedding.weight").map_or(0, |tensor| tensor.shape()[0]);
        Ok(Parameter::all(&config.model, vocab_size).collect())
    }

    /// The weights of the base with the changes of the adapters, which are in the checkpoint `dir`.
    pub(super) fn merged(
        &self,
        dir: &Path,
        tensors: BTreeMap<String, LazyTensor>,
        base: BTreeMap<String, LazyTensor>,
    ) -> Result<BTreeMap<String, LazyTensor>, RunError> {
        let table = self.table(dir, &base)?;
        Adapters { lora: self.lora.clone(), tensors }.merged_into(base, &table, dir)
    }
}

impl AdapterTensors {
    pub(super) fn take(
        adapters: &mut BTreeMap<String, LazyTensor>,
        rows: AdapterRows,
        dir: &Path,
    ) -> Result<Self, RunError> {
        let mut take = |row: &Parameter| take(adapters, row, dir);
        let (a, b, magnitude) = (take(&rows.a)?, take(&rows.b)?, rows.magnitude.as_ref().map(&mut take).transpose()?);
        Ok(Self { rows, a, b, magnitude })
    }
}

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

/// Gives some columns of the rows in `values`, each of `n_columns` numbers, these Euclidean lengths.
#[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
fn set_lengths(values: &mut [f32], n_columns: usize, columns: Range<usize>, lengths: &[f32]) {
    let mut squares = vec![0.0_f64; columns.len()];
    for row in values.chunks_exact(n_columns) {
        squares.iter_mut().zip(&row[columns.clone()]).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
    }
    let factors = squares.iter().zip(lengths).map(|(square, length)| (f64::from(*length) / square.sqrt()) as f32);
    let factors: Vec<f32> = factors.collect();
    for row in values.chunks_exact_mut(n_columns) {
        row[columns.clone()].iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor);
    }
}

fn sha256_of(path: &Path) -> Result<String, RunError> {
    let mut hash = Sha256::new();
    let read = File::open(path).and_then(|file| disk::each_chunk(file, |chunk| hash.update(chunk)));
    read.map_err(cannot_read(path))?;
    Ok(hexadecimal(&hash.finalize().into()))
}
