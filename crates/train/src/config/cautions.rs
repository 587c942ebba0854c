//! Warnings about settings that are valid but probably a mistake.

use super::Config;

/// The share of the text above which more is kept for validation than for training.
const MUCH_VALIDATION: f64 = 0.5;

impl Config {
    /// Warnings about values that are allowed but probably a mistake, each with its key.
    pub fn cautions(&self) -> Vec<String> {
        let mut cautions = Vec::new();
        let val_fraction = self.data.val_fraction;
        if val_fraction > MUCH_VALIDATION {
            cautions.push(format!(
                "data.val_fraction = {val_fraction} keeps most of the text for validation, and the model learns from the \
                 rest\n  hint: it is the share that is not learned from; 0.1 is usual"
            ));
        }
        cautions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_val_fraction_is_warned_about() {
        let cautions = |val_fraction| {
            let mut config = Config::default();
            config.data.val_fraction = val_fraction;
            config.cautions()
        };
        assert_eq!((cautions(0.1), cautions(0.5)), (Vec::new(), Vec::new()));
        let found = cautions(0.999);
        assert!(found.len() == 1 && found[0].contains("data.val_fraction = 0.999") && found[0].contains("hint: "));
    }
}
