//! `tinderbox inspect embeddings|ablate|lens` on small runs: the output is what the model did.

use crate::fixtures::{Folder, assert_transcript, list, number};
use crate::inspect::{self, inspect};

const RIVER: &str = "The hen sat by the river";
const HOUSE: &str = "The dog sat by the house";

/// A folder with a short run of a two-layer model, whose context fits a line of the text.
fn trained(keys: &[&str]) -> Folder {
    inspect::trained(&[keys, &["model.context_length=32", "train.max_steps=20"]].concat())
}

fn page(folder: &Folder, subcommand: &str, args: &[&str]) -> String {
    let page = folder.succeed(&[&["inspect", subcommand, "runs/tiny"], args].concat());
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    page
}

#[test]
fn embeddings_differ_once_context_is_read() {
    for keys in [&["model.position=rope"][..], &["model.position=learned", "tokenizer.kind=byte"]] {
        let folder = trained(keys);
        let texts = ["--prompt", "hen by the bank", "--prompt", "The dog sat by the bank"];
        let args = ["--word", "bank", "--context", "hen", "--context", "by"];
        let args = [&texts[..], &args].concat();
        let it = inspect(&folder, "embeddings", &args);
        assert_eq!(it["places"][0]["position"], 14);
        assert_eq!(it["places"][1]["position"], 22);
        let stages = list(&it["stages"]);
        assert_eq!((&stages[0], stages.last()), (&"token".into(), Some(&"norm".into())));
        let between: Vec<f64> = list(&it["similarity"]).iter().map(|of_stage| number(&of_stage[0][1])).collect();
        assert!((between[0] - 1.0).abs() < 1e-9);
        assert!(between[1..].iter().all(|cosine| *cosine < 1.0 - 1e-6));
        let found: Vec<_> =
            list(&it["context"]).iter().map(|word| (word["word"].as_str(), word["prompt"].as_u64())).collect();
        assert_eq!(found, [(Some("hen"), Some(0)), (Some("by"), Some(0)), (Some("by"), Some(1))]);
        assert_eq!(list(&it["attention"][1][0]).len(), 23);

        let short = page(&folder, "embeddings", &args);
        let long = page(&folder, "embeddings", &[&args[..], &["--positions"]].concat());
        assert!(short.contains("token embedding") && short.contains("“by” in 1"));
        let n_lines = |page: &str| page.lines().count();
        assert_eq!(n_lines(&long) - n_lines(&short), 14 + 22);
    }
}

#[test]
fn equal_prefixes_are_reported() {
    let folder = trained(&[]);
    let args = ["--prompt", "The bank was old", "--prompt", "The bank sat by", "--word", "bank"];
    let page = page(&folder, "embeddings", &args);
    assert!(page.contains("so its vectors are the same"), "{page}");
}

#[test]
fn ablation_ranks_parts_from_loss_of_eval() {
    let folder = trained(&["model.bias=true"]);
    let eval = folder.json(&["eval", "runs/tiny", "--json"]);
    let whole = inspect(&folder, "ablate", &[]);
    assert_eq!(whole["tokens"], eval["tokens"]);
    assert!((number(&whole["loss"]) - number(&eval["loss"])).abs() < 1e-5);
    assert_eq!((&whole["split"], &whole["whole"]), (&"val".into(), &true.into()));
    let parts = list(&whole["parts"]);
    assert_eq!(parts.len(), 2 * (2 + 2));
    let means: Vec<f64> = parts.iter().map(|part| number(&part["mean"])).collect();
    assert!(means.is_sorted_by(|a, b| a >= b), "{means:?}");
    assert_eq!(inspect(&folder, "ablate", &[]), whole, "the same every time");

    let some = inspect(&folder, "ablate", &["--max-batches", "2", "--method", "zero"]);
    assert_eq!((&some["whole"], &some["batches"]), (&false.into(), &2.into()));
    assert_eq!(some["tokens"], 2 * 4 * 32);
    let zeros: Vec<f64> = list(&some["parts"]).iter().map(|part| number(&part["zero"])).collect();
    assert!(zeros.is_sorted_by(|a, b| a >= b), "{zeros:?}");
    assert!(some["parts"][0]["mean"].is_null());
    let page = page(&folder, "ablate", &["--max-batches", "2"]);
    assert!(page.contains("over 256 tokens: 2 batches, spread over the"));
    assert!(page.contains("with the mean over these tokens in their place") && page.contains("layer 1 head 0"));
}

#[test]
fn lens_ends_with_prediction_of_model() {
    let folder = trained(&["model.bias=true", "model.position=learned"]);
    let it = inspect(&folder, "lens", &["--prompt", RIVER, "--top", "3"]);
    let positions = list(&it["positions"]);
    assert_eq!(positions.len(), 24);
    for (at, position) in positions.iter().enumerate() {
        let stages = list(&position["stages"]);
        let layers: Vec<Option<u64>> = stages.iter().map(|stage| stage["layer"].as_u64()).collect();
        assert_eq!(layers, [None, Some(0), Some(1)]);
        assert_eq!(list(&stages[2]["top"]).len(), 3);
        assert_eq!(stages[0]["came"].is_null(), at == 23);
    }
    // Greedy generation takes the last layer's most probable token.
    let likeliest = it["positions"][23]["stages"][2]["top"][0]["token"].as_str();
    let written =
        folder.succeed(&["generate", "runs/tiny", "--prompt", RIVER, "--temperature", "0", "--max-new-tokens", "1"]);
    let written = written.strip_suffix('\n').unwrap_or(&written);
    assert_eq!(Some(&written[RIVER.len()..]), likeliest);
    assert_eq!(it["attribution"]["answer"]["token"].as_str(), likeliest);

    let attribution = |args: &[&str]| {
        let args = [&["--prompt", RIVER], args].concat();
        inspect(&folder, "lens", &args)["attribution"].clone()
    };
    for args in [&[][..], &["--token", "sat", "--answer", "t"], &["--token", "3", "--answer", "h", "--against", "c"]] {
        let it = attribution(args);
        let terms = list(&it["terms"]).iter().map(|term| number(&term["logit"]));
        let sum: f64 = terms.sum();
        assert!((sum - number(&it["difference"])).abs() < 1e-3, "{it}");
    }
    let page = page(&folder, "lens", &["--prompt", RIVER]);
    for words in ["actual next", "After “r”, token 23", "layer 1 attention bias", "the mean of all logits"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn patching_moves_prediction_between_prompts() {
    let folder = trained(&[]);
    let always = ["--prompt", RIVER, "--patch-from", HOUSE];
    let args = [&always[..], &["--token", "by", "--answer", " ", "--against", "e"]].concat();
    let it = inspect(&folder, "lens", &args);
    assert_eq!((&it["position"], &it["answer"]["token"]), (&13.into(), &" ".into()));
    let parts = list(&it["parts"]);
    assert_eq!(parts.len(), 2 * (2 + 2));
    let shares: Vec<f64> = parts.iter().map(|part| number(&part["share"]).abs()).collect();
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    let last = list(&it["residual"]).last().expect("three stages");
    assert!((number(&last[13]) - 1.0).abs() < 1e-6);

    // Swapping the prompts swaps both differences.
    let swapped = ["--prompt", HOUSE, "--patch-from", RIVER, "--token", "by", "--answer", " ", "--against", "e"];
    let back = inspect(&folder, "lens", &swapped);
    assert!((number(&back["difference"]) - number(&it["from_difference"])).abs() < 1e-5);
    assert!((number(&back["from_difference"]) - number(&it["difference"])).abs() < 1e-5);

    let page = page(&folder, "lens", &args);
    for words in ["patched from", "After token 13", "move it most", "embedding", "13 y"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains(" 3 ·"), "what both texts have in common: {page}");
}

#[test]
fn lens_mistakes_are_explained() {
    let folder = trained(&[]);
    assert_transcript!(folder, @r#"
    $ inspect embeddings runs/tiny --word bank --prompt 'a bank'
    error: there is nothing to compare `bank` with
      hint: give --prompt twice or more, or another word of the prompt with --context
    $ inspect embeddings runs/tiny --word bank --prompt 'a bank' --prompt 'a hen'
    error: the word `bank` is not in the part of the prompt `a·hen` that the model reads
      hint: every prompt must contain it; spell it as in the prompts
    $ inspect lens runs/tiny --prompt 'The hen' --answer hen
    error: `hen` is 3 tokens for this model, not one
      hint: a prediction is a single token; leave out the flag to take the likeliest
    $ inspect lens runs/tiny --prompt 'The hen' --answer Ü
    error: `Ü` is not a token of this model: the tokenizer does not know the character 'Ü' (U+00DC)
      hint: leave out or replace these characters; a model trained with kind = "byte" under [tokenizer] knows every character
    $ inspect lens runs/tiny --prompt 'The hen' --answer a --against a
    error: the logit of `a` would be compared with itself
      hint: name two different tokens with --answer and --against
    $ inspect lens runs/tiny --prompt 'The hen' --patch-from 'The house'
    error: the prompt has 7 tokens and the one to patch from has 9
      hint: values are patched into the same position, so both need the same number of tokens
    $ inspect lens runs/tiny --prompt 'The hen' --patch-from 'The hen'
    error: the two prompts are the same up to token 6: there is no difference to trace
      hint: choose a later token with --token, or change one of the texts
    $ inspect lens runs/tiny --prompt 'The hen' --prompt 'The dog' --patch-from 'The cat'
    error: --patch-from compares its text with one prompt, not 2
      hint: give one --prompt
    "#);
    folder.write("text.txt", "another text, which is not that of the run");
    let gone = folder.fail(&["inspect", "ablate", "runs/tiny"]);
    assert!(gone.contains("text.txt"), "{gone}");
}
