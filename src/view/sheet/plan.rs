//! A plan as a picture: parameters and FLOPs by part, the learning rate of every step, and what the terminal says.

use crate::config::Config;
use crate::format::grouped;
use crate::optimizer::learning_rate;
use crate::plan::Plan;
use crate::view::sheet::{Content, Figure, Sheet};
use crate::view::svg::chart::{Chart, Series};
use crate::view::svg::plot::{N_SERIES, spread};
use crate::view::terminal::plan::si;

const MOST_POINTS: usize = 400;

/// The plan of `config` with the text that the terminal shows.
pub fn plan_sheet(text: &str, plan: &Plan, config: &Config) -> Sheet {
    let (n_steps, peak) = (config.train.max_steps, config.optimizer.learning_rate);
    let rate = |step: usize| (step as u64 + 1, learning_rate(&config.schedule, peak, step, n_steps));
    let points = spread(n_steps, MOST_POINTS).into_iter().map(rate).collect();
    let curve = Series::new("learning rate", format!("series-{}", N_SERIES - 1), points);
    let chart = Chart::from_zero("schedule", vec![curve]);
    let (p, c) = (&plan.parameters, &plan.flops_per_token);
    let in_blocks = |n: u64| p.n_layers.saturating_mul(n) as f64;
    let parameters = vec![
        ("embeddings", p.token_embedding.saturating_add(p.position_embedding) as f64),
        ("queries, keys, values", in_blocks(p.block.attention_qkv)),
        ("attention's output", in_blocks(p.block.attention_output)),
        ("MLPs", in_blocks(p.block.mlp)),
        ("norms and factors", in_blocks(p.block.norms + p.block.factors) + p.final_norm as f64),
        ("output layer", p.output as f64),
    ];
    let flops = vec![
        ("queries, keys, values", c.attention_qkv),
        ("attention's weights", c.attention),
        ("attention's output", c.attention_output),
        ("MLPs", c.mlp),
        ("output layer", c.output),
    ];
    let bars = |title: String, parts: Vec<(&str, f64)>| {
        let parts = parts.into_iter().filter(|(_, n)| *n > 0.0).map(|(name, n)| (name.to_owned(), n));
        Figure::bars(title, parts.collect(), si)
    };
    Sheet {
        heading: "A plan".to_owned(),
        lead: String::new(),
        figures: vec![
            bars(format!("Parameters: {}", grouped(p.total)), parameters),
            bars(format!("FLOPs of the forward pass per token: {}", si(c.forward)), flops),
            Figure::new("Learning rate, by step", Content::Charts(vec![chart])),
            Figure::new("Numbers", Content::Lines(text.lines().map(str::to_owned).collect())),
        ],
    }
}
