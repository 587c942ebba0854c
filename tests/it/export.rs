//! Runs exported for other projects: they come back unchanged, and never half written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{Outgoing, Source, hf};
use tinderbox::model::Dtype;

use crate::fixtures::{Folder, Model, Ran, bits, families, files, import};

#[test]
fn what_came_in_goes_out_and_comes_back_bit_by_bit() {
    for family in families() {
        let folder = Folder::new();
        let model = Model::of(&family);
        let came = model.open();
        let run = import(&model, &folder);
        let outgoing = Outgoing::open(&run).unwrap_or_else(|error| panic!("{family}: {error}"));
        let to = folder.path("hf");
        hf::export(&outgoing, Dtype::F32, &to, false).unwrap_or_else(|error| panic!("{family}: {error}"));
        let back = Source::open(&to).unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(back.config, came.config, "{family}");
        assert!(bits(&back) == bits(&came), "{family}");
        assert_eq!(back.tokenizer.json, came.tokenizer.json, "{family}");
        if outgoing.family != came.family {
            continue; // as Mistral's, whose models are Llama's
        }
        assert!(back.tensors.keys().eq(came.tensors.keys()), "{family}: the names are theirs");
        let config = |path: &std::path::Path| -> serde_json::Map<String, Value> {
            serde_json::from_slice(&fs::read(path.join("config.json")).expect("read")).expect("an object")
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
fn a_later_export_replaces_an_earlier_one_whole() {
    let folder = Folder::new();
    let outgoing = Outgoing::open(&import(&Model::for_gguf("llama"), &folder)).expect("a run");
    let [twice, once] = ["twice", "once"].map(|name| folder.path(name));
    let to_hf = |folder: &Path, dtype, overwrite| hf::export(&outgoing, dtype, &folder.join("hf"), overwrite);
    let to_gguf =
        |folder: &Path, numbers, overwrite| gguf::export(&outgoing, numbers, &folder.join("gguf"), overwrite).map(drop);
    to_hf(&twice, Dtype::F32, false).expect("written");
    to_gguf(&twice, TensorType::F32, false).expect("written");
    fs::write(twice.join("hf/old.txt"), "of the earlier one").expect("written");
    let before = files(&twice);
    let refused = [to_hf(&twice, Dtype::Bf16, false), to_gguf(&twice, TensorType::Bf16, false)];
    for refused in refused {
        assert!(refused.expect_err("there is one").to_string().contains("already exists; nothing was written"));
    }
    assert!(files(&twice) == before);

    for folder in [&twice, &once] {
        to_hf(folder, Dtype::Bf16, true).unwrap_or_else(|error| panic!("{error}"));
        to_gguf(folder, TensorType::Bf16, true).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(files(&twice) == files(&once), "and nothing beside it: {:?}", files(&twice).keys());
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
fn nothing_half_written_is_ever_under_the_final_name() {
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
