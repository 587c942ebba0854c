//! The settings of a made config that are worth searching for one text.

use crate::config::Config;

/// The keys that vary around a config that was made for a text, as `sweep` reads them.
///
/// The family of the model stays, so that other programs can read what comes out of it; sizes vary within the time that
/// there is, in which a larger model makes fewer steps.
#[must_use]
pub fn search_space(config: &Config) -> Vec<String> {
    let Config { model, train, optimizer, .. } = config;
    let (rate, muon_rate) = (optimizer.learning_rate, optimizer.muon_learning_rate);
    let mut space = vec![
        format!("optimizer.learning_rate=log({:e}..{:e})", rate / 4.0, rate * 4.0),
        format!("optimizer.muon_learning_rate=log({:e}..{:e})", muon_rate / 4.0, muon_rate * 4.0),
        "optimizer.weight_decay=0.0,0.1".to_owned(),
        "schedule.kind=linear,wsd".to_owned(),
        "model.dropout=0.0,0.1,0.2".to_owned(),
    ];
    let mut counts = |key: &str, from: usize, to: usize| {
        if from < to {
            space.push(format!("{key}=log({from}..{to})"));
        }
    };
    counts("train.batch_size", train.batch_size.div_ceil(2), train.batch_size * 2);
    counts("model.n_layers", model.n_layers.div_ceil(2), model.n_layers * 2);
    let lengths = [model.context_length / 2, model.context_length, model.context_length * 2];
    if lengths[0] > 0 {
        space.push(format!("model.context_length={},{},{}", lengths[0], lengths[1], lengths[2]));
    }
    space
}

#[cfg(test)]
mod tests {
    use super::super::PRESETS;
    use super::*;
    use crate::sweep::Dimension;

    #[test]
    fn every_dimension_can_be_read() {
        for preset in PRESETS {
            let space = search_space(&preset.config());
            assert_eq!(space.len(), 8);
            for text in space {
                Dimension::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}
