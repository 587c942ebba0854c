//! From a text to a config to a model, and shell completions: the real binary, in its own folder.

use std::path::Path;
use std::process::Command;

use tinderbox::config::{Config, TokenizerKind};
use tinderbox::preset::{PRESETS, Preset};

use crate::fixtures::{Folder, Ran, assert_transcript, fs, text};

fn succeed(folder: &Folder, args: &[&str]) -> Ran {
    folder.run(args).exits(0)
}

/// The error for a text that gets no config.
fn refuse(folder: &Folder, text: &str, more: &[&str]) -> String {
    let args = [&["init", "--device", "cpu", "--from-text", text], more].concat();
    let stderr = folder.fail(&args);
    let error = stderr.find("error: ").expect("an error");
    stderr[error..].to_owned()
}

/// `n` fixed pseudorandom numbers below `bound`.
fn draws(n: usize, bound: u32) -> impl Iterator<Item = u32> {
    let mut state = 12345_u32;
    (0..n).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % bound
    })
}

fn english() -> String {
    text().repeat(2)
}

/// Sentences of six out of 600 characters, some with an emoji.
fn chinese() -> String {
    let mut text = String::new();
    for (i, draw) in draws(40_000, 600).enumerate() {
        // A skewed draw: some characters are much more frequent than others.
        let character = draw * (1 + u32::try_from(i % 3).expect("the index fits 32 bits")) / 3;
        text.push(char::from_u32(0x4e00 + character).expect("a character"));
        if i % 6 == 5 {
            text.push_str(if draw % 7 == 0 { "\u{1f525}\u{3002}\n" } else { "\u{3002}" });
        }
    }
    text
}

fn emoji() -> String {
    let faces = ["\u{1f600}", "\u{1f468}\u{200d}\u{1f680}", "\u{2764}\u{fe0f}", "\u{1f44d}\u{1f3fd}"];
    draws(600, 4).map(|draw| faces[draw as usize]).collect()
}

#[test]
fn presets_are_shipped_configs() {
    let folder = Folder::new();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let plain = succeed(&folder, &["init"]);
    assert_eq!(plain.stdout, fs::read_to_string(configs.join("quickstart.toml")));
    for Preset { name, stem, .. } in PRESETS {
        let file = format!("configs/{stem}.toml");
        for name in [name, stem] {
            let printed = succeed(&folder, &["init", "--preset", name]);
            assert!(printed.stdout == fs::read_to_string(configs.join(format!("{stem}.toml"))), "{name}");
            assert_eq!(printed.stderr, "", "no advice beside a file");
            Config::from_toml(&printed.stdout, Path::new(name), &[]).expect("it loads");
        }
        assert!(
            plain.stderr.contains(&format!("--preset {name} ")) && plain.stderr.contains(&file),
            "{}",
            plain.stderr
        );
    }
    assert!(plain.stderr.contains("--from-text FILE"));
    assert_eq!(folder.run(&["init", "--preset", "gpt5"]).code, Some(2));
    assert_eq!(folder.run(&["init", "--minutes", "5"]).code, Some(2));
    let n_shipped = fs::read_dir(configs).expect("a folder").count();
    assert_eq!(n_shipped, PRESETS.len(), "every shipped config is a preset");
}

#[test]
fn preset_names_source_of_text() {
    let folder = Folder::new();
    for (preset, expected) in [
        (
            "shakespeare-gpu",
            "Its text is `data/tinyshakespeare.txt`: `scripts/fetch_data.sh shakespeare` in the repository",
        ),
        ("quickstart", "Its text is `data/stories.txt`: it comes with the program"),
    ] {
        let output = format!("{preset}.toml");
        let said = succeed(&folder, &["init", "--preset", preset, "--output", &output]);
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
}

#[test]
fn train_accepts_preset_names() {
    let folder = Folder::new();
    let short = ["--set", "train.max_steps=1", "--set", "train.eval_batches=1", "--set", "train.sample_tokens=0"];
    let small = ["--set", "model.d_model=8", "--set", "model.n_layers=1", "--set", "tokenizer.kind=byte"];
    let train = |config: &str, more: &[&str]| folder.run(&[&["train", config], &short[..], &small, more].concat());
    let ran = train("quickstart", &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("wrote the bundled stories to `data/stories.txt`\n"));
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/stories.txt");
    assert!(fs::read(folder.path("data/stories.txt")) == fs::read(shipped));
    // The text is there now, and is not written again.
    let ran = train("quickstart", &["--overwrite"]);
    assert!(ran.code == Some(0) && !ran.stderr.contains("wrote"), "{}", ran.stderr);
    // A file takes precedence, a folder does not.
    folder.write("shakespeare", "[data]\npath = 3\n");
    assert!(train("shakespeare", &[]).stderr.contains("data.path = 3"));
    fs::create_dir(folder.path("gpt2"));
    assert!(train("gpt2", &[]).stderr.contains("model.d_model = 8 must be divisible by model.n_heads = 12"));
    assert_transcript!(folder, @r"
    $ train quikstart
    error: there is no config file and no preset `quikstart`
      hint: did you mean `quickstart`? the presets are quickstart, shakespeare-fast, shakespeare-laptop, shakespeare, shakespeare-gpu, stories, gpt2; give a config file by its path
    $ plan mine
    error: there is no config file and no preset `mine`
      hint: the presets are quickstart, shakespeare-fast, shakespeare-laptop, shakespeare, shakespeare-gpu, stories, gpt2; give a config file by its path
    ");
}

#[test]
fn init_replaces_only_configs_with_overwrite() {
    let folder = Folder::new();
    let ran = succeed(&folder, &["init", "--preset", "quickstart", "--output", "a b.toml"]);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("train 'a b.toml'\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("generate 'runs/a b' --prompt \"...\"\n"), "{}", ran.stderr);
    folder.write("mine.toml", "years of work");
    assert_transcript!(folder, @r"
    $ init --output mine.toml
    error: `mine.toml` already exists; nothing was written
      hint: choose another name, or replace it with --overwrite
    ");
    assert_eq!(fs::read(folder.path("mine.toml")), b"years of work");
    assert_transcript!(folder, @r"
    $ init --output mine.toml --overwrite
    error: `mine.toml` is not a config, so it is not replaced
      hint: choose another name, or move the file away
    ");
    assert_eq!(fs::read(folder.path("mine.toml")), b"years of work");
    folder.write("mine.toml", "# Mine.\n[train]\nmax_steps = 3\n");
    succeed(&folder, &["init", "--output", "mine.toml", "--overwrite"]);
    assert!(fs::read(folder.path("mine.toml")) == PRESETS[0].toml.as_bytes());
}

#[test]
fn init_checks_output_before_measuring() {
    let folder = Folder::new();
    folder.write("my.txt", english());
    assert_transcript!(folder, @r"
    $ init --device cpu --from-text my.txt --output no/where.toml
    error: cannot write `no/where.toml`: there is no folder `no`
      hint: create it first, or choose another
    $ init --device cpu --from-text my.txt --output . --overwrite
    error: cannot write `.`: it is a folder
      hint: name a file in it
    $ man --output my.txt
    error: cannot write to `my.txt`: it is not a folder
      hint: give the path of a folder
    ");
}

#[test]
fn shortest_texts_and_bytes_train() {
    let folder = Folder::new();
    folder.write("ab.txt", "ab".repeat(100));
    insta::assert_snapshot!(refuse(&folder, "ab.txt", &["--tokenizer", "bpe"]), @r"
    error: the text `ab.txt` has only 3 tokens with this tokenizer
      hint: the shortest text to train on has 64 (--tokenizer byte makes most tokens); it becomes interesting at about 100,000
    ");
    let shortest: String = english().chars().take(64).collect();
    folder.write("short.txt", shortest);
    let noise = draws(4000, 256).map(|byte| u8::try_from(byte).expect("draws are below 256"));
    folder.write("noise.bin", noise.collect::<Vec<u8>>());
    for (text, kind) in
        [("ab.txt", "char"), ("ab.txt", "byte"), ("short.txt", "byte"), ("short.txt", "char"), ("noise.bin", "byte")]
    {
        let config = format!("{kind}.toml");
        let args = ["init", "--from-text", text, "--tokenizer", kind, "--device", "cpu"];
        let output = ["--minutes", "0.01", "--overwrite", "--output", &config];
        succeed(&folder, &[&args[..], &output].concat());
        let train = ["train", &config, "--overwrite", "--set", "train.max_steps=2"];
        succeed(&folder, &train);
    }
}

/// From a text to a model that generates, in three commands, with a tiny time limit.
#[track_caller]
fn from_text_to_model(name: &str, text: &str, kind: TokenizerKind) -> (Folder, Ran, Config) {
    let folder = Folder::new();
    folder.write(name, text);
    let said = succeed(&folder, &["init", "--from-text", name, "--minutes", "0.02", "--device", "cpu"]);
    let config = Config::from_toml(&said.stdout, Path::new("my.toml"), &[]).expect("it loads");
    assert_eq!((config.tokenizer.kind, &*config.data.path), (kind, Path::new(name)));
    assert!(config.train.max_steps >= 10, "{}", said.stdout);
    let prompt = &config.train.sample_prompt;
    assert!(text.contains(prompt), "{prompt:?}");
    folder.write("my.toml", &said.stdout);
    succeed(&folder, &["train", "my.toml"]);
    let generate = ["generate", "runs/my", "--max-new-tokens", "5", "--prompt", prompt];
    assert!(succeed(&folder, &generate).stdout.starts_with(prompt));
    (folder, said, config)
}

#[test]
fn init_serves_texts_in_any_language_and_names_their_numbers() {
    from_text_to_model("wen.txt", &chinese(), TokenizerKind::Bpe);
    from_text_to_model("faces.txt", &emoji(), TokenizerKind::Char);
    let (folder, said, _) = from_text_to_model("my.txt", &english(), TokenizerKind::Char);
    let plan = folder.json(&["plan", "my.toml", "--no-measure", "--json"]);
    let grouped = |n: u64| format!("{},{:03}", n / 1000, n % 1000);
    let planned = |n: &serde_json::Value| grouped(n.as_u64().expect("a count"));
    let alphabet: std::collections::BTreeSet<char> = english().chars().collect();
    for fact in [
        format!("{} characters", grouped(english().chars().count() as u64)),
        format!("{} different ones", alphabet.len()),
        format!("{} parameters", planned(&plan["parameters"]["total"])),
        format!("about {} tokens", planned(&plan["text"]["val_tokens"])),
    ] {
        assert!(said.stdout.contains(&fact), "{fact} in\n{}", said.stdout);
    }
}

#[test]
fn folder_of_code_becomes_model() {
    let folder = Folder::new();
    let line = |i: u32| format!("    let x{i} = {{ f(\"{}\") + {} }};\n", i % 9, i * 7 % 31);
    let code: String = (0..400).map(line).collect();
    folder.write("src/a.rs", &code);
    folder.write("src/deep/b.rs", &code);
    let said = succeed(&folder, &["init", "--from-text", "src", "--minutes", "0.02", "--device", "cpu"]);
    assert!(said.stdout.contains("tinderbox train src.toml"), "{}", said.stdout);
    let config = Config::from_toml(&said.stdout, Path::new("src.toml"), &[]).expect("it loads");
    assert_eq!((config.tokenizer.kind, &*config.data.path), (TokenizerKind::Char, Path::new("src")));
}

#[test]
fn init_cautions_about_short_text() {
    let text: String = english().chars().take(500).collect();
    let (_, said, config) = from_text_to_model("short.txt", &text, TokenizerKind::Char);
    assert!(config.model.context_length < 128);
    assert!(said.stderr.contains("Caution: 500 characters are a short text"), "{}", said.stderr);
    assert!(said.stdout.contains("# Caution: 500 characters are a short text"), "{}", said.stdout);
}

#[test]
fn init_refuses_useless_texts() {
    let folder = Folder::new();
    folder.write("tiny.txt", "Too short.");
    folder.write("latin1.txt", b"The caf\xe9 by the river, where nobody ever was. And so on, and so on.");
    let said = ["tiny.txt", "-"].map(|text| refuse(&folder, text, &[])).concat();
    insta::assert_snapshot!(said, @r#"
    error: the text `tiny.txt` has only 10 characters
      hint: the shortest text to train on has 64 (--tokenizer byte makes most tokens); it becomes interesting at about 100,000
    error: a config names its text, and standard input is gone when training begins
      hint: save it as a file first, as in `... > my.txt`, then --from-text my.txt
    "#);
    assert!(refuse(&folder, "latin1.txt", &["--tokenizer", "char"]).contains("not UTF-8"));
}

#[test]
fn shells_complete_commands_and_options() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = succeed(&folder, &["completions", shell]).stdout;
        assert!(script.contains("from-text") && script.contains("completions"), "{shell}");
    }
    assert_eq!(folder.run(&["completions", "tcsh"]).code, Some(2));
    folder.write("tinderbox.bash", succeed(&folder, &["completions", "bash"]).stdout);
    let complete = |line: &str| {
        // As bash calls the script when Tab is pressed.
        let script = "source tinderbox.bash
            read -ra COMP_WORDS <<<\"$1\"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$1
            _tinderbox tinderbox \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
            echo \"${COMPREPLY[*]}\"";
        let bash =
            Command::new("bash").args(["--norc", "-c", script, "bash", line]).current_dir(folder.path("")).output();
        bash.ok().map(|output| {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("the bytes are UTF-8").trim().to_owned()
        })
    };
    let Some(commands) = complete("tinderbox tr") else {
        return crate::skip("there is no bash", "TINDERBOX_REQUIRE_BASH");
    };
    assert_eq!(commands, "train");
    assert_eq!(complete("tinderbox init --from").as_deref(), Some("--from-text"));
    assert_eq!(
        complete("tinderbox init --preset sh").as_deref(),
        Some("shakespeare-fast shakespeare-laptop shakespeare shakespeare-gpu")
    );
}

#[test]
fn manual_has_page_for_each_command() {
    let folder = Folder::new();
    let page = succeed(&folder, &["man"]).stdout;
    assert!(page.contains(".TH tinderbox 1") && page.contains("tinderbox\\-train(1)"), "{page}");
    succeed(&folder, &["man", "--output", "share/man1"]);
    succeed(&folder, &["man", "--output", "share/man1"]); // a newer version replaces the pages
    folder.write("other/tinderbox-train.1", "years of work");
    let said = folder.fail(&["man", "--output", "other"]);
    assert!(said.starts_with("error: `other/tinderbox-train.1` is not a manual page of Tinderbox"), "{said}");
    assert_eq!(fs::read_dir(folder.path("other")).expect("a folder").count(), 1, "nothing was written");
    let help = succeed(&folder, &["help"]).stdout;
    let listed = help.split_once("Commands:\n").expect("a list").1.lines();
    let commands: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   ")) // not a wrapped line
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"train") && commands.contains(&"help"), "{help}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let path = folder.path(format!("share/man1/tinderbox-{command}.1"));
        let page = fs::read_to_string(&path);
        assert!(page.contains(&format!(".TH tinderbox-{command} 1")), "{page}");
        let groff = Command::new("groff").args(["-man", "-ww", "-z"]).arg(path).output();
        let Ok(groff) = groff else {
            crate::skip("there is no groff", "TINDERBOX_REQUIRE_GROFF");
            continue;
        };
        let problems = String::from_utf8_lossy(&groff.stderr);
        assert!(groff.status.success() && problems.is_empty(), "{command}: {problems}");
    }
}
