//! Plans a run on several machines: the time of their exchanges, and which `distributed.sync` pays off.

use std::str::FromStr;

use serde::Serialize;

use super::{Plan, PlanError, time};
use crate::config::{Config, SyncKind};
use crate::distributed::{ExchangeDtype, MOST_NUMBERS};
use tinderbox_model::device::OpenDevice;

/// The share of TCP payload in Ethernet traffic: 1448 of 1538 bytes.
const PAYLOAD: f64 = 1448.0 / 1538.0;

/// The share of `local`'s tokens per second from which `step`, which has the losses of one process, pays off.
const WORTH: f64 = 0.8;

/// The default latency of a network, in milliseconds: that of a wired network in one building.
const LATENCY_MS: f64 = 0.1;

/// The network between machines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Network {
    /// The bandwidth at which each machine can send and, at the same time, receive.
    pub bits_per_s: f64,
    /// The latency from one machine to another, in milliseconds.
    pub latency_ms: f64,
}

/// Parses `1Gbit`, `100Mbit`, or with the latency `1Gbit,0.5ms`.
impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rate, latency) = text.split_once(',').map_or((text, None), |(rate, latency)| (rate, Some(latency)));
        let number = |digits: &str| digits.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
        let units = [("Gbit", 1e9), ("Mbit", 1e6)];
        let rate = rate.trim().trim_end_matches("/s");
        let bits_per_s = units.iter().find_map(|(unit, bits)| Some(bits * number(rate.strip_suffix(unit)?)?));
        let latency_ms = match latency {
            None => Some(LATENCY_MS),
            Some(latency) => latency.trim().strip_suffix("ms").and_then(number),
        };
        let network = bits_per_s.zip(latency_ms).map(|(bits_per_s, latency_ms)| Self { bits_per_s, latency_ms });
        network.ok_or_else(|| "expected such as `1Gbit`, `100Mbit` or, with the latency, `1Gbit,0.5ms`".to_owned())
    }
}

impl Network {
    /// The milliseconds it takes to sum `n` numbers across `ranks` machines, with the result on all of them.
    #[must_use]
    pub fn sum_ms(&self, ranks: usize, n: u64, dtype: ExchangeDtype) -> f64 {
        let ranks = ranks as f64;
        let bytes = (n * dtype.n_bytes() as u64) as f64;
        let sent = 2.0 * (ranks - 1.0) / ranks * bytes;
        let n_pieces = n.div_ceil(MOST_NUMBERS as u64) as f64;
        // Each machine sends to all others, twice.
        sent * 8.0 / (PAYLOAD * self.bits_per_s) * 1e3 + 2.0 * n_pieces * self.latency_ms
    }

    /// The milliseconds it takes to broadcast a short message from one of `ranks` machines to all others.
    fn broadcast_ms(&self, ranks: usize) -> f64 {
        f64::from(ranks.next_power_of_two().ilog2()) * self.latency_ms
    }
}

/// The machines that are to train one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machines {
    /// The number of processes, each on its own machine like this one; at least 2.
    pub ranks: usize,
    /// The network between them.
    pub network: Network,
}

/// The steps of a run on several machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distributed {
    /// The number of processes, each on its own machine.
    pub ranks: usize,
    /// The network.
    pub network: Network,
    /// Rows of a micro-batch on the busiest machine.
    pub rows: usize,
    /// The time in milliseconds to compute its share of a step; `None` if nothing was measured.
    pub compute_ms: Option<f64>,
    /// The steps with `distributed.sync = "step"`.
    pub step: Synchronized,
    /// The steps with `distributed.sync = "local"`.
    pub local: Synchronized,
    /// The mode that pays off: `step`, `local` or `one process`; `None` if nothing was measured.
    pub pays: Option<&'static str>,
}

/// Steps with one value of `distributed.sync`. Times are `None` if nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Synchronized {
    /// The bytes that each machine sends and receives per exchange.
    pub bytes: u64,
    /// Steps between exchanges.
    pub steps: usize,
    /// Average communication time per step, in milliseconds.
    pub communication_ms: f64,
    /// Duration of a step, in milliseconds.
    pub step_ms: Option<f64>,
    /// The share of communication in a step.
    pub communication_share: Option<f64>,
    /// Tokens per second of all machines.
    pub tokens_per_s: Option<f64>,
    /// The speedup over one process.
    pub times_one_process: Option<f64>,
}

impl Machines {
    /// Plans a run on these machines. If the plan has times, measures a few steps of one machine's share.
    ///
    /// # Errors
    /// If the device fails.
    pub fn plan(&self, plan: &Plan, config: &Config, device: &OpenDevice) -> Result<Distributed, PlanError> {
        let Self { ranks, network } = *self;
        let rows = config.train.batch_size.div_ceil(ranks);
        let mut share = config.clone();
        share.train.batch_size = rows;
        let alone_ms = plan.time.as_ref().map(|time| time.measured.step_ms);
        let measure = |_| time::measure(&share, plan.vocabulary.size, device, &plan.memory);
        let compute_ms = alone_ms.map(measure).transpose()?.map(|measured| measured.step_ms);
        let tokens = plan.run.tokens_per_step as f64;
        let with = |sync: SyncKind| {
            let (dtype, steps) = match (sync, config.distributed.gradient_dtype) {
                (SyncKind::Local, _) => (ExchangeDtype::F32, config.distributed.local_steps),
                (SyncKind::Step, dtype) => (dtype, 1),
            };
            let n = plan.parameters.total;
            // All ranks meet before they exchange; with `step`, rank 0 says before every step whether to go on, and the
            // loss is summed separately.
            let mut exchange_ms = network.sum_ms(ranks, n, dtype) + network.broadcast_ms(ranks);
            if sync == SyncKind::Step {
                exchange_ms += network.broadcast_ms(ranks) + network.sum_ms(ranks, 1, ExchangeDtype::F32);
            }
            let communication_ms = exchange_ms / steps as f64;
            let step_ms = compute_ms.map(|compute_ms| compute_ms + communication_ms);
            Synchronized {
                bytes: 2 * (ranks as u64 - 1) * n * dtype.n_bytes() as u64 / ranks as u64,
                steps,
                communication_ms,
                step_ms,
                communication_share: step_ms.map(|step_ms| communication_ms / step_ms),
                tokens_per_s: step_ms.map(|step_ms| tokens / step_ms * 1e3),
                times_one_process: step_ms.zip(alone_ms).map(|(step_ms, alone_ms)| alone_ms / step_ms),
            }
        };
        let (step, local) = (with(SyncKind::Step), with(SyncKind::Local));
        let pays = step.times_one_process.zip(local.times_one_process).map(|(step, local)| pays(step, local));
        Ok(Distributed { ranks, network, rows, compute_ms, step, local, pays })
    }
}

/// The `distributed.sync` that pays off, given the speedup of each over one process: `step` has the losses of one
/// process, so it may be somewhat slower.
fn pays(step: f64, local: f64) -> &'static str {
    match (step, local) {
        _ if step.max(local) <= 1.0 => "one process",
        _ if step > 1.0 && step >= WORTH * local => "step",
        _ => "local",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_with_and_without_a_latency() {
        let network = |bits_per_s, latency_ms| Ok(Network { bits_per_s, latency_ms });
        assert_eq!("1Gbit".parse(), network(1e9, LATENCY_MS));
        assert_eq!("2.5Gbit/s,1ms".parse(), network(2.5e9, 1.0));
        assert_eq!("100Mbit, 0.5 ms".parse(), network(1e8, 0.5));
        for wrong in ["", "1", "fast", "0Gbit", "-1Gbit", "1Gbit,1", "1GB", "1Gbit,", "infGbit"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn gradients_of_124_million_numbers_take_seconds_on_a_gigabit() {
        let network: Network = "1Gbit,1ms".parse().unwrap();
        // 498 MB at 118 MB/s, 1.5 times with four machines, and two latencies for each 16 MiB.
        let ms = network.sum_ms(4, 124_500_000, ExchangeDtype::F32);
        assert!((ms - (1.5 * 498e6 / 117.685 / 1e3 + 30.0 * 2.0)).abs() < 2.0, "{ms}");
        let half = network.sum_ms(4, 124_500_000, ExchangeDtype::Bf16);
        assert!(half > 0.49 * ms && half < 0.52 * ms, "{half}");
        assert!((network.sum_ms(4, 1, ExchangeDtype::F32) - 2.0).abs() < 0.01, "two latencies");
        assert!((network.broadcast_ms(4) - 2.0).abs() < 1e-9 && (network.broadcast_ms(5) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn exact_losses_are_worth_something_but_not_everything() {
        assert_eq!([pays(3.5, 3.9), pays(2.0, 3.9), pays(0.1, 3.9)], ["step", "local", "local"]);
        assert_eq!([pays(0.1, 0.9), pays(1.0, 1.0), pays(0.9, 1.1)], ["one process", "one process", "local"]);
    }
}
