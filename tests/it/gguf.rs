//! GGUF files: every family that llama.cpp supports survives a round trip, and unsupported files or models are rejected
//! with a reason.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tinderbox::config::ModelConfig;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{self, ForeignModel, InteropError, Outgoing};

use crate::fixtures::{Folder, Model, bits, characters, families, import};

/// Exports a run's model to a file.
fn export(run: &Path, numbers: TensorType, file: &Path) -> Result<PathBuf, InteropError> {
    gguf::export(&Outgoing::open(run)?, numbers, file, false)
}

fn open(file: &Path) -> ForeignModel {
    ForeignModel::open(file).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_family_goes_out_and_comes_back_as_it_was() {
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
        assert!(fs::read(again).expect("read") == fs::read(file).expect("read"), "{family}: not the same bytes");
    }
}

#[test]
fn a_tied_output_layer_that_llama_cpp_needs_is_tied_again() {
    let folder = Folder::new();
    let model = Model::for_gguf("olmo2");
    model.set(json!({ "tie_word_embeddings": true })).change(|tensors| drop(tensors.remove("lm_head.weight")));
    let (before, run) = (model.open(), import(&model, &folder));
    let after = open(&export(&run, TensorType::F32, &folder.path("one.gguf")).expect("a file"));
    assert!(before.config.tie_embeddings && after.tensors.contains_key("output.weight"));
    assert!(after.config.tie_embeddings && bits(&after) == bits(&before));
}

#[test]
fn the_program_writes_a_file_that_it_reads_again() {
    let folder = Folder::new();
    let llama = ["model.norm=rms_norm", "model.position=rope", "model.mlp=swiglu", "generate.stop=[\"\\n\"]"];
    folder.train(&[&["train.max_steps=2"], &llama[..]].concat());
    let ran = folder.run(&["export", "runs/tiny", "--to", "gguf"]).exits(0);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("exported llama to runs/tiny/gguf/tiny.gguf"), "{}", ran.stderr);
    let modelfile = folder.read("runs/tiny/gguf/Modelfile");
    let expected = "\nFROM ./tiny.gguf\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\nPARAMETER num_ctx 16\n";
    assert!(modelfile.contains(expected), "{modelfile}");
    assert!(modelfile.ends_with("PARAMETER stop \"\"\"\n\"\"\"\n"), "{modelfile}");
    folder.succeed(&["import", "runs/tiny/gguf/tiny.gguf", "--run-dir", "runs/back"]);
    let greedy = ["--prompt", "The ", "--max-new-tokens", "8", "--temperature", "0"];
    let write = |run: &str| folder.succeed(&[&["generate", run], &greedy[..]].concat());
    assert_eq!(write("runs/back"), write("runs/tiny"));

    let size = fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("written").len();
    folder.succeed(&["export", "runs/tiny", "--to", "gguf", "--dtype", "bf16", "--overwrite"]);
    assert!(fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("written").len() < size);
    let error = folder.fail(&["export", "runs/tiny", "--to", "hf", "--dtype", "q8_0"]);
    assert!(error.contains("--dtype q8_0 is a type of GGUF files\n  hint: add --to gguf"), "{error}");
}

#[test]
fn files_that_cannot_be_used_say_why() {
    let folder = Folder::new();
    let run = import(&Model::for_gguf("llama"), &folder);
    let file = export(&run, TensorType::F32, &folder.path("m.gguf")).expect("written");
    let bytes = fs::read(&file).expect("read");
    let error = |before: &[u8], after: &[u8]| {
        let at = bytes.windows(before.len()).position(|window| window == before).expect("it is there");
        let mut bytes = bytes.clone();
        bytes[at + before.len() - after.len()..at + before.len()].copy_from_slice(after);
        fs::write(folder.path("changed.gguf"), bytes).expect("written");
        folder.fail(&["import", "changed.gguf", "--run-dir", "runs/changed"])
    };
    let architecture = [b"general.architecture", &[8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], b"llama"].concat();
    let said = error(&architecture, b"gemma");
    assert!(said.contains("general.architecture = \"gemma\": supported are gpt2, llama, "), "{said}");
    let said = error(b"llama.block_count", b"llama.block_cound");
    assert!(said.contains("`llama.block_count` is missing in its metadata"), "{said}");
    assert!(!folder.path("runs/changed").exists());
}
