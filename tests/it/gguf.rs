//! GGUF files: every family that llama.cpp supports survives a round trip.

use std::path::{Path, PathBuf};

use serde_json::json;
use tinderbox::config::ModelConfig;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{self, ForeignModel, InteropError, Outgoing};

use crate::fixtures::{Folder, Model, bits, characters, families, fs, import};

fn export(run: &Path, numbers: TensorType, file: &Path) -> Result<PathBuf, InteropError> {
    gguf::export(&Outgoing::open(run)?, numbers, file, false)
}

fn open(file: &Path) -> ForeignModel {
    ForeignModel::open(file).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn gguf_round_trip_keeps_every_family() {
    for family in families() {
        let folder = Folder::new();
        let model = Model::for_gguf(&family);
        let (before, run) = (model.open(), import(&model, &folder));
        if !before.family.is_in_llama_cpp() {
            continue;
        }
        let file = export(&run, TensorType::F32, &folder.path("one.gguf"));
        let has_windows = before.config.attention_window.iter().any(|window| *window > 0);
        if has_windows && !["gemma2", "gemma3_text"].contains(&before.family.name()) {
            let error = file.expect_err("llama.cpp has no windows there").to_string();
            assert!(error.contains("its layers have attention windows"), "{family}: {error}");
            continue;
        }
        let file = file.unwrap_or_else(|error| panic!("{error}"));
        let after = open(&file);
        assert_eq!(bits(&after), bits(&before), "{family}");
        let config = ModelConfig { dropout: 0.0, ..before.config };
        assert_eq!(after.config, config, "{family}");
        assert_eq!(after.tokenizer.json, characters().to_json(), "{family}");

        let again = folder.path("again/run");
        interop::import(&after, "there", &again, false).unwrap_or_else(|error| panic!("{error}"));
        let again = export(&again, TensorType::F32, &folder.path("two.gguf")).expect("it was one");
        assert!(fs::read(again) == fs::read(file), "{family}: not the same bytes");
    }
}

#[test]
fn gguf_round_trip_keeps_tied_output() {
    let folder = Folder::new();
    let model = Model::for_gguf("olmo2");
    model.set(json!({ "tie_word_embeddings": true })).change(|tensors| drop(tensors.remove("lm_head.weight")));
    let (before, run) = (model.open(), import(&model, &folder));
    let after = open(&export(&run, TensorType::F32, &folder.path("one.gguf")).expect("a file"));
    assert!(before.config.tie_embeddings && after.tensors.contains_key("output.weight"));
    assert!(after.config.tie_embeddings && bits(&after) == bits(&before));
}

#[test]
fn export_and_import_of_gguf_generate_alike() {
    let folder = Folder::new();
    let llama = ["model.norm=rms_norm", "model.position=rope", "model.mlp=swiglu", "generate.stop=[\"\\n\"]"];
    folder.train(&[&["train.max_steps=2"], &llama[..]].concat());
    let ran = folder.run(&["export", "runs/tiny", "--to", "gguf"]).exits(0);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("exported llama to runs/tiny/gguf/tiny.gguf"), "{}", ran.stderr);
    let ollama = "ollama create tiny -f runs/tiny/gguf/Modelfile && ollama run tiny\n";
    let next = format!("\nNext:\n    llama-cli --model runs/tiny/gguf/tiny.gguf\n    {ollama}");
    assert!(ran.stderr.ends_with(&next), "{}", ran.stderr);
    let modelfile = folder.read("runs/tiny/gguf/Modelfile");
    let expected = "\nFROM ./tiny.gguf\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\nPARAMETER num_ctx 16\n";
    assert!(modelfile.contains(expected), "{modelfile}");
    assert!(modelfile.ends_with("PARAMETER stop \"\"\"\n\"\"\"\n"), "{modelfile}");
    folder.succeed(&["import", "runs/tiny/gguf/tiny.gguf", "--run-dir", "runs/back"]);
    let greedy = ["--prompt", "The ", "--max-new-tokens", "8", "--temperature", "0"];
    let generate = |run: &str| folder.succeed(&[&["generate", run], &greedy[..]].concat());
    assert_eq!(generate("runs/back"), generate("runs/tiny"));

    let size = fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("it can be written").len();
    folder.succeed(&["export", "runs/tiny", "--to", "gguf", "--dtype", "bf16", "--overwrite"]);
    assert!(fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("it can be written").len() < size);
    let error = folder.fail(&["export", "runs/tiny", "--to", "hf", "--dtype", "q8_0"]);
    assert!(error.contains("--dtype q8_0 is a type of GGUF files\n  hint: add --to gguf"), "{error}");
}
