//! The program as a user meets it: the real binary, in its own folder.

use std::io::Read;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::Value;

use crate::fixtures::{Folder, Ran, assert_transcript, fs, set, text};

/// The settings of a run long enough to be interrupted.
const LONG: [&str; 3] = ["train.max_steps=3000", "train.eval_interval=0", "train.checkpoint_interval=0"];

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn train_and_generate_work() {
    let folder = Folder::new();
    let ran = folder.run(&["train", "tiny.toml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    for file in [
        "config.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "timings.jsonl",
        "samples.txt",
        "train.log",
        "checkpoints/step-000040/model.safetensors",
        "checkpoints/step-000040/optimizer.safetensors",
        "checkpoints/step-000040/state.json",
    ] {
        let bytes = fs::read(folder.path("runs/tiny").join(file));
        assert!(!bytes.is_empty(), "{file}");
    }
    assert_eq!(folder.read("runs/tiny/last"), "step-000040\n");
    assert_eq!(ran.stderr, folder.read("runs/tiny/train.log"), "the log is what was shown");
    // Steps and time do not give this rate: the time includes evaluation, sampling and saving.
    let done = ran.stderr.lines().find(|line| line.starts_with("done: 40 steps in ")).expect("it says so");
    assert!(done.ends_with(" tokens/s in the median step"), "{done}");
    let text = folder.succeed(&["generate", "runs/tiny", "--prompt", "The cat"]);
    assert!(text.starts_with("The cat") && text.ends_with('\n') && text.len() > 400);
}

#[test]
fn generate_follows_its_options() {
    let folder = Folder::trained();
    let generate = |args: &[&str]| {
        let always = ["generate", "runs/tiny", "--max-new-tokens", "60"];
        folder.succeed(&[&always, args].concat())
    };
    let three = generate(&["--prompt", "The", "--num-samples", "3"]);
    let samples: Vec<&str> = three.strip_suffix('\n').expect("a last line").split("\n---\n").collect();
    assert_eq!(samples.len(), 3, "{three}");
    assert!(samples.iter().all(|sample| sample.starts_with("The") && sample.len() == 63));
    assert!(samples[0] != samples[1] && samples[1] != samples[2]);
    assert_eq!(generate(&["--prompt", "The"]), format!("{}\n", samples[0]), "the same seed");
    assert_ne!(generate(&["--prompt", "The", "--seed", "2"]), format!("{}\n", samples[0]));

    let greedy = |seed| generate(&["--prompt", "The", "--temperature", "0", "--seed", seed]);
    assert_eq!(greedy("1"), greedy("2"));
    assert_eq!(greedy("1"), generate(&["--prompt", "The", "--top-k", "1"]));

    let end = &samples[0][30..33];
    let (before, _) = samples[0][3..].split_once(end).expect("it is there");
    assert_eq!(generate(&["--prompt", "The", "--stop", end]), format!("The{before}\n"));
    generate(&["--prompt", "The", "--stop", "---"]); // it looks like an option, but is not

    folder.write("prompt.txt", "The dog\n");
    assert!(generate(&["--prompt-file", "prompt.txt"]).starts_with("The dog\n"));
    assert!(generate(&[]).starts_with('\n'), "train.sample_prompt");
    let long = "The cat sat by the bank. ".repeat(9);
    assert!(generate(&["--prompt", &long]).starts_with(&long), "longer than the context");
}

#[test]
fn speculation_keeps_output_and_counts_proposals() {
    let folder = Folder::trained();
    let run = |args: &[&str]| {
        let always =
            ["generate", "runs/tiny", "--max-new-tokens", "60", "--temperature", "0", "--prompt", "The cat. The c"];
        folder.run(&[&always, args].concat()).exits(0)
    };
    let (with, without) = (run(&["--speculate", "4"]), run(&[]));
    assert_eq!(with.stdout, without.stdout);
    assert!(!without.stderr.contains("speculation"), "{}", without.stderr);
    let counts = with.stderr.lines().last().expect("the counts").strip_prefix("speculation: ");
    assert!(counts.is_some_and(|counts| counts.ends_with(" proposed tokens were right")), "{}", with.stderr);
    let ignored = run(&["--speculate", "4", "--device", "ndarray"]);
    assert!(ignored.stderr.contains("note: `ndarray` does not speculate"), "{}", ignored.stderr);
    assert!(!ignored.stderr.contains("speculation:"), "{}", ignored.stderr);
}

#[test]
fn schema_forces_json() {
    let folder = Folder::with_run(&["tokenizer.kind=byte"]);
    folder.write("schema.json", r#"{"type": "object", "properties": {"at": {"enum": ["river", 7, null]}}, "required": ["at"], "additionalProperties": false}"#);
    let args = ["generate", "runs/tiny", "--json-schema", "schema.json", "--prompt", "The", "--num-samples", "3"];
    let texts = folder.succeed(&args);
    for sample in ["1", "3"] {
        let alone = |n| folder.succeed(&[&args[..6], &["--num-samples", sample, "--speculate", n]].concat());
        assert_eq!(alone("5"), alone("0"), "speculation follows the schema");
    }
    let texts: Vec<&str> = texts.strip_suffix('\n').expect("a last line").split("\n---\n").collect();
    assert_eq!(texts.len(), 3);
    for text in texts {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let place = &value["at"];
        assert!(keys(&value) == ["at"] && (*place == "river" || *place == 7 || place.is_null()), "{text}");
    }
}

#[test]
fn run_has_several_names() {
    let folder = Folder::trained();
    folder.write("runs/tiny/best", "step-000030\n");
    let generate = |run: &str| folder.succeed(&["generate", run, "--max-new-tokens", "40"]);
    let (best, last) = (generate("runs/tiny/best"), generate("runs/tiny/last"));
    assert_ne!(best, last);
    assert_eq!(best, generate("runs/tiny"));
    assert_eq!(best, generate("runs/tiny/checkpoints/step-000030"));
    assert_eq!(last, generate("runs/tiny/checkpoints/step-000040/"));
    assert_eq!(last, generate("runs/tiny/checkpoints/step-40"));
    assert_eq!(best, generate("./runs/../runs/tiny/"));
}

#[test]
fn train_and_eval_print_equal_json() {
    let folder = Folder::new();
    let report = folder.json(&["train", "tiny.toml", "--json"]);
    let expected = "best_step best_val_loss device gzip_bits_per_byte median_step_ms parameters peak_rss_mib run_dir \
                    steps tokens tokens_per_s train_loss train_s trained_parameters val_bits_per_byte val_loss wall_s";
    assert_eq!(keys(&report).join(" "), expected);
    assert_eq!(report["run_dir"], "runs/tiny");
    assert!((1.0..4.0).contains(&report["gzip_bits_per_byte"].as_f64().expect("a number")), "{report}");
    assert_eq!((&report["steps"], &report["tokens"]), (&40.into(), &(40 * 4 * 16).into()));

    let eval = folder.json(&["eval", "runs/tiny", "--json"]);
    assert_eq!(
        keys(&eval),
        ["bits_per_byte", "bits_per_token", "end_of_text_tokens", "loss", "perplexity", "split", "tokens"]
    );
    assert_eq!(eval["split"], "val");
    assert_eq!(eval["loss"], report["best_val_loss"]);
    let last = folder.json(&["eval", "runs/tiny/last", "--json"]);
    assert_eq!(last["loss"], report["val_loss"]);
    assert_eq!(last["bits_per_byte"], report["val_bits_per_byte"]);
    assert_eq!(folder.json(&["eval", "runs/tiny", "--split", "train", "--json"])["split"], "train");

    let text = folder.read("text.txt");
    let predicted = eval["tokens"].as_u64().and_then(|n| usize::try_from(n).ok());
    let n_val = predicted.expect("a number") + 1; // the first token is not predicted
    folder.write("val.txt", &text[text.len() - n_val..]);
    let own = folder.json(&["eval", "runs/tiny", "--text", "val.txt", "--json"]);
    assert_eq!((&own["loss"], &own["split"]), (&eval["loss"], &"text".into()));
    let shown = folder.succeed(&["eval", "runs/tiny"]);
    let loss = eval["loss"].as_f64().expect("a number");
    assert!(shown.contains(&format!("loss            {loss:.4} nats per token\n")), "{shown}");
}

#[test]
fn eval_refuses_changed_text() {
    let folder = Folder::trained();
    let text = folder.read("text.txt");
    let (end, start) = text.split_at(text.len() / 2); // what was trained on comes last
    folder.write("text.txt", format!("{start}{end}"));
    assert_snapshot!(folder.fail(&["eval", "runs/tiny"]), @r"
    error: the text `text.txt` has changed since `runs/tiny` was trained on it, so its val split may hold other text
      hint: restore the text, or measure a whole text with --text PATH
    ");
    folder.succeed(&["eval", "runs/tiny", "--text", "text.txt"]);
    let resumed = folder.fail(&["train", "tiny.toml", "--resume", "--set", "train.max_steps=50"]);
    assert!(resumed.contains("the text `text.txt` has changed\n"), "{resumed}");
}

#[test]
fn devices_lists_devices() {
    let folder = Folder::new();
    let report = folder.json(&["devices", "--json"]);
    assert_eq!(keys(&report), ["auto", "cpu", "devices", "features", "simd"]);
    assert_eq!(report["cpu"], "flex");
    let table = folder.succeed(&["devices"]);
    for device in report["devices"].as_array().expect("a list") {
        let name = device["device"].as_str().expect("a name");
        assert!(table.lines().any(|line| line.starts_with(name)), "{name} in {table}");
    }
}

#[test]
fn variable_sets_simd_level() {
    let folder = Folder::new();
    let devices = |level| folder.command(&["devices"]).env("TINDERBOX_SIMD", level).output().expect("it starts");
    let scalar = devices("scalar");
    assert!(String::from_utf8_lossy(&scalar.stdout).ends_with("\nsimd  scalar\n"), "{scalar:?}");
    let unknown = devices("sse9");
    let message = String::from_utf8_lossy(&unknown.stderr);
    assert!(message.starts_with("error: TINDERBOX_SIMD=sse9: there is no such level\n  hint: "), "{message}");
    assert_eq!(unknown.status.code(), Some(1));
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_run_and_prints_resume_command() {
    let folder = Folder::new();
    let odd = "my runs/it's one";
    let args = [&["train", "tiny.toml", "--json", "--run-dir", odd], &*set(&LONG)].concat();
    let mut training = folder.start(&args);
    training.wait_for("step ");
    training.press_ctrl_c();
    let ran = training.finish().exits(130);
    let report: Value = serde_json::from_str(&ran.stdout).expect("one object");
    let steps = report["steps"].as_u64().expect("a number");
    assert!((5..3000).contains(&steps) && report["val_loss"].is_null(), "{report}");
    let log = folder.read(&format!("{odd}/train.log"));
    assert!(log.replace(',', "").contains(&format!("interrupted after step {steps} of 3000")), "{log}");
    assert!(folder.path(format!("{odd}/checkpoints/step-{steps:06}")).is_dir());

    let shown = ran.stderr.lines().last().expect("the command").trim();
    let resumed = Ran::from(folder.program("sh").args(["-c", shown]).output().expect("sh is there")).exits(0);
    assert_eq!(resumed.stdout, "");
    assert!(resumed.stderr.replace(',', "").contains(&format!("after step {steps}\n")), "{}", resumed.stderr);
    let more = format!("done: {} more steps", 3000 - steps);
    assert!(resumed.stderr.replace(',', "").contains(&more), "{}", resumed.stderr);
    assert_eq!(folder.read(&format!("{odd}/last")), "step-003000\n");
}

#[cfg(unix)]
#[test]
fn ctrl_c_interrupts_evaluations() {
    let folder = Folder::new();
    let evaluating = set(&["train.max_steps=3000", "train.eval_interval=1", "train.eval_batches=100"]);
    let mut training = folder.start(&[&["train", "tiny.toml"], &*evaluating].concat());
    training.wait_for("estimates");
    training.press_ctrl_c();
    let ran = training.finish().exits(130);
    assert!(ran.stderr.contains("interrupted after step"), "{}", ran.stderr);

    // The last evaluation is long here, and there is nothing left to save.
    folder.write("text.txt", text().repeat(200));
    let short = set(&["train.max_steps=1", "data.val_fraction=0.99"]);
    let mut training = folder.start(&[&["train", "tiny.toml", "--run-dir", "short"], &*short].concat());
    training.wait_for("evaluating the whole");
    training.press_ctrl_c();
    let ran = training.finish().exits(130);
    let said = "interrupted during the last evaluation, after step 1 of 1; everything is saved";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    folder.succeed(&["generate", "short", "--max-new-tokens", "1"]);
}

#[test]
fn existing_run_needs_resume_or_overwrite() {
    let folder = Folder::trained();
    assert_transcript!(folder, @r"
    $ train tiny.toml
    error: `runs/tiny` holds a run already
      hint: continue it with --resume, replace it with --overwrite, or choose another place with --run-dir
    $ train tiny.toml --resume
    error: `runs/tiny` is done: it made all of its 40 steps
      hint: for more of them, raise train.max_steps with --set; `tinderbox report runs/tiny` makes its report again
    ");
    let other = set(&["model.n_heads=4", "train.seed=1", "train.with_replacement=false"]);
    assert_snapshot!(folder.fail(&[&["train", "tiny.toml", "--resume"], &*other].concat()), @r#"
    error: `runs/tiny` cannot resume with other settings than it began with:
      - model.n_heads was 2 and is now 4
      - train.seed was 1337 and is now 1
      - train.with_replacement was true and is now false
      hint: use those that it began with, or start a new run with --run-dir
    "#);
    let longer = folder.run(&["train", "tiny.toml", "--resume", "--json", "--set", "train.max_steps=50"]);
    assert!(longer.stdout.contains("\"steps\":50,") && !longer.stderr.contains("note:"), "{}", longer.stderr);
    let free = ["train.max_steps=60", "optimizer.learning_rate=1e-3", "model.dropout=0.1", "train.log_interval=1"];
    let slower = folder.run(&[&["train", "tiny.toml", "--resume"], &*set(&free)].concat());
    let notes: Vec<&str> = slower.stderr.lines().filter(|line| line.starts_with("note:")).collect();
    let changed = [
        "model.dropout was 0.0 and is now 0.1",
        "optimizer.learning_rate was 0.01 and is now 0.001",
        "schedule.min_learning_rate was 0.001 and is now 0.0001", // a tenth of it by default
    ];
    assert_eq!(notes, changed.map(|change| format!("note: {change}")), "{}", slower.stderr);
    let again = folder.json(&["train", "tiny.toml", "--overwrite", "--json"]);
    assert_eq!(again["steps"], 40);
    assert!(!folder.path("runs/tiny/checkpoints/step-000050").exists());
    assert_eq!(folder.run(&["train", "tiny.toml", "--resume", "--overwrite"]).code, Some(2));
}

#[test]
fn growing_batches_fix_number_of_steps() {
    let folder = Folder::new();
    folder.train(&["schedule.initial_batch_size=1"]);
    let longer = set(&["schedule.initial_batch_size=1", "train.max_steps=50"]);
    let error = folder.fail(&[&["train", "tiny.toml", "--resume"], &*longer].concat());
    assert!(error.contains("- train.max_steps was 40 and is now 50"), "{error}");
    let error = folder.fail(&["train", "tiny.toml", "--resume"]);
    assert!(error.contains("- schedule.initial_batch_size was 1 and is now not given"), "{error}");
}

#[test]
fn config_mistakes_are_explained() {
    let folder = Folder::new();
    folder.write("broken.toml", "[data]\npath = text.txt\n");
    let with = |settings: &[&str]| folder.fail(&[&["train", "tiny.toml"], &*set(settings)].concat());
    assert_transcript!(folder, @r"
    $ train nope.toml
    error: cannot read the config file `nope.toml`: No such file or directory (os error 2)
      hint: give the path of a config file, or the name of a preset, such as quickstart; relative paths start at the working directory
    $ train broken.toml
    error: cannot read the config file `broken.toml`: TOML parse error at line 2, column 8
      |
    2 | path = text.txt
      |        ^^^^^^^^
    invalid boolean, expected `true`
    ");
    assert_snapshot!(folder.misuse(&["train", "tiny.toml", "--set", "max_steps=3"]), @r#"
    error: the config `tiny.toml` has a problem:
      - --set max_steps=3: `max_steps` has no section; it belongs in [train]
    "#);
    assert_snapshot!(
        with(&["train.max_steps=0", "model.dropout=2", "model.n_heads=3", "optimizer.learning_rate=fast"]),
        @r#"
    error: the config `tiny.toml` has 4 problems:
      - model.d_model = 16 must be divisible by model.n_heads = 3
      - model.dropout = 2 must be at least 0 and below 1
      - train.max_steps = 0 must be at least 1
      - optimizer.learning_rate = "fast": invalid type: string "fast", expected a number
    "#
    );
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

#[test]
fn text_mistakes_are_explained() {
    let folder = Folder::new();
    folder.write("empty.txt", "");
    folder.write("short.txt", "A few words only.");
    folder.write("latin1.txt", b"The caf\xe9 by the river.");
    folder.write("project/mine.txt", text());
    folder.write("project/mine.toml", "data = { path = \"mine.txt\" }");
    folder.write("records.jsonl", "{\"body\": \"A few words.\"}\n");
    fs::create_dir(folder.path("folder"));
    assert_transcript!(folder, @r#"
    $ train tiny.toml --set data.path=nope.txt
    error: there is no file or folder `nope.txt`
      hint: relative paths start at the working directory
    $ train tiny.toml --set data.path=txet.txt
    error: there is no file or folder `txet.txt`
      hint: did you mean `text.txt`?
    $ train project/mine.toml
    error: there is no file or folder `mine.txt`
      hint: relative paths start at the working directory, not at the config: from here it is `project/mine.txt`
    $ init --device cpu --from-text records.jsonl
    reading `records.jsonl` and measuring training steps on flex ...
    error: line 1 of `records.jsonl` has no field "text", only "body"
      hint: --text-field names the one that holds the text
    $ train tiny.toml --set data.path=empty.txt
    error: the text `empty.txt` is empty
      hint: put text into it, or name another
    $ train tiny.toml --set data.path=short.txt
    error: the text `short.txt` is too short: 15 of its 17 tokens are for training, and model.context_length = 16 needs at least 17
      hint: use more text, a shorter model.context_length or a smaller data.val_fraction
    $ train tiny.toml --set data.path=latin1.txt
    error: `latin1.txt` is not UTF-8 at byte 7
      hint: save it as UTF-8, for instance with `iconv -f LATIN1 -t UTF-8` if it is an older Western European text; data.exclude (--exclude) leaves files of a folder out, and data.skip_bad_files (--skip-bad-files) all that are not text; a model trained with kind = "byte" under [tokenizer] (`init --tokenizer byte`) takes any file
    $ train tiny.toml --set data.path=folder
    error: there are no files in the folder `folder`
      hint: every file in it and its subfolders counts as text, except those whose names begin with a dot, and what data.include, data.exclude and data.skip_bad_files leave out
    $ train tiny.toml --set train.sample_prompt=Ω
    error: cannot use train.sample_prompt: the tokenizer does not know the character 'Ω' (U+03A9)
      hint: leave out or replace these characters; a model trained with kind = "byte" under [tokenizer] knows every character
    "#);
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

#[test]
fn device_mistakes_are_explained() {
    let folder = Folder::new();
    let on = |device: &str| folder.run(&["train", "tiny.toml", "--device", device]);
    assert_snapshot!(on("gpu").exits(2).stderr, @r#"
    error: invalid value 'gpu' for '--device <DEVICE>': unknown device `gpu`
      hint: did you mean `wgpu`? Known are auto, cpu, flex, ndarray, wgpu[:n], vulkan[:n], metal[:n], cuda[:n] and cuda:all

    For more information, try '--help'.
    "#);
    if cfg!(not(feature = "cuda")) && cfg!(feature = "wgpu") {
        assert_snapshot!(on("cuda").exits(1).stderr, @r#"
    error: this binary was built without the `cuda` backend
      hint: build it with `cargo build --release --features cuda`, or choose one of flex, ndarray, wgpu
    "#);
    }
    if cfg!(feature = "wgpu") {
        // The message differs between machines.
        let said = on("wgpu:99").exits(1).stderr;
        assert!(said.starts_with("error: ") && said.contains("\n  hint: "), "{said}");
    }
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

#[test]
fn run_mistakes_are_explained() {
    let folder = Folder::trained();
    fs::create_dir(folder.path("thesis"));
    folder.write("thesis/draft.txt", "years of work");
    assert_transcript!(folder, @r"
    $ generate runs/tniy
    error: there is no run at `runs/tniy`
      hint: found there: `runs/tiny`
    $ generate nowhere/at/all
    error: there is no run at `nowhere/at/all`
      hint: train one with `tinderbox train CONFIG`
    $ generate thesis
    error: `thesis` is not a run
      hint: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`; `tinderbox import` makes one of another model
    $ generate runs/tiny/checkpoints/step-000099
    error: there is no run at `runs/tiny/checkpoints/step-000099`
      hint: found there: `runs/tiny/checkpoints/step-000030`, `runs/tiny/checkpoints/step-000040`
    $ generate runs/tiny/step-30
    error: there is no run at `runs/tiny/step-30`
      hint: did you mean `runs/tiny/checkpoints/step-000030`?
    $ train tiny.toml --run-dir runs/tiny/checkpoints/step-000030 --resume
    error: `runs/tiny/checkpoints/step-000030` is a checkpoint of the run `runs/tiny`, and a run is needed here
      hint: name the run; `train --resume` goes on from its last checkpoint, and `train --from` starts another run from any
    $ train tiny.toml --run-dir thesis --overwrite
    error: `thesis` is not empty and not a run, so nothing is written there
      hint: choose another place with --run-dir
    $ train tiny.toml --run-dir text.txt
    error: cannot read `text.txt`: Not a directory (os error 20)
      hint: a run is kept in a folder; name one, or one that can be made
    $ train tiny.toml --run-dir other --resume
    error: there is no run at `other`
      hint: train one with `tinderbox train CONFIG`
    ");

    let weights = folder.path("runs/tiny/checkpoints/step-000040/model.safetensors");
    let whole = fs::read(&weights);
    fs::write(&weights, &whole[..whole.len() / 2]);
    assert_snapshot!(folder.fail(&["generate", "runs/tiny/last"]), @r#"
    error: `runs/tiny/checkpoints/step-000040/model.safetensors` is damaged: incomplete metadata, file not fully covered
      hint: `runs/tiny/checkpoints/step-000030` is whole, and can be named in place of the run; --resume continues from the last intact one
    "#);
    folder.succeed(&["generate", "runs/tiny/checkpoints/step-000030", "--max-new-tokens", "1"]);
    fs::remove_file(&weights);
    assert_snapshot!(folder.fail(&["generate", "runs/tiny/last"]), @r#"
    error: `runs/tiny/checkpoints/step-000040/model.safetensors` is damaged: it is missing
      hint: `runs/tiny/checkpoints/step-000030` is whole, and can be named in place of the run; --resume continues from the last intact one
    "#);
    let config = folder.read("runs/tiny/config.toml");
    folder.write("runs/tiny/config.toml", config.replace("d_model = 16", "d_model = 32"));
    assert_snapshot!(folder.fail(&["generate", "runs/tiny/checkpoints/step-000030"]), @r#"
    error: the weights in `runs/tiny/checkpoints/step-000030/model.safetensors` do not fit the run's config.toml: `token_embedding.weight` has the shape [33, 16], and the model needs [33, 32]
      hint: restore the config.toml that the run began with
    "#);
    assert_eq!(folder.read("thesis/draft.txt"), "years of work");
}

#[test]
fn prompt_mistakes_are_explained() {
    let folder = Folder::trained();
    folder.write("latin1.txt", b"The caf\xe9 by the river.");
    assert_transcript!(folder, @r#"
    $ generate runs/tiny --prompt 'Ünter dem Fluß'
    error: cannot use the prompt: the tokenizer does not know 4 characters: 'F' (U+0046), 'm' (U+006D), 'Ü' (U+00DC), 'ß' (U+00DF)
      hint: leave out or replace these characters; a model trained with kind = "byte" under [tokenizer] knows every character
    $ generate runs/tiny --prompt ''
    error: the prompt is empty
      hint: give at least one character to continue, such as --prompt "The"
    $ generate runs/tiny --prompt-file nope.txt
    error: cannot read the prompt `nope.txt`: No such file or directory (os error 2)
    $ generate runs/tiny --prompt-file latin1.txt
    error: cannot use the prompt: not UTF-8 at byte 7
      hint: save the text as UTF-8; a model trained with kind = "byte" under [tokenizer] takes any bytes
    "#);
    assert_snapshot!(folder.misuse(&["generate", "runs/tiny", "--top-p", "3", "--temperature", "-1"]), @r#"
    error: the settings have 2 problems:
      - --temperature = -1 must be a finite number, 0 or more
      - --top-p = 3 must be at least 0 and at most 1 (1 turns it off)
    "#);
}

#[test]
fn non_finite_loss_is_logged_as_error() {
    let folder = Folder::new();
    let wild = set(&["optimizer.learning_rate=1e30", "train.checkpoint_interval=1"]);
    let said = folder.fail(&[&["train", "tiny.toml"], &*wild].concat());
    let error = &said[said.find("error: ").expect("an error")..];
    let (what, rest) = error.split_once(" of step 2 is ").expect("the step");
    assert!(what.starts_with("error: the "), "{error}"); // loss or gradient, depending on the order of sums
    let (_, rest) = rest.split_once(", ").expect("what was done");
    let (before, norms) = rest.split_once("\n  norms of gradients/weights by layer: ").expect("where");
    let (norms, after) = norms.split_once('\n').expect("a hint");
    assert!(norms.contains("blocks.1 "), "{norms}");
    assert_snapshot!([before, after].join("\n"), @r#"
    so the run stopped; the checkpoint `runs/tiny/checkpoints/step-000001` is from before
      hint: lower optimizer.learning_rate, or lengthen schedule.warmup_steps; train.skip_non_finite = true skips such steps
    report: `runs/tiny/report.html`
    "#);
    assert!(folder.read("runs/tiny/train.log").ends_with(error));
}

#[test]
fn misuse_has_own_exit_code() {
    let folder = Folder::new();
    for args in [
        &["frobnicate"][..],
        &[],
        &["train"],
        &["generate"],
        &["train", "tiny.toml", "--fast"],
        &["generate", "runs/tiny", "--prompt", "a", "--prompt-file", "b"],
        &["generate", "runs/tiny", "--top-k", "-3"],
        &["eval", "runs/tiny", "--split", "test"],
        &["inspect", "attention", "runs/tiny", "--prompt", "cat", "--layer", "-1"],
        &["inspect", "attention", "runs/tiny", "--prompt", "cat", "--format", "pdf"],
        &["inspect", "embeddings", "runs/tiny", "--prompt", "a hen"],
        &["inspect", "heads", "runs/tiny", "--windows", "0"],
    ] {
        let said = folder.misuse(args);
        assert!(said.contains("Usage: ") || said.contains("--help"), "{said}");
    }
    for args in [["--help"], ["--version"]] {
        assert!(folder.succeed(&args).contains("tinderbox"));
    }
}

#[test]
fn closed_pipes_end_generation_but_not_training() {
    let folder = Folder::trained();
    let mut writing = folder.start(&["generate", "runs/tiny", "--max-new-tokens", "100000"]);
    let mut start = [0; 5];
    let mut stdout = writing.child.stdout.take().expect("the stream is piped");
    stdout.read_exact(&mut start).expect("it can be read");
    drop(stdout);
    let mut said = String::new();
    writing.stderr.read_to_string(&mut said).expect("it can be read");
    assert_eq!((writing.child.wait().expect("the process has ended").code(), said.as_str()), (Some(0), ""));

    // Training goes on even if its messages cannot be written.
    let mut command = folder.command(&["train", "tiny.toml", "--json", "--run-dir", "unwatched"]);
    let mut training = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut stderr = training.stderr.take().expect("the stream is piped");
    stderr.read_exact(&mut start).expect("it says that it trains");
    drop((stderr, training.stdout.take()));
    assert_eq!(training.wait().expect("the process has ended").code(), Some(0));
    assert!(folder.read("unwatched/train.log").contains("done: 40 steps"));
}

#[test]
fn thread_count_keeps_bytes_of_training() {
    let folder = Folder::new();
    folder.write("text.txt", text().repeat(60)); // several chunks
    // Wide enough for every kernel to use several threads.
    let wide = ["model.d_model=96", "model.context_length=64", "train.batch_size=16", "optimizer.kind=muon"];
    let steps = ["train.max_steps=4", "train.eval_batches=1", "train.log_interval=1", "data.val_fraction=0.01"];
    let settings = set(&[&wide[..], &steps].concat());
    let train = |threads: &str| {
        let run = format!("threads-{threads}");
        let mut command = folder.command(&[&["train", "tiny.toml", "--run-dir", &run], &*settings].concat());
        let ran = command.env("RAYON_NUM_THREADS", threads).output();
        assert!(ran.expect("the binary starts").status.success());
        let model = std::fs::read(folder.path(format!("{run}/checkpoints/step-000004/model.safetensors")));
        (model.expect("the checkpoint was saved"), folder.read(&format!("{run}/metrics.jsonl")))
    };
    assert!(train("1") == train("3"), "weights or losses differ");
}
