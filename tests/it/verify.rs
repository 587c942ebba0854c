//! `tinderbox verify` on models made by transformers: the run imported from a folder is its model, and one with a
//! changed number, setting or tensor is not.

use serde_json::{Value, json};

use crate::fixtures::{Folder, Model, families, list};

/// A folder with the imported run `runs/it`, and its model, which may be modified.
fn imported(family: &str) -> (Folder, Model) {
    let (folder, model) = (Folder::new(), Model::of(family));
    folder.succeed(&["import", model.path().to_str().expect("UTF-8"), "--run-dir", "runs/it"]);
    (folder, model)
}

fn verify<'a>(model: &'a Model, args: &[&'a str]) -> Vec<&'a str> {
    [&["verify", "runs/it", "--against", model.path().to_str().expect("UTF-8")], args].concat()
}

/// The output for a model that is not the same.
fn differing((folder, model): &(Folder, Model), args: &[&str]) -> Value {
    let ran = folder.run(&[&verify(model, &["--json"])[..], args].concat()).exits(1);
    assert!(ran.stderr.contains("`runs/it` is not the model in `"), "{}", ran.stderr);
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(found["same"], json!(false));
    found
}

fn unequal(found: &Value) -> Vec<(&str, &str)> {
    let tensors = list(&found["tensors"]).iter();
    let named = tensors.map(|it| (it["name"].as_str().expect("a name"), it["result"].as_str().expect("a result")));
    named.filter(|(_, result)| *result != "equal").collect()
}

#[test]
fn verify_accepts_imported_runs_of_every_family() {
    for family in families() {
        let (folder, model) = imported(&family);
        let found = folder.json(&verify(&model, &["--json"]));
        assert_eq!((&found["same"], &found["settings"]), (&json!(true), &json!([])), "{family}: {found}");
        assert_eq!(unequal(&found), [], "{family}");
        let logits = &found["logits"];
        assert_eq!((&logits["max_difference"], &logits["same_ids"]), (&json!(0.0), &json!(true)), "{family}");
        assert_eq!(logits["n_same_argmax"], logits["n_tokens"], "{family}");
    }
}

/// Every writable type: its own type explains the differences, and no other does.
#[test]
fn verify_accepts_exports_of_every_type() {
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
        let tensors = list(&found["tensors"]);
        let tensor = |name: &str| tensors.iter().find(|tensor| tensor["name"] == json!(name)).expect("it is there");
        assert_eq!(tensor(name)["result"], json!(result), "{place}");
        assert_eq!(tensor(name)["dtype"], json!(dtype.to_uppercase()));
        if to == "gguf" {
            assert_eq!(tensor("output_norm.weight")["result"], json!("equal"), "vectors stay exact");
        } else {
            let config = folder.read_json(&format!("{place}/config.json"));
            assert_eq!(config["torch_dtype"], json!(if dtype == "f16" { "float16" } else { "bfloat16" }));
        }
    }
}

#[test]
fn verify_finds_changed_number() {
    let it = imported("llama");
    it.1.change(|tensors| {
        let last = tensors.get_mut("lm_head.weight").expect("it is not tied").bytes.last_mut();
        *last.expect("a number") ^= 0x40; // in the exponent
    });
    let found = differing(&it, &[]);
    let unequal = unequal(&found);
    let [(name, "different")] = unequal[..] else { panic!("{unequal:?}") };
    let tensors = list(&found["tensors"]);
    let tensor = tensors.iter().find(|tensor| tensor["name"] == json!(name)).expect("it is listed");
    assert_eq!((&tensor["n_different"], &tensor["dtype"]), (&json!(1), &json!("F32")));
    assert!(tensor["max_difference"].as_f64() > Some(1e-3), "{tensor}");
    let text = it.0.run(&verify(&it.1, &[]));
    assert!(text.stdout.contains(name) && text.stdout.ends_with("not the same model\n"), "{}", text.stdout);
}

#[test]
fn verify_lists_missing_and_extra_tensors() {
    let it = imported("gpt2");
    let [height, weight] = ["height", "weight"].map(|end| format!("transformer.h.0.attn.c_attn.{end}"));
    it.1.change(|tensors| {
        let tensor = tensors.remove(&weight).expect("it is there");
        tensors.insert(height.clone(), tensor);
    });
    let found = differing(&it, &[]);
    assert_eq!(unequal(&found), [(&*height, "extra"), (&*weight, "missing")]);
    assert_eq!(found["logits"], Value::Null, "one of them is no model");
}

#[test]
fn verify_reports_settings_and_families() {
    let it = imported("qwen2");
    it.1.set(json!({ "rms_norm_eps": 1e-3 }));
    let found = differing(&it, &["--prompt", "a"]);
    assert_eq!(unequal(&found), []);
    let settings = list(&found["settings"]);
    assert!(
        settings.len() == 1 && settings[0].as_str().expect("the field is a string").starts_with("model.norm_eps = "),
        "{found}"
    );

    let error = it.0.fail(&verify(&Model::of("gpt2"), &[]));
    assert!(error.contains("which is of the family gpt2") && error.contains("model.position"), "{error}");
    let error = it.0.fail(&["verify", "runs/it", "--against", "nowhere"]);
    assert!(error.contains("there is no model at `nowhere`") && error.contains("hint: "), "{error}");
}
