//! A new user's first hour: texts of every kind, mistakes, models from elsewhere.

use std::collections::BTreeSet;

use burn::tensor::{Device, Tensor};
use insta::assert_snapshot;
use tinderbox::model::LazyTensor;
use tinderbox::run::Checkpoint;

use crate::finetune::{SETTINGS, talker};
use crate::fixtures::{Folder, Ran, assert_transcript, fs};

#[test]
fn byte_model_generates_raw_bytes() {
    let folder = Folder::new();
    let noise: Vec<u8> = (0..9000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    folder.write("text.txt", &noise);
    folder.train(&["tokenizer.kind=byte", "train.max_steps=2"]);
    folder.write("prompt.bin", b"\xff\x00\x80");
    let generate = |more: &[&str]| {
        let args = ["generate", "runs/tiny", "--prompt-file", "prompt.bin", "--max-new-tokens", "50"];
        let output = folder.command(&[&args, more].concat()).output().expect("the binary starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let raw = generate(&["--raw"]);
    assert!(raw.starts_with(b"\xff\x00\x80"));
    assert_eq!(raw.len(), 3 + 50, "a byte for each token");
    assert!(std::str::from_utf8(&raw).is_err());
    let text = String::from_utf8(generate(&[])).expect("only whole characters without --raw");
    assert_eq!(text.trim_end_matches('\n'), String::from_utf8_lossy(&raw).trim_end_matches('\n'));
    let two = generate(&["--raw", "--num-samples", "2"]);
    assert!(two.starts_with(&[&raw[..], b"\n---\n\xff\x00\x80"].concat()));
}

/// Each process would train, or sweep, on its own.
#[test]
fn launchers_are_refused_without_mpi() {
    let folder = Folder::new();
    let launched = |variable: &str, args: &[&str]| {
        let mut command = folder.command(args);
        command.env(variable, "4");
        Ran::of(command).exits(1).stderr
    };
    let sweep = ["sweep", "tiny.toml", "--space", "train.batch_size=2,4", "--budget", "1m"];
    assert_snapshot!(launched("PMI_SIZE", &sweep), @r"
    error: the launcher started 4 processes, and each would search all by itself
      hint: start it without the launcher; only `tinderbox train` shares its work out
    ");
    if cfg!(not(feature = "mpi")) {
        assert_snapshot!(launched("OMPI_COMM_WORLD_SIZE", &["train", "tiny.toml"]), @r"
        error: the launcher started 4 processes, and this program was built without MPI: it would train 4 copies of the run
          hint: build it with `cargo build --release --features mpi`, or start it without the launcher
        ");
    }
    assert!(!folder.path("runs").exists() && !folder.path("sweeps").exists());
}

#[test]
fn text_without_line_breaks_trains() {
    let folder = Folder::new();
    folder.write("text.txt", folder.read("text.txt").replace('\n', " "));
    folder.write(
        "path.toml",
        "data = { path = \"text.txt\" }\n[train]\nmax_steps = 2\n[model]\nd_model = 8\nn_heads = 2",
    );
    folder.succeed(&["train", "path.toml", "--set", "train.device=cpu"]);
    assert!(folder.read("runs/path/config.toml").contains("sample_prompt = \"T\""));
    assert!(folder.read("runs/path/samples.txt").starts_with("===== step 2 =====\nT"));
    assert!(folder.succeed(&["generate", "runs/path", "--max-new-tokens", "3"]).starts_with('T'));
    folder.succeed(&["train", "path.toml", "--resume", "--set", "train.device=cpu", "--set", "train.max_steps=3"]);
    let other = folder.fail(&["train", "path.toml", "--overwrite", "--set", "train.sample_prompt=#"]);
    assert!(other.contains("cannot use train.sample_prompt"), "{other}");
}

#[test]
fn long_prompt_is_truncated_with_note() {
    let folder = Folder::trained();
    let long = "The cat sat by the bank. ".repeat(2);
    let args = ["generate", "runs/tiny", "--max-new-tokens", "2", "--num-samples", "20", "--prompt", &long];
    assert_snapshot!(folder.run(&args).exits(0).stderr, @"note: the prompt has 50 tokens and the model's context holds 16: only the last 16 are read");
    let ran = folder.run(&["generate", "runs/tiny", "--max-new-tokens", "2", "--prompt", "The cat sat by t"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));

    let welcome = folder.misuse(&[]);
    assert!(welcome.lines().count() < 10 && welcome.contains("train my.toml"), "{welcome}");
    for (args, hint) in
        [(vec!["train"], "`quickstart`"), (vec!["eval"], "`tinderbox runs`"), (vec!["export", "runs/tiny"], "'--help'")]
    {
        let said = folder.misuse(&args);
        assert!(said.lines().last().is_some_and(|last| last.contains(hint)), "{said}");
    }
    let pipe = ["generate", "runs/tiny", "--max-new-tokens", "2", "--prompt-file", "-"];
    for (typed, read) in [("The owl", "The owl"), ("The owl\n", "The owl"), ("The\n\n", "The\n"), ("\n", "\n")] {
        let written = folder.pipe(&pipe, typed).stdout;
        assert!(written.starts_with(read) && written.len() == read.len() + 3, "{typed:?}: {written:?}");
    }
}

#[test]
fn run_beyond_memory_or_files_is_refused() {
    let folder = Folder::new();
    let sizes = ["--set", "model.d_model=16384", "--set", "model.n_layers=600"];
    let error = folder.fail(&[&["train", "tiny.toml"], &sizes[..]].concat());
    assert!(error.contains("the run needs ") && error.contains("--force tries it all the same"), "{error}");
    assert!(!folder.path("runs").exists());

    // A run received from someone else, whose config asks for more than its files hold.
    folder.train(&["train.max_steps=1"]);
    let config = folder.read("runs/tiny/config.toml");
    for (change, expected) in [
        (("n_layers = 2", "n_layers = 60000"), "there is no `blocks.2.attention_norm.weight`"),
        (("d_ff = 64", "d_ff = 16000000"), "`blocks.0.mlp.expand.weight` has the shape [16, 64]"),
    ] {
        folder.write("runs/tiny/config.toml", config.replace(change.0, change.1));
        let error = folder.fail(&["generate", "runs/tiny"]);
        assert!(error.contains(expected), "{error}");
        assert!(folder.fail(&["eval", "runs/tiny"]).contains(expected));
    }
    let rope = config.replace("position = \"learned\"", "position = \"rope\"");
    folder.write("runs/tiny/config.toml", rope.replace("context_length = 16\n", "context_length = 16000000\n"));
    let error = folder.fail(&["generate", "runs/tiny"]);
    assert!(error.contains("the model has no `position_embedding.weight`"), "{error}");
}

#[test]
fn nan_weights_are_reported() {
    let folder = Folder::trained();
    let last = folder.path("runs/tiny/checkpoints/step-000040");
    let mut checkpoint = Checkpoint::read(&last).expect("it is whole");
    let nan = Tensor::<1>::from_floats([f32::NAN; 16], &Device::flex());
    checkpoint.model.insert("norm.weight".to_owned(), LazyTensor::on_device(nan));
    checkpoint.state.step = 41;
    checkpoint.write(&folder.path("runs/tiny/checkpoints/step-000041")).expect("it can be written");
    assert_snapshot!(folder.fail(&["eval", "runs/tiny/checkpoints/step-000041", "--json"]), @r"
    error: the loss of `runs/tiny/checkpoints/step-000041` is NaN
      hint: its weights are damaged, or training diverged; use an earlier one of the run's `checkpoints/step-N`
    ");
}

/// The lines of the text as JSON Lines records.
fn records(folder: &Folder, field: &str) -> String {
    let record = |line: &str| serde_json::json!({ field: line }).to_string();
    folder.read("text.txt").lines().map(record).collect::<Vec<_>>().join("\n")
}

#[test]
fn unlikely_texts_need_confirmation() {
    let folder = Folder::new();
    folder.write("records.txt", records(&folder, "text"));
    folder.write("binary.txt", folder.read("text.txt").replace('.', "\0"));
    assert_transcript!(folder, @r#"
    $ train tiny.toml --set data.path=records.txt
    error: the first line of `records.txt` is a record of JSON Lines, with a field "text"
      hint: format = "jsonl" under [data] reads that field of each line as the text, format = "text" reads the lines as they are; so would a name that ends in .jsonl
    "#);
    folder.write("list.json", format!("[{}]", records(&folder, "text").replace('\n', ",\n")));
    let list = ["train", "tiny.toml", "--set", "data.path=list.json"];
    let refused = folder.fail(&list);
    assert!(
        refused.contains("is a list of JSON objects") && refused.contains("finetune RUN --data list.json"),
        "{refused}"
    );
    folder.succeed(&[&list[..], &["--set", "data.format=jsonl", "--set", "train.max_steps=1"]].concat());
    let binary = ["train", "tiny.toml", "--overwrite", "--set", "data.path=binary.txt"];
    let refused = folder.fail(&binary);
    assert!(refused.starts_with("error: `binary.txt` looks like a binary file: byte "), "{refused}");
    folder.succeed(&[&binary[..], &["--force", "--set", "train.max_steps=1"]].concat());
}

#[test]
fn patterns_choose_files_of_folder() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder"));
    folder.write("folder/a.txt", folder.read("text.txt"));
    folder.write("folder/b.png", b"\x89PNG\r\n\x1a\n");
    folder.write("folder/old.txt", "Nobody reads this: 0123456789 %&$#");
    let error = folder.fail(&["train", "tiny.toml", "--set", "data.path=folder"]);
    assert!(error.contains("is not text, but a picture") && error.contains("data.exclude (--exclude)"), "{error}");
    let patterns = ["--set", "data.exclude=[\"*.png\", \"old*\"]", "--set", "train.max_steps=1"];
    folder.succeed(&[&["train", "tiny.toml", "--set", "data.path=folder"], &patterns[..]].concat());
    assert!(!folder.read("runs/tiny/tokenizer.json").contains("\"%\""));
    assert!(folder.read("runs/tiny/config.toml").contains("exclude = ["));

    fs::remove_file(folder.path("folder/b.png"));
    folder.write("folder/b.dat", b"caf\xe9");
    let init = ["init", "--device", "cpu", "--minutes", "0.01", "--from-text", "folder", "--output", "my.toml"];
    let error = folder.fail(&init);
    let hint = "--exclude PATTERN leaves files of a folder out, and --skip-bad-files all that are not text";
    assert!(error.contains("`folder/b.dat` is not UTF-8 at byte 3") && error.contains(hint), "{error}");
    let expected = "1 file left out, since not text in UTF-8: `folder/b.dat`";
    let said = folder.run(&[&init[..], &["--skip-bad-files"]].concat()).exits(0).stderr;
    assert!(said.contains(&format!("Caution: {expected}.")), "{said}");
    let said = folder.run(&["train", "my.toml", "--set", "train.max_steps=1"]).exits(0).stderr;
    assert!(said.contains(&format!("note: {expected}\n")), "{said}");

    let init = ["init", "--device", "cpu", "--minutes", "0.02", "--from-text", "folder", "--include", "a*"];
    let toml = folder.succeed(&init);
    assert!(toml.contains("\ninclude = [\"a*\"]\n"), "{toml}");
    folder.write("records.txt", records(&folder, "body"));
    let init = ["init", "--device", "cpu", "--minutes", "0.02", "--from-text", "records.txt", "--text-field", "body"];
    let ran = folder.run(&init);
    assert!(ran.stderr.contains("Caution: the first line is a record of JSON Lines"), "{}", ran.stderr);
    assert!(ran.stdout.contains("\nformat = \"jsonl\"\ntext_field = \"body\"\n"), "{}", ran.stdout);
}

#[test]
fn run_without_checkpoint_lists_step_0() {
    let folder = Folder::new();
    let said = folder.train(&["train.max_steps=1"]).stderr;
    assert!(
        said.contains("gzip packs the same text into ") && said.contains("worse than gzip: train longer"),
        "{said}"
    );
    fs::remove_dir_all(folder.path("runs/tiny/checkpoints"));
    for pointer in ["last", "best"] {
        fs::remove_file(folder.path("runs/tiny").join(pointer));
    }
    // As if killed after eleven steps, long before the first checkpoint.
    folder.write("runs/tiny/metrics.jsonl", "{\"step\":11,\"tokens\":704,\"train_loss\":3.0}\n");
    let listed = folder.json(&["runs", "--json"]);
    assert_eq!((&listed[0]["status"], &listed[0]["step"]), (&"stopped".into(), &0.into()), "{listed}");
}

/// Each command that is printed as a next step, or between backquotes in a hint, is run as it was printed.
#[test]
fn printed_commands_work() {
    let (folder, _) = talker();
    folder.write(
        "more.toml",
        "data = { path = \"text.txt\", cache_dir = \"cache\" }\n[train]\nmax_steps = 1\nsample_tokens = 0\ndevice = \"cpu\"\n",
    );
    let answers = (0..8).map(|i| format!("{{\"prompt\": \"is it {i}?\", \"completion\": \"yes\"}}\n"));
    folder.write("answers.jsonl", answers.collect::<String>());
    let (program, mut seen) = (assert_cmd::cargo::cargo_bin!("tinderbox").display().to_string(), Vec::new());
    let program = program.as_str();
    let mut done = BTreeSet::new();
    for (arguments, expected) in [
        ("init --from-text text.txt --minutes 0.01 --device cpu --output my.toml", "train my.toml generate runs/my"),
        ("train my.toml --overwrite", "generate runs/my"),
        ("import theirs --run-dir runs/theirs", "chat finetune train eval"),
        ("finetune runs/theirs --data my.jsonl --run-dir runs/tuned", "chat runs/tuned"),
        ("finetune runs/base --data answers.jsonl --run-dir runs/answers", "generate runs/answers"),
        ("export runs/tuned --adapter --to hf --output adapter", ""),
        ("import adapter --base runs/theirs --run-dir runs/adapted", "chat runs/adapted export runs/adapted"),
        ("merge runs/adapted --run-dir runs/merged", "chat runs/merged export runs/merged"),
        ("export runs/base --to hf --output plain", ""),
        ("import plain --run-dir runs/plain", "generate finetune train eval"),
    ] {
        done.insert(format!("{program} {arguments}"));
        let is_tuned = arguments.starts_with("finetune");
        let settings = if is_tuned { [&SETTINGS[..], &["--no-comparison"]].concat() } else { Vec::new() };
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let said = folder.run(&[arguments.clone(), settings].concat()).exits(0).stderr;
        let indented = said.lines().filter_map(|line| line.strip_prefix("    "));
        let commands: Vec<&str> = indented.filter(|line| !line.starts_with('|')).collect();
        let found = commands.join(" ");
        assert!(expected.split(' ').all(|word| found.contains(word)), "{arguments:?}: {said}");
        seen.extend(commands.iter().filter(|line| line.starts_with(program)).map(|line| (*line).to_owned()));
    }
    let refused = folder.fail(&["chat", "runs/plain"]);
    seen.extend(refused.split('`').filter(|words| words.starts_with(program)).map(str::to_owned));
    for run in ["runs/theirs", "runs/plain"] {
        folder.succeed(&["report", run]);
        let page = folder.read(&format!("{run}/report.html"));
        let named = page.split("<code>tinderbox ").skip(1).filter_map(|rest| rest.split("</code>").next());
        let ended = named.filter(|command| !command.starts_with("serve "));
        seen.extend(ended.map(|command| format!("{program} {command}")));
    }
    assert!(seen.len() > 20, "{seen:?}");
    for command in seen {
        let words = [
            ("FILE.jsonl", "my.jsonl"),
            ("FILE --template", "my.jsonl --template"),
            ("FILE", "text.txt"),
            ("CONFIG", "more.toml"),
            ("\"...\"", "The"),
        ];
        let mut line = words.into_iter().fold(command.clone(), |line, (word, given)| line.replace(word, given));
        if line.contains(" finetune ") {
            line += " --set train.max_steps=1 --no-comparison --overwrite";
        } else if line.contains(" train ") {
            line += " --overwrite";
        }
        if !done.insert(line.clone()) {
            continue;
        }
        let mut shell = folder.program("sh");
        shell.args(["-c", &line]);
        let ran = Ran::of(shell);
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
    }
}
