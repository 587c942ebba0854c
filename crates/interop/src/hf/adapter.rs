//! Folders of adapters: PEFT's, which can be read and written, and mlx-lm's, which can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::folder::Folder;
use super::{ConfigJson, export, pretty, weights};
use crate::adapter::{ForeignAdapter, ForeignAdapters, Parts, adapters_of, assemble, to_theirs};
use crate::error::{cannot_read, cannot_write, damaged};
use crate::layout::{ForeignTensor, layout};
use crate::principal::Principal;
use crate::{InteropError, Naming, Outgoing};
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::tensor_file::write_as;
use tinderbox_model::{Dtype, LazyTensor};

pub(crate) const CONFIG: &str = "adapter_config.json";
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";
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

/// Returns an error if a folder has adapters and no weights of a model.
pub(super) fn refuse_adapters(folder: &Folder) -> Result<(), InteropError> {
    let has_weights = folder.file(super::WEIGHTS)?.or(folder.file(super::INDEX)?).is_some();
    match folder.json(CONFIG)?.filter(|_| !has_weights) {
        Some(config) => {
            let base = config.get("base_model_name_or_path").and_then(Value::as_str);
            Err(InteropError::adapters_alone(folder.path(), base))
        }
        None => Ok(()),
    }
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
    // The last two change the base by what it is alone.
    let known = ["eva", "gaussian", "orthogonal", "mica", "pissa", "olora"];
    let is_known = |init: &Value| init.is_boolean() || init.as_str().is_some_and(|name| known.contains(&name));
    if let Some(init) = keys.get("init_lora_weights").filter(|init| !is_known(init)) {
        let why = "it changes the base by more than is saved; PEFT converts such adapters: save_pretrained(FOLDER, \
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
    /// In the order of the file: the first that matches is used.
    #[serde(default)]
    alpha_pattern: Option<Map<String, Value>>,
    #[serde(default)]
    init_lora_weights: Option<Value>,
}

impl PeftConfig {
    fn principal(&self) -> Option<Principal> {
        match self.init_lora_weights.as_ref()?.as_str()? {
            "pissa" => Some(Principal::Pissa),
            "olora" => Some(Principal::Olora),
            _ => None,
        }
    }

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

/// Reads the folder `path`.
pub(crate) fn read_adapters(path: &Path) -> Result<ForeignAdapters, InteropError> {
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
        let alphas = config.alpha_pattern.clone().unwrap_or_default().into_iter();
        let alphas = alphas.map(|(key, alpha)| Ok((key, serde_json::from_value::<f64>(alpha)?)));
        let alphas: Vec<(String, f64)> = alphas.collect::<Result<_, _>>().map_err(malformed)?;
        let is_name = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
        if let Some((key, _)) = alphas.iter().find(|(key, _)| !is_name(key)) {
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
                let read = if is_turned { read.transposed() } else { read };
                parts.entry(layer.to_owned()).or_default()[part] = Some(read);
            }
            _ => problems.push(format!("`{name}` is no part of an adapter of a linear layer")),
        }
    }
    problems.extend(peft.iter().flat_map(|config| config.contradictions(&parts)));
    let layers = assemble(parts, scale_of, &mut problems);
    if !problems.is_empty() {
        return Err(refused(problems));
    }
    Ok(ForeignAdapters { layers, dropout, principal: peft.and_then(|config| config.principal()) })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of PEFT 0.21.2's `LoraConfig` with a value other than its default, by whether it is refused. The others
    /// are used, are said by the tensors, too, or matter only in training.
    const KEYS: [(bool, &str); 2] = [
        (
            false,
            r#"{"auto_mapping": {"base_model_class": "Mine"}, "peft_type": "LORA", "peft_version": "0.21.2",
            "base_model_name_or_path": "a/b", "revision": "main", "inference_mode": true, "r": 16,
            "target_modules": "all-linear", "exclude_modules": ["k_proj"], "lora_alpha": 32, "lora_dropout": 0.5,
            "fan_in_fan_out": true, "use_rslora": true, "init_lora_weights": "gaussian", "layers_to_transform": [1],
            "layers_pattern": "h", "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 2},
            "megatron_core": "mine.core", "loftq_config": {"loftq_bits": 4}, "eva_config": {"rho": 1.5},
            "corda_config": {"corda_method": "kpm"}, "lora_ga_config": {"scale": "unit"}, "use_dora": true,
            "qalora_group_size": 8, "runtime_config": {"ephemeral_gpu_offload": true}, "ensure_weight_tying": true}"#,
        ),
        (
            true,
            r#"{"task_type": "SEQ_CLS", "bias": "lora_only", "modules_to_save": ["lm_head"],
            "megatron_config": {"a": 1}, "trainable_token_indices": [7], "velora_config": {"scale": 2.0},
            "alora_invocation_tokens": [1, 2], "use_qalora": true, "monteclora_config": {"num_samples": 2},
            "layer_replication": [[0, 2]], "lora_bias": true, "target_parameters": ["experts.up"],
            "use_bdlora": {"nblocks": 2}, "arrow_config": {"top_k": 2}, "kasa_config": {"beta": 1.0},
            "key_of_tomorrow": 1}"#,
        ),
    ];

    #[test]
    fn every_key_of_peft_is_used_or_refused() {
        let check = |key: &str, value: &Value, is_refused: bool| {
            let said = peft_problems(&Map::from_iter([(key.to_owned(), value.clone())]));
            assert_eq!(said.len(), usize::from(is_refused), "{key} = {value}: {said:?}");
            assert!(said.iter().all(|said| said.contains(&format!("has {key} = {value}: "))), "{said:?}");
            assert_eq!(peft_problems(&Map::from_iter([(key.to_owned(), Value::Null)])), [""; 0]);
        };
        let mut used: BTreeSet<String> = ["bias", "task_type"].map(str::to_owned).into(); // at some values
        for (is_refused, keys) in KEYS {
            let keys: Map<String, Value> = serde_json::from_str(keys).expect("an object");
            for (key, value) in &keys {
                check(key, value, is_refused);
            }
            used.extend(keys.into_iter().map(|(key, _)| key).filter(|_| !is_refused));
        }
        let known: BTreeSet<String> = PEFT_KEYS.map(str::to_owned).into();
        assert_eq!(used, known);
        for init in ["pissa", "olora", "eva", "orthogonal", "mica"] {
            check("init_lora_weights", &json!(init), false);
        }
        for init in ["pissa_niter_4", "loftq", "corda", "lora_ga", "of_tomorrow"] {
            check("init_lora_weights", &json!(init), true);
        }
        check("init_lora_weights", &json!(false), false);
        check("init_lora_weights", &json!(3), true);
    }
}
