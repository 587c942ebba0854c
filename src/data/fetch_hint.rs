//! Where the texts come from that the shipped configs name, and what to say of a text that is not there.

use std::path::Path;

/// Where to get the text that a shipped config calls `path`; none for any other text.
#[must_use]
pub fn fetch_hint(path: &Path) -> Option<&'static str> {
    Some(match path.file_name()?.to_str()? {
        "stories.txt" | "stories.jsonl" => "it comes with the repository, in data/",
        "tinyshakespeare.txt" => {
            "`scripts/fetch_data.sh shakespeare` in the repository downloads it"
        }
        "tinystories.txt" => "`scripts/fetch_data.sh tinystories` in the repository downloads it",
        "openwebtext" => "the config gpt2-124m.toml says where to get it",
        _ => return None,
    })
}

/// What helps someone whose text `path` is not there: where it comes from, else what is called like it.
#[must_use]
pub fn missing_hint(path: &Path, nearest: Option<&Path>) -> String {
    match (fetch_hint(path), nearest) {
        (Some(origin), _) => format!("{origin}; relative paths start at the working directory"),
        (None, Some(nearest)) => format!("did you mean `{}`?", nearest.display()),
        (None, None) => "relative paths start at the working directory".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_missing_text_has_the_hint_that_fits_it() {
        let hint = |path: &str, nearest| missing_hint(Path::new(path), nearest);
        assert!(hint("data/tinyshakespeare.txt", None).contains("fetch_data.sh shakespeare`"));
        let nearest = Some(Path::new("data/stories.txt"));
        assert!(hint("data/tinystories.txt", nearest).contains("fetch_data.sh tinystories`"));
        assert!(hint("../data/stories.txt", None).contains("comes with the repository"));
        assert_eq!(hint("data/storys.txt", nearest), "did you mean `data/stories.txt`?");
        assert!(!hint("mine.txt", None).contains("fetch"));
    }

    #[test]
    fn the_texts_of_all_shipped_configs_have_an_origin() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
        for file in std::fs::read_dir(configs).unwrap() {
            let config = Config::load(&file.unwrap().path(), &[]).unwrap();
            let path = &config.data.path;
            let known = fetch_hint(path).unwrap_or_else(|| panic!("{}", path.display()));
            let script = include_str!("../../scripts/fetch_data.sh");
            let is_fetched = script.contains(&format!("target={}\n", path.display()));
            assert_eq!(known.contains("fetch_data.sh"), is_fetched, "{known}");
        }
    }
}
