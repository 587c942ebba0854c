//! A model that is split into several files, `NAME-00001-of-00003.gguf` and so on: the first has the metadata, each has
//! some of the tensors.
//!
//! Source: llama.cpp, `tools/gguf-split`, `llama_split_path`.

use std::path::{Path, PathBuf};

use super::read::Gguf;
use crate::InteropError;
use crate::error::damaged;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";

/// The names of all parts of a split model, from the name of one; `None` if it is not the name of a part.
pub(crate) fn names(name: &str) -> Option<Vec<String>> {
    let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    if !is_number(count) || !is_number(number) {
        return None;
    }
    let (number, n): (usize, usize) = (number.parse().ok()?, count.parse().ok()?);
    (1..=n).contains(&number).then(|| (1..=n).map(|part| format!("{stem}-{part:05}-of-{count}.gguf")).collect())
}

/// Reads the header of the file at `path`, and those of the other files if the model is split.
pub(super) fn open(path: &Path) -> Result<Gguf, InteropError> {
    let file = Gguf::read(path)?;
    match file.metadata.count(COUNT)? {
        Some(n @ 2..) => join(path, n),
        _ => Ok(file),
    }
}

/// Joins the `n` parts of a model, which are in one folder; `path` is one of them.
fn join(path: &Path, n: usize) -> Result<Gguf, InteropError> {
    let not_a_model = |path: &Path, reason: String, hint: &str| {
        Err(InteropError::NotAModel { path: path.to_owned(), reason, hint: hint.to_owned() })
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let paths: Vec<PathBuf> = match names(&name) {
        Some(names) if names.len() == n => names.into_iter().map(|name| path.with_file_name(name)).collect(),
        _ => {
            let reason = format!("it is one of {n} parts of a model, and its name does not say which");
            return not_a_model(path, reason, "name the parts NAME-00001-of-00003.gguf and so on, as published");
        }
    };
    if let Some(missing) = paths.iter().find(|path| !path.is_file()) {
        let reason = format!("it is one of {n} parts of a model, and is missing");
        return not_a_model(missing, reason, "put all parts into one folder");
    }
    let mut whole = None::<Gguf>;
    for (number, path) in paths.iter().enumerate() {
        let part = Gguf::read(path)?;
        let said = [part.metadata.count(NUMBER)?, part.metadata.count(COUNT)?];
        if said != [Some(number), Some(n)] {
            let reason = format!("its name says that it is part {} of {n}, and its content disagrees", number + 1);
            return Err(damaged(path, reason));
        }
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => {
                if let Some(name) = part.tensors.keys().find(|name| whole.tensors.contains_key(*name)) {
                    return Err(damaged(path, format!("another part has the tensor `{name}` too")));
                }
                whole.tensors.extend(part.tensors);
            }
        }
    }
    Ok(whole.expect("a split model has several parts"))
}

#[cfg(test)]
mod tests {
    use super::super::TensorType;
    use super::super::value::Value;
    use super::super::write::{NewTensor, write};
    use super::*;
    use tinderbox_model::LazyTensor;

    #[test]
    fn names_lists_all_parts() {
        let expected = ["a-of-00001-of-00002.gguf", "a-of-00002-of-00002.gguf"].map(str::to_owned);
        assert_eq!(names("a-of-00002-of-00002.gguf"), Some(expected.to_vec()));
        for other in ["a.gguf", "a-00001-of-00002", "a-1-of-2.gguf", "a-00003-of-00002.gguf", "a-00000-of-00002.gguf"] {
            assert_eq!(names(other), None, "{other}");
        }
    }

    /// Writes the part `number` of 3, with a tensor of this name. Its metadata names it part `said`.
    fn part(folder: &Path, number: u32, said: u32, tensor: &str) -> PathBuf {
        let path = folder.join(format!("m-{:05}-of-00003.gguf", number + 1));
        let entry = |key: &str, n| (key.to_owned(), Value::u32(n));
        let mut values = vec![entry(NUMBER, said), entry(COUNT, 3)];
        values.extend((number == 0).then(|| entry("a.key", 7)));
        let numbers = LazyTensor::computed(vec![2], move |sink| sink(&[number as f32, 1.0]));
        let tensor = NewTensor { name: tensor.to_owned(), kind: TensorType::F32, tensor: numbers };
        write(&path, &values, &[tensor]).expect("the part can be written").rename().expect("the part can be renamed");
        path
    }

    #[test]
    fn open_joins_parts_from_any_of_them() {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        let paths = [(0, "a"), (1, "b"), (2, "c")].map(|(number, name)| part(folder.path(), number, number, name));
        for path in &paths {
            let whole = open(path).expect("all parts exist");
            assert_eq!(whole.metadata.count("a.key").expect("the value is a count"), Some(7));
            let firsts: Vec<f32> = whole
                .tensors
                .values()
                .map(|tensor| tensor.numbers.read().expect("the tensor can be read").values[0])
                .collect();
            assert_eq!(firsts, [0.0, 1.0, 2.0]);
        }
        let error = |path: &Path| open(path).expect_err("the model is incomplete").to_string();
        part(folder.path(), 2, 2, "b");
        assert!(error(&paths[0]).contains("another part has the tensor `b` too"), "{}", error(&paths[0]));
        part(folder.path(), 2, 1, "c");
        assert!(error(&paths[0]).contains("part 3 of 3, and its content disagrees"), "{}", error(&paths[0]));
        std::fs::remove_file(&paths[2]).expect("the part can be removed");
        let said = error(&paths[1]);
        assert!(said.contains("m-00003-of-00003.gguf") && said.contains("put all parts into one folder"), "{said}");
    }
}
