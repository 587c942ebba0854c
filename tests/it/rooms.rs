//! The rooms of the house and their budgets, as the table in CONTRIBUTING.md gives them.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of code of every Rust file below a folder: lines that are neither blank nor a comment, without the unit tests,
/// which stand below `#[cfg(test)]` at the end of a file or in a module of their own.
fn lines_of_code(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    let is_source = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let sources = paths.iter().filter(is_source).map(|path| fs::read_to_string(path).expect("sources are UTF-8"));
    let sources: Vec<String> = sources.collect();
    let is_test_module = |path: &Path| {
        let name = path.file_stem().expect("a file has a name").to_string_lossy();
        let declares = |line: &str| line.strip_suffix(';').and_then(|line| line.rsplit(' ').next()) == Some(&name);
        sources
            .iter()
            .any(|source| source.split("#[cfg(test)]\n").skip(1).any(|rest| rest.lines().next().is_some_and(declares)))
    };
    let code = |source: &String| {
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    };
    let files = paths.iter().filter(is_source).zip(&sources);
    let of_files: usize = files.filter(|(path, _)| !is_test_module(path)).map(|(_, source)| code(source)).sum();
    of_files + paths.iter().filter(|path| path.is_dir()).map(|path| lines_of_code(path)).sum::<usize>()
}

/// Each row of the table: room, lines when the table was last written, budget.
fn rows(contributing: &str) -> Vec<(String, usize, usize)> {
    let table = contributing.split("| room | lines | budget |").nth(1).expect("CONTRIBUTING.md has the table of rooms");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let number = |cell: &str| cell.replace(',', "").parse().unwrap_or_else(|_| panic!("a number of lines: {row}"));
        (cells[0].trim_matches('`').to_owned(), number(cells[1]), number(cells[2]))
    })
    .collect()
}

/// A room that outgrows its budget asks what leaves. `TINDERBOX_WRITE_DOCS=1` updates the lines, never a budget.
#[test]
fn rooms_keep_their_budgets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("CONTRIBUTING.md");
    let mut contributing = fs::read_to_string(&path).expect("CONTRIBUTING.md is there");
    let rows = rows(&contributing);
    for folder in ["crates", "src"] {
        for entry in fs::read_dir(root.join(folder)).expect("the folder is there") {
            let name = format!("{folder}/{}", entry.expect("the folder can be listed").file_name().to_string_lossy());
            let has_row = rows.iter().any(|(room, ..)| room.strip_suffix("/src").unwrap_or(room) == name);
            assert!(has_row || !root.join(&name).is_dir(), "CONTRIBUTING.md: no row of the table is about {name}");
        }
    }
    let mut over = Vec::new();
    for (room, written, budget) in rows {
        let lines = lines_of_code(&root.join(&room));
        if lines > budget {
            over.push(format!("{room} is {} lines over its budget of {budget}: what leaves?", lines - budget));
        }
        let row = |lines: usize| format!("| `{room}` | {lines} | {budget} |");
        contributing = contributing.replace(&row(written), &row(lines));
    }
    if std::env::var_os("TINDERBOX_WRITE_DOCS").is_some() {
        fs::write(&path, contributing).expect("CONTRIBUTING.md can be written");
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}
