//! The section `[optimizer]`: the keys that all optimizers share, followed by those of each.

/// Makes [`OptimizerKind`](super::OptimizerKind) and [`OptimizerConfig`](super::OptimizerConfig) of the list of
/// optimizers, each with its name in a config and the struct of its keys. AdamW, which updates all parameters that the
/// chosen optimizer does not take, comes first.
macro_rules! optimizers {
    ($($(#[$doc:meta])* $kind:ident = $name:ident: $keys:ty,)*) => {
        /// The optimizer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum OptimizerKind {
            /// Adam with decoupled weight decay.
            #[default]
            Adamw,
            $($(#[$doc])* $kind,)*
        }

        impl OptimizerKind {
            /// All optimizers.
            pub const ALL: &[Self] = &[Self::Adamw, $(Self::$kind),*];
        }

        /// Its name in a config.
        impl std::fmt::Display for OptimizerKind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    Self::Adamw => "adamw",
                    $(Self::$kind => stringify!($name),)*
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
                $(
                    /// The keys of this optimizer.
                    #[serde(flatten)]
                    pub $name: $keys,
                )*
                /// The decay rate of a running mean of the weights, which is evaluated and saved instead of the weights; 0:
                /// off. In [0, 1).
                ///
                /// Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
                pub ema_decay: f64 = 0.0,
            }
        }

        impl OptimizerConfig {
            pub(crate) fn check_into(&self, problems: &mut tinderbox_model::section::Problems) {
                let Self { kind: _, learning_rate, adamw, weight_decay, grad_clip_norm, $($name,)* ema_decay } = self;
                problems.above_zero("optimizer.learning_rate", *learning_rate);
                adamw.check_into(problems);
                problems.not_negative("optimizer.weight_decay", *weight_decay);
                problems.not_negative("optimizer.grad_clip_norm", *grad_clip_norm);
                $($name.check_into(problems);)*
                problems.below_one("optimizer.ema_decay", *ema_decay);
            }

            /// The chosen optimizer.
            fn chosen(&self) -> &dyn UpdateRule {
                match self.kind {
                    OptimizerKind::Adamw => &self.adamw,
                    $(OptimizerKind::$kind => &self.$name,)*
                }
            }

            /// Whether a resumed run must keep this key of `[optimizer]`, because its state depends on it.
            pub(crate) fn is_fixed(key: &str) -> bool {
                let Self { adamw, $($name,)* .. } = Self::default();
                let rules: &[&dyn UpdateRule] = &[&adamw, $(&$name),*];
                ["kind", "ema_decay"].contains(&key) || rules.iter().any(|rule| rule.fixed_keys().contains(&key))
            }

            /// The config with every key that does not affect step time at its default.
            pub(crate) fn for_timing(&self) -> Self {
                Self {
                    kind: self.kind,
                    adamw: self.adamw.for_timing(),
                    $($name: self.$name.for_timing(),)*
                    ema_decay: self.ema_decay,
                    ..Self::default()
                }
            }
        }
    };
}
pub(super) use optimizers;
