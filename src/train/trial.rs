//! A few steps that are made only to know how long they take.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use super::Trainer;
use super::measure::median;

/// How many steps are made.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Steps that are made before the clock starts: the first one allocates memory and tunes kernels.
    pub warm_up_steps: usize,
    /// Between so many steps and so many are timed,
    pub steps: RangeInclusive<usize>,
    /// and no more of them when so much time has gone by.
    pub enough: Duration,
}

/// How long steps took, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// The median.
    pub median_ms: f64,
    /// The fastest: what the machine can do when it does nothing else.
    pub fastest_ms: f64,
    /// Steps that were timed.
    pub n_steps: usize,
}

impl Trial {
    /// Makes the steps, each of which is waited for.
    ///
    /// # Errors
    /// What the device says when it fails.
    pub fn run(&self, trainer: &mut Trainer) -> Result<StepTimes, String> {
        for _ in 0..self.warm_up_steps {
            step(trainer)?;
        }
        let (at_least, at_most) = (*self.steps.start(), *self.steps.end());
        let (mut times_ms, began) = (Vec::new(), Instant::now());
        while times_ms.len() < at_least || times_ms.len() < at_most && began.elapsed() < self.enough
        {
            let began = Instant::now();
            step(trainer)?;
            times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(StepTimes {
            median_ms: median(&times_ms),
            fastest_ms: times_ms.iter().copied().fold(f64::INFINITY, f64::min),
            n_steps: times_ms.len(),
        })
    }
}

/// One step, waited for.
fn step(trainer: &mut Trainer) -> Result<(), String> {
    let result = trainer.step();
    let read = Tensor::cat(vec![result.loss, result.gradient_norm], 0);
    let read = read.try_into_vec_as::<f32>(); // waits for the device
    read.map(|_| ()).map_err(|error| error.to_string())
}
