//! The programs in `examples/`, compared with the page that shows their output.

#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "each is a program, with a `main` and a use of its own for what they share"
)]

use std::io;

use tinderbox::generate::Generator;
use tinderbox::run::Trained;

use crate::fixtures::Place;

#[path = "../../crates/model/examples/generate_text.rs"]
mod generate_text;
#[path = "../../examples/many_heads.rs"]
mod many_heads;
#[path = "../../examples/masks_and_patterns.rs"]
mod masks_and_patterns;
#[path = "../../examples/own_sampler.rs"]
mod own_sampler;
#[path = "../../examples/soft_lookup.rs"]
mod soft_lookup;
#[path = "../../examples/the_cat_sat.rs"]
mod the_cat_sat;
#[path = "../../examples/train_and_generate.rs"]
mod train_and_generate;
#[path = "../../examples/your_journey.rs"]
mod your_journey;

/// Asserts that the page shows the program's command and then the output of `run`.
fn expect_on_the_page(name: &str, run: fn(&mut Vec<u8>) -> io::Result<()>) {
    let mut printed = Vec::new();
    run(&mut printed).expect("memory takes any output");
    let printed = String::from_utf8(printed).expect("the programs print UTF-8");
    let page = include_str!("../../docs/worked-numbers.md").replace("\r\n", "\n");
    let command = format!("$ cargo run --release --example {name}\n");
    let (_, shown) = page.split_once(&command).expect("the page shows the command");
    let (shown, _) = shown.split_once("```").expect("the page closes the block");
    for (at, (shown, printed)) in shown.lines().zip(printed.lines()).enumerate() {
        assert_eq!(printed, shown, "line {} of `{name}`", at + 1);
    }
    assert_eq!(printed.len(), shown.len(), "the length of `{name}`");
}

#[test]
fn page_shows_output_of_programs() {
    expect_on_the_page("soft_lookup", soft_lookup::run);
    expect_on_the_page("the_cat_sat", the_cat_sat::run);
    expect_on_the_page("many_heads", many_heads::run);
    expect_on_the_page("your_journey", your_journey::run);
    expect_on_the_page("masks_and_patterns", masks_and_patterns::run);
}

#[test]
fn own_training_loop_trains_and_generates() {
    let place = Place::new();
    let mut text = Vec::new();
    train_and_generate::run(&place.path("text.txt"), 3, "The", &mut text).expect("the text is long enough");
    let text = String::from_utf8(text).expect("completions are UTF-8");
    assert!(text.starts_with("The") && text.chars().count() == 3 + 200 + 1, "{text}");
}

#[test]
fn examples_generate_from_runs() {
    let place = Place::new();
    let run = place.path("run");
    place.trained("run", &["train.max_steps=3", "generate.max_new_tokens=20"]);

    let mut text = Vec::new();
    generate_text::generate(&run, "a", &mut text).expect("the run has a checkpoint");
    let Trained { model, tokenizer, config, .. } = Trained::open(&run, None).expect("the run has a checkpoint");
    let generator =
        Generator::new(&model, &tokenizer, &config.generate, "a", 0).expect("the tokenizer knows the prompt");
    let expected: String = generator.collect::<Result<_, _>>().expect("finite values");
    assert_eq!(String::from_utf8(text).expect("completions are UTF-8"), format!("a{expected}\n"));

    let mut text = Vec::new();
    own_sampler::generate(&run, "a", &mut text).expect("the run has a checkpoint");
    let text: Vec<char> = String::from_utf8(text).expect("completions are UTF-8").chars().collect();
    assert_eq!(text.len(), 22, "a prompt of one character and a line break");
    for (at, char) in text[..21].iter().enumerate() {
        assert!(!text[at.saturating_sub(4)..at].contains(char), "{text:?}");
    }
}
