//! Models that cannot be imported, and runs that cannot be exported: the program says why, lists what is supported, and
//! changes nothing.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::json;

use crate::fixtures::{Folder, Model, fs, import};

/// The error of an import, without the temporary name of the model; nothing is left behind.
fn refused(path: &Path) -> String {
    let folder = Folder::new();
    let name = path.to_str().expect("UTF-8");
    let said = folder.fail(&["import", name, "--run-dir", "runs/it"]);
    assert!(!folder.path("runs").exists());
    said.replace(name, "MODEL")
}

/// A GGUF metadata string, with its type.
fn gguf_text(text: &str) -> Vec<u8> {
    [&8_u32.to_le_bytes()[..], &(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The same file with one more key. Another one pads both to the alignment, so that tensors stay in place.
fn with_value(file: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let entry = |key: &str, value: &[u8]| [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), value].concat();
    let added = entry(key, value);
    let padded = |n: usize| [&added[..], &entry("padding", &gguf_text(&"x".repeat(n)))].concat();
    let added = (0..32).map(padded).find(|both| both.len().is_multiple_of(32)).expect("one of them");
    let mut file = file.to_vec();
    file[16] += 2; // the number of metadata entries, below 254
    file.splice(24..24, added);
    file
}

#[test]
fn unsupported_gguf_settings_are_listed() {
    let folder = Folder::new();
    let run = import(&Model::for_gguf("llama"), &folder);
    folder.succeed(&["export", run.to_str().expect("UTF-8"), "--to", "gguf", "--output", "it.gguf"]);
    let file = fs::read(folder.path("it.gguf"));
    let says = |key: &str, value: &[u8]| {
        let path = folder.path("changed.gguf");
        fs::write(&path, with_value(&file, key, value));
        refused(&path)
    };
    let number = |n: u32| [4_u32.to_le_bytes(), n.to_le_bytes()].concat();
    // No experts, and windows as long as the context, are none.
    for (key, value) in [("llama.expert_count", 0), ("llama.attention.sliding_window", 4096)] {
        folder.write("same.gguf", with_value(&file, key, &number(value)));
        folder.succeed(&["import", "same.gguf", "--run-dir", "runs/same", "--overwrite"]);
    }
    assert_snapshot!(says("llama.expert_count", &number(8)), @r"
    error: the model in `MODEL` is not supported:
      - llama.expert_count = 8: supported are models without experts
    ");
    assert_snapshot!(says("llama.attention.sliding_window", &number(4)), @r"
    error: the model in `MODEL` is not supported:
      - llama.attention.sliding_window = 4: supported are models whose positions see all before them
    ");
    assert_snapshot!(says("llama.rope.scaling.type", &gguf_text("longrope")), @r#"
    error: the model in `MODEL` is not supported:
      - llama.rope.scaling.type = "longrope": supported are "none", "linear" and "yarn", and Llama 3's, which is a tensor
    "#);
    assert_snapshot!(says("split.count", &number(3)), @r"
    error: `MODEL` is not a model that can be imported: it is one of 3 parts of a model
      hint: join them with llama.cpp: llama-gguf-split --merge FIRST-PART WHOLE.gguf
    ");
    assert_snapshot!(says("general.alignment", &number(33)), @r"
    error: `MODEL` is damaged: `general.alignment` is 33, not a power of 2
      hint: download or write it again
    ");
    let other = [b"general.architecture", &[8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], b"llama"].concat();
    let at = file.windows(other.len()).position(|window| window == other).expect("every file names its architecture");
    let mut other_file = file.clone();
    other_file[at + other.len() - 5..at + other.len()].copy_from_slice(b"gemma");
    folder.write("changed.gguf", other_file);
    let said = refused(&folder.path("changed.gguf"));
    assert!(said.contains("general.architecture = \"gemma\": supported are gpt2, llama, "), "{said}");
}

#[test]
fn misfitting_tensors_are_listed_together() {
    let model = Model::of("gpt2");
    model.change(|tensors| {
        let weight = tensors.remove("transformer.h.0.attn.c_attn.weight").expect("it is there");
        tensors.insert("transformer.h.0.attn.c_proj.weight".to_owned(), weight.clone());
        tensors.insert("transformer.h.2.attn.c_attn.weight".to_owned(), weight);
        tensors.remove("transformer.ln_f.bias");
    });
    assert_snapshot!(refused(model.path()), @r"
    error: the tensors in `MODEL` do not fit its config:
      - `transformer.h.0.attn.c_attn.weight` [16, 48] is missing
      - `transformer.h.0.attn.c_proj.weight` has the shape [16, 48], and [16, 16] is needed
      - `transformer.ln_f.bias` [16] is missing
      - `transformer.h.2.attn.c_attn.weight` [16, 48] is no tensor of the model
      hint: the file is incomplete, or its config is that of another model
    ");
}

#[test]
fn missing_or_damaged_files_are_named() {
    let says = |change: &dyn Fn(&Model)| {
        let model = Model::of("llama");
        change(&model);
        refused(model.path())
    };
    assert_snapshot!(says(&|model| model.remove("config.json")), @r"
    error: `MODEL` is not a model that can be imported: it has no config.json
      hint: name a folder that transformers' save_pretrained wrote, or one from the Hugging Face hub
    ");
    assert_snapshot!(says(&|model| fs::rename(model.path().join("config.json"), model.path().join("x.gguf"))), @r"
    error: `MODEL` is not a model that can be imported: it has no config.json
      hint: name a .gguf file in it, such as x.gguf
    ");
    assert_snapshot!(says(&|model| model.write("config.json", "{\"model_type\": ")), @r"
    error: `MODEL/config.json` is damaged: it is not a JSON object: EOF while parsing a value at line 1 column 15
      hint: download or write it again
    ");
    assert_snapshot!(says(&|model| model.remove("model.safetensors")), @r"
    error: `MODEL` is not a model that can be imported: it has neither model.safetensors nor model.safetensors.index.json
      hint: name a folder that transformers' save_pretrained wrote
    ");
    let pickle =
        |model: &Model| fs::rename(model.path().join("model.safetensors"), model.path().join("pytorch_model.bin"));
    assert!(says(&pickle).contains("its weights are in pytorch_model.bin, a format that can run any code"));
    assert_snapshot!(says(&|model| model.remove("tokenizer.json")), @r#"
    error: `MODEL` is not a model that can be imported: it has no tokenizer.json, tokenizer.model, or vocab.json with merges.txt
      hint: convert it with transformers, and import the new folder: python -c "import sys, transformers as t; [c.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for c in (t.AutoModelForCausalLM, t.AutoTokenizer)]" MODEL NEW_FOLDER
    "#);
    assert_snapshot!(says(&|model| model.write("tokenizer.json", "{}")), @r"
    error: `MODEL/tokenizer.json` is not a tokenizer.json: it is JSON, but without a `model`, which holds the vocabulary
      hint: it is the file of that name beside a model of the Hugging Face hub, or what `save` of the tokenizers library writes; vocab.json, tokenizer_config.json and tokenizer.model are others
    ");
    let cut = |model: &Model| {
        let bytes = fs::read(model.path().join("model.safetensors"));
        model.write("model.safetensors", &bytes[..5000]);
    };
    assert_snapshot!(says(&cut), @r"
    error: `MODEL/model.safetensors` is damaged: incomplete metadata, file not fully covered
      hint: download or write it again
    ");
    let index = |model: &Model| {
        let file = "model-00001-of-00002.safetensors";
        fs::remove_file(model.path().join("model.safetensors"));
        model.write("model.safetensors.index.json", json!({ "weight_map": { "x": file } }).to_string());
    };
    assert_snapshot!(says(&index), @r"
    error: `MODEL/model.safetensors.index.json` is damaged: it names `model-00001-of-00002.safetensors`, which is not there
      hint: download or write it again
    ");
    assert_snapshot!(refused(Path::new("nowhere")), @r"
    error: there is no model at `MODEL`
      hint: name a folder with a config.json and safetensors files, or a .gguf file; import downloads hf:OWNER/NAME
    ");
}

#[test]
fn import_and_export_keep_existing_files() {
    let folder = Folder::new();
    let model = Model::of("llama");
    let path = model.path().to_str().expect("UTF-8");
    folder.succeed(&["import", path, "--run-dir", "runs/it"]);
    let state = folder.read("runs/it/checkpoints/step-000000/state.json");
    assert_snapshot!(folder.fail(&["import", path, "--run-dir", "runs/it"]), @r"
    error: `runs/it` already exists; nothing was written
      hint: choose another place, or replace it with --overwrite
    ");
    let mine = ["tensorboard/mine.txt", "checkpoints/step-000000/card.md", "checkpoints/best-one/model.safetensors"];
    for name in mine {
        folder.write(Path::new("runs/it").join(name), "mine");
    }
    assert_snapshot!(folder.fail(&["import", path, "--run-dir", "runs/it", "--overwrite"]), @r"
    error: the run `runs/it` is not replaced, since these are in its folders and no run wrote them:
      - checkpoints/best-one
      - checkpoints/step-000000/card.md
      - tensorboard/mine.txt
      hint: move them elsewhere, or choose another place with --run-dir
    ");
    for name in mine {
        assert_eq!(folder.read(&format!("runs/it/{name}")), "mine");
    }
    fs::create_dir(folder.path("notes"));
    folder.write("notes/today.txt", "mine");
    folder.write("notes/config.toml", "title = \"My notes\"\n"); // other programs have one, too
    assert_snapshot!(folder.fail(&["import", path, "--run-dir", "notes", "--overwrite"]), @r"
    error: `notes` is not empty and not a run, so nothing is written there
      hint: choose another place with --run-dir
    ");
    for output in ["notes", "text.txt"] {
        for overwrite in [&[][..], &["--overwrite"]] {
            let args = [&["export", "runs/it", "--to", "hf", "--output", output], overwrite].concat();
            let expected = format!(
                "error: `{output}` exists and holds no model, so it is not replaced\n  hint: choose another place\n"
            );
            assert_eq!(folder.fail(&args), expected);
        }
    }
    assert_snapshot!(folder.fail(&["export", "runs/it", "--to", "hf", "--output", "."]), @r"
    error: `.` does not name a folder that can be created
      hint: give it a name, such as my-model
    ");
    folder.write("notes/Modelfile", "FROM mine");
    folder.write("notes/it.gguf", "mine");
    assert_snapshot!(folder.fail(&["export", "runs/it", "--to", "gguf", "--output", "notes"]), @r"
    error: `notes/it.gguf` already exists; nothing was written
      hint: choose another place, or replace it with --overwrite
    ");
    assert_snapshot!(folder.fail(&["export", "runs/it", "--to", "gguf", "--output", "notes", "--overwrite"]), @r"
    error: nothing was written to `notes`: these files are not from an export, or were changed since:
      - it.gguf
      - Modelfile
      hint: choose another place, or move them elsewhere
    ");
    folder.write("model/config.json", "{}");
    folder.write("model/notes.txt", "mine");
    assert_snapshot!(folder.fail(&["export", "runs/it", "--to", "hf", "--output", "model", "--overwrite"]), @r"
    error: nothing was written to `model`: these files are not from an export, or were changed since:
      - config.json
      - notes.txt
      hint: choose another place, or move them elsewhere
    ");
    assert_eq!(folder.read("notes/it.gguf") + &folder.read("model/notes.txt"), "minemine");
    assert_eq!(folder.read("notes/today.txt") + &folder.read("notes/Modelfile"), "mineFROM mine");
    assert_eq!(folder.read("runs/it/checkpoints/step-000000/state.json"), state);
    assert!(folder.read("text.txt").len() > 100);
}

#[test]
fn export_names_keys_without_family() {
    let mixture = ["model.position=rope", "model.mlp=relu_squared", "model.qk_norm=true"];
    let folder = Folder::with_run(&[&["train.max_steps=1"], &mixture[..]].concat());
    let hf = folder.fail(&["export", "runs/tiny", "--to", "hf"]);
    assert_snapshot!(hf, @r#"
    error: no model family of other projects matches this run:
      - model.norm = "layer_norm": qwen3 has "rms_norm"
      - model.mlp = "relu_squared": qwen3 has "swiglu"
      hint: train one that matches, such as the configs of `tinderbox init`; `tinderbox plan CONFIG` says whether a config is portable
    "#);
    assert_eq!(folder.fail(&["export", "runs/tiny", "--to", "gguf"]), hf);
    assert!(!folder.path("runs/tiny/hf").exists() && !folder.path("runs/tiny/gguf").exists());

    let neo = import(&Model::of("gpt_neo"), &folder);
    assert_snapshot!(folder.fail(&["export", neo.to_str().expect("UTF-8"), "--to", "gguf"]), @r"
    error: this model cannot be a GGUF file: llama.cpp does not know the family gpt_neo
      hint: export it as a Hugging Face folder, with --to hf
    ");
    assert_snapshot!(folder.fail(&["verify", "runs/tiny", "--against", "text.txt"]), @r#"
    error: `text.txt` is not a model that can be imported: it begins with "The ", not with "GGUF"
      hint: name the .gguf file of a model, or the folder of a Hugging Face model
    "#);
}
