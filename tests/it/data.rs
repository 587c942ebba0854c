//! Texts in every form: compressed, as records, in folders, through a pipe, several at once.

use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use insta::assert_snapshot;

use crate::fixtures::{Folder, Ran, assert_transcript, fs, set, text};

/// A tiny model; each test adds its own `[data]`.
const CONFIG: &str = r#"
model = { context_length = 16, d_model = 16, n_layers = 1, n_heads = 2 }
schedule = { warmup_steps = 3 }

[train]
device = "flex"
max_steps = 6
batch_size = 4
log_interval = 2
eval_interval = 3
eval_batches = 2
sample_tokens = 0

[data]
cache_dir = "cache"
"#;

/// A folder with a text and a config with these lines under `[data]`.
fn folder(data: &str) -> Folder {
    let folder = Folder::new();
    folder.write("tiny.toml", CONFIG.to_owned() + data);
    folder
}

fn weights(folder: &Folder, run: &str) -> Vec<u8> {
    fs::read(folder.path(run).join("checkpoints/step-000006/model.safetensors"))
}

fn cached(folder: &Folder, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path("cache")).expect("the folder can be listed").flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("in memory");
    encoder.finish().expect("in memory")
}

#[test]
fn run_on_standard_input_equals_run_on_file_and_resumes() {
    let folder = folder("path = \"-\"\n");
    let stopped = ["train", "tiny.toml", "--set", "train.max_steps=3"];
    let keep = ["--set", "schedule.kind=constant", "--run-dir"];
    folder.succeed(&[&["train", "tiny.toml", "--set", "data.path=text.txt"], &keep[..], &["whole"]].concat());
    let args = [&stopped[..], &keep[..], &["piped"]].concat();
    let said = folder.pipe(&args, gzip(text().as_bytes())).exits(0).stderr;
    assert!(said.contains("standard input is saved as `cache/"), "{said}");
    let going_on = [&["train", "tiny.toml", "--resume"], &keep[..], &["piped"]].concat();
    folder.succeed(&going_on);
    assert!(weights(&folder, "piped") == weights(&folder, "whole"), "stopped and resumed is the same as not");
    folder.succeed(&["eval", "piped"]);

    let [kept] = &cached(&folder, "text")[..] else { panic!("one text") };
    fs::remove_file(kept);
    let said = folder.fail(&["eval", "piped"]);
    assert!(said.contains("came through standard input") && said.contains("is gone"), "{said}");
    let longer = [&going_on[..], &["--set", "train.max_steps=8", "--set", "data.path=text.txt"]];
    folder.succeed(&longer.concat());
}

#[test]
fn standard_input_carries_records_if_config_says_so() {
    let folder = folder("path = \"-\"\nformat = \"jsonl\"\ntext_field = \"body\"\n");
    let lines = text().lines().map(|line| serde_json::json!({ "body": line }).to_string() + "\n").collect::<String>();
    folder.pipe(&["train", "tiny.toml"], &lines).exits(0);
    let eval = ["eval", "runs/tiny", "--text", "-", "--json"];
    let found = folder.pipe(&eval, &lines).stdout;
    let bytes = folder.pipe(&["tokenizer", "encode", "runs/tiny", "--file", "-", "--ids"], b"The");
    assert_eq!(bytes.stdout.split(' ').count(), 3);
    folder.write("a.jsonl", &lines);
    let of_file = folder.pipe(&["eval", "runs/tiny", "--text", "a.jsonl", "--json"], b"");
    assert!(!found.is_empty() && found == of_file.stdout, "records, as the run has them");
    let auto = ["train", "tiny.toml", "--overwrite", "--set", "data.format=auto"];
    assert_snapshot!(folder.pipe(&auto, &lines).stderr, @r#"
    error: the first line of `-` is a record of JSON Lines, with a field "body"
      hint: format = "jsonl" under [data] reads that field of each line as the text, format = "text" reads the lines as they are; so would a name that ends in .jsonl
    "#);
    let said =
        [&b"{\"text\": 1}\n"[..], b""].map(|text| folder.pipe(&["train", "tiny.toml", "--overwrite"], text).stderr);
    assert_snapshot!(said.concat(), @r#"
    error: line 1 of `-` has no field "body", only "text"
      hint: data.text_field names the one that holds the text
    error: the text `-` is empty
      hint: put text into it, or name another
    "#);
}

#[cfg(unix)]
#[test]
fn terminal_on_standard_input_is_refused() {
    let folder = folder("path = \"-\"\n");
    let said = crate::terminal::shown(&folder, &["train", "tiny.toml"], &[]);
    assert!(said.contains("standard input, which is a terminal"), "{said}");
}

#[test]
fn weights_of_sources_decide_draws() {
    let sources = "[[data.sources]]\npath = \"text.txt\"\nweight = 3\n\
                   [[data.sources]]\npath = \"other.jsonl\"\ntext_field = \"body\"\n";
    let folder = folder(sources);
    let numbers: Vec<String> = (0..1000).map(|n: u32| n.to_string()).collect();
    let body = numbers.join(" ") + " ";
    folder.write("other.jsonl", serde_json::json!({ "body": body }).to_string());
    let said = folder.train(&[]).stderr;
    let lines = said.lines().filter(|line| line.starts_with("source "));
    assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r"
    source `text.txt`: 8,591 training and 955 validation tokens; 75.0 % of the windows, 0.03 epochs
    source `other.jsonl`: 3,501 training and 389 validation tokens; 25.0 % of the windows, 0.03 epochs
    ");
    // The weights are part of the run; the locations of the texts are not.
    let resume = |sources: &str| {
        folder.write("tiny.toml", CONFIG.to_owned() + sources);
        folder.run(&["train", "tiny.toml", "--resume", "--set", "train.max_steps=8"])
    };
    let said = resume(&sources.replace("= 3", "= 2")).stderr;
    assert!(said.contains("the weights of data.sources were [3.0, 1.0] and are now [2.0, 1.0]"), "{said}");
    fs::rename(folder.path("text.txt"), folder.path("moved.txt"));
    resume(&sources.replace("text.txt", "moved.txt")).exits(0);
    folder.succeed(&["eval", "runs/tiny", "--split", "train"]);
}

#[test]
fn one_source_equals_path() {
    let folder = folder("[[data.sources]]\npath = \"text.txt\"\nweight = 0.3\n");
    folder.succeed(&["train", "tiny.toml"]);
    folder.write("tiny.toml", CONFIG.to_owned() + "path = \"text.txt\"\n");
    folder.succeed(&["train", "tiny.toml", "--run-dir", "other"]);
    assert!(weights(&folder, "runs/tiny") == weights(&folder, "other"));
}

#[test]
fn eval_reads_every_format() {
    let folder = folder("path = \"text.txt\"\n");
    folder.succeed(&["train", "tiny.toml"]);
    let whole = text();
    folder.write("a.txt.gz", gzip(whole.as_bytes()));
    folder.write("a.jsonl", serde_json::json!({ "text": whole }).to_string());
    folder.write("folder/a.txt", &whole);
    let losses = |path: &str| {
        let args = ["eval", "runs/tiny", "--json", "--text", path];
        folder.pipe(&args, &whole).exits(0).stdout
    };
    let plain = losses("text.txt");
    assert!(plain.contains(&format!("\"tokens\":{}", whole.len() - 1)), "{plain}");
    for path in ["a.txt.gz", "a.jsonl", "folder", "-"] {
        assert_eq!(losses(path), plain, "{path}");
    }
}

#[test]
fn data_mistakes_are_explained() {
    let folder = folder("path = \"text.txt\"\n");
    folder.write("stories/tales.txt", text());
    folder.write("report.docx", b"PK\x03\x04 and so on");
    folder.write("cut.txt.gz", &gzip(text().as_bytes())[..100]);
    folder.write("a.jsonl", "{\"text\": \"x\"}\n\n{\"body\": \"x\", \"title\": \"y\"}\n");
    assert_transcript!(folder, @r#"
    $ train tiny.toml --set data.path=report.docx
    error: `report.docx` is not text, but a zip archive, an Office document or an e-book
      hint: save it as plain text (UTF-8), or pack it with gzip; data.exclude (--exclude) leaves files of a folder out, and data.skip_bad_files (--skip-bad-files) all that are not text
    $ train tiny.toml --set data.path=cut.txt.gz
    error: `cut.txt.gz` is not a complete gzip file: incomplete deflate stream
      hint: download or compress it again; `gzip -t` checks whether it is complete; data.exclude (--exclude) leaves files of a folder out, and data.skip_bad_files (--skip-bad-files) all that are not text
    $ train tiny.toml --set data.path=a.jsonl
    error: line 3 of `a.jsonl` has no field "text", only "body", "title"
      hint: data.text_field names the one that holds the text
    "#);
    let both = "data.sources=[{path=\"a\", weight=0}, {path=\"-\"}, {path=\"a\", text_field=\"\"}]";
    assert_snapshot!(folder.fail(&["train", "tiny.toml", "--set", both]), @r#"
    error: the config `tiny.toml` has 5 problems:
      - data.path = "text.txt" must not be there beside [[data.sources]]: name it as one of them, or leave them out
      - data.sources[0].weight = 0 must be above 0 and at most 1e15: only how weights compare matters
      - data.sources[1].path = "-": standard input can only be the one text of data.path; save it to a file first
      - data.sources[2].text_field = "" must name the field of a JSON Lines record that holds its text
      - data.sources[2].path = "a" is data.sources[0] already: raise its weight instead
    "#);
    let sources = "data.sources=[{path=\"stories\"}, {path=\"stories/tales.txt\"}]";
    let args = ["train", "tiny.toml", "--set", "data.path=", "--set", sources];
    assert_snapshot!(folder.fail(&args), @r#"
    error: `stories/tales.txt` is in two sources, `stories` and `stories/tales.txt`: what one keeps for validation, the other would train on
      hint: name each file in one of them; a weight says how often it is drawn
    "#);
    assert!(!folder.path("runs").exists(), "nothing was begun");
}

#[cfg(unix)]
#[test]
fn broken_links_and_unreadable_files_are_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = folder("path = \"texts\"\n");
    folder.write("texts/a.txt", text());
    symlink("gone.txt", folder.path("texts/b.txt")).expect("the link can be made");
    assert_snapshot!(folder.fail(&["train", "tiny.toml"]), @r"
    error: `texts/b.txt` is a link to `gone.txt`, which is not there
      hint: remove the link, or restore its target
    ");
    fs::remove_file(folder.path("texts/b.txt"));
    let path = folder.path("texts/a.txt");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("the mode can be set");
    if std::fs::read(&path).is_err() {
        // root can read everything
        assert_snapshot!(folder.fail(&["train", "tiny.toml"]), @r"
        error: cannot read the text `texts/a.txt`: Permission denied (os error 13)
          hint: check that you may read it
        ");
    }
}

/// A file size limit simulates a full disk.
#[cfg(unix)]
#[test]
fn full_disk_leaves_no_token_file() {
    let folder = folder("path = \"text.txt\"\n");
    folder.write("text.txt", text().repeat(100));
    let mut shell = folder.program("sh");
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" train tiny.toml"; // 50 or 100 KiB
    shell.args(["-c", script]).arg(assert_cmd::cargo::cargo_bin!("tinderbox"));
    let said = Ran::of(shell).exits(1).stderr;
    assert!(said.contains("cannot keep the encoded text in `cache/"), "{said}");
    assert!(said.contains("make room there"), "{said}");
    let left = fs::read_dir(folder.path("cache")).expect("the folder can be listed").count();
    assert_eq!(left, 0, "nothing half-written is left");
    folder.succeed(&["train", "tiny.toml"]);
}

#[test]
fn cache_stays_below_limit() {
    let folder = folder("path = \"text.txt\"\ncache_limit_gib = 2e-5\n"); // 21 KiB: a single file of 18 KiB
    folder.succeed(&["train", "tiny.toml"]);
    assert_eq!(cached(&folder, "tokens").len(), 1);
    folder.write("text.txt", text().replace(" old.", " OLD."));
    folder.succeed(&["train", "tiny.toml", "--overwrite"]);
    assert_eq!(cached(&folder, "tokens").len(), 1, "that of the other text is gone");
    folder.succeed(&["eval", "runs/tiny"]);
}

#[test]
fn huge_record_in_gzip_is_refused() {
    let folder = folder("path = \"bomb.jsonl.gz\"\nrecord_limit_mib = 0.5\n");
    let record = |mib: usize| format!("{{\"text\": \"{}\"}}\n", "0123456789abcde\\n".repeat(mib << 16));
    folder.write("bomb.jsonl.gz", gzip((record(0) + &record(8)).as_bytes()));
    assert_snapshot!(folder.fail(&["train", "tiny.toml"]), @r"
    error: line 2 of `bomb.jsonl.gz` is longer than 0.5 MiB, the limit of a record
      hint: data.record_limit_mib raises it; reading takes up to three times as much memory
    ");
    folder.succeed(&["plan", "tiny.toml", "--set", "data.record_limit_mib=16"]);
}

#[test]
fn folder_holds_out_documents_and_old_run_its_end() {
    let folder = folder("path = \"texts\"\n");
    for (i, line) in text().lines().cycle().take(60).enumerate() {
        folder.write(format!("texts/{i:02}.txt"), format!("{i:02} {line}\n"));
    }
    let train = |run: &str, settings: &[&str], args: &[&str]| {
        folder.run(&[&["train", "tiny.toml", "--run-dir", run], &*set(settings), args].concat())
    };
    let stop = ["train.max_steps=3", "schedule.kind=constant"];
    let [end, keep] = ["data.val_split=end", "schedule.kind=constant"];
    let val_loss = |run: &str| folder.json(&["eval", run, "--json"])["loss"].to_string();
    for (run, settings) in [("new", &[keep][..]), ("other", &[keep, "train.seed=2"]), ("whole", &[keep, end])] {
        train(run, settings, &[]).exits(0);
    }
    assert!(folder.read("new/config.toml").contains("val_split = \"documents\""));
    let losses = ["new", "other", "whole"].map(val_loss);
    assert!(losses[0] != losses[1] && losses[0] != losses[2], "{losses:?}");

    // As a version before this key left it: half of a run, whose config says nothing about the split.
    train("old", &[&stop[..], &[end]].concat(), &[]).exits(0);
    let config = folder.read("old/config.toml");
    folder.write("old/config.toml", config.replace("val_split = \"end\"\n", ""));
    let said = train("old", &[keep, "data.val_split=documents"], &["--resume"]).exits(1).stderr;
    assert!(said.contains("data.val_split was not given and is now \"documents\""), "{said}");
    train("old", &[keep], &["--resume"]).exits(0);
    assert!(weights(&folder, "old") == weights(&folder, "whole"), "the same batches");
    assert_eq!(val_loss("old"), losses[2]);
    assert!(!folder.read("old/config.toml").contains("val_split"));
}

#[test]
fn cache_command_lists_and_clears() {
    let folder = folder("path = \"text.txt\"\n");
    folder.succeed(&["train", "tiny.toml", "--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=300"]);
    let cache = |args: &[&str]| folder.run(&[&["cache", "--cache-dir", "cache"], args].concat()).exits(0);
    let listed = cache(&[]);
    for expected in ["bpe tokens of `", "bpe tokenizer of `", "text.txt`", "tokenizer", " MiB"] {
        assert!(listed.stdout.contains(expected), "{}", listed.stdout);
    }
    assert!(listed.stderr.starts_with("2 files of ") && listed.stderr.contains("in `cache`"), "{}", listed.stderr);
    let found: serde_json::Value = serde_json::from_str(&cache(&["--json"]).stdout).expect("JSON");
    assert_eq!(found["files"].as_array().expect("a list").len(), 2);
    let bytes = found["files"].as_array().into_iter().flatten().map(|file| file["bytes"].as_u64());
    assert_eq!(found["bytes"].as_u64(), bytes.sum::<Option<u64>>());
    assert!(cache(&["clear"]).stderr.starts_with("removed 2 files of "));
    assert_eq!(cache(&[]).stdout, "");
    folder.succeed(&["eval", "runs/tiny"]); // makes them again
}

#[test]
fn unwritable_home_does_not_stop_training() {
    let folder = folder("path = \"text.txt\"\n");
    folder.write("tiny.toml", CONFIG.replace("cache_dir = \"cache\"", "path = \"text.txt\""));
    let mut train = folder.command(&["train", "tiny.toml"]);
    fs::create_dir(folder.path("tmp"));
    train.env("HOME", folder.path("text.txt")).env("TMPDIR", folder.path("tmp"));
    Ran::of(train).exits(0);
    assert!(fs::read_dir(folder.path("tmp")).expect("the folder can be listed").next().is_some(), "with token files");
}
