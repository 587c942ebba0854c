//! Adapters of other projects, one for each of their layers. Queries, keys and values share one where they are one
//! layer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use rayon::prelude::*;

use crate::convert::indices;
use crate::error::cannot_read;
use crate::layout::{ForeignTensor, layout};
use crate::principal::{Principal, removed};
use crate::{Family, InteropError, Naming, Outgoing, gguf, hf};
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::{AdapterRows, LazyTensor, Lora, Parameter, Target};
use tinderbox_train::config::{FinetuneConfig, FinetuneMethod};
use tinderbox_train::run::{AdapterOf, AdapterTensors, Adapters, Checkpoint, RunDir, TrainState, locate};

/// An adapter of one of their layers, as PyTorch stores it: the layer's weight changes by `b a` times a scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ForeignAdapter {
    /// `[R, in]`
    pub(crate) a: HostTensor,
    /// `[out, R]`
    pub(crate) b: HostTensor,
    /// The lengths of the changed weight's rows, `[out]`, if they are trained (DoRA).
    pub(crate) magnitude: Option<HostTensor>,
}

impl ForeignAdapter {
    pub(crate) fn rank(&self) -> usize {
        self.a.shape[0]
    }
}

/// Adapters of another project.
#[derive(Clone, Debug)]
pub(crate) struct ForeignAdapters {
    /// Those of its layers with the scales of their products, by the layer's name.
    pub(crate) layers: BTreeMap<String, (ForeignAdapter, f64)>,
    pub(crate) dropout: f64,
    /// The part of the base that they replace, if any.
    pub(crate) principal: Option<Principal>,
}

/// The parts of adapters that were read, by the layer: A, B and the lengths.
pub(crate) type Parts = BTreeMap<String, [Option<HostTensor>; 3]>;

/// The adapters with the scales that `scale_of` returns for their layers and ranks.
pub(crate) fn assemble(
    parts: Parts,
    scale_of: impl Fn(&str, usize) -> f64,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (ForeignAdapter, f64)> {
    let mut layers = BTreeMap::new();
    for (layer, parts) in parts {
        match parts {
            [Some(a), Some(b), magnitude] => {
                let scale = scale_of(&layer, a.shape[0]);
                layers.insert(layer, (ForeignAdapter { a, b, magnitude }, scale));
            }
            _ => problems.push(format!("`{layer}` has only one of its two matrices")),
        }
    }
    if layers.is_empty() && problems.is_empty() {
        problems.push("there are none".to_owned());
    }
    layers
}

/// The adapters at `path` for the run or checkpoint `base`: a run that was fine-tuned from it, a folder of PEFT or
/// mlx-lm, or a GGUF file.
pub fn open_adapters(path: &Path, base: &Path) -> Result<Adapters, InteropError> {
    let located = locate(base)?;
    let is_gguf = path.is_file();
    if !is_gguf && !hf::is_adapter_folder(path) {
        return Ok(Adapters::of_run(path, &located.checkpoint)?);
    }
    let config = located.run.config()?;
    let family = Family::of_run(&config.model, &Checkpoint::read_state(&located.checkpoint)?)?;
    let vocab_size = located.run.tokenizer_of_model(&config)?.vocab_size();
    let (naming, mut theirs) = match is_gguf {
        true => (Naming::Gguf, gguf::read_adapters(path, family)?),
        false => (Naming::Hf, hf::read_adapters(path)?),
    };
    let refused = |problems| InteropError::Adapters { path: path.to_owned(), problems };
    match theirs.principal {
        Some(Principal::Olora) if family.hf.tensors.is_conv => {
            let problem = "PEFT cannot use init_lora_weights = \"olora\" with the Conv1D layers of this model";
            return Err(refused(vec![problem.to_owned()]));
        }
        Some(which) => remove_from_base(&mut theirs.layers, which, &Outgoing::open(base)?)?,
        None => {}
    }
    let layout = layout(family, naming, &config.model, vocab_size);
    let table: Vec<Parameter> = Parameter::all(&config.model, vocab_size).collect();
    to_ours(&layout, &table, &theirs.layers, theirs.dropout).map_err(refused)
}

/// Makes adapters that replace a part of each weight of `base` adapters of the whole weights, of twice their rank.
fn remove_from_base(
    layers: &mut BTreeMap<String, (ForeignAdapter, f64)>,
    which: Principal,
    base: &Outgoing,
) -> Result<(), InteropError> {
    let weights = base.tensors(Naming::Hf)?;
    layers.par_iter_mut().try_for_each(|(layer, (adapter, scale))| {
        let Some(weight) = weights.get(&format!("{layer}.weight")) else { return Ok(()) }; // named later
        let weight = weight.read().map_err(cannot_read(&base.checkpoint))?;
        let weight = if base.family.hf.tensors.is_conv { weight.transposed() } else { weight };
        if weight.shape == [adapter.b.shape[0], adapter.a.shape[1]] && adapter.b.shape[1] == adapter.rank() {
            [adapter.a, adapter.b] = removed([&adapter.a, &adapter.b], *scale, &weight, which);
            *scale = 1.0;
        }
        Ok(())
    })
}

/// Writes adapters of another project as the run `root`, which names its base, replacing an old run if `overwrite`.
pub fn import_adapters(path: &Path, base: &Path, root: &Path, overwrite: bool) -> Result<Lora, InteropError> {
    RunDir::check_new(root, overwrite)?;
    let located = locate(base)?;
    let Adapters { lora, tensors } = open_adapters(path, base)?;
    let mut config = located.run.config()?.of_model();
    let Lora { rank, alpha, use_rslora, use_dora, dropout, targets, last_blocks, tokens: trained_tokens } =
        lora.clone();
    config.finetune = FinetuneConfig {
        base: Some(base.to_owned()),
        method: if use_dora { FinetuneMethod::Dora } else { FinetuneMethod::Lora },
        rank,
        alpha,
        use_rslora,
        dropout,
        targets,
        last_blocks,
        trained_tokens,
        ..FinetuneConfig::default()
    };
    let tokenizer = located.run.tokenizer()?;
    let of_base = Checkpoint::read_state(&located.checkpoint)?;
    let state = TrainState {
        started_from: Some(path.display().to_string()),
        family: of_base.family,
        dtype: of_base.dtype,
        tokenizer_crc32c: of_base.tokenizer_crc32c,
        adapter: Some(AdapterOf::new(&located.checkpoint, root, lora.clone())?),
        ..TrainState::default()
    };
    let checkpoint = Checkpoint { model: tensors, optimizer: BTreeMap::new(), state };
    RunDir::create_with(root, overwrite, &config, &tokenizer, &checkpoint)?;
    Ok(lora)
}

/// The adapters of a run's checkpoint, without their base.
pub(crate) fn adapters_of(model: &Outgoing) -> Result<(&AdapterOf, Vec<AdapterTensors>), InteropError> {
    let adapter = model.state.adapter.as_ref().ok_or_else(|| InteropError::NoAdapter(model.run.root().to_owned()))?;
    if !adapter.lora.tokens.is_empty() {
        return Err(InteropError::TokensOfAdapter(model.run.root().to_owned()));
    }
    Ok((adapter, adapter.tensors(&model.checkpoint)?))
}

/// The adapters of their layers, by the layer's name. Where a layer holds several of our targets, their adapters are
/// concatenated, and the ranks add up.
pub(crate) fn to_theirs(
    layout: &[ForeignTensor],
    ours: &[AdapterTensors],
) -> io::Result<BTreeMap<String, ForeignAdapter>> {
    let mut theirs = BTreeMap::new();
    for (layer, tensor) in layers(layout) {
        let columns = columns_of(tensor);
        let is_here = |rows: &AdapterRows| columns.contains(&(&*rows.weight, rows.columns.start));
        let here: Vec<_> = ours.iter().filter(|adapter| is_here(&adapter.rows)).collect();
        let Some(first) = here.first() else { continue };
        let (n_inputs, n_outputs) = (first.rows.a.shape[0], columns.len());
        let rank: usize = here.iter().map(|adapter| adapter.rows.a.shape[1]).sum();
        let (mut a, mut b) = (vec![0.0; rank * n_inputs], vec![0.0; n_outputs * rank]);
        let mut magnitude = first.magnitude.is_some().then(|| vec![f32::NAN; n_outputs]);
        let mut before = 0;
        for AdapterTensors { rows, a: our_a, b: our_b, magnitude: our_magnitude } in here {
            let [our_a, our_b] = [our_a.read()?.values, our_b.read()?.values];
            let our_magnitude = our_magnitude.as_ref().map(LazyTensor::read).transpose()?;
            let own = rows.a.shape[1];
            for (input, values) in our_a.chunks_exact(own).enumerate() {
                for (i, value) in values.iter().enumerate() {
                    a[(before + i) * n_inputs + input] = *value;
                }
            }
            for (out, column) in outputs(rows, &columns) {
                for i in 0..own {
                    b[out * rank + before + i] = our_b[i * rows.columns.len() + column];
                }
                if let (Some(theirs), Some(ours)) = (&mut magnitude, &our_magnitude) {
                    theirs[out] = ours.values[column];
                }
            }
            before += own;
        }
        let (a, b) = (
            HostTensor { shape: vec![rank, n_inputs], values: a },
            HostTensor { shape: vec![n_outputs, rank], values: b },
        );
        if magnitude.as_ref().is_some_and(|lengths| lengths.iter().any(|length| length.is_nan())) {
            let reason =
                format!("`{layer}` is one layer in the other project, and only a part of it has the lengths of DoRA");
            return Err(io::Error::other(reason));
        }
        let magnitude = magnitude.map(|values| HostTensor { shape: vec![n_outputs], values });
        theirs.insert(layer.to_owned(), ForeignAdapter { a, b, magnitude });
    }
    Ok(theirs)
}

/// Our adapters, of the largest rank among theirs, which come with their scales. Ours are zero in the targets and
/// blocks where they have none.
///
/// # Errors
/// Each adapter that is misshapen or belongs to no linear layer of a block.
pub(crate) fn to_ours(
    layout: &[ForeignTensor],
    table: &[Parameter],
    theirs: &BTreeMap<String, (ForeignAdapter, f64)>,
    dropout: f64,
) -> Result<Adapters, Vec<String>> {
    let rank = theirs.values().map(|(adapter, _)| adapter.rank()).max().unwrap_or(1);
    let scale = theirs.values().next().map_or(1.0, |(_, scale)| *scale);
    let mut lora = Lora {
        rank,
        alpha: scale * rank as f64,
        use_rslora: false,
        use_dora: theirs.values().any(|(adapter, _)| adapter.magnitude.is_some()),
        dropout,
        targets: Target::ALL.to_vec(),
        last_blocks: None,
        tokens: Vec::new(),
    };
    let (mut used, mut targets, mut blocks, mut problems) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), Vec::new());
    let every = lora.adapters(table);
    for rows in &every {
        let Some((layer, columns)) = layer_of(layout, rows) else { continue };
        let Some((adapter, _)) = theirs.get(layer) else { continue };
        let r = adapter.rank();
        let matrices = [("A", &adapter.a, vec![r, rows.a.shape[0]]), ("B", &adapter.b, vec![columns.len(), r])];
        let lengths = adapter.magnitude.iter().map(|lengths| ("length", lengths, vec![columns.len()]));
        for (name, HostTensor { shape, .. }, expected) in matrices.into_iter().chain(lengths) {
            if *shape != expected && used.insert((layer, name)) {
                problems.push(format!("`{layer}` has an {name} of the shape {shape:?}, and {expected:?} is needed"));
            }
        }
        used.insert((layer, ""));
        targets.insert(rows.target);
        blocks.extend(Parameter::block_of(&rows.weight));
    }
    let unused = theirs.keys().filter(|layer| !used.contains(&(layer.as_str(), "")));
    problems.extend(unused.map(|layer| format!("`{layer}` is not a linear layer of the model's blocks")));
    if !problems.is_empty() {
        return Err(problems);
    }
    let n_blocks = every.iter().filter_map(|rows| Parameter::block_of(&rows.weight)).max().map_or(0, |last| last + 1);
    let n_from_first = blocks.first().map(|first| n_blocks - first);
    lora.targets = targets.into_iter().collect();
    lora.last_blocks = n_from_first.filter(|n| *n < n_blocks);
    let mut tensors = BTreeMap::new();
    for rows in lora.adapters(table) {
        let (mut a, mut b) = (vec![0.0; rows.a.shape.iter().product()], vec![0.0; rows.b.shape.iter().product()]);
        let found = layer_of(layout, &rows).and_then(|(layer, columns)| Some((theirs.get(layer)?, columns)));
        let mut magnitude = vec![f32::NAN; rows.columns.len()];
        if let Some(((adapter, own_scale), columns)) = found {
            let (r, n_inputs) = (adapter.rank(), rows.a.shape[0]);
            for (input, values) in a.chunks_exact_mut(rank).enumerate() {
                for (i, value) in values[..r].iter_mut().enumerate() {
                    *value = adapter.a.values[i * n_inputs + input];
                }
            }
            #[allow(clippy::cast_possible_truncation, reason = "weights are f32")]
            let factor = (own_scale / scale) as f32;
            for (out, column) in outputs(&rows, &columns) {
                for i in 0..r {
                    b[i * rows.columns.len() + column] = adapter.b.values[out * r + i] * factor;
                }
                if let Some(theirs) = &adapter.magnitude {
                    magnitude[column] = theirs.values[out];
                }
            }
        }
        if lora.use_dora && magnitude.iter().any(|length| length.is_nan()) {
            return Err(vec![format!("`{}` of {} has no lengths, which the others have", rows.target, rows.weight)]);
        }
        let magnitude = rows.magnitude.map(|row| (row, magnitude));
        for (row, values) in [Some((rows.a, a)), Some((rows.b, b)), magnitude].into_iter().flatten() {
            tensors.insert(row.path, LazyTensor::computed(row.shape, move |sink| sink(&values)));
        }
    }
    Ok(Adapters { lora, tensors })
}

/// Their layer with the columns of one of our adapters, and for each of its outputs our parameter and column.
fn layer_of<'a>(layout: &'a [ForeignTensor], rows: &AdapterRows) -> Option<(&'a str, Vec<(&'a str, usize)>)> {
    let is_of = |tensor: &ForeignTensor| tensor.columns.iter().any(|columns| columns.path == rows.weight);
    let those = layers(layout).filter(|(_, tensor)| is_of(tensor));
    let mut those = those.map(|(layer, tensor)| (layer, columns_of(tensor)));
    those.find(|(_, columns)| columns.contains(&(&*rows.weight, rows.columns.start)))
}

/// The outputs of their layer that our adapter changes, each with the adapter's column; `columns` are the layer's.
fn outputs<'a>(rows: &'a AdapterRows, columns: &'a [(&'a str, usize)]) -> impl Iterator<Item = (usize, usize)> + 'a {
    columns.iter().enumerate().filter_map(|(out, (path, column))| {
        let is_changed = *path == rows.weight && rows.columns.contains(column);
        is_changed.then(|| (out, column - rows.columns.start))
    })
}

/// Their weights of layers, by the layers' names.
fn layers(layout: &[ForeignTensor]) -> impl Iterator<Item = (&str, &ForeignTensor)> {
    layout.iter().filter_map(|tensor| Some((tensor.name.strip_suffix(".weight")?, tensor)))
}

/// For each output of their layer, our parameter and the column of it.
fn columns_of(tensor: &ForeignTensor) -> Vec<(&str, usize)> {
    tensor
        .columns
        .iter()
        .flat_map(|columns| indices(columns).into_iter().map(|column| (&*columns.path, column)))
        .collect()
}
