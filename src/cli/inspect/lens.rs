//! `tinderbox inspect lens`: shows each layer's prediction, and the contribution of each part to the last one.

use anyhow::bail;
use burn::module::Module;
use serde_json::json;

use super::prompts::{Reading, TokenArg, about};
use crate::cli::drawn::{Colors, Drawn};
use crate::cli::numbers::within;
use crate::inspect::{Answer, Attribution, InspectError, Lens, Patching, PredictionGraph, Prompt};
use crate::run::Trained;
use crate::tokenizer::Tokenizer;
use crate::view;

/// Contributions are measured after every token up to this many products of a weight and a token.
const MOST_PRODUCTS: usize = 20_000_000_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect lens runs/quickstart --prompt \"The bank of\"
  tinderbox inspect lens runs/quickstart --prompt \"The bank of\" --format html --output lens.html
  tinderbox inspect lens runs/quickstart --prompt \"The bank of\" --graph
  tinderbox inspect lens runs/quickstart --prompt '\"I am tired' --patch-from \"(I am tired\"")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    token: TokenArg,
    /// Number of likeliest tokens to show per layer
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = |typed: &str| within(typed, 1..=20))]
    top: usize,
    /// Next token to explain [default: the likeliest]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    answer: Option<String>,
    /// Token to compare the answer with [default: the mean of all tokens; with --patch-from, the likeliest after that
    /// text]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    against: Option<String>,
    /// Text with the same number of tokens: patch its activations into the prompt's forward pass, part by part
    /// [default: none]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    patch_from: Option<String>,
    /// Trace the largest contributions back to tokens, and measure what each part adds by switching it off
    #[arg(long, conflicts_with = "patch_from")]
    graph: bool,
    #[command(flatten)]
    colors: Colors,
}

/// Shows the predictions for each prompt, or compares one prompt with the text to patch from.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.colors.check(&args.reading.output)?;
    let (opened, prompts) = args.reading.open()?;
    if args.patch_from.is_some() && prompts.len() > 1 {
        bail!("--patch-from compares its text with one prompt, not {}\n  hint: give one --prompt", prompts.len());
    }
    let mut pages = Vec::new();
    for prompt in prompts {
        pages.push(match &args.patch_from {
            Some(text) => args.patch(&opened, &prompt, text)?,
            None => args.predict(&opened, &prompt)?,
        });
    }
    let title = if args.patch_from.is_some() { "What another text changes" } else { "Predictions by layer" };
    args.reading.output.write(title, &about(&opened), pages, args.colors.style(&args.reading.output.file))
}

impl Args {
    fn predict(&self, opened: &Trained, prompt: &Prompt) -> anyhow::Result<Drawn> {
        let (model, tokenizer) = (&opened.model, &opened.tokenizer);
        let position = self.token.position(prompt)?;
        let [answer, against] = self.answers(tokenizer)?;
        let answer = answer.map_or_else(|| Answer::likeliest(model, tokenizer, prompt, position), Ok)?;
        let lens = Lens::new(model, tokenizer, prompt, self.top)?;
        let graph = match self.graph {
            true => Some(PredictionGraph::new(model, prompt, position, answer.clone(), against.clone())?),
            false => None,
        };
        let attribution = Attribution::new(model, prompt, position, answer, against)?;
        let mut document = json!({ "tokens": lens.tokens, "positions": lens.positions, "attribution": attribution });
        if let Some(graph) = &graph {
            document["graph"] = json!(graph.parts);
        }
        let attributions = self.attributions(opened, prompt, attribution)?;
        // The text of a chosen token is about that token.
        let has_all = !(self.reading.output.is_text() && self.token.is_given());
        Ok(Drawn {
            json: serde_json::to_string(&document)?,
            sheet: view::lens_sheet(&lens, &attributions, position, prompt, has_all, graph.as_ref()),
        })
    }

    /// The contributions to the prediction after each token, for a page; otherwise, or if they would take long, only
    /// `chosen`.
    fn attributions(&self, opened: &Trained, prompt: &Prompt, chosen: Attribution) -> anyhow::Result<Vec<Attribution>> {
        let model = &opened.model;
        let n_products = model.num_params() * prompt.len() * prompt.len();
        if !self.reading.output.is_page() || n_products > MOST_PRODUCTS {
            return Ok(vec![chosen]);
        }
        let of = |position| -> Result<Attribution, InspectError> {
            let answer = Answer::likeliest(model, &opened.tokenizer, prompt, position)?;
            Attribution::new(model, prompt, position, answer, None)
        };
        let others = (0..prompt.len()).filter(|at| *at != chosen.position).map(of);
        let mut all = others.collect::<Result<Vec<_>, _>>()?;
        all.push(chosen);
        all.sort_by_key(|it| it.position);
        Ok(all)
    }

    fn patch(&self, opened: &Trained, prompt: &Prompt, from: &str) -> anyhow::Result<Drawn> {
        let (model, tokenizer) = (&opened.model, &opened.tokenizer);
        let from = Prompt::read(from, tokenizer, opened.config.model.context_length)?;
        let position = self.token.position(prompt)?;
        Patching::check([prompt, &from], position)?;
        let [answer, against] = self.answers(tokenizer)?;
        let or_likeliest = |answer: Option<Answer>, prompt| {
            answer.map_or_else(|| Answer::likeliest(model, tokenizer, prompt, position), Ok)
        };
        let answers = [or_likeliest(answer, prompt)?, or_likeliest(against, &from)?];
        let patching = Patching::new(model, [prompt, &from], position, answers)?;
        Ok(Drawn { json: serde_json::to_string(&patching)?, sheet: view::patching_sheet(&patching, [prompt, &from]) })
    }

    fn answers(&self, tokenizer: &Tokenizer) -> Result<[Option<Answer>; 2], InspectError> {
        let read = |text: &Option<String>| text.as_ref().map(|text| Answer::read(text, tokenizer)).transpose();
        Ok([read(&self.answer)?, read(&self.against)?])
    }
}
