//! Folders of adapters: PEFT's, which can be read and written, and mlx-lm's, which can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::folder::Folder;
use super::{ConfigJson, export, pretty, weights};
use crate::adapter::{ForeignAdapter, adapters_of, to_ours, to_theirs};
use crate::error::{cannot_read, cannot_write, damaged};
use crate::layout::{ForeignTensor, layout};
use crate::{Family, InteropError, Naming, Outgoing};
use tinderbox_model::config::ModelConfig;
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::tensor_file::write_as;
use tinderbox_model::{Dtype, LazyTensor, Parameter};
use tinderbox_train::run::Adapters;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// The prefix of the names of layers in PEFT.
const PREFIX: &str = "base_model.model.";
/// The weights of mlx-lm.
const MLX_WEIGHTS: &str = "adapters.safetensors";

/// Writes the folder `output`, replacing an earlier export if `overwrite`.
pub fn export_adapter(model: &Outgoing, dtype: Dtype, output: &Path, overwrite: bool) -> Result<(), InteropError> {
    let (adapter, ours) = adapters_of(model)?;
    let layout = layout(model.family, Naming::Hf, model.model(), model.vocab_size());
    let theirs = to_theirs(&layout, &ours).map_err(cannot_read(&model.checkpoint))?;
    let lora = &adapter.lora;
    let (mut tensors, mut modules, mut blocks) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for (layer, ForeignAdapter { a, b, magnitude }) in theirs {
        let module = module_name(&layer, &layout);
        blocks.extend(layer.split('.').find_map(|part| part.parse::<usize>().ok()));
        let rank = a.shape[0];
        if rank != lora.rank {
            // Concatenated adapters, each with its own scale.
            let n = rank as f64 / lora.rank as f64;
            ranks.insert(module.clone(), rank.into());
            alphas.insert(module.clone(), (lora.alpha * if lora.use_rslora { n.sqrt() } else { n }).into());
        }
        modules.insert(module);
        let magnitude = magnitude.map(|magnitude| ("magnitude_vector", magnitude));
        for (name, HostTensor { shape, values }) in [("A.weight", a), ("B.weight", b)].into_iter().chain(magnitude) {
            let tensor = LazyTensor::computed(shape, move |sink| sink(&values));
            tensors.insert(format!("{PREFIX}{layer}.lora_{name}"), tensor);
        }
    }
    let config = json!({
        "alpha_pattern": alphas,
        "base_model_name_or_path": adapter.base,
        "bias": "none",
        "fan_in_fan_out": model.family.hf.tensors.is_conv,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_to_transform": lora.last_blocks.map_or(Value::Null, |_| json!(blocks)),
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": lora.rank,
        "rank_pattern": ranks,
        "target_modules": modules,
        "task_type": "CAUSAL_LM",
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
    });
    export::write_folder(output, overwrite, |folder, text| {
        text(CONFIG, &pretty(&config))?;
        let path = folder.join(WEIGHTS);
        write_as(&path, &tensors, dtype).map(drop).map_err(cannot_write(&path))
    })
}

/// The end of a layer's name that PEFT looks for in every block: the last word, or the last two if other
/// layers share the last one.
fn module_name(layer: &str, layout: &[ForeignTensor]) -> String {
    let ending = |name: &str, n: usize| {
        let words: Vec<&str> = name.rsplit('.').take(n).collect();
        words.into_iter().rev().collect::<Vec<_>>().join(".")
    };
    let names = layout.iter().filter_map(|tensor| tensor.name.strip_suffix(".weight"));
    let same: BTreeSet<String> =
        names.filter(|name| ending(name, 1) == ending(layer, 1)).map(|name| ending(name, 2)).collect();
    ending(layer, if same.len() > 1 { 2 } else { 1 })
}

/// Whether `path` is a folder of adapters of PEFT or mlx-lm.
pub(crate) fn is_adapter_folder(path: &Path) -> bool {
    path.join(CONFIG).is_file()
}

/// The keys of PEFT that are read here, that the tensors say too, or that matter only before and during the training.
const PEFT_KEYS: [&str; 29] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
];

/// The keys of PEFT at values that change what the tensors mean, or that may. Other keys have to be off.
fn peft_problems(config: &Map<String, Value>) -> Vec<String> {
    let mut keys = ConfigJson::new(config);
    keys.only("bias", "none");
    keys.only("task_type", "CAUSAL_LM");
    let keeps_base = |init: &Value| init.is_boolean() || ["eva", "gaussian", "orthogonal"].iter().any(|it| init == it);
    if let Some(init) = keys.get("init_lora_weights").filter(|init| !keeps_base(init)) {
        let why = "it changes the base, too; PEFT converts such adapters: save_pretrained(FOLDER, \
                   path_initial_model_for_weight_conversion=FOLDER_BEFORE_TRAINING)";
        keys.problem("init_lora_weights", init, why);
    }
    let is_on = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    for (key, value) in config.iter().filter(|(key, value)| !PEFT_KEYS.contains(&key.as_str()) && is_on(value)) {
        keys.problem(key, value, "it is not supported");
    }
    keys.problems.into_iter().map(|problem| format!("{CONFIG} has {problem}")).collect()
}

/// The parts of the adapters of their layers, by the layer: A, B and the lengths.
type Parts = BTreeMap<String, [Option<HostTensor>; 3]>;

/// The fields read from PEFT's `adapter_config.json`. `null` counts as absent.
#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    lora_alpha: f64,
    #[serde(default)]
    r: Option<usize>,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, usize>>,
    #[serde(default)]
    use_dora: Option<bool>,
    #[serde(default)]
    lora_dropout: Option<f64>,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, f64>>,
}

impl PeftConfig {
    /// What the config and the tensors contradict each other in.
    fn contradictions(&self, parts: &Parts) -> Vec<String> {
        let ranks: Vec<usize> =
            self.r.into_iter().chain(self.rank_pattern.iter().flat_map(BTreeMap::values).copied()).collect();
        let is_other = |a: &HostTensor| self.r.is_some() && !ranks.contains(&a.shape[0]);
        let rank = parts.iter().find(|(_, [a, ..])| a.as_ref().is_some_and(is_other));
        let rank =
            rank.map(|(layer, _)| format!("`{layer}` has a rank that neither r nor rank_pattern in {CONFIG} has"));
        let use_dora = self.use_dora == Some(true);
        let dora = parts.iter().find(|(_, [.., magnitude])| magnitude.is_some() != use_dora);
        let lengths = if use_dora { "no lengths" } else { "the lengths of DoRA" };
        let dora = dora.map(|(layer, _)| format!("`{layer}` has {lengths}, and {CONFIG} has use_dora = {use_dora}"));
        rank.into_iter().chain(dora).collect()
    }
}

/// The fields read from mlx-lm's `adapter_config.json`. The others at its top are those of the training.
#[derive(Deserialize)]
struct MlxConfig {
    fine_tune_type: String,
    lora_parameters: MlxLora,
}

#[derive(Deserialize)]
struct MlxLora {
    /// The factor itself, not divided by the rank.
    scale: f64,
    #[serde(default)]
    dropout: f64,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The scale of the product of a module's two matrices, from the module's name and rank.
type Scale = Box<dyn Fn(&str, usize) -> f64>;

/// Reads the folder `path`, for a model of `family` with `vocab_size` token embedding rows.
pub(crate) fn read_adapters(
    path: &Path,
    family: &Family,
    model: &ModelConfig,
    vocab_size: usize,
) -> Result<Adapters, InteropError> {
    let folder = Folder::open(path)?;
    let text = folder.text(CONFIG)?.unwrap_or_default();
    let malformed = |error: serde_json::Error| damaged(&path.join(CONFIG), error.to_string());
    let refused = |problems: Vec<String>| InteropError::Adapters { path: path.to_owned(), problems };
    let kind = |key: &str, value: &str| refused(vec![format!("{CONFIG} has {key} = {value}; LoRA is supported")]);
    let mut problems = Vec::new();
    let mut peft = None;
    let (file, scale_of, dropout): (_, Scale, f64) = if let Some(file) = folder.file(MLX_WEIGHTS)? {
        let config: MlxConfig = serde_json::from_str(&text).map_err(malformed)?;
        if config.fine_tune_type != "lora" {
            return Err(kind("fine_tune_type", &config.fine_tune_type));
        }
        let MlxLora { scale, dropout, others } = config.lora_parameters;
        let others = others.iter().filter(|(key, _)| !["keys", "rank"].contains(&key.as_str()));
        problems.extend(others.map(|(key, value)| format!("{CONFIG} has lora_parameters.{key} = {value}")));
        (file, Box::new(move |_, _| scale), dropout)
    } else {
        let config: PeftConfig = serde_json::from_str(&text).map_err(malformed)?;
        if config.peft_type != "LORA" {
            return Err(kind("peft_type", &config.peft_type));
        }
        problems = peft_problems(&serde_json::from_str(&text).map_err(malformed)?);
        let PeftConfig { lora_alpha, lora_dropout, use_rslora, .. } = config;
        let alphas = config.alpha_pattern.clone().unwrap_or_default();
        let is_name = |key: &String| key.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
        if let Some(key) = alphas.keys().find(|key| !is_name(key)) {
            return Err(refused(vec![format!(
                "{CONFIG} has the pattern \"{key}\" in alpha_pattern; names are supported"
            )]));
        }
        let Some(file) = folder.file(WEIGHTS)? else {
            return Err(refused(vec![format!("it has neither {WEIGHTS} nor {MLX_WEIGHTS}")]));
        };
        let scale = move |layer: &str, rank: usize| {
            let is_of = |key: &str| layer == key || layer.ends_with(&format!(".{key}"));
            let alpha = alphas.iter().find(|(key, _)| is_of(key)).map_or(lora_alpha, |(_, alpha)| *alpha);
            alpha / if use_rslora == Some(true) { (rank as f64).sqrt() } else { rank as f64 }
        };
        peft = Some(config);
        (file, Box::new(scale), lora_dropout.unwrap_or(0.0))
    };
    let mut parts = Parts::new();
    for (name, tensor) in weights::open_file(&file)? {
        match layer_and_part(&name) {
            Some((layer, part, is_turned)) if tensor.shape().len() == N_DIMENSIONS[part] => {
                let read = tensor.read().map_err(cannot_read(&file))?;
                let read = if is_turned { transposed(&read) } else { read };
                parts.entry(layer.to_owned()).or_default()[part] = Some(read);
            }
            _ => problems.push(format!("`{name}` is no part of an adapter of a linear layer")),
        }
    }
    problems.extend(peft.iter().flat_map(|config| config.contradictions(&parts)));
    let mut theirs = BTreeMap::new();
    for (layer, parts) in parts {
        match parts {
            [Some(a), Some(b), magnitude] => {
                let scale = scale_of(&layer, a.shape[0]);
                theirs.insert(layer, (ForeignAdapter { a, b, magnitude }, scale));
            }
            _ => problems.push(format!("`{layer}` has only one of its two matrices")),
        }
    }
    if theirs.is_empty() && problems.is_empty() {
        problems.push("there are none".to_owned());
    }
    if !problems.is_empty() {
        return Err(refused(problems));
    }
    let layout = layout(family, Naming::Hf, model, vocab_size);
    let table: Vec<Parameter> = Parameter::all(model, vocab_size).collect();
    to_ours(&layout, &table, &theirs, dropout).map_err(refused)
}

const N_DIMENSIONS: [usize; 3] = [2, 2, 1];

/// The layer of a tensor, 0 for the matrix A, 1 for B and 2 for the lengths of DoRA, and whether it is stored
/// transposed.
fn layer_and_part(name: &str) -> Option<(&str, usize, bool)> {
    const ENDS: [(&str, usize, bool); 8] = [
        (".lora_A.weight", 0, false),
        (".lora_B.weight", 1, false),
        (".lora_A.default.weight", 0, false),
        (".lora_B.default.weight", 1, false),
        (".lora_magnitude_vector", 2, false),
        (".lora_magnitude_vector.default.weight", 2, false),
        (".lora_a", 0, true), // mlx-lm's
        (".lora_b", 1, true),
    ];
    let of = |(end, part, is_turned): (&str, usize, bool)| Some((name.strip_suffix(end)?, part, is_turned));
    let (layer, part, is_turned) = ENDS.into_iter().find_map(of)?;
    Some((layer.strip_prefix(PREFIX).unwrap_or(layer), part, is_turned))
}

fn transposed(HostTensor { shape, values }: &HostTensor) -> HostTensor {
    let [n_rows, n_columns] = [shape[0], shape[1]];
    let at = |column: usize| (0..n_rows).map(move |row| row * n_columns + column);
    let values = (0..n_columns).flat_map(at).map(|at| values[at]).collect();
    HostTensor { shape: vec![n_columns, n_rows], values }
}
