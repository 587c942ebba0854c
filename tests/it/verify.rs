//! `tinderbox verify` on models made by transformers: the run imported from a folder is its model, and one with a
//! changed number, setting or tensor is not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixtures::{FAMILIES, Folder, copy};

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(family)
}

/// A folder with the imported run `runs/FAMILY`, and a copy of the model that may be modified, `model`.
fn imported(family: &str) -> Folder {
    let folder = Folder::new();
    copy(&fixture(family), &folder.path("model"));
    folder.succeed(&["import", "model", "--run-dir", "runs/it"]);
    folder
}

/// Its output, which must say that the two are not the same.
fn differing(folder: &Folder, args: &[&str]) -> Value {
    let ran = folder.run(&[&["verify", "runs/it", "--against", "model", "--json"], args].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("`runs/it` is not the model in `model`"), "{}", ran.stderr);
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(found["same"], json!(false));
    found
}

/// The names and results of the tensors that are not equal.
fn unequal(found: &Value) -> Vec<(&str, &str)> {
    let tensors = found["tensors"].as_array().expect("tensors").iter();
    let named = tensors.map(|it| (it["name"].as_str().expect("a name"), it["result"].as_str().expect("a result")));
    named.filter(|(_, result)| *result != "equal").collect()
}

/// Edits the header of `model/model.safetensors`, keeping its length.
fn edit_header(folder: &Folder, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = folder.path("model/model.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is in the header");
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bytes).expect("written");
}

fn edit_config(folder: &Folder, key: &str, value: Value) {
    let path = folder.path("model/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    config[key] = value;
    fs::write(path, config.to_string()).expect("written");
}

#[test]
fn an_imported_run_is_its_model_in_every_family() {
    for family in FAMILIES {
        let folder = imported(family);
        let found = folder.json(&["verify", "runs/it", "--against", "model", "--json"]);
        assert_eq!(found["same"], json!(true), "{family}: {found}");
        assert_eq!(unequal(&found), [], "{family}");
        assert_eq!(found["settings"], json!([]), "{family}");
        assert_eq!((&found["logits"]["max_difference"], &found["logits"]["same_ids"]), (&json!(0.0), &json!(true)));
        assert_eq!(found["logits"]["n_same_argmax"], found["logits"]["n_tokens"]);
    }
}

/// Every writable type: its own type explains the differences, and no other does.
#[test]
fn an_export_is_the_run_in_every_type_of_numbers() {
    let folder = Folder::new();
    let llama = ["model.norm=rms_norm", "model.position=rope", "model.mlp=swiglu", "model.d_model=32"];
    folder.train(&[&["train.max_steps=3", "model.d_ff=64"], &llama[..]].concat());
    for (to, dtype, name, result) in [
        ("gguf", "f32", "token_embd.weight", "equal"),
        ("gguf", "f16", "token_embd.weight", "rounded"),
        ("gguf", "bf16", "token_embd.weight", "rounded"),
        ("gguf", "q8_0", "token_embd.weight", "rounded"),
        ("hf", "f16", "model.embed_tokens.weight", "rounded"),
        ("hf", "bf16", "model.embed_tokens.weight", "rounded"),
    ] {
        let place = format!("{dtype}.{to}");
        folder.succeed(&["export", "runs/tiny", "--to", to, "--dtype", dtype, "--output", &place]);
        let found = folder.json(&["verify", "runs/tiny", "--against", &place, "--prompt", "the cat", "--json"]);
        assert_eq!(found["same"], json!(true), "{place}: {found}");
        let tensors = found["tensors"].as_array().expect("tensors");
        let tensor = |name: &str| tensors.iter().find(|tensor| tensor["name"] == json!(name)).expect("it is there");
        assert_eq!(tensor(name)["result"], json!(result), "{place}");
        assert_eq!(tensor(name)["dtype"], json!(dtype.to_uppercase()));
        if to == "gguf" {
            assert_eq!(tensor("output_norm.weight")["result"], json!("equal"), "vectors stay exact");
        } else {
            let config: Value = serde_json::from_str(&folder.read(&format!("{place}/config.json"))).expect("JSON");
            assert_eq!(config["torch_dtype"], json!(if dtype == "f16" { "float16" } else { "bfloat16" }));
        }
    }
}

#[test]
fn a_changed_number_is_found() {
    let folder = imported("llama");
    let path = folder.path("model/model.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 0x40; // in the exponent of the last number
    fs::write(&path, bytes).expect("written");
    let found = differing(&folder, &[]);
    let unequal = unequal(&found);
    let [(name, "different")] = unequal[..] else { panic!("{unequal:?}") };
    let tensors = found["tensors"].as_array().expect("tensors");
    let tensor = tensors.iter().find(|tensor| tensor["name"] == json!(name)).expect("it is listed");
    assert_eq!((&tensor["n_different"], &tensor["dtype"]), (&json!(1), &json!("F32")));
    assert!(tensor["max_difference"].as_f64() > Some(1e-3), "{tensor}");
    let text = folder.run(&["verify", "runs/it", "--against", "model"]);
    assert!(text.stdout.contains(name) && text.stdout.ends_with("not the same model\n"), "{}", text.stdout);
}

#[test]
fn missing_and_extra_tensors_are_listed_together() {
    let folder = imported("gpt2");
    edit_header(&folder, "h.0.attn.c_attn.weight", "h.0.attn.c_attn.height");
    let found = differing(&folder, &[]);
    let name = |end| format!("transformer.h.0.attn.c_attn.{end}");
    let (height, weight) = (name("height"), name("weight"));
    assert_eq!(unequal(&found), [(&*height, "extra"), (&*weight, "missing")]);
    assert_eq!(found["logits"], Value::Null, "one of them is no model");
}

#[test]
fn settings_and_other_families_are_differences_too() {
    let folder = imported("qwen2");
    edit_config(&folder, "rms_norm_eps", json!(1e-3));
    let found = differing(&folder, &["--prompt", "a"]);
    assert_eq!(unequal(&found), []);
    let settings = found["settings"].as_array().expect("settings");
    assert!(settings.len() == 1 && settings[0].as_str().expect("text").starts_with("model.norm_eps = "), "{found}");

    let other = fixture("gpt2");
    let error = folder.fail(&["verify", "runs/it", "--against", other.to_str().expect("UTF-8")]);
    assert!(error.contains("which is of the family gpt2") && error.contains("model.position"), "{error}");
    let error = folder.fail(&["verify", "runs/it", "--against", "nowhere"]);
    assert!(error.contains("there is no model at `nowhere`") && error.contains("hint: "), "{error}");
}
