//! Enforces the layers of the library: a module uses only its own layer and those below. Looks for `crate::NAME` in the
//! sources; the kernels are a separate crate, where the compiler enforces it.

use std::fs;
use std::path::Path;

/// The modules of each layer, from the bottom up.
const LAYERS: &[&[&str]] = &[
    &["config", "device", "disk", "distributed", "measure", "tokenizer", "format"],
    &["data", "model"],
    &["optimizer", "run"],
    &["train", "generate", "plan", "autoconfig", "inspect", "draw", "report", "bench", "interop", "sweep"],
    &["serve"],
    &["cli", "main"],
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// The names that follow `crate::` in a line of code.
fn used_modules(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).map(|path| {
        match path.find(|c: char| !c.is_alphanumeric() && c != '_') {
            Some(0) | None => path, // a group, which matches no layer: use one module per line
            Some(end) => &path[..end],
        }
    })
}

/// Adds a line to `problems` for each path in `source`, a file of `module`, that names a module of a higher layer.
fn check(module: &str, file: &str, source: &str, problems: &mut Vec<String>) -> usize {
    let layer = layer_of(module);
    let mut n_paths = 0;
    for (number, line) in (1..).zip(source.lines()) {
        for used in used_modules(line) {
            n_paths += 1;
            if layer.is_none() || layer_of(used).is_none_or(|used| Some(used) > layer) {
                problems.push(format!("{file}:{number}: `{module}` uses `{used}`"));
            }
        }
    }
    n_paths
}

fn check_folder(folder: &Path, module: Option<&str>, problems: &mut Vec<String>) -> usize {
    let mut n_paths = 0;
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let module = module.unwrap_or(&name);
        if path.is_dir() {
            n_paths += check_folder(&path, Some(module), problems);
        } else if path.extension().is_some_and(|extension| extension == "rs") && module != "lib" {
            let source = fs::read_to_string(&path).expect("a source file is UTF-8");
            n_paths += check(module, &path.display().to_string(), &source, problems);
        }
    }
    n_paths
}

#[test]
fn no_module_uses_a_layer_above_its_own() {
    let mut problems = Vec::new();
    let n_paths = check_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), None, &mut problems);
    assert!(n_paths > 20, "found only {n_paths} paths: is the search broken?");
    assert!(problems.is_empty(), "the layers do not hold:\n{}", problems.join("\n"));
}

#[test]
fn a_path_to_a_layer_above_or_to_an_unknown_module_is_found() {
    let mut problems = Vec::new();
    let source = "use crate::data::Split;\nuse crate::cli; // crate::cli\nlet x = crate::nobody::f();";
    assert_eq!(check("model", "m.rs", source, &mut problems), 3);
    assert_eq!(problems, ["m.rs:2: `model` uses `cli`", "m.rs:3: `model` uses `nobody`"]);
}
