//! Runs exported for other projects: they come back unchanged, and never half written.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tinderbox::finetune::ChatFormat;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{ForeignModel, Outgoing, hf, import_adapters};
use tinderbox::model::tensor_file::write_as;
use tinderbox::model::{Dtype, LazyTensor};
use tinderbox::run::locate;

use crate::fixtures::{Folder, Model, Ran, Started, bits, families, files, fs, import};

#[test]
fn hf_round_trip_keeps_every_bit() {
    for family in families() {
        let folder = Folder::new();
        let model = Model::of(&family);
        let came = model.open();
        let run = import(&model, &folder);
        let outgoing = Outgoing::open(&run).unwrap_or_else(|error| panic!("{family}: {error}"));
        let to = folder.path("hf");
        hf::export(&outgoing, Dtype::F32, &to, false).unwrap_or_else(|error| panic!("{family}: {error}"));
        let back = ForeignModel::open(&to).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(back.config, came.config, "{family}");
        assert!(bits(&back) == bits(&came), "{family}");
        assert_eq!(back.tokenizer.json, came.tokenizer.json, "{family}");
        assert_eq!(outgoing.family, came.family);
        assert!(back.tensors.keys().eq(came.tensors.keys()), "{family}: the names are theirs");
        let config = |path: &std::path::Path| -> serde_json::Map<String, Value> {
            serde_json::from_slice(&fs::read(path.join("config.json"))).expect("an object")
        };
        // Every key that both files have is equal, except for those that a default stood for, dropout, which import turns
        // off, and the EOS token, which their tokenizer does not name.
        let (ours, theirs) = (config(&to), config(model.path()));
        let is_other = |(key, value): &(&String, &Value)| {
            let is_free = key.ends_with("_pdrop") || ["bos_token_id", "eos_token_id"].contains(&key.as_str());
            !is_free && theirs.get(*key).is_some_and(|theirs| !theirs.is_null() && theirs != *value)
        };
        let differing: Vec<_> = ours.iter().filter(is_other).collect();
        assert!(differing.is_empty(), "{family}: {differing:?}");
    }
}

#[test]
fn derived_runs_keep_the_family() {
    let folder = Folder::new();
    // Without a partial rotation its config is Llama's, too; its layers and their names are not.
    let model = Model::of("phi3");
    model.set(json!({ "partial_rotary_factor": 1.0 }));
    let run = import(&model, &folder);
    let config = model.open().config;
    let n_outputs = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim;
    fs::create_dir(folder.path("theirs"));
    let layer = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
    let tensors = [("A", [2, config.d_model]), ("B", [n_outputs, 2])].map(|(part, shape)| {
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32 / 64.0).collect();
        (format!("{layer}{part}.weight"), LazyTensor::computed(shape.to_vec(), move |sink| sink(&numbers)))
    });
    write_as(&folder.path("theirs/adapter_model.safetensors"), &tensors.into(), Dtype::F32).expect("it can be written");
    folder.write("theirs/adapter_config.json", r#"{"peft_type": "LORA", "lora_alpha": 4, "r": 2}"#);
    import_adapters(&folder.path("theirs"), &run, &folder.path("tuned"), false).expect("its layers are theirs");
    folder.succeed(&["merge", "tuned", "--run-dir", "merged"]);
    ChatFormat::Chatml.give(&locate(&run).expect("a run"), &folder.path("chat")).expect("it is a new run");
    for run in ["run", "tuned", "merged", "chat"] {
        let derived = Outgoing::open(&folder.path(run)).expect("it is portable");
        assert_eq!((derived.family.name(), derived.state.dtype.as_deref()), ("phi3", Some("f32")), "{run}");
    }
    folder.succeed(&["export", "tuned", "--adapter", "--to", "hf", "--output", "ours"]);
    let ours = fs::read(folder.path("ours/adapter_model.safetensors"));
    let has = |name: &str| ours.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(has(&format!("{layer}A.weight")) && !has("q_proj") && !has("k_proj"), "PEFT drops layers that it lacks");
}

#[test]
fn exports_have_type_that_came_in() {
    let llama = ["model.position=rope", "model.norm=rms_norm", "model.mlp=swiglu", "model.d_model=32"];
    let folder = Folder::with_run(&[&["train.max_steps=1"], &llama[..]].concat());
    let export = |run: &str, to: &str, more: &[&str]| {
        let arguments = ["export", run, "--to", to, "--output", to, "--overwrite"];
        folder.run(&[&arguments[..], more].concat()).exits(0).stderr
    };
    assert!(export("runs/tiny", "gguf", &[]).contains("in f32, with a Modelfile beside it"));
    for (to, dtype, as_folder) in
        [("hf", "bf16", "bf16"), ("hf", "f16", "f16"), ("gguf", "bf16", "bf16"), ("gguf", "q8_0", "f32")]
    {
        export("runs/tiny", to, &["--dtype", dtype]);
        let path = if to == "hf" { "hf" } else { "gguf/tiny.gguf" };
        folder.succeed(&["import", path, "--run-dir", "runs/in", "--overwrite"]);
        let said = export("runs/in", "gguf", &[]);
        assert!(said.contains(&format!("gguf/in.gguf, in {dtype}, with")), "{said}");
        let said = export("runs/in", "hf", &[]);
        assert!(said.contains(&format!("to hf, in {as_folder}\n")), "{said}");
    }
}

#[test]
fn import_of_export_has_same_loss() {
    for kind in ["tokenizer.kind=char", "tokenizer.kind=bpe"] {
        let llama = ["model.position=rope", "model.norm=rms_norm", "model.mlp=swiglu"];
        let documents = ["tokenizer.end_of_text=true", "data.document_separator=\"\\n\""];
        let folder = Folder::with_run(&[&[kind, "train.max_steps=2"], &llama[..], &documents].concat());
        let eval = |run: &str| folder.json(&["eval", run, "--text", "text.txt", "--json"]);
        let ours = eval("runs/tiny");
        assert!(ours["end_of_text_tokens"].as_u64().is_some_and(|n| n > 2), "{ours}");
        for (to, path) in [("hf", "runs/tiny/hf"), ("gguf", "runs/tiny/gguf/tiny.gguf")] {
            folder.succeed(&["export", "runs/tiny", "--to", to]);
            folder.succeed(&["import", path, "--run-dir", to]);
            let theirs = eval(to);
            for key in ["tokens", "end_of_text_tokens"] {
                assert_eq!(theirs[key], ours[key], "{kind} {to}: {key}");
            }
            let [ours, theirs] = [&ours, &theirs].map(|it| it["bits_per_byte"].as_f64().expect("a number"));
            assert!((ours - theirs).abs() < 1e-6 * ours, "{kind} {to}: {ours} {theirs}");
        }
        let card = folder.read("runs/tiny/hf/README.md");
        assert!(card.contains("It counts the token `<|endoftext|>`") && card.contains("each \"\\n\" within"), "{card}");
    }
}

#[test]
fn export_replaces_whole_earlier_export() {
    let folder = Folder::new();
    let outgoing = Outgoing::open(&import(&Model::for_gguf("llama"), &folder)).expect("a run");
    let [twice, once] = ["twice", "once"].map(|name| folder.path(name));
    let to_hf = |folder: &Path, dtype, overwrite| hf::export(&outgoing, dtype, &folder.join("hf"), overwrite);
    let to_gguf =
        |folder: &Path, numbers, overwrite| gguf::export(&outgoing, numbers, &folder.join("gguf"), overwrite).map(drop);
    to_hf(&twice, Dtype::F32, false).expect("it can be written");
    to_gguf(&twice, TensorType::F32, false).expect("it can be written");
    let before = files(&twice);
    let refused = [to_hf(&twice, Dtype::Bf16, false), to_gguf(&twice, TensorType::Bf16, false)];
    for refused in refused {
        assert!(refused.expect_err("there is one").to_string().contains("already exists; nothing was written"));
    }
    assert!(files(&twice) == before);

    // Files that the export did not write stay, and are named.
    fs::write(twice.join("hf/notes.txt"), "of the user");
    fs::create_dir(twice.join("hf/more"));
    let card = fs::read(twice.join("hf/README.md"));
    fs::write(twice.join("hf/README.md"), "by the user");
    fs::create_dir(twice.join(".hf.partial"));
    fs::write(twice.join(".hf.partial/notes.txt"), "of the user");
    let changed = files(&twice);
    let refused = to_hf(&twice, Dtype::Bf16, true).expect_err("it has others").to_string();
    assert!(refused.contains("or were changed since:\n  - README.md\n  - more\n  - notes.txt\n  hint: "), "{refused}");
    assert!(files(&twice) == changed);
    fs::write(twice.join("hf/README.md"), card);
    fs::remove_file(twice.join("hf/notes.txt"));
    fs::remove_dir(twice.join("hf/more"));

    for folder in [&twice, &once] {
        to_hf(folder, Dtype::Bf16, true).unwrap_or_else(|error| panic!("{error}"));
        to_gguf(folder, TensorType::Bf16, true).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(fs::read(twice.join(".hf.partial/notes.txt")), b"of the user");
    fs::remove_dir_all(twice.join(".hf.partial"));
    assert!(files(&twice) == files(&once), "and nothing beside it: {:?}", files(&twice).keys());
}

#[test]
fn concurrent_exports_leave_one_whole() {
    two_at_once(8);
}

#[test]
#[ignore = "takes minutes"]
fn two_hundred_concurrent_exports_leave_one_whole() {
    two_at_once(200);
}

/// Two processes at once import into one run, and export to one place.
fn two_at_once(n_rounds: usize) {
    let models = [Model::for_gguf("llama"), Model::for_gguf("llama")];
    models[1].change(|tensors| tensors.values_mut().for_each(|held| held.bytes.rotate_left(4)));
    let [alone, other_alone, both] = [(); 3].map(|()| Folder::new());
    let folders = [alone, other_alone];
    for (i, run) in ["one", "other"].into_iter().enumerate() {
        let model = models[i].path().to_str().expect("UTF-8");
        for folder in [&folders[i], &both] {
            folder.succeed(&["import", model, "--run-dir", run]);
        }
    }
    let commands = |i: usize| {
        let (model, run) = (models[i].path().to_str().expect("UTF-8"), ["one", "other"][i]);
        [
            ["import", model, "--run-dir", "import/run"].to_vec(),
            ["export", run, "--to", "hf", "--output", "hf/hf"].to_vec(),
            ["export", run, "--to", "gguf", "--output", "gguf/it.gguf"].to_vec(),
        ]
    };
    for (kind, written) in ["import", "hf", "gguf"].into_iter().enumerate() {
        let args = [0, 1].map(|i| commands(i)[kind].clone());
        let expected = [0, 1].map(|i| {
            folders[i].succeed(&args[i]);
            files(&folders[i].path(written))
        });
        assert!(expected[0] != expected[1]);
        for round in 0..n_rounds {
            let overwrite = if round % 2 == 0 { &[][..] } else { &["--overwrite"] };
            if overwrite.is_empty() {
                std::fs::remove_dir_all(both.path(written)).ok();
            }
            let started = [0, 1].map(|i| both.start(&[&args[i], overwrite].concat()));
            let ran = started.map(Started::finish);
            let (found, codes) = (files(&both.path(written)), [0, 1].map(|i| ran[i].code));
            let is_one = (0..2).any(|i| codes[i] == Some(0) && found == expected[i]);
            let names = found.keys();
            assert!(is_one, "{written}: {codes:?} and {names:?}: {}{}", ran[0].stderr, ran[1].stderr);
            let n_done = codes.iter().filter(|code| **code == Some(0)).count();
            let n_allowed = if overwrite.is_empty() { 1 } else { 2 };
            assert_eq!(n_done, n_allowed, "{written}: {codes:?}: {}{}", ran[0].stderr, ran[1].stderr);
        }
    }
}

/// Runs a command that cannot write files of more than some 10 to 20 KiB: beyond that it is killed, or gets an error
/// from the system, as on a full disk.
#[cfg(unix)]
fn run_in_little_room(folder: &Folder, is_killed: bool, args: &[&str]) -> Ran {
    let mut shell = folder.program("sh");
    let ignore = if is_killed { "" } else { "trap '' XFSZ; " };
    shell.arg("-c").arg(format!("{ignore}ulimit -c 0; ulimit -f 20; exec \"$@\"")).arg("sh");
    shell.arg(assert_cmd::cargo::cargo_bin!("tinderbox")).args(args);
    let ran = Ran::of(shell);
    assert_eq!(ran.code, if is_killed { None } else { Some(1) }, "{}", ran.stderr);
    ran
}

#[cfg(unix)]
#[test]
fn final_names_hold_whole_files() {
    for is_killed in [false, true] {
        let folder = Folder::new();
        let model = Model::for_gguf("llama");
        let model = model.path().to_str().expect("UTF-8");
        let commands = [
            ("run", vec!["import", model, "--run-dir", "out/run"]),
            ("hf", vec!["export", "out/run", "--to", "hf", "--output", "out/hf"]),
            ("it.gguf", vec!["export", "out/run", "--to", "gguf", "--output", "out/it.gguf"]),
        ];
        for (name, args) in commands {
            let written = || files(&folder.path("out"));
            let before = if folder.path("out").exists() { written() } else { BTreeMap::new() };
            let said = run_in_little_room(&folder, is_killed, &args).stderr;
            assert!(!folder.path("out").join(name).exists(), "{name}");
            if !is_killed {
                assert!(said.contains("cannot write `") && said.contains("File too large"), "{said}");
                assert!(written() == before, "{name}: {:?}", written().keys());
            }
            folder.succeed(&args);
            let first = written();
            let again = [&args[..], &["--overwrite"]].concat();
            run_in_little_room(&folder, is_killed, &again);
            let left = written();
            let is_whole = first.iter().all(|(path, content)| left.get(path) == Some(content));
            assert!(is_whole, "{name}: the old one");
            folder.succeed(&again);
            assert!(written() == first, "{name}: {:?}", written().keys());
        }
    }
}
