//! The search space for a config generated from a text.

use crate::config::{Config, TokenizerKind};

/// The keys to vary around a config generated for a text, in the format of `sweep`. The tokenizer is one of them unless
/// it was requested.
///
/// The model family stays, so that other programs can read the result; sizes vary within the available time, in which a
/// larger model makes fewer steps. Settings that matter only late in a run do not vary: short runs would choose the final
/// learning rate by chance, and would always choose less dropout, with which runs start better even where they end worse.
#[must_use]
pub fn search_space(config: &Config, is_tokenizer_free: bool) -> Vec<String> {
    let Config { tokenizer, model, train, optimizer, .. } = config;
    let rates = optimizer.peak_learning_rates().into_iter();
    let mut space: Vec<String> = rates.map(|(key, rate)| in_log(key, rate)).collect();
    space.push("optimizer.weight_decay=0.0,0.1".to_owned());
    let mut counts = |key: &str, number: usize| {
        let (from, to) = (number.div_ceil(2), 2 * number);
        space.push(format!("{key}=log({from}..{to})"));
    };
    counts("train.batch_size", train.batch_size);
    counts("model.n_layers", model.n_layers);
    match tokenizer.kind {
        TokenizerKind::Bpe if is_tokenizer_free => counts("tokenizer.vocab_size", tokenizer.bpe_vocab_size()),
        TokenizerKind::Char if is_tokenizer_free => space.push("tokenizer.kind=char,bpe".to_owned()),
        _ => {}
    }
    let width = model.d_model;
    space.push(format!("model.d_model={},{width},{}", width / 4 * 3, width / 2 * 3));
    let length = model.context_length;
    if length > 1 {
        space.push(format!("model.context_length={},{length},{}", length / 2, 2 * length));
    }
    space
}

/// The range from half a learning rate to twice that rate.
fn in_log(key: &str, rate: f64) -> String {
    format!("{key}=log({:e}..{:e})", rate / 2.0, rate * 2.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sweep::Dimension;

    #[test]
    fn search_space_parses_for_shipped_configs() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let load = |path: &Path| Config::load(path, &[]).unwrap();
        for file in std::fs::read_dir(&configs).unwrap() {
            let config = load(&file.unwrap().path());
            let space = search_space(&config, true);
            assert!(space.iter().all(|text| !text.starts_with("model.dropout")), "{space:?}");
            assert!(space.len() >= 5 + config.optimizer.peak_learning_rates().len(), "{space:?}");
            for text in &space {
                Dimension::parse(text).unwrap_or_else(|error| panic!("{error}"));
            }
            assert!(search_space(&config, false).iter().all(|text| !text.starts_with("tokenizer.")));
        }
        let mut config = load(&configs.join("quickstart.toml"));
        config.tokenizer.kind = TokenizerKind::Char;
        assert!(search_space(&config, true).contains(&"tokenizer.kind=char,bpe".to_owned()));
        (config.tokenizer.kind, config.tokenizer.vocab_size) = (TokenizerKind::Bpe, Some(1024));
        assert!(search_space(&config, true).contains(&"tokenizer.vocab_size=log(512..2048)".to_owned()));
    }
}
