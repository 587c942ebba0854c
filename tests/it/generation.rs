//! Generation with the engine: several samples at once, reduced precision, and the tensor model for comparison.

use burn::tensor::Device;
use tinderbox::config::{GenerateConfig, ModelConfig, PositionKind};
use tinderbox::generate::engine::Precision;
use tinderbox::generate::{BatchGenerator, Generator, LanguageModel, Piece, Speculated};
use tinderbox::model::Gpt;
use tinderbox::tokenizer::Tokenizer;

use crate::fixtures::Folder;
use crate::properties::{ALPHABET, letters, lively};

fn model(position: PositionKind) -> Gpt {
    with_context(12, position)
}

fn with_context(context_length: usize, position: PositionKind) -> Gpt {
    let config = ModelConfig { context_length, position, n_layers: 2, d_model: 16, ..ModelConfig::default() };
    let config = config.with_derived();
    lively(&config, 7, &Device::flex())
}

fn settings(max_new_tokens: usize, stop: &[&str]) -> GenerateConfig {
    GenerateConfig {
        temperature: 1.0,
        max_new_tokens,
        stop: stop.iter().map(ToString::to_string).collect(),
        ..GenerateConfig::default()
    }
}

fn alone(model: impl Into<LanguageModel>, settings: &GenerateConfig, sample: u64) -> String {
    spelled(model, &letters(), settings, sample)
}

fn spelled(model: impl Into<LanguageModel>, tokenizer: &Tokenizer, settings: &GenerateConfig, sample: u64) -> String {
    let generator = Generator::new(model, tokenizer, settings, "abc", sample).expect("a prompt");
    generator.collect::<Result<_, _>>().expect("the model generates")
}

#[test]
fn engine_and_tensors_generate_alike() {
    for gpt in [PositionKind::Learned, PositionKind::Rope].map(model) {
        assert!(matches!(LanguageModel::from(&gpt), LanguageModel::Engine(_)));
        for sample in 0..4 {
            let by_tensors = alone(LanguageModel::Tensors(Box::new(gpt.clone())), &settings(50, &[]), sample);
            assert_eq!(alone(&gpt, &settings(50, &[]), sample), by_tensors);
        }
    }
}

#[test]
fn batched_samples_equal_single_ones() {
    let gpt = model(PositionKind::Learned);
    // Far beyond the context, and with samples that end at different places.
    for settings in [settings(40, &[]), settings(60, &["a", "dd"]), settings(1, &[])] {
        for model in [LanguageModel::from(&gpt), LanguageModel::Tensors(Box::new(gpt.clone()))] {
            let generator = BatchGenerator::new(model.clone(), &letters(), &settings, "abc", 2..8);
            let mut texts = vec![String::new(); 6];
            let mut ended = [false; 6];
            for round in generator.expect("a prompt") {
                for piece in round.expect("the model generates") {
                    let Piece { sample_idx, text, is_last } = piece;
                    let at = sample_idx as usize - 2;
                    assert!(!ended[at], "nothing comes after the end");
                    texts[at].push_str(std::str::from_utf8(&text).expect("whole characters"));
                    ended[at] = is_last;
                }
            }
            assert_eq!(ended, [true; 6]);
            for (i, text) in texts.iter().enumerate() {
                assert_eq!(*text, alone(model.clone(), &settings, i as u64 + 2));
            }
            assert_ne!(texts[0], texts[1]);
        }
    }
    assert_eq!(alone(&gpt, &settings(0, &[]), 0), "", "nothing was asked for");
}

/// The texts of these samples, and the numbers of tokens that were proposed.
fn speculating(
    model: &LanguageModel,
    settings: &GenerateConfig,
    speculate: usize,
    prompt: &str,
    n_samples: u64,
) -> (Vec<String>, Speculated) {
    let settings = GenerateConfig { speculate, ..settings.clone() };
    let mut generator =
        BatchGenerator::new(model.clone(), &letters(), &settings, prompt, 0..n_samples).expect("a prompt");
    let mut texts = vec![String::new(); n_samples as usize];
    for Piece { sample_idx, text, .. } in generator.by_ref().flat_map(|round| round.expect("the model generates")) {
        texts[sample_idx as usize].push_str(std::str::from_utf8(&text).expect("whole characters"));
    }
    (texts, generator.speculated())
}

#[test]
fn speculation_keeps_completions() {
    let always = settings(100, &[]); // far beyond the context
    let all = [
        GenerateConfig { temperature: 0.0, ..always.clone() },
        GenerateConfig { temperature: 0.0, repetition_penalty: 1.1, frequency_penalty: 0.1, ..always.clone() },
        GenerateConfig { temperature: 0.4, ..always.clone() },
        GenerateConfig { top_k: 2, seed: 5, ..always.clone() },
        GenerateConfig { temperature: 0.3, max_new_tokens: 23, ..always.clone() }, // up to the context's end
        settings(100, &["ab", "dd"]),
        settings(1, &[]),
    ];
    let precisions = Precision::ALL.map(|precision| (PositionKind::Rope, precision));
    for (position, precision) in precisions.into_iter().chain([(PositionKind::Learned, Precision::F32)]) {
        let model = LanguageModel::new(with_context(32, position), precision).expect("a CPU");
        let mut total = Speculated::default();
        for settings in &all {
            for prompt in ["abcabdabc", "a", "abcdefghijkabcdefghijkabcdefghijkabcdefghijk"] {
                let (expected, none) = speculating(&model, settings, 0, prompt, 1);
                assert_eq!(none, Speculated::default());
                for n in [1, 4, 1000] {
                    let (texts, speculated) = speculating(&model, settings, n, prompt, 1);
                    assert_eq!(texts, expected, "{settings:?}, {n} after {prompt}");
                    total += speculated;
                }
            }
        }
        assert!(0 < total.n_right && total.n_right < total.n_proposed, "{total:?}");
    }
}

#[test]
fn batches_and_tensors_do_not_speculate() {
    let gpt = model(PositionKind::Rope);
    let greedy = GenerateConfig { temperature: 0.0, ..settings(60, &[]) };
    let model = LanguageModel::from(&gpt);
    // Greedy texts are the same: none of them is ever alone.
    let (texts, speculated) = speculating(&model, &greedy, 4, "abcabc", 3);
    assert_eq!((texts, speculated), (speculating(&model, &greedy, 0, "abcabc", 3).0, Speculated::default()));
    // Those that end at different places leave the last one alone.
    let stopped = settings(60, &["a", "dd"]);
    let (texts, _) = speculating(&model, &stopped, 4, "abcabc", 6);
    assert_eq!(texts, speculating(&model, &stopped, 0, "abcabc", 6).0);
    let tensors = LanguageModel::Tensors(Box::new(gpt));
    let (texts, speculated) = speculating(&tensors, &greedy, 4, "abcabc", 1);
    assert_eq!((texts, speculated), (speculating(&tensors, &greedy, 0, "abcabc", 1).0, Speculated::default()));
}

#[test]
fn end_of_text_token_ends_completion() {
    let letters = ALPHABET.strip_suffix('k').expect("the last letter");
    // `k` has the same id as the end-of-text token.
    let ending = Tokenizer::char_from_alphabet(letters.chars()).expect("an alphabet").with_end_of_text();
    let gpt = model(PositionKind::Rope);
    let mut n_ended = 0;
    for sample in 0..6 {
        let settings = settings(60, &[]);
        let endless = alone(&gpt, &settings, sample);
        let text = spelled(&gpt, &ending, &settings, sample);
        assert_eq!(text, endless.split('k').next().expect("at least one part"));
        n_ended += usize::from(text.len() < 60);
    }
    assert!(n_ended > 2, "most texts of so lively a model have a k");
    let settings = settings(60, &["b"]);
    let stopped = alone(&gpt, &settings, 1);
    let text = spelled(&gpt, &ending, &settings, 1);
    assert_eq!(text, stopped.split('k').next().expect("at least one part"), "whichever comes first");
}

#[test]
fn padding_rows_are_never_generated() {
    let tokenizer = Tokenizer::char_from_alphabet("abcdefgh".chars()).expect("an alphabet");
    let padded = tokenizer.padded_to(Some(ALPHABET.len())).expect("more rows than ids");
    let gpt = model(PositionKind::Rope);
    for model in [LanguageModel::from(&gpt), LanguageModel::Tensors(Box::new(gpt))] {
        let text = spelled(model, &padded, &settings(200, &[]), 0);
        assert_eq!(text.len(), 200, "every token is a letter: {text}");
    }
}

#[test]
fn rounded_weights_generate_and_are_evaluated() {
    let folder = Folder::trained();
    let generate = |args: &[&str]| {
        let always = ["generate", "runs/tiny", "--prompt", "The", "--max-new-tokens"];
        folder.succeed(&[&always, args].concat())
    };
    let loss = |formats: &[&str]| {
        let measured = folder.json(&[&["eval", "runs/tiny", "--json"], formats].concat());
        (measured["loss"].as_f64().expect("a number"), measured["tokens"].clone())
    };
    let (exact, n_tokens) = loss(&["--weights", "f32"]);
    for (weights, tolerance) in [("f32", 1e-5), ("bf16", 0.01), ("int8", 0.02)] {
        let text = generate(&["50", "--weights", weights]);
        assert_eq!(text.chars().count(), 54, "{text}");
        let (loss, n) = loss(&["--weights", weights]);
        assert!((loss - exact).abs() < tolerance, "{weights}: {loss}, not {exact}");
        assert_eq!(n, n_tokens);
        assert!(weights == "f32" || (loss - exact).abs() > 0.0, "nothing was rounded");
    }
    assert_eq!(generate(&["50", "--weights", "f32"]), generate(&["50"]));
    let int8 = ["--weights", "int8", "--activations"];
    let of = |activations| loss(&[&int8[..], &[activations]].concat()).0;
    let [of_int8, of_exact] = ["int8", "exact"].map(of);
    assert!((of_int8 - of_exact).abs() < 0.02 && (of_int8 - of_exact).abs() > 0.0, "{of_int8}, {of_exact}");
    insta::assert_snapshot!(folder.fail(&["eval", "runs/tiny", "--activations", "int8"]), @r"
    error: --activations int8 needs int8 weights
      hint: add --weights int8
    ");
    let elsewhere = |command: &str| folder.fail(&[command, "runs/tiny", "--device", "ndarray", "--weights", "int8"]);
    insta::assert_snapshot!(elsewhere("generate"), @r"
    error: `ndarray` supports only f32 weights
      hint: add --device cpu, or leave out --weights
    ");
    assert_eq!(elsewhere("eval"), elsewhere("generate"));
}
