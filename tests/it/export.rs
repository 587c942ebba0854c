//! Runs as models for other projects: they come back as they went, and never by half.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use tinderbox::interop::{Outgoing, Source, hf};
use tinderbox::model::Dtype;

use crate::cli::Folder;
use crate::import::{FAMILIES, Model, bits, import};

#[test]
fn what_came_in_goes_out_and_comes_back_bit_by_bit() {
    for family in FAMILIES {
        let folder = Folder::new();
        let model = Model::of(family);
        let came = model.open();
        let run = import(&model, &folder);
        let outgoing = Outgoing::open(&run).unwrap_or_else(|error| panic!("{family}: {error}"));
        let to = folder.path("hf");
        hf::export(&outgoing, Dtype::F32, &to, false).unwrap_or_else(|error| panic!("{family}: {error}"));
        let back = Source::open(&to).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(back.config, came.config, "{family}");
        assert!(bits(&back) == bits(&came), "{family}");
        assert_eq!(back.tokenizer.json, came.tokenizer.json, "{family}");
        if family == "mistral" {
            continue; // whose models are Llama's
        }
        assert!(back.tensors.keys().eq(came.tensors.keys()), "{family}: the names are theirs");
        let config = |path: &std::path::Path| -> serde_json::Map<String, Value> {
            serde_json::from_slice(&fs::read(path.join("config.json")).expect("read")).expect("an object")
        };
        // Every key that both files have says the same, but for numbers that a default stood for.
        let (ours, theirs) = (config(&to), config(model.path()));
        let differing: BTreeSet<&str> = ours
            .iter()
            .filter(|(key, value)| theirs.get(*key).is_some_and(|theirs| theirs != *value))
            .map(|(key, _)| key.as_str())
            .collect();
        let expected: BTreeSet<_> = match family {
            "gpt2" => ["attn_pdrop", "embd_pdrop", "resid_pdrop", "n_inner"].into(),
            "gpt_neo" => ["intermediate_size"].into(),
            _ => [].into(),
        };
        // Their tokenizer does not say which token ends a text.
        let expected = &expected | &BTreeSet::from(["bos_token_id", "eos_token_id"]);
        assert!(differing.is_subset(&expected), "{family}: {differing:?}");
    }
}

#[test]
fn half_the_bits_are_the_nearest_numbers() {
    let folder = Folder::new();
    let model = Model::of("qwen2");
    let outgoing = Outgoing::open(&import(&model, &folder)).expect("a run");
    let whole = bits(&model.open());
    for (dtype, name, digits) in [(Dtype::Bf16, "bfloat16", 8), (Dtype::F16, "float16", 11)] {
        let to = folder.path(name);
        hf::export(&outgoing, dtype, &to, false).expect("written");
        let config: Value = serde_json::from_slice(&fs::read(to.join("config.json")).expect("read")).expect("JSON");
        assert_eq!(config["torch_dtype"], name);
        let (model_bytes, half_bytes) =
            (fs::metadata(model.path().join("model.safetensors")), fs::metadata(to.join("model.safetensors")));
        assert!(half_bytes.expect("a file").len() < model_bytes.expect("a file").len() * 6 / 10);
        for (name, (_, rounded)) in bits(&Source::open(&to).expect("a model")) {
            for (rounded, exact) in rounded.into_iter().zip(&whole[&name].1) {
                let [rounded, exact] = [rounded, *exact].map(f32::from_bits);
                let spacing = exact.abs() * 2.0_f32.powi(1 - digits);
                assert!((rounded - exact).abs() <= spacing / 2.0 + 1e-7, "{name}: {rounded} is not next to {exact}");
            }
        }
    }
}
