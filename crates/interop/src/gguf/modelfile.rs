//! The `Modelfile` beside a GGUF file, from which ollama creates a model: `ollama create NAME -f Modelfile`.
//!
//! Source: ollama, `docs/modelfile.md`.

use std::fmt::Write;

use tinderbox_model::config::GenerateConfig;

pub(super) const MODELFILE: &str = "Modelfile";

/// The first line, which tells a later export that it may replace the file.
const FIRST_LINE: &str = "# Written by Tinderbox: ollama create NAME -f Modelfile";

/// What stands above a template in Go, and instead of one.
const WITHOUT_TOOLS: &str =
    "# Without tools. Versions of ollama that render the chat template of a GGUF file do not need this TEMPLATE.\n";
const ONLY_JINJA: &str = "# The chat template of the GGUF file cannot be written as a TEMPLATE: only versions of ollama that \
                          render it themselves can chat.\n";

/// Whether Tinderbox wrote the file with this content.
pub(super) fn is_ours(text: &str) -> bool {
    text.lines().next() == Some(FIRST_LINE)
}

/// The chat template of a model, for ollama.
pub(super) enum Template {
    /// None: the model continues prompts verbatim.
    Verbatim,
    /// In Go.
    Go(String),
    /// Only in Jinja, in the GGUF file.
    Jinja,
}

/// The file for the model at `gguf`, a relative path, with the settings of a run's `[generate]`.
pub(super) fn modelfile(gguf: &str, config: &GenerateConfig, context_length: usize, template: &Template) -> String {
    let GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, stop, .. } = config;
    let mut file = format!("{FIRST_LINE}\nFROM ./{gguf}\n");
    let template = match template {
        Template::Verbatim => "TEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n".to_owned(),
        Template::Go(template) => format!("{WITHOUT_TOOLS}TEMPLATE \"\"\"{template}\"\"\"\n"),
        Template::Jinja => ONLY_JINJA.to_owned(),
    };
    file.push_str(&template);
    let parameters = [
        ("num_ctx", context_length.to_string()),
        ("num_predict", max_new_tokens.to_string()),
        ("temperature", temperature.to_string()),
        ("top_k", top_k.to_string()),
        ("top_p", top_p.to_string()),
        ("min_p", min_p.to_string()),
        ("repeat_penalty", repetition_penalty.to_string()),
    ];
    for (name, value) in parameters {
        writeln!(file, "PARAMETER {name} {value}").expect("writing to a string cannot fail");
    }
    // Quotes cannot be escaped in a Modelfile: a stop text that would end its quotes is left out.
    for text in stop.iter().filter(|text| !text.contains("\"\"\"") && !text.ends_with('"')) {
        writeln!(file, "PARAMETER stop \"\"\"{text}\"\"\"").expect("writing to a string cannot fail");
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modelfile_has_generation_settings_of_run() {
        let config = GenerateConfig {
            temperature: 0.5,
            top_k: 40,
            stop: vec!["\n\n".to_owned(), "\"".to_owned(), "the end".to_owned()],
            ..GenerateConfig::default()
        };
        insta::assert_snapshot!(modelfile("model.gguf", &config, 256, &Template::Verbatim), @r#"
        # Written by Tinderbox: ollama create NAME -f Modelfile
        FROM ./model.gguf
        TEMPLATE """{{ .Prompt }}"""
        PARAMETER num_ctx 256
        PARAMETER num_predict 500
        PARAMETER temperature 0.5
        PARAMETER top_k 40
        PARAMETER top_p 1
        PARAMETER min_p 0
        PARAMETER repeat_penalty 1
        PARAMETER stop """

        """
        PARAMETER stop """the end"""
        "#);
        let chat = modelfile("model.gguf", &config, 256, &Template::Jinja);
        let expected = format!("\nFROM ./model.gguf\n{ONLY_JINJA}PARAMETER num_ctx 256\n");
        assert!(!chat.contains("\nTEMPLATE") && chat.contains(&expected), "{chat}");
        let go = modelfile("model.gguf", &config, 256, &Template::Go("{{ .System }}\n".to_owned()));
        assert!(go.contains("\nTEMPLATE \"\"\"{{ .System }}\n\"\"\"\nPARAMETER"), "{go}");
        assert!(is_ours(&chat) && !is_ours("FROM ./model.gguf\n") && !is_ours(""));
    }
}
