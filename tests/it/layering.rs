//! Holds the layers of the library: a module uses its own layer and the ones below it, never one above.
//!
//! It reads the sources as text, so it knows paths that start with `crate::`, and not what the compiler makes of
//! them: a path through `super` or a re-export is not followed. Unit tests inside a module count as the module.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of each layer, from the bottom up.
const LAYERS: &[&[&str]] = &[
    &["config", "counts", "device", "measure", "page", "tokenizer", "words"],
    &["data", "kernels", "attention", "model", "inference"],
    &["optimizer", "checkpoint"],
    &["train", "generate", "runs", "plan", "autoconfig", "inspect", "report", "bench"],
    &["cli", "main"],
];

/// What the modules of the bottom layer may use of each other. Anywhere else a layer's modules are free to.
const BOTTOM: &[(&str, &str)] = &[("tokenizer", "config")];

#[test]
fn no_module_uses_a_layer_above_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut problems = Vec::new();
    let mut n_paths = 0;
    for path in rust_files(&root) {
        let source = fs::read_to_string(&path).expect("a source file is UTF-8");
        let file = path.strip_prefix(&root).expect("the file was found below `src`");
        n_paths += used_modules(&source).len();
        problems.extend(violations(file, &source));
    }
    assert!(
        n_paths > 20,
        "found only {n_paths} `crate::` paths below {}: is the search broken?",
        root.display()
    );
    assert!(problems.is_empty(), "the layers do not hold:\n{}", problems.join("\n"));
}

/// Every `.rs` file below `folder`, in the order of their paths.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder's entry can be read").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// One line for each path in `source` that its file may not use; `file` is relative to `src`.
fn violations(file: &Path, source: &str) -> Vec<String> {
    let first = file.iter().next().expect("a file has a name").to_string_lossy();
    let module = first.trim_end_matches(".rs");
    if module == "lib" {
        return Vec::new(); // the root names every module
    }
    let file = Path::new("src").join(file);
    let Some(layer) = layer_of(module) else {
        return vec![format!(
            "{}: module `{module}` is in no layer: put it in the table of tests/it/layering.rs",
            file.display()
        )];
    };
    used_modules(source)
        .into_iter()
        .filter_map(|(line, used)| {
            let problem = match layer_of(&used) {
                None => format!(
                    "`crate::{used}` is in no layer: name the module that defines it, or put it in the table of \
                     tests/it/layering.rs"
                ),
                Some(above) if above > layer => {
                    format!("`{module}` (layer {layer}) uses `{used}` (layer {above})")
                }
                Some(0) if layer == 0 && module != used && !BOTTOM.contains(&(module, used.as_str())) => {
                    format!("`{module}` uses `{used}`: modules of layer 0 do not know each other")
                }
                Some(_) => return None,
            };
            Some(format!("{}:{line}: {problem}", file.display()))
        })
        .collect()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Line, from 1, and first name of every path in `source` that starts with `crate::`, groups included.
/// Macros are left out: they live at the crate's root, whichever file defines them.
fn used_modules(source: &str) -> Vec<(usize, String)> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate") {
        let starts_a_word = !code[..at].ends_with(is_word);
        let Some(path) = code[at + "crate".len()..].trim_start().strip_prefix("::") else {
            continue;
        };
        if !starts_a_word {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        for name in first_names(path.trim_start()) {
            found.push((line, name.to_owned()));
        }
    }
    found
}

/// The names that `path`, the text after `crate::`, begins with: one, or one for each member of a `{..}` group.
fn first_names(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else {
        return first_name(path).into_iter().collect();
    };
    let mut names = Vec::new();
    let mut depth = 0_usize;
    let mut member = 0; // where the group's present member starts
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                names.extend(first_name(&group[member..at]));
                break;
            }
            ',' if depth == 0 => {
                names.extend(first_name(&group[member..at]));
                member = at + 1;
            }
            _ => {}
        }
    }
    names
}

/// The name at the start of `path`, or its first character where that is none (`*`). `None` for nothing and for a macro.
fn first_name(path: &str) -> Option<&str> {
    let path = path.trim();
    let end = path.find(|c| !is_word(c)).unwrap_or(path.len());
    if path[end..].starts_with('!') && !path[end..].starts_with("!=") {
        return None;
    }
    match &path[..end] {
        "" => path.get(..1),
        name => Some(name),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `source` without its comments, strings and character literals; its lines stay where they are.
fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let in_word = code.ends_with(is_word);
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            'r' | 'b' | 'c' if !in_word => prefixed_string(rest),
            '"' => quoted(rest, '"'),
            '\'' => character(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|&c| c == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

/// The length of the block comment, which may hold others, that `text` starts with.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of the raw, byte or C string that `text` starts with; 0 where it starts with a plain word.
fn prefixed_string(text: &str) -> usize {
    let unprefixed = text.trim_start_matches(['r', 'b', 'c']);
    let prefix = text.len() - unprefixed.len();
    let is_raw = text[..prefix].ends_with('r');
    if prefix > 2 {
        return 0;
    }
    if !is_raw {
        return if unprefixed.starts_with('"') { prefix + quoted(unprefixed, '"') } else { 0 };
    }
    let after_hashes = unprefixed.trim_start_matches('#');
    let n_hashes = unprefixed.len() - after_hashes.len();
    let Some(body) = after_hashes.strip_prefix('"') else {
        return 0; // a raw identifier, or a word that starts with `r`
    };
    let end = format!("\"{}", "#".repeat(n_hashes));
    let n_body = body.find(&end).map_or(body.len(), |at| at + end.len());
    text.len() - body.len() + n_body
}

/// The length of the literal that starts with the quote `text` starts with; a backslash escapes what follows it.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the character literal that `text` starts with; 0 where the quote begins a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(text, '\''),
        _ => 0,
    }
}

mod checks_of_the_check {
    use super::*;

    fn problems(file: &str, source: &str) -> Vec<String> {
        violations(Path::new(file), source)
    }

    #[test]
    fn a_use_of_a_higher_layer_is_named_with_its_line() {
        let source = "//! Batches.\n\nuse crate::train::Trainer;\n";
        assert_eq!(
            problems("data/batch.rs", source),
            ["src/data/batch.rs:3: `data` (layer 1) uses `train` (layer 3)"]
        );
        assert_eq!(problems("cli/train.rs", source), [""; 0]);
    }

    #[test]
    fn a_file_of_the_root_is_its_own_module() {
        let source = "use crate::data::Batch;\n";
        assert_eq!(
            problems("device.rs", source),
            ["src/device.rs:1: `device` (layer 0) uses `data` (layer 1)"]
        );
        assert_eq!(problems("main.rs", source), [""; 0]);
        assert_eq!(problems("lib.rs", source), [""; 0]);
    }

    #[test]
    fn a_path_inside_code_counts_too() {
        let source = "fn f() -> u32 {\n    if x {\n        crate :: cli::ask()\n    } else { pub_crate::cli() }\n}\n";
        assert_eq!(used_modules(source), [(3, "cli".to_owned())]);
    }

    #[test]
    fn every_member_of_a_group_counts() {
        let source = "use crate::{\n    config::{self, Config, rules::Rule},\n    train::Trainer, cli,\n};\nuse crate::*;\n";
        let names: Vec<_> = used_modules(source).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["config", "train", "cli", "*"]);
        assert_eq!(problems("model/gpt.rs", source).len(), 3, "train, cli and the glob");
    }

    #[test]
    fn one_layer_shares_but_for_the_lowest() {
        assert_eq!(problems("model/gpt.rs", "use crate::model::attention::rope;"), [""; 0]);
        assert_eq!(problems("attention/mod.rs", "use tinderbox_kernels as kernels;"), [""; 0]);
        assert_eq!(problems("tokenizer.rs", "use crate::config::TokenizerKind;"), [""; 0]);
        assert_eq!(problems("config/mod.rs", "use crate::config::rules;"), [""; 0]);
        assert_eq!(
            problems("config/mod.rs", "use crate::tokenizer::Tokenizer;"),
            [
                "src/config/mod.rs:1: `config` uses `tokenizer`: modules of layer 0 do not know each other"
            ]
        );
    }

    #[test]
    fn an_unknown_module_says_where_it_belongs() {
        let importing = problems("train/mod.rs", "use crate::helpers::f;");
        assert_eq!(importing.len(), 1);
        assert!(importing[0].contains("`crate::helpers` is in no layer"), "{importing:?}");
        let defining = problems("helpers/mod.rs", "");
        assert_eq!(defining.len(), 1);
        assert!(defining[0].contains("put it in the table"), "{defining:?}");
    }

    #[test]
    fn comments_strings_and_macros_do_not_count() {
        let source = r##"
            // use crate::cli;
            /* use crate::cli; /* and */ use crate::cli; */
            let s = "http://crate::cli \" crate::cli";
            let s = r#"crate::cli " crate::cli"#;
            let s = b"crate::cli";
            let c = ['"', '\'', '"'];
            crate::assert_shape!(x, [1]);
            fn f<'a>(x: &'a str) -> crate::model::Gpt<'a> { 'x' }
        "##;
        assert_eq!(used_modules(source), [(9, "model".to_owned())]);
    }
}
