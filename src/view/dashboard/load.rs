//! The load of the machine: its CPU usage and its memory.

use std::time::{Duration, Instant};

use sysinfo::System;

use crate::measure::Machine;

/// The time between two measurements; over a shorter time, shares would fluctuate.
const INTERVAL: Duration = Duration::from_secs(1);

/// The load of the machine over the last [`INTERVAL`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The mean share of all processors in use, from 0 to 1.
    pub(crate) cpu: f64,
    /// The memory of the machine, or of the container.
    pub(crate) memory: Machine,
}

pub(crate) struct Meter {
    system: System,
    read: Instant,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let mut system = System::new();
        system.refresh_cpu_usage(); // shares refer to the time since the last refresh
        Self { system, read: Instant::now() }
    }

    /// The load, if it is time for another measurement and the system reports it.
    pub(crate) fn read(&mut self) -> Option<Load> {
        if self.read.elapsed() < INTERVAL {
            return None;
        }
        self.read = Instant::now();
        self.system.refresh_cpu_usage();
        let cpu = f64::from(self.system.global_cpu_usage()) / 100.0;
        Some(Load { cpu: cpu.clamp(0.0, 1.0), memory: Machine::here()? })
    }
}

impl Load {
    pub(crate) fn used(&self) -> u64 {
        self.memory.total.saturating_sub(self.memory.available)
    }
}
