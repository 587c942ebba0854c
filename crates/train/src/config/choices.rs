//! The choices of `[optimizer]` and `[schedule]`.

use serde::{Deserialize, Serialize};

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Orthogonal updates for the blocks' matrices, and AdamW for everything else.
    Muon,
}

/// The polynomials of the Newton-Schulz iteration that makes Muon's steps orthogonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulz {
    /// One polynomial applied five times: steep at 0, it ends near 1 without converging.
    ///
    /// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    #[default]
    Jordan,
    /// Five polynomials, each optimal for the singular values that the ones before it leave.
    ///
    /// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
    /// Algorithm".
    PolarExpress,
}

/// The learning-rate schedule after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays at the highest learning rate.
    Constant,
    /// Falls to the minimum on a straight line.
    Linear,
    /// Falls to the minimum on half a cosine.
    #[default]
    Cosine,
    /// Warm-up, stable, decay: stays constant, then falls on a straight line in the last `decay_fraction` of the run.
    Wsd,
}
