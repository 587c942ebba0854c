//! The programs in `examples/`, checked against the page that shows their output.

#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "each is a program, with a `main` and a use of its own for what they share"
)]

use std::io;

use tinderbox::generate::Writer;
use tinderbox::run::Trained;

use crate::fixtures::Place;

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
#[path = "../../examples/train_and_write.rs"]
mod train_and_write;
#[path = "../../crates/model/examples/write_text.rs"]
mod write_text;
#[path = "../../examples/your_journey.rs"]
mod your_journey;

/// Fails unless the page shows the program's command, followed by the output of `run`.
fn expect_on_the_page(name: &str, run: fn(&mut Vec<u8>) -> io::Result<()>) {
    let mut printed = Vec::new();
    run(&mut printed).expect("memory takes it");
    let printed = String::from_utf8(printed).expect("UTF-8");
    let page = include_str!("../../docs/worked-numbers.md").replace("\r\n", "\n");
    let command = format!("$ cargo run --release --example {name}\n");
    let (_, shown) = page.split_once(&command).expect("the page runs it");
    let (shown, _) = shown.split_once("```").expect("the block ends");
    for (at, (shown, printed)) in shown.lines().zip(printed.lines()).enumerate() {
        assert_eq!(printed, shown, "line {} of `{name}`", at + 1);
    }
    assert_eq!(printed.len(), shown.len(), "the length of `{name}`");
}

#[test]
fn the_page_shows_what_the_programs_print() {
    expect_on_the_page("soft_lookup", soft_lookup::run);
    expect_on_the_page("the_cat_sat", the_cat_sat::run);
    expect_on_the_page("many_heads", many_heads::run);
    expect_on_the_page("your_journey", your_journey::run);
    expect_on_the_page("masks_and_patterns", masks_and_patterns::run);
}

#[test]
fn a_run_is_trained_and_written_from_by_a_few_lines() {
    let place = Place::new();
    let config = place.config(&["train.max_steps=3", "generate.max_new_tokens=20"]);
    std::fs::write(place.path("tiny.toml"), config.to_toml()).expect("written");
    let run = place.path("run");
    let mut text = Vec::new();
    train_and_write::train_and_write(&place.path("tiny.toml"), &run, &mut text).expect("trained");
    assert!(String::from_utf8(text).expect("text").chars().count() > 20);

    let mut text = Vec::new();
    write_text::write(&run, "a", &mut text).expect("written");
    let Trained { model, tokenizer, config, .. } = Trained::open(&run, None).expect("trained");
    let writer = Writer::new(&model, &tokenizer, &config.generate, "a", 0).expect("a prompt");
    let expected: String = writer.collect::<Result<_, _>>().expect("writes");
    assert_eq!(String::from_utf8(text).expect("text"), format!("a{expected}\n"));

    let mut text = Vec::new();
    own_sampler::write(&run, "a", &mut text).expect("written");
    let text: Vec<char> = String::from_utf8(text).expect("text").chars().collect();
    assert_eq!(text.len(), 22, "a prompt of one character and a line break");
    for (at, char) in text[..21].iter().enumerate() {
        assert!(!text[at.saturating_sub(4)..at].contains(char), "{text:?}");
    }
}
