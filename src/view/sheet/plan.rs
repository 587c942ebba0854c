//! A plan as a picture: the learning rate of every step, and what the terminal says.

use crate::config::Config;
use crate::optimizer::learning_rate;
use crate::view::sheet::{Content, Figure, Sheet};
use crate::view::svg::chart::{Chart, Series};
use crate::view::svg::plot::{N_SERIES, spread};

const MOST_POINTS: usize = 400;

/// The plan of `config` with the text that the terminal shows.
pub fn plan_sheet(text: &str, config: &Config) -> Sheet {
    let (n_steps, peak) = (config.train.max_steps, config.optimizer.learning_rate);
    let rate = |step: usize| (step as u64 + 1, learning_rate(&config.schedule, peak, step, n_steps));
    let points = spread(n_steps, MOST_POINTS).into_iter().map(rate).collect();
    let curve = Series::new("learning rate", format!("series-{}", N_SERIES - 1), points);
    let chart = Chart::from_zero("schedule", vec![curve]);
    Sheet {
        heading: "A plan".to_owned(),
        lead: String::new(),
        figures: vec![
            Figure::new("Learning rate, by step", Content::Charts(vec![chart])),
            Figure::new("Numbers", Content::Lines(text.lines().map(str::to_owned).collect())),
        ],
    }
}
