//! What will not do, and what to change.

use super::Memory;
use crate::config::Config;
use crate::device::OpenDevice;
use crate::format::size;

/// What a run that needs too much memory should have otherwise.
pub(super) fn memory(
    config: &Config,
    vocab_size: usize,
    device: &OpenDevice,
    memory: &Memory,
) -> Option<String> {
    let machine = memory.machine?;
    let said = if memory.is_too_much() {
        format!("the run needs {}, and this machine has {}", size(memory.peak), size(machine.total))
    } else if memory.is_too_much_now() {
        format!(
            "the run needs {}, and of this machine's {} only {} are free now",
            size(memory.peak),
            size(machine.total),
            size(machine.available)
        )
    } else {
        return None;
    };
    let limit = if memory.is_too_much() { machine.total } else { machine.available };
    let hint = smaller_batch(config, vocab_size, device, limit).unwrap_or_else(|| {
        "even one row at a time is too much: lower model.context_length, model.n_layers or \
         model.d_model"
            .to_owned()
    });
    Some(format!("{said}\n  hint: {hint}"))
}

/// The largest batch that fits, with as many more micro-batches: the same updates in less memory.
fn smaller_batch(
    config: &Config,
    vocab_size: usize,
    device: &OpenDevice,
    limit: u64,
) -> Option<String> {
    let train = &config.train;
    let parts = (2..=train.batch_size).filter(|parts| train.batch_size.is_multiple_of(*parts));
    for parts in parts {
        let mut smaller = config.clone();
        smaller.train.batch_size /= parts;
        smaller.train.grad_accumulation_steps *= parts;
        let memory = Memory::new(&smaller, vocab_size, device);
        if memory.peak <= limit {
            return Some(format!(
                "train.batch_size = {} and train.grad_accumulation_steps = {} learn the same from the same \
                 tokens, in {}",
                smaller.train.batch_size,
                smaller.train.grad_accumulation_steps,
                size(memory.peak)
            ));
        }
    }
    None
}
