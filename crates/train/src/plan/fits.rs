//! Whether training or generation fits the memory of the machine, checked before anything is allocated.

use super::{MAX_PARAMETERS, Memory, PlanError, lack_of_memory, parameters};
use crate::config::{Config, ModelConfig, PositionKind, TokenizerKind};
use tinderbox_model::device::OpenDevice;
use tinderbox_model::measure::Machine;

/// Rejects a run that needs more memory than there is, assuming the smallest possible vocabulary.
pub fn check_training(config: &Config, device: &OpenDevice) -> Result<(), PlanError> {
    let vocab_size = config.model.vocab_size.unwrap_or(match config.tokenizer.kind {
        TokenizerKind::Byte => 256,
        TokenizerKind::Bpe => config.tokenizer.bpe_vocab_size(),
        TokenizerKind::Char | TokenizerKind::File => 1, // depends on the text or the file
    });
    let n_parameters = parameters(&config.model, vocab_size).total;
    if n_parameters > MAX_PARAMETERS {
        return Err(PlanError::TooLarge(n_parameters));
    }
    let advice = Memory::new(config, vocab_size, device).advice(config, vocab_size, device);
    advice.map_or(Ok(()), |advice| Err(PlanError::DoesNotFit(advice)))
}

/// The texts that a model is to generate.
#[derive(Clone, Copy, Debug)]
pub struct Writing<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The size of its weights in bytes.
    pub weights: u64,
    /// The number of texts generated at once.
    pub n_texts: u64,
    /// The most tokens per text, prompt included.
    pub n_tokens: u64,
}

impl Writing<'_> {
    /// The least memory needed, in bytes: weights, keys and values, and the `RoPE` table.
    pub fn memory(&self) -> u64 {
        self.weights.saturating_add(self.cache()).saturating_add(self.rotations())
    }

    fn cache(&self) -> u64 {
        self.model.cache_bytes(self.n_tokens).saturating_mul(self.n_texts)
    }

    /// The `RoPE` table: an angle in f64, its cosine and its sine for each pair of dimensions and each position.
    fn rotations(&self) -> u64 {
        match self.model.position {
            PositionKind::Learned => 0,
            PositionKind::Rope => self.model.context_length as u64 * (self.model.rotary_dim() as u64 / 2) * 16,
        }
    }

    /// Rejects a generation that needs more memory than there is.
    pub fn check(&self, machine: Machine) -> Result<(), PlanError> {
        let needed = self.memory();
        let Some(problem) = lack_of_memory("generating with this model", needed, machine) else { return Ok(()) };
        let hint = if self.cache() > needed / 2 {
            "lower --max-new-tokens or --num-samples"
        } else if self.rotations() > needed / 2 {
            "its model.context_length is out of all proportion: lower it in the run's config.toml"
        } else {
            "free some memory, or use a machine with more"
        };
        Err(PlanError::DoesNotFit(format!("{problem}\n  hint: {hint}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_memory_names_key_to_lower() {
        let model = ModelConfig { position: PositionKind::Rope, ..ModelConfig::default() }.with_derived();
        let writing = Writing { model: &model, weights: 1 << 20, n_texts: 1, n_tokens: 10 };
        // 4 layers of 4 heads, 32 wide: keys and values of 10 tokens; 16 angles for each of 128 positions.
        assert_eq!(writing.memory(), (1 << 20) + 4 * 128 * 10 * 8 + 128 * 16 * 16);
        let machine = Machine { total: 8 << 30, available: 4 << 30 };
        writing.check(machine).unwrap();
        let hint = |writing: Writing<'_>| writing.check(machine).unwrap_err().to_string();
        let heavy = hint(Writing { weights: 5 << 30, ..writing });
        assert!(heavy.contains("5.0 GiB") || heavy.contains("5120"), "{heavy}");
        assert!(heavy.contains("only") && heavy.contains("free some memory"), "{heavy}");
        let long = ModelConfig { context_length: 1 << 24, ..model.clone() };
        assert!(hint(Writing { model: &long, n_tokens: u64::MAX, ..writing }).contains("lower --max-new-tokens"));
        let long = ModelConfig { context_length: 1 << 24, head_dim: 128, ..model.clone() };
        assert!(hint(Writing { model: &long, ..writing }).contains("model.context_length"));
    }
}
