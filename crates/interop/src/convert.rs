//! Converts between our parameters and another project's tensors by a [`layout`](super::layout). Each tensor is
//! computed when it is read, so that only one is in memory at a time.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rayon::prelude::*;

use super::layout::{Entry, Part, parameters};
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
pub fn to_theirs(layout: &[Entry], ours: &Tensors) -> Result<Tensors, Vec<String>> {
    check(&parameters(layout), ours)?;
    let theirs = layout.iter().map(|entry| {
        let tensor = match &entry.part {
            None => zeros(&entry.shape),
            Some(part) if part.is_whole() => ours[&part.parameter].clone(),
            Some(part) => take(part.clone(), &entry.shape, ours[&part.parameter].clone()),
        };
        (entry.name.clone(), tensor)
    });
    Ok(theirs.collect())
}

/// Converts their tensors to our parameters.
///
/// # Errors
/// The missing, misshapen and extra tensors among theirs, one per line.
pub fn to_ours(layout: &[Entry], theirs: &Tensors) -> Result<Tensors, Vec<String>> {
    check(&layout.iter().map(|entry| (entry.name.clone(), entry.shape.clone())).collect(), theirs)?;
    let mut pieces: BTreeMap<&str, Vec<(&Part, LazyTensor)>> = BTreeMap::new();
    for (entry, part) in layout.iter().filter_map(|entry| Some((entry, entry.part.as_ref()?))) {
        pieces.entry(&part.parameter).or_default().push((part, theirs[&entry.name].clone()));
    }
    let ours = pieces.into_iter().map(|(name, pieces)| {
        let tensor = match pieces.iter().find(|(part, _)| part.is_whole()) {
            Some((_, tensor)) => tensor.clone(),
            None => put_together(pieces.into_iter().map(|(part, tensor)| (part.clone(), tensor)).collect()),
        };
        (name.to_owned(), tensor)
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
        problems.push(format!("`{name}` {:?} belongs to no part of the model", tensor.shape()));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn zeros(shape: &[usize]) -> LazyTensor {
    let n = shape.iter().product();
    LazyTensor::computed(shape.to_vec(), move |sink| sink(&vec![0.0; n]))
}

/// One of their tensors: columns of our parameter.
fn take(part: Part, shape: &[usize], ours: LazyTensor) -> LazyTensor {
    let n = shape.iter().product();
    LazyTensor::computed(shape.to_vec(), move |sink| {
        let [n_rows, width] = matrix(&part.shape);
        let columns = columns(&part);
        let mut theirs = vec![0.0; n];
        for_each_rows(&ours, width, |first, rows| {
            let here: Vec<usize> = (first..first + rows.len() / width).collect();
            let from = Matrix { values: rows, width, columns: &columns };
            if part.transposed {
                transpose(from, &mut theirs, n_rows, &here);
            } else {
                let own: Vec<usize> = (0..columns.len()).collect();
                copy(from, &mut theirs[first * columns.len()..], columns.len(), &own);
            }
        })?;
        sink(&theirs)
    })
}

/// Our parameter, assembled from all of their tensors that are columns of it.
fn put_together(pieces: Vec<(Part, LazyTensor)>) -> LazyTensor {
    let shape = pieces[0].0.shape.clone();
    let pieces = Arc::new(pieces);
    LazyTensor::computed(shape.clone(), move |sink| {
        let [n_rows, width] = matrix(&shape);
        let mut ours = vec![0.0; n_rows * width];
        for (part, theirs) in &*pieces {
            let columns = columns(part);
            let their_width = if part.transposed { n_rows } else { columns.len() };
            let own: Vec<usize> = (0..their_width).collect();
            for_each_rows(theirs, their_width, |first, rows| {
                let theirs = Matrix { values: rows, width: their_width, columns: &own };
                match part.transposed {
                    true => transpose(theirs, &mut ours, width, &columns[first..first + rows.len() / their_width]),
                    false => copy(theirs, &mut ours[first * width..], width, &columns),
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

fn columns(part: &Part) -> Vec<usize> {
    part.columns.iter().cloned().flatten().collect()
}

/// Calls `f` with the index of the first row and the values of several whole rows, until all rows were passed.
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

/// Selected columns of a matrix.
struct Matrix<'a> {
    values: &'a [f32],
    width: usize,
    columns: &'a [usize],
}

/// Writes the selected columns to the columns `places` of a matrix.
fn copy(from: Matrix<'_>, to: &mut [f32], to_width: usize, places: &[usize]) {
    for (from_row, to_row) in from.values.chunks(from.width).zip(to.chunks_mut(to_width)) {
        for (column, place) in from.columns.iter().zip(places) {
            to_row[*place] = from_row[*column];
        }
    }
}

/// Writes each row to the column of a matrix given by `places`.
fn transpose(from: Matrix<'_>, to: &mut [f32], to_width: usize, places: &[usize]) {
    let bands = to.par_chunks_mut(to_width * BAND).zip(from.columns.par_chunks(BAND));
    bands.for_each(|(to, columns)| {
        for (rows, places) in from.values.chunks(from.width * BLOCK).zip(places.chunks(BLOCK)) {
            for (to, column) in to.chunks_mut(to_width).zip(columns) {
                for (row, place) in rows.chunks(from.width).zip(places) {
                    to[*place] = row[*column];
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, clippy::single_range_in_vec_init, reason = "values are moved, and columns are ranges")]

    use super::super::layout::{Naming, layout};
    use super::super::{Family, tests::configs};
    use super::*;
    use tinderbox_model::{Gpt, parameters as model_parameters};
    use tinderbox_train::config::ModelConfig;

    const VOCAB_SIZE: usize = 37;

    /// Parameters of a model, with all values distinct.
    fn ours_of(config: &ModelConfig) -> Tensors {
        let shapes = model_parameters::shapes(&Gpt::zeros(config, VOCAB_SIZE, &burn::tensor::Device::flex()));
        let mut next = 0.0;
        let distinct = |(name, shape): (String, Vec<usize>)| {
            let n: usize = shape.iter().product();
            let values: Vec<f32> = (0..n).map(|i| next + i as f32).collect();
            next += n as f32;
            // In pieces that end in mid-row.
            let tensor = LazyTensor::computed(shape, move |sink| values.chunks(7).try_for_each(&mut *sink));
            (name, tensor)
        };
        shapes.into_iter().map(distinct).collect()
    }

    fn values(tensor: &LazyTensor) -> Vec<f32> {
        tensor.read().expect("in memory").values
    }

    #[test]
    fn to_theirs_and_back_is_the_same_for_every_family_and_naming() {
        let mut n_cases = 0;
        for (family, config) in configs() {
            let ours = ours_of(&config);
            for naming in [Naming::Hf, Naming::Gguf] {
                if (family, naming) == (Family::GptNeo, Naming::Gguf) {
                    continue;
                }
                let layout = layout(family, naming, &config, VOCAB_SIZE);
                let shapes = ours.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec()));
                assert_eq!(parameters(&layout), shapes.collect(), "{family} {config:?}");
                let theirs = to_theirs(&layout, &ours).expect("all are there");
                let back = to_ours(&layout, &theirs).expect("all are there");
                assert!(back.keys().eq(ours.keys()));
                for (name, tensor) in &ours {
                    assert_eq!(values(&back[name]), values(tensor), "{family} {naming:?} {name}");
                }
                n_cases += 1;
            }
        }
        assert!(n_cases > 60, "{n_cases}");
    }

    #[test]
    fn parts_of_theirs_are_where_the_formulas_of_other_projects_say() {
        let config = |family| configs().into_iter().find(|(it, _)| *it == family).expect("it is one of them").1;
        let converted = |family, naming, config: &ModelConfig| {
            let ours = ours_of(config);
            let theirs = to_theirs(&layout(family, naming, config, VOCAB_SIZE), &ours).expect("all are there");
            (values(&ours["blocks.1.attention.qkv.weight"]), theirs)
        };

        // PyTorch's linear layers are [out, in].
        let llama = config(Family::Llama);
        let ModelConfig { d_model, n_heads, n_kv_heads, head_dim, .. } = llama;
        let width = (n_heads + 2 * n_kv_heads) * head_dim;
        let (ours, theirs) = converted(Family::Llama, Naming::Hf, &llama);
        let k = values(&theirs["model.layers.1.self_attn.k_proj.weight"]);
        for (row, column) in [(0, 0), (3, 5), (n_kv_heads * head_dim - 1, d_model - 1)] {
            assert_eq!(k[row * d_model + column], ours[column * width + n_heads * head_dim + row]);
        }

        // llama.cpp's `permute`: reshape(H, 2, D / 2, C), swap the two middle dimensions.
        let (_, permuted) = converted(Family::Llama, Naming::Gguf, &llama);
        let permuted = values(&permuted["blk.1.attn_k.weight"]);
        for head in 0..n_kv_heads {
            for (half, i) in [(0, 0), (1, 0), (0, 1), (1, head_dim / 2 - 1)] {
                let (from, to) = (head * head_dim + half * head_dim / 2 + i, head * head_dim + 2 * i + half);
                assert_eq!(permuted[to * d_model..(to + 1) * d_model], k[from * d_model..(from + 1) * d_model]);
            }
        }

        // GPT-2's Conv1D is [in, out], like ours; GGUF transposes it.
        let gpt2 = config(Family::Gpt2);
        let (ours, theirs) = converted(Family::Gpt2, Naming::Hf, &gpt2);
        assert_eq!(values(&theirs["transformer.h.1.attn.c_attn.weight"]), ours);
        let (_, theirs) = converted(Family::Gpt2, Naming::Gguf, &gpt2);
        let theirs = values(&theirs["blk.1.attn_qkv.weight"]);
        assert_eq!(theirs[7 * gpt2.d_model + 3], ours[3 * 3 * gpt2.d_model + 7]);

        // GPT-NeoX views the projection as [H, 3, D].
        let neox = config(Family::GptNeox);
        let ModelConfig { d_model, n_heads, head_dim, .. } = neox;
        let (ours, theirs) = converted(Family::GptNeox, Naming::Hf, &neox);
        let theirs = values(&theirs["gpt_neox.layers.1.attention.query_key_value.weight"]);
        for (head, which, i) in [(0, 0, 0), (0, 1, 1), (n_heads - 1, 2, head_dim - 1), (1, 0, 2)] {
            let row = (head * 3 + which) * head_dim + i;
            let column = which * d_model + head * head_dim + i;
            assert_eq!(theirs[row * d_model + 5], ours[5 * 3 * d_model + column]);
        }
    }

    #[test]
    fn large_matrices_are_rearranged_in_pieces() {
        let (n_rows, n_columns) = (3 * BAND + 5, VALUES_AT_ONCE / 150 + 11); // several pieces, the last one smaller
        let part = Part {
            parameter: "x".into(),
            shape: vec![n_rows, n_columns],
            columns: vec![0..n_columns],
            transposed: true,
        };
        let entry = Entry { name: "y".into(), shape: vec![n_columns, n_rows], part: Some(part) };
        let value = move |row: usize, column: usize| (row * n_columns + column) as f32;
        let x = LazyTensor::computed(vec![n_rows, n_columns], move |sink| {
            (0..n_rows).try_for_each(|row| sink(&(0..n_columns).map(|i| value(row, i)).collect::<Vec<_>>()))
        });
        let layout = [entry];
        let ours = Tensors::from([("x".to_owned(), x)]);
        let theirs = to_theirs(&layout, &ours).expect("it is there");
        let transposed = values(&theirs["y"]);
        for (row, column) in [(0, 0), (n_rows - 1, n_columns - 1), (BAND, BLOCK), (17, n_columns - 12)] {
            assert_eq!(transposed[column * n_rows + row], value(row, column));
        }
        let back = to_ours(&layout, &theirs).expect("it is there");
        assert!(values(&back["x"]) == values(&ours["x"]));
    }

    #[test]
    fn everything_that_does_not_fit_is_said_at_once() {
        let (family, config) = configs().swap_remove(0);
        let layout = layout(family, Naming::Hf, &config, VOCAB_SIZE);
        let mut theirs = to_theirs(&layout, &ours_of(&config)).expect("all are there");
        let names: Vec<String> = theirs.keys().cloned().collect();
        theirs.remove(&names[0]);
        theirs.insert(names[1].clone(), zeros(&[2, 3]));
        theirs.insert("adapter.weight".to_owned(), zeros(&[4]));
        let problems = to_ours(&layout, &theirs).expect_err("three do not fit");
        assert_eq!(problems.len(), 3, "{problems:#?}");
        assert!(problems[0].contains(&names[0]) && problems[0].ends_with("is missing"), "{problems:#?}");
        assert!(problems[1].contains(&names[1]) && problems[1].contains("[2, 3], and ["), "{problems:#?}");
        assert_eq!(problems[2], "`adapter.weight` [4] belongs to no part of the model");
    }
}
