//! `tokenizer_config.json`, the file beside a `tokenizer.json` that names the BOS and EOS tokens and holds the chat
//! template.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::TokenizerError;
use super::library::Library;

/// The name of the file.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The chat template that is rendered unless another is asked for.
pub(super) const DEFAULT: &str = "default";

/// The chat template that is rendered if there are tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// The name of the file beside it; a `tokenizer_config.json` beside a file of another name is not read.
const TOKENIZER: &str = "tokenizer.json";

/// The parsed file, with the ids of the tokens that it names.
#[derive(Debug, Clone)]
pub(super) struct TokenizerConfigJson {
    /// The content of the file.
    pub json: Arc<str>,
    /// The `eos_token`; `None` if the file names none that exists.
    pub end_of_text: Option<u32>,
    /// The `bos_token`; `None` if the file names none that exists.
    pub bos_token: Option<u32>,
    /// The token to put before each text; `None` if nothing asks for one.
    pub bos: Option<u32>,
    /// The chat templates by name; without one of the name `default` there are none.
    pub chat_templates: BTreeMap<String, String>,
    /// The special tokens by the names of their fields, such as `pad_token`.
    pub tokens: BTreeMap<String, String>,
}

/// The fields used here; there are many others.
#[derive(Deserialize)]
struct Fields {
    eos_token: Option<NamedToken>,
    bos_token: Option<NamedToken>,
    add_bos_token: Option<bool>,
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NamedToken {
    Content(String),
    Added { content: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    Only(String),
    Named(Vec<Template>),
}

#[derive(Deserialize)]
struct Template {
    name: String,
    template: String,
}

impl TokenizerConfigJson {
    /// Reads the file beside the `tokenizer.json` at `path`, from which `library` was made; `None` if there is none.
    pub(super) fn beside(path: &Path, library: &Library) -> Result<Option<Self>, TokenizerError> {
        if path.file_name().is_none_or(|name| name != TOKENIZER) {
            return Ok(None);
        }
        let path = path.with_file_name(TOKENIZER_CONFIG);
        match std::fs::read_to_string(&path) {
            Ok(json) => Self::parse(json, &path, library).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TokenizerError::Read { path, source }),
        }
    }

    /// Parses the content of the file at `path`; `library` was made from the `tokenizer.json` beside it.
    pub(super) fn parse(json: String, path: &Path, library: &Library) -> Result<Self, TokenizerError> {
        // Through a map: the last value of a repeated key counts, as in Python.
        let fields = serde_json::from_str::<Map<String, Value>>(&json);
        let named = |(name, value): (&String, &Value)| {
            let text = value.as_str().or_else(|| value["content"].as_str())?;
            name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
        };
        let tokens = fields.iter().flatten().filter_map(named).collect();
        let fields = fields.and_then(|fields| serde_json::from_value::<Fields>(fields.into()));
        let malformed = |reason: serde_json::Error| TokenizerError::MalformedConfig {
            path: path.to_owned(),
            reason: reason.to_string(),
        };
        let Fields { eos_token, bos_token, add_bos_token, chat_template } = fields.map_err(malformed)?;
        let id = |token: Option<NamedToken>| {
            let (NamedToken::Content(content) | NamedToken::Added { content }) = token?;
            library.tokenizer.token_to_id(&content)
        };
        let bos_token = id(bos_token);
        let bos = match add_bos_token {
            Some(false) => None,
            Some(true) => bos_token,
            None => library.prepended, // as the library would
        };
        let chat_templates = match chat_template {
            None => BTreeMap::new(),
            Some(Templates::Only(template)) => BTreeMap::from([(DEFAULT.to_owned(), template)]),
            Some(Templates::Named(named)) => named.into_iter().map(|it| (it.name, it.template)).collect(),
        };
        Ok(Self { json: json.into(), end_of_text: id(eos_token), bos_token, bos, chat_templates, tokens })
    }

    pub(super) fn without_bos(mut self) -> Self {
        let mut fields: Value = serde_json::from_str(&self.json).expect("it was read before");
        fields["add_bos_token"] = Value::Bool(false);
        self.json = format!("{fields:#}").into();
        self.bos = None;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Tokenizer;
    use super::*;

    /// A tokenizer of the letters a to d and `<s>` (4), `</s>` (5) and `<|im_end|>` (6), with this template and this
    /// `tokenizer_config.json`.
    fn read(template: &str, config: Option<&str>) -> Result<Tokenizer, TokenizerError> {
        let folder = tempfile::tempdir().unwrap();
        let mut file: Value =
            serde_json::from_str(&Tokenizer::char_from_alphabet("abcd".chars()).unwrap().to_json()).unwrap();
        let added = (4..).zip(["<s>", "</s>", "<|im_end|>"]).map(|(id, content)| {
            serde_json::json!({
                "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        });
        file["added_tokens"] = added.collect();
        file["post_processor"] = serde_json::from_str(template).unwrap();
        let path = folder.path().join(TOKENIZER);
        fs::write(&path, file.to_string()).unwrap();
        if let Some(config) = config {
            fs::write(folder.path().join(TOKENIZER_CONFIG), config).unwrap();
        }
        Tokenizer::from_file(&path)
    }

    const BOS_FIRST: &str = r#"{"type": "Sequence", "processors": [{"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}]}"#;

    #[test]
    fn eos_token_of_config_is_end_of_text() {
        for (config, expected) in [
            (None, Some(5)),
            (Some("{}"), Some(5)),
            (Some(r#"{"eos_token": null}"#), Some(5)),
            (Some(r#"{"eos_token": "<|im_end|>", "model_max_length": 1e30}"#), Some(6)),
            (Some(r#"{"eos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": true}}"#), Some(4)),
            (Some(r#"{"eos_token": "<unknown>"}"#), Some(5)),
        ] {
            assert_eq!(read("null", config).unwrap().end_of_text(), expected, "{config:?}");
        }
    }

    #[test]
    fn prompts_begin_with_bos_if_files_ask_for_it() {
        let bos = r#""bos_token": "<s>""#;
        for (template, config, expected) in [
            ("null", Some(format!("{{{bos}, \"add_bos_token\": true}}")), Some(4)),
            ("null", Some(format!("{{{bos}}}")), None),
            ("null", Some(r#"{"bos_token": null, "add_bos_token": true}"#.to_owned()), None),
            (BOS_FIRST, Some(format!("{{{bos}}}")), Some(4)),
            (BOS_FIRST, Some("{}".to_owned()), Some(4)),
            (BOS_FIRST, Some(format!("{{{bos}, \"add_bos_token\": false}}")), None),
            (BOS_FIRST, None, None),
        ] {
            let tokenizer = read(template, config.as_deref()).unwrap();
            assert_eq!(tokenizer.bos(), expected, "{template} {config:?}");
            assert_eq!(tokenizer.encode("ab").unwrap(), [0, 1], "only prompts begin with BOS");
            let first: Vec<u32> = expected.into_iter().collect();
            assert_eq!(tokenizer.encode_prompt("ab").unwrap(), [&first[..], &[0, 1]].concat());
            assert_eq!(tokenizer.encode_prompt("<s>ab").unwrap(), [4, 0, 1], "once");
            assert_eq!(tokenizer.encode_prompt("").unwrap(), first);
            let without = tokenizer.without_bos();
            assert_eq!(without.encode_prompt("ab").unwrap(), [0, 1]);
            let (json, config) = (without.config_json().map(str::to_owned), config.filter(|_| expected.is_none()));
            assert!(config.is_none_or(|config| json == Some(config)), "a file without BOS stays unchanged");
        }
    }

    #[test]
    fn without_bos_keeps_other_fields() {
        let config = r#"{"eos_token": "<|im_end|>", "add_bos_token": true, "bos_token": "<s>", "extra": [1]}"#;
        let tokenizer = read("null", Some(config)).unwrap().without_bos();
        let again = read("null", tokenizer.config_json()).unwrap();
        assert_eq!((again.bos(), again.end_of_text()), (None, Some(6)));
        let fields: Value = serde_json::from_str(again.config_json().unwrap()).unwrap();
        assert_eq!((&fields["extra"][0], &fields["bos_token"]), (&1.into(), &"<s>".into()));
    }

    #[test]
    fn default_chat_template_is_taken() {
        let template = |field: &str| {
            let config = format!("{{\"chat_template\": {field}}}");
            read("null", Some(&config)).unwrap().chat_template().map(str::to_owned)
        };
        assert_eq!(template("null"), None);
        assert_eq!(template("\"{{ x }}\"").as_deref(), Some("{{ x }}"));
        let named = r#"[{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]"#;
        assert_eq!(template(named).as_deref(), Some("D"));
        assert_eq!(template(r#"[{"name": "tool_use", "template": "T"}]"#), None);
    }
}
