//! GGUF files: every family that llama.cpp supports survives a round trip, and unsupported files or models are rejected
//! with a reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tinderbox::config::ModelConfig;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{self, InteropError, Outgoing, Source};
use tinderbox::model::{LazyTensor, parameters};
use tinderbox::tokenizer::Tokenizer;

use crate::cli::Folder;

/// Exports a run's model to a file.
fn export(run: &Path, numbers: TensorType, file: &Path) -> Result<PathBuf, InteropError> {
    gguf::export(&Outgoing::open(run)?, numbers, file, false)
}

/// Fewer characters than the fixture models have rows.
pub fn characters() -> Tokenizer {
    Tokenizer::char_from_alphabet("the quick brown fox\n\u{e9}\u{65e5}".chars()).expect("an alphabet")
}

/// The models made by transformers, with `scripts/fixtures/families.py`, that llama.cpp supports.
const FAMILIES: [&str; 8] = ["arcee", "gpt2", "gpt_neox", "llama", "llama3", "mistral", "qwen2", "qwen3"];

/// A fixture model of a family, with these characters, in a folder.
fn model_of(family: &str, folder: &Folder) -> Source {
    let model = folder.path("model");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(family);
    fs::create_dir_all(&model).expect("made");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), model.join(file)).expect("a fixture");
    }
    fs::write(model.join("tokenizer.json"), characters().to_json()).expect("written");
    open(&model)
}

/// Imports a model as a run.
fn import(model: &Source, run: PathBuf) -> PathBuf {
    interop::import(model, "there", &run, false).unwrap_or_else(|error| panic!("{error}"));
    run
}

/// The bits of our parameters.
fn bits(source: &Source) -> BTreeMap<String, (Vec<usize>, Vec<u32>)> {
    let ours = source.parameters().unwrap_or_else(|error| panic!("{error}"));
    let ours = parameters::to_host(&ours).expect("the file can be read");
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    ours.into_iter().map(|(name, tensor)| (name, (tensor.shape, bits(tensor.values)))).collect()
}

fn open(file: &Path) -> Source {
    Source::open(file).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_family_goes_out_and_comes_back_as_it_was() {
    for family in FAMILIES {
        let folder = Folder::new();
        let before = model_of(family, &folder);
        let run = import(&before, folder.path("run"));
        let file = export(&run, TensorType::F32, &folder.path("one.gguf")).unwrap_or_else(|error| panic!("{error}"));
        let after = open(&file);
        assert_eq!(bits(&after), bits(&before), "{family}");
        let config = ModelConfig { dropout: 0.0, ..before.config };
        assert_eq!(after.config, config, "{family}");
        assert_eq!(after.tokenizer.json, characters().to_json(), "{family}");

        let again = import(&after, folder.path("again/run"));
        let again = export(&again, TensorType::F32, &folder.path("two.gguf")).expect("it was one");
        assert!(fs::read(again).expect("read") == fs::read(file).expect("read"), "{family}: not the same bytes");
    }
}

#[test]
fn other_families_and_what_they_cannot_say_are_refused() {
    let folder = Folder::new();
    let run = import(&model_of("gpt_neo", &folder), folder.path("run"));
    let error = export(&run, TensorType::F32, &folder.path("x.gguf")).expect_err("unknown there").to_string();
    let expected = "this model cannot be a GGUF file: llama.cpp does not know the family gpt_neo\n  hint: ";
    assert!(error.starts_with(expected), "{error}");
    assert!(!folder.path("x.gguf").exists() && !folder.path("Modelfile").exists());
}

/// The largest difference between the numbers of two models, and between those in vectors.
fn differences(a: &Source, b: &Source) -> (f32, f32) {
    let (a, b) = (a.parameters().expect("whole"), b.parameters().expect("whole"));
    let mut greatest = (0.0_f32, 0.0_f32);
    for (name, tensor) in &a {
        let values = |tensor: &LazyTensor| tensor.read().expect("read").values;
        let pairs = values(tensor).into_iter().zip(values(&b[name]));
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        greatest.0 = greatest.0.max(difference);
        if tensor.shape().len() == 1 {
            greatest.1 = greatest.1.max(difference);
        }
    }
    greatest
}

#[test]
fn smaller_numbers_are_near_and_vectors_stay_exact() {
    let folder = Folder::new();
    let mut args = vec!["train", "tiny.toml", "--set", "train.max_steps=2"];
    for setting in [
        "model.d_model=32",
        "model.d_ff=48", // not whole blocks
        "model.norm=\"rms_norm\"",
        "model.position=\"rope\"",
        "model.mlp=\"swiglu\"",
        "model.qk_norm=true",
    ] {
        args.extend(["--set", setting]);
    }
    folder.succeed(&args);
    let run = folder.path("runs/tiny");
    let file = |numbers, name: &str| {
        let file = export(&run, numbers, &folder.path(name)).unwrap_or_else(|error| panic!("{error}"));
        (open(&file), fs::metadata(file).expect("written").len())
    };
    let (exact, size) = file(TensorType::F32, "f32/m.gguf");
    let largest = differences(&exact, &exact).0;
    assert!(largest == 0.0);
    for (numbers, name, bound) in
        [(TensorType::F16, "f16", 1e-3), (TensorType::Bf16, "bf16", 8e-3), (TensorType::Q8_0, "q8_0", 1e-2)]
    {
        let (near, smaller) = file(numbers, &format!("{name}/m.gguf"));
        let (all, vectors) = differences(&exact, &near);
        assert!(all > 0.0 && all < bound && vectors == 0.0, "{name}: {all} {vectors}");
        assert!(smaller < size, "{name}: {smaller}");
        assert_eq!(near.config, exact.config);
    }
}

#[test]
fn the_program_writes_a_file_that_it_reads_again() {
    let folder = Folder::new();
    let llama =
        ["model.norm=\"rms_norm\"", "model.position=\"rope\"", "model.mlp=\"swiglu\"", "generate.stop=[\"\\n\"]"];
    let settings = llama.iter().flat_map(|setting| ["--set", setting]);
    folder
        .succeed(&["train", "tiny.toml", "--set", "train.max_steps=2"].into_iter().chain(settings).collect::<Vec<_>>());
    let ran = folder.run(&["export", "runs/tiny", "--to", "gguf"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("exported llama to runs/tiny/gguf/tiny.gguf"), "{}", ran.stderr);
    let modelfile = folder.read("runs/tiny/gguf/Modelfile");
    let expected = "\nFROM ./tiny.gguf\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\nPARAMETER num_ctx 16\n";
    assert!(modelfile.contains(expected), "{modelfile}");
    assert!(modelfile.ends_with("PARAMETER stop \"\"\"\n\"\"\"\n"), "{modelfile}");
    folder.succeed(&["import", "runs/tiny/gguf/tiny.gguf", "--run-dir", "runs/back"]);
    let write = |run: &str| {
        let args =
            ["generate", run, "--prompt", "The ", "--max-new-tokens", "8", "--temperature", "0", "--device", "cpu"];
        folder.succeed(&args)
    };
    assert_eq!(write("runs/back"), write("runs/tiny"));

    let error = folder.fail(&["export", "runs/tiny", "--to", "gguf"]);
    assert!(error.contains("`runs/tiny/gguf/tiny.gguf` already exists; nothing was written"), "{error}");
    let size = fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("written").len();
    folder.succeed(&["export", "runs/tiny", "--to", "gguf", "--dtype", "bf16", "--overwrite"]);
    assert!(fs::metadata(folder.path("runs/tiny/gguf/tiny.gguf")).expect("written").len() < size);
    let error = folder.fail(&["export", "runs/tiny", "--to", "hf", "--dtype", "q8_0"]);
    assert!(error.contains("--dtype q8_0 is a type of GGUF files\n  hint: add --to gguf"), "{error}");
}

#[test]
fn files_that_cannot_be_used_say_why() {
    let folder = Folder::new();
    let run = import(&model_of("llama", &folder), folder.path("run"));
    let file = export(&run, TensorType::F32, &folder.path("m.gguf")).expect("written");
    let bytes = fs::read(&file).expect("read");
    let error = |before: &[u8], after: &[u8]| {
        let at = bytes.windows(before.len()).position(|window| window == before).expect("it is there");
        let mut bytes = bytes.clone();
        bytes[at + before.len() - after.len()..at + before.len()].copy_from_slice(after);
        fs::write(folder.path("changed.gguf"), bytes).expect("written");
        folder.fail(&["import", "changed.gguf", "--run-dir", "runs/changed"])
    };
    let says = |message: &str, expected: &str| assert!(message.contains(expected), "{expected} is not in {message}");
    let architecture = [b"general.architecture", &[8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], b"llama"].concat();
    says(
        &error(&architecture, b"gemma"),
        "general.architecture = \"gemma\": supported are gpt2, llama, qwen2, qwen3, arcee",
    );
    let message = error(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight");
    says(&message, "`blk.0.attn_q.weight` [16, 16] is missing");
    says(&message, "`blk.0.attn_x.weight` [16, 16] belongs to no part of the model");
    says(&error(b"llama.block_count", b"llama.block_cound"), "`llama.block_count` is missing in its metadata");
    folder.write("text.gguf", "a text");
    let message = folder.fail(&["import", "text.gguf", "--run-dir", "runs/changed"]);
    says(&message, "it begins with \"a te\", not with \"GGUF\"");
    assert!(!folder.path("runs/changed").exists());
}
