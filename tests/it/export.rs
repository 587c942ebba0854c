//! Runs exported for other projects: they come back unchanged, and never half written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{Outgoing, Source, hf};
use tinderbox::model::Dtype;

use crate::fixtures::{FAMILIES, Folder, Model, Ran, bits, files, import};

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
            continue; // its models are Llama's
        }
        assert!(back.tensors.keys().eq(came.tensors.keys()), "{family}: the names are theirs");
        let config = |path: &std::path::Path| -> serde_json::Map<String, Value> {
            serde_json::from_slice(&fs::read(path.join("config.json")).expect("read")).expect("an object")
        };
        // Every key that both files have is equal, except for numbers that a default stood for.
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
        // Their tokenizer does not name an EOS token.
        let expected = &expected | &BTreeSet::from(["bos_token_id", "eos_token_id"]);
        assert!(differing.is_subset(&expected), "{family}: {differing:?}");
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
    let within = |folder: &Path| {
        let relative = |(path, bytes): (PathBuf, _)| (path.strip_prefix(folder).expect("within").to_owned(), bytes);
        files(folder).into_iter().map(relative).collect::<BTreeMap<_, _>>()
    };
    assert!(within(&twice) == within(&once), "and nothing beside it: {:?}", files(&twice).keys());
}

/// Runs a command that cannot write files of more than some 10 to 20 KiB: beyond that it is killed, or gets an error
/// from the system, as on a full disk.
#[cfg(unix)]
fn run_in_little_room(folder: &Folder, is_killed: bool, args: &[&str]) -> Ran {
    let command = folder.command(args);
    let mut shell = std::process::Command::new("sh");
    let ignore = if is_killed { "" } else { "trap '' XFSZ; " };
    shell.arg("-c").arg(format!("{ignore}ulimit -c 0; ulimit -f 20; exec \"$@\"")).arg("sh").arg(command.get_program());
    shell.args(command.get_args()).current_dir(command.get_current_dir().expect("the folder"));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let ran = Ran::from(shell.output().expect("sh is there"));
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
            assert!(
                first.iter().all(|(path, content)| left.get(path) == Some(content)),
                "{name}: the old one is whole"
            );
            folder.succeed(&again);
            assert!(written() == first, "{name}: {:?}", written().keys());
        }
    }
}
