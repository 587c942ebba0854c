//! Plans a run on several machines: the work of each, and the bytes that it exchanges.

use serde::Serialize;

use super::{Plan, PlanError, time};
use crate::config::Config;
use crate::distributed::ExchangeDtype;
use tinderbox_model::device::OpenDevice;

/// The share of each machine in a run on several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distributed {
    /// The number of processes, each on its own machine.
    pub ranks: usize,
    /// Rows of a micro-batch on the busiest machine.
    pub rows: usize,
    /// The time in milliseconds to compute its share of a step; `None` if nothing was measured.
    pub compute_ms: Option<f64>,
    /// The exchanges with `distributed.sync = "step"`.
    pub step: Exchanges,
    /// The exchanges with `distributed.sync = "local"`.
    pub local: Exchanges,
}

/// The exchanges with one value of `distributed.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exchanges {
    /// The bytes that each machine sends and receives per exchange.
    pub bytes: u64,
    /// Steps between exchanges.
    pub steps: usize,
}

impl Plan {
    /// Adds the share of each of `ranks` machines like this one, at least 2. If the plan has times, measures a few steps
    /// of that share.
    pub fn distribute(&mut self, ranks: usize, config: &Config, device: &OpenDevice) -> Result<(), PlanError> {
        let mut share = config.clone();
        share.train.batch_size = config.train.batch_size.div_ceil(ranks);
        let compute_ms = match self.time {
            Some(_) => Some(time::measure(&share, self.vocabulary.size, device, &self.memory)?.step_ms),
            None => None,
        };
        let n = self.parameters.total;
        let exchanges = |dtype: ExchangeDtype, steps| Exchanges {
            bytes: 2 * (ranks as u64 - 1) * n * dtype.n_bytes() as u64 / ranks as u64,
            steps,
        };
        let distributed = &config.distributed;
        self.distributed = Some(Distributed {
            ranks,
            rows: share.train.batch_size,
            compute_ms,
            step: exchanges(distributed.gradient_dtype, 1),
            local: exchanges(ExchangeDtype::F32, distributed.local_steps),
        });
        Ok(())
    }
}
