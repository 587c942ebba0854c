//! Converts between our parameters and another project's tensors by a [`layout`](super::layout). Each tensor is
//! computed when it is read, so that only one is in memory at a time.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::layout::{Columns, ForeignTensor, parameters};
use tinderbox_model::LazyTensor;

/// Tensors by name.
pub type Tensors = BTreeMap<String, LazyTensor>;

/// The number of values of a file that are rearranged at once, and the minimum number of rows.
const VALUES_AT_ONCE: usize = 1 << 20;
const ROWS_AT_ONCE: usize = 64;

/// Block sizes for transposing a matrix: the rows of a thread's band, and a block whose lines fit the cache.
const BAND: usize = 64;
const BLOCK: usize = 16;

/// Converts our parameters to their tensors.
///
/// # Errors
/// The missing, misshapen and extra tensors among ours, one per line.
pub fn to_theirs(layout: &[ForeignTensor], ours: &Tensors) -> Result<Tensors, Vec<String>> {
    check(&parameters(layout), ours)?;
    let theirs = layout.iter().map(|ForeignTensor { name, shape, columns, offset }| {
        let part = |columns: &Columns, shape: &[usize]| match columns.are_whole() {
            true => ours[&columns.path].clone(),
            false => gather_columns(columns.clone(), shape, ours[&columns.path].clone()),
        };
        let tensor = match &columns[..] {
            [] => zeros(shape),
            [columns] => part(columns, shape),
            several => concat(shape, several.iter().map(|columns| part(columns, &[columns.n_numbers()])).collect()),
        };
        (name.clone(), add_scalar(tensor, *offset))
    });
    Ok(theirs.collect())
}

/// Converts their tensors to our parameters.
///
/// # Errors
/// The missing, misshapen and extra tensors among theirs, one per line.
pub fn to_ours(layout: &[ForeignTensor], theirs: &Tensors) -> Result<Tensors, Vec<String>> {
    check(&layout.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect(), theirs)?;
    let mut pieces: BTreeMap<&str, Vec<(Columns, LazyTensor)>> = BTreeMap::new();
    for ForeignTensor { name, columns: all, offset, .. } in layout {
        let mut first = 0;
        for columns in all {
            let (theirs, n) = (add_scalar(theirs[name].clone(), -offset), columns.n_numbers());
            let piece = if all.len() == 1 { theirs } else { slice(theirs, first..first + n) };
            pieces.entry(&columns.path).or_default().push((columns.clone(), piece));
            first += n;
        }
    }
    let ours = pieces.into_iter().map(|(path, pieces)| {
        let tensor = match pieces.iter().find(|(columns, _)| columns.are_whole()) {
            Some((_, tensor)) => tensor.clone(),
            None => concat_columns(pieces),
        };
        (path.to_owned(), tensor)
    });
    Ok(ours.collect())
}

/// Compares names and shapes with the `expected` ones.
fn check(expected: &BTreeMap<String, Vec<usize>>, found: &Tensors) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    for (name, shape) in expected {
        match found.get(name) {
            None => problems.push(format!("`{name}` {shape:?} is missing")),
            Some(tensor) if tensor.shape() != shape => {
                problems.push(format!("`{name}` has the shape {:?}, and {shape:?} is needed", tensor.shape()));
            }
            Some(_) => {}
        }
    }
    for (name, tensor) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
        problems.push(format!("`{name}` {:?} is no tensor of the model", tensor.shape()));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn zeros(shape: &[usize]) -> LazyTensor {
    let n = shape.iter().product();
    LazyTensor::computed(shape.to_vec(), move |sink| sink(&vec![0.0; n]))
}

fn add_scalar(tensor: LazyTensor, number: f32) -> LazyTensor {
    if number == 0.0 {
        return tensor;
    }
    LazyTensor::computed(tensor.shape().to_vec(), move |sink| {
        tensor.stream(&mut |values| sink(&values.iter().map(|value| value + number).collect::<Vec<_>>()))
    })
}

fn concat(shape: &[usize], parts: Vec<LazyTensor>) -> LazyTensor {
    LazyTensor::computed(shape.to_vec(), move |sink| parts.iter().try_for_each(|part| part.stream(&mut *sink)))
}

fn slice(of: LazyTensor, range: Range<usize>) -> LazyTensor {
    LazyTensor::computed(vec![range.len()], move |sink| {
        let mut first = 0;
        of.stream(&mut |values| {
            let [start, end] = [range.start, range.end].map(|at| at.clamp(first, first + values.len()) - first);
            first += values.len();
            if start < end { sink(&values[start..end]) } else { Ok(()) }
        })
    })
}

/// The columns of our parameter that one of their tensors, or a part of it, holds.
fn gather_columns(from: Columns, shape: &[usize], ours: LazyTensor) -> LazyTensor {
    let n = shape.iter().product();
    LazyTensor::computed(shape.to_vec(), move |sink| {
        let [n_rows, width] = matrix(&from.shape);
        let columns = indices(&from);
        let mut theirs = vec![0.0; n];
        for_each_rows(&ours, width, |first, rows| {
            if from.transposed {
                let here: Vec<usize> = (first..first + rows.len() / width).collect();
                transpose(rows, &mut theirs, [width, n_rows], [&columns, &here]);
            } else {
                let theirs = theirs[first * columns.len()..].chunks_mut(columns.len());
                for (ours, theirs) in rows.chunks(width).zip(theirs) {
                    for (value, column) in theirs.iter_mut().zip(&columns) {
                        *value = ours[*column];
                    }
                }
            }
        })?;
        sink(&theirs)
    })
}

/// Our parameter, from all of their tensors that hold columns of it.
fn concat_columns(pieces: Vec<(Columns, LazyTensor)>) -> LazyTensor {
    let shape = pieces[0].0.shape.clone();
    let pieces = Arc::new(pieces);
    LazyTensor::computed(shape.clone(), move |sink| {
        let [n_rows, width] = matrix(&shape);
        let mut ours = vec![0.0; n_rows * width];
        for (into, theirs) in &*pieces {
            let columns = indices(into);
            let their_width = if into.transposed { n_rows } else { columns.len() };
            for_each_rows(theirs, their_width, |first, rows| {
                if into.transposed {
                    let own: Vec<usize> = (0..their_width).collect();
                    let here = &columns[first..first + rows.len() / their_width];
                    transpose(rows, &mut ours, [their_width, width], [&own, here]);
                } else {
                    for (theirs, ours) in rows.chunks(their_width).zip(ours[first * width..].chunks_mut(width)) {
                        for (value, column) in theirs.iter().zip(&columns) {
                            ours[*column] = *value;
                        }
                    }
                }
            })?;
        }
        sink(&ours)
    })
}

/// The rows and columns of a matrix; a vector is one row.
fn matrix(shape: &[usize]) -> [usize; 2] {
    match *shape {
        [n_rows, width] => [n_rows, width],
        [width] => [1, width],
        _ => unreachable!("parameters are vectors and matrices"),
    }
}

pub(crate) fn indices(columns: &Columns) -> Vec<usize> {
    columns.ranges.iter().cloned().flatten().collect()
}

/// Calls `f` with the index of the first row and the values of several whole rows, until all rows are passed.
fn for_each_rows(tensor: &LazyTensor, width: usize, mut f: impl FnMut(usize, &[f32])) -> io::Result<()> {
    let n_rows = (VALUES_AT_ONCE / width).max(ROWS_AT_ONCE);
    let n_values = width * n_rows;
    let mut rows = Vec::with_capacity(n_values.min(tensor.n_numbers()));
    let mut first = 0;
    tensor.stream(&mut |mut values| {
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(n_values - rows.len()));
            rows.extend_from_slice(now);
            values = later;
            if rows.len() == n_values {
                f(first, &rows);
                rows.clear();
                first += n_rows;
            }
        }
        Ok(())
    })?;
    if !rows.is_empty() {
        f(first, &rows);
    }
    Ok(())
}

/// Writes `columns` of each row of a matrix to a column of another, which `to_columns` gives. Both have these widths.
fn transpose(from: &[f32], to: &mut [f32], [width, to_width]: [usize; 2], [columns, to_columns]: [&[usize]; 2]) {
    let bands = to.par_chunks_mut(to_width * BAND).zip(columns.par_chunks(BAND));
    bands.for_each(|(to, columns)| {
        for (rows, to_columns) in from.chunks(width * BLOCK).zip(to_columns.chunks(BLOCK)) {
            for (to, column) in to.chunks_mut(to_width).zip(columns) {
                for (row, to_column) in rows.chunks(width).zip(to_columns) {
                    to[*to_column] = row[*column];
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, clippy::single_range_in_vec_init, reason = "values are moved, and columns are ranges")]

    use super::super::layout::{Naming, layout};
    use super::*;
    use crate::families::tests::configs;
    use tinderbox_model::Parameter;
    use tinderbox_model::config::ModelConfig;

    const VOCAB_SIZE: usize = 37;

    /// Parameters of a model, with all values distinct.
    fn ours_of(config: &ModelConfig) -> Tensors {
        let mut next = 0.0;
        let distinct = |Parameter { path, shape, .. }| {
            let n: usize = shape.iter().product();
            let values: Vec<f32> = (0..n).map(|i| next + i as f32).collect();
            next += n as f32;
            // In pieces that end in mid-row.
            let tensor = LazyTensor::computed(shape, move |sink| values.chunks(7).try_for_each(&mut *sink));
            (path, tensor)
        };
        Parameter::all(config, VOCAB_SIZE).map(distinct).collect()
    }

    fn values(tensor: &LazyTensor) -> Vec<f32> {
        tensor.read().expect("the tensor is in memory").values
    }

    #[test]
    fn conversion_round_trips_for_every_family_and_naming() {
        let mut n_cases = 0;
        for (family, config) in configs() {
            let ours = ours_of(&config);
            for naming in [Naming::Hf, Naming::Gguf] {
                if naming == Naming::Gguf && family.gguf.is_none() {
                    continue;
                }
                let layout = layout(family, naming, &config, VOCAB_SIZE);
                let shapes = ours.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec()));
                assert_eq!(parameters(&layout), shapes.collect(), "{family} {config:?}");
                let theirs = to_theirs(&layout, &ours).expect("every tensor exists");
                let back = to_ours(&layout, &theirs).expect("every tensor exists");
                assert!(back.keys().eq(ours.keys()));
                for (name, tensor) in &ours {
                    assert_eq!(values(&back[name]), values(tensor), "{family} {naming:?} {name}");
                }
                n_cases += 1;
            }
        }
        assert!(n_cases > 60, "{n_cases}");
    }

    /// The models in `tests/fixtures/families` test the order of queries, keys and values in transformers.
    #[test]
    fn llama_keys_are_permuted_as_in_llama_cpp() {
        let (family, config) =
            configs().into_iter().find(|(family, _)| family.name() == "llama").expect("llama is a family");
        let ModelConfig { d_model, n_kv_heads, head_dim, .. } = config;
        let [k, permuted] =
            [(Naming::Hf, "model.layers.1.self_attn.k_proj.weight"), (Naming::Gguf, "blk.1.attn_k.weight")].map(
                |(naming, name)| {
                    let theirs = to_theirs(&layout(family, naming, &config, VOCAB_SIZE), &ours_of(&config));
                    values(&theirs.expect("every tensor exists")[name])
                },
            );
        // llama.cpp's `permute`: reshape(H, 2, D / 2, C), swap the two middle dimensions.
        for head in 0..n_kv_heads {
            for (half, i) in [(0, 0), (1, 0), (0, 1), (1, head_dim / 2 - 1)] {
                let (from, to) = (head * head_dim + half * head_dim / 2 + i, head * head_dim + 2 * i + half);
                assert_eq!(permuted[to * d_model..(to + 1) * d_model], k[from * d_model..(from + 1) * d_model]);
            }
        }
    }

    #[test]
    fn large_matrices_are_rearranged_in_pieces() {
        let (n_rows, n_columns) = (3 * BAND + 5, VALUES_AT_ONCE / 150 + 11); // several pieces, the last one smaller
        let ranges = vec![0..n_columns];
        let columns = Columns { path: "x".into(), shape: vec![n_rows, n_columns], ranges, transposed: true };
        let tensor =
            ForeignTensor { name: "y".into(), shape: vec![n_columns, n_rows], columns: vec![columns], offset: 0.0 };
        let value = move |row: usize, column: usize| (row * n_columns + column) as f32;
        let x = LazyTensor::computed(vec![n_rows, n_columns], move |sink| {
            (0..n_rows).try_for_each(|row| sink(&(0..n_columns).map(|i| value(row, i)).collect::<Vec<_>>()))
        });
        let layout = [tensor];
        let ours = Tensors::from([("x".to_owned(), x)]);
        let theirs = to_theirs(&layout, &ours).expect("the tensor exists");
        let transposed = values(&theirs["y"]);
        for (row, column) in [(0, 0), (n_rows - 1, n_columns - 1), (BAND, BLOCK), (17, n_columns - 12)] {
            assert_eq!(transposed[column * n_rows + row], value(row, column));
        }
        let back = to_ours(&layout, &theirs).expect("the tensor exists");
        assert!(values(&back["x"]) == values(&ours["x"]));
    }
}
