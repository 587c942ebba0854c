//! Converts between the `generation_config.json` of transformers and our `[generate]`.

use serde_json::{Map, Value, json};

use super::ConfigJson;
use super::config::BosEos;
use tinderbox_model::config::GenerateConfig;

/// The settings of a `generation_config.json`; the ids of end tokens that it lacks come from the `config.json` beside
/// it. Missing keys have the defaults of `[generate]`.
///
/// # Errors
/// The keys whose values are out of range.
pub(super) fn read(config: &Map<String, Value>, map: &Map<String, Value>) -> Result<GenerateConfig, Vec<String>> {
    let mut generate = GenerateConfig::default();
    let mut keys = ConfigJson::new(map);
    let ends = keys.get("eos_token_id").or(config.get("eos_token_id"));
    let ends = ends.map_or(&[][..], |ends| ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice));
    let vocab_size = config.get("vocab_size").and_then(Value::as_u64).unwrap_or_default();
    let ends = ends.iter().filter_map(|id| id.as_u64().filter(|id| *id < vocab_size)?.try_into().ok());
    generate.stop_token_ids = ends.collect();
    generate.max_new_tokens = keys.size_or("max_new_tokens", generate.max_new_tokens);
    match keys.get("do_sample").and_then(Value::as_bool) {
        None => {}
        Some(false) => generate.temperature = 0.0,
        Some(true) => {
            generate.temperature = keys.number_or("temperature", 1.0);
            generate.top_p = keys.number_or("top_p", 1.0);
            generate.min_p = keys.number_or("min_p", 0.0);
            generate.repetition_penalty = keys.number_or("repetition_penalty", 1.0);
            generate.top_k = match keys.get("top_k").and_then(Value::as_u64) {
                Some(0) | None => 0,
                Some(_) => keys.size_or("top_k", 1),
            };
        }
    }
    if let Err(broken) = generate.check() {
        keys.problems.extend(broken.0.into_iter().map(|rule| rule.replace("generate.", "")));
    }
    if keys.problems.is_empty() { Ok(generate) } else { Err(keys.problems) }
}

/// The content of `generation_config.json`: the run's default sampling settings.
pub(super) fn write(generate: &GenerateConfig, ends: BosEos) -> Value {
    let GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, .. } = *generate;
    let eos = match &generate.stop_token_ids[..] {
        [] => json!(ends.eos),
        others => ends.eos.into_iter().chain(others.iter().copied()).collect(),
    };
    let mut config = json!({
        "bos_token_id": ends.bos,
        "eos_token_id": eos,
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": repetition_penalty,
        "do_sample": temperature > 0.0,
    });
    if temperature > 0.0 {
        let sampling = json!({ "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p });
        super::config::extend(&mut config, sampling);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(config: &Value, generation: &Value) -> Result<GenerateConfig, Vec<String>> {
        read(config.as_object().expect("an object"), generation.as_object().expect("an object"))
    }

    #[test]
    fn generation_config_sets_sampling_and_stop_tokens() {
        let config = json!({"vocab_size": 100, "eos_token_id": [7, 8]});
        let generation = json!({
            "eos_token_id": [9, 10, 100], "do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
            "repetition_penalty": 1.05, "transformers_version": "4.37.0",
        });
        let found = read_json(&config, &generation).expect("in range");
        let expected = GenerateConfig {
            stop_token_ids: vec![9, 10],
            temperature: 0.7,
            top_p: 0.8,
            top_k: 20,
            repetition_penalty: 1.05,
            ..GenerateConfig::default()
        };
        assert_eq!(found, expected);
        assert_eq!(read_json(&config, &json!({})).expect("nothing").stop_token_ids, [7, 8]);
        assert_eq!(read_json(&config, &json!({"eos_token_id": 3})).expect("one").stop_token_ids, [3]);
        assert!(read_json(&config, &json!({"do_sample": false})).expect("greedy").temperature <= 0.0);
        let problems = read_json(&config, &json!({"do_sample": true, "top_p": 1.5})).expect_err("out of range");
        assert_eq!(problems, ["top_p = 1.5 must be at least 0 and at most 1 (1 turns it off)"]);
    }

    #[test]
    fn written_settings_read_back() {
        let ends = BosEos { bos: None, eos: Some(2) };
        let config = json!({"vocab_size": 10});
        for generate in [
            GenerateConfig { stop_token_ids: vec![2], ..GenerateConfig::default() },
            GenerateConfig {
                temperature: 0.0,
                max_new_tokens: 3,
                stop_token_ids: vec![2],
                ..GenerateConfig::default()
            },
            GenerateConfig { top_k: 5, min_p: 0.25, stop_token_ids: vec![2, 5], ..GenerateConfig::default() },
        ] {
            let of_run = GenerateConfig { stop_token_ids: generate.stop_token_ids[1..].to_vec(), ..generate.clone() };
            assert_eq!(read_json(&config, &write(&of_run, ends)).expect("in range"), generate);
        }
    }
}
