//! The section `[optimizer]`: the keys that all optimizers share, followed by those of each.

use std::fmt;

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;

use super::rule::UpdateRule;
use super::{AdamwConfig, MuonConfig};

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

impl OptimizerKind {
    /// All optimizers.
    pub const ALL: &[Self] = &[Self::Adamw, Self::Muon];

    /// The optimizer of configs that are generated from a text: it learns the most in the same steps.
    pub(crate) const RECOMMENDED: Self = Self::Muon;
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adamw => "adamw",
            Self::Muon => "muon",
        })
    }
}

tinderbox_model::sections! {
    /// `[optimizer]`: how gradients change the weights.
    pub struct OptimizerConfig {
        /// The optimizer: `adamw`, or `muon`, which takes orthogonal steps with the matrices inside the blocks and
        /// leaves everything else to AdamW.
        pub kind: OptimizerKind = OptimizerKind::default(),
        /// The peak learning rate; with `muon`, of everything but the blocks' matrices. Above 0.
        pub learning_rate: f64 = 1e-3,
        /// The keys of AdamW.
        #[serde(flatten)]
        pub adamw: AdamwConfig,
        /// The decoupled weight decay of matrices. At least 0.
        pub weight_decay: f64 = 0.1,
        /// Scales larger gradients down to this global norm; 0: off. At least 0.
        pub grad_clip_norm: f64 = 1.0,
        /// The keys of Muon.
        #[serde(flatten)]
        pub muon: MuonConfig,
        /// The decay rate of a running mean of the weights, which is evaluated and saved instead of the weights; 0:
        /// off. In [0, 1).
        ///
        /// Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
        pub ema_decay: f64 = 0.0,
    }
}

impl OptimizerConfig {
    pub(crate) fn check_into(&self, problems: &mut Problems) {
        let Self { kind: _, learning_rate, adamw, weight_decay, grad_clip_norm, muon, ema_decay } = self;
        problems.above_zero("optimizer.learning_rate", *learning_rate);
        adamw.check_into(problems);
        problems.not_negative("optimizer.weight_decay", *weight_decay);
        problems.not_negative("optimizer.grad_clip_norm", *grad_clip_norm);
        muon.check_into(problems);
        problems.below_one("optimizer.ema_decay", *ema_decay);
    }

    pub(super) fn chosen(&self) -> &dyn UpdateRule {
        match self.kind {
            OptimizerKind::Adamw => &self.adamw,
            OptimizerKind::Muon => &self.muon,
        }
    }

    /// Whether a resumed run must keep this key of `[optimizer]`, because its state depends on it.
    pub(crate) fn is_fixed(key: &str) -> bool {
        let Self { adamw, muon, .. } = Self::default();
        let rules: [&dyn UpdateRule; 2] = [&adamw, &muon];
        ["kind", "ema_decay"].contains(&key) || rules.iter().any(|rule| rule.fixed_keys().contains(&key))
    }

    /// The config with every key that does not affect step time at its default.
    pub(crate) fn for_timing(&self) -> Self {
        let Self { kind, adamw, muon, ema_decay, .. } = self;
        Self {
            kind: *kind,
            adamw: adamw.for_timing(),
            muon: muon.for_timing(),
            ema_decay: *ema_decay,
            ..Self::default()
        }
    }
}
