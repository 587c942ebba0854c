//! Measures the time of repeated trials and the memory of the process and the machine.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// The number of rounds in a measurement of time.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Untimed rounds before the measurement; the first one allocates memory and tunes kernels.
    pub warm_up: usize,
    /// The minimum and the maximum number of timed rounds.
    pub rounds: RangeInclusive<usize>,
    /// The time after which no rounds beyond the minimum are started.
    pub enough: Duration,
}

/// The times of rounds, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The median time.
    pub median_ms: f64,
    /// The fastest time, which is least affected by background load.
    pub fastest_ms: f64,
    /// The slowest time.
    pub slowest_ms: f64,
    /// The interquartile range as a share of the median: smaller differences between measurements are noise.
    pub spread: f64,
    /// The number of timed rounds.
    pub rounds: usize,
}

impl Trial {
    /// Times rounds of `once`, which must wait for the device.
    ///
    /// # Errors
    /// The first error of `once`.
    pub fn time<E>(&self, mut once: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
        for _ in 0..self.warm_up {
            once()?;
        }
        let (at_least, at_most) = (*self.rounds.start(), *self.rounds.end());
        let (mut times_ms, began) = (Vec::new(), Instant::now());
        while times_ms.len() < at_least || times_ms.len() < at_most && began.elapsed() < self.enough {
            let began = Instant::now();
            once()?;
            times_ms.push(ms_since(began));
        }
        Ok(Times::from_ms(&times_ms))
    }
}

impl Times {
    /// The statistics of these times, which are in milliseconds.
    pub fn from_ms(times_ms: &[f64]) -> Self {
        let mut sorted = times_ms.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
        let (n, median_ms) = (sorted.len(), median(times_ms));
        let quarter = n / 4;
        Self {
            median_ms,
            fastest_ms: at(0),
            slowest_ms: at(n.saturating_sub(1)),
            spread: (at(n.saturating_sub(1 + quarter)) - at(quarter)) / median_ms.max(f64::MIN_POSITIVE),
            rounds: n,
        }
    }

    /// The rate per second of an event that occurs `n` times per round.
    pub fn per_s(&self, n: f64) -> f64 {
        n * 1e3 / self.median_ms
    }
}

/// Milliseconds since `began`.
pub fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// The median: for an even number of values the upper of the two in the middle, and 0 for an empty slice.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The memory of the machine in bytes, or the container's limits if they are lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The total memory.
    pub total: u64,
    /// The memory available to programs.
    pub available: u64,
}

impl Machine {
    /// The current memory, or `None` if the system does not report it, such as Linux without `/proc`.
    pub fn here() -> Option<Self> {
        let kinds = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
        let system = System::new_with_specifics(kinds);
        let (mut total, mut available) = (system.total_memory(), system.available_memory());
        if let Some(limits) = system.cgroup_limits() {
            total = total.min(limits.total_memory);
            available = available.min(limits.free_memory);
        }
        (total > 0).then_some(Self { total, available })
    }
}

/// The memory of this process in MiB; the peak on systems that report only the peak, and `None` if neither is reported.
pub fn rss_mib() -> Option<f64> {
    if cfg!(target_os = "linux") { status_mib("VmRSS:") } else { peak_rss_mib() }
}

/// The peak memory of this process in MiB, or `None` if the system does not report it.
pub fn peak_rss_mib() -> Option<f64> {
    #[cfg(all(unix, not(target_os = "linux")))]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        let unit = if cfg!(target_os = "macos") { 1.0 } else { 1024.0 }; // macOS reports bytes, other systems KiB
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        Some(usage.max_rss() as f64 * unit / 1_048_576.0)
    }
    #[cfg(not(all(unix, not(target_os = "linux"))))]
    {
        // `getrusage` is not used on Linux: it includes the memory of the program that started this one.
        status_mib("VmHWM:")
    }
}

/// The processor time of this process; `None` if the system does not report it.
pub fn cpu_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        use nix::sys::time::TimeValLike;
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let time = usage.user_time() + usage.system_time();
        time.num_microseconds().try_into().ok().map(Duration::from_micros)
    }
    #[cfg(not(unix))]
    None
}

/// A size in this process's status file, in MiB; `None` on a system without `/proc`.
fn status_mib(key: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_stop_after_enough_time_or_first_error() {
        for (enough, expected) in [(Duration::ZERO, 3), (Duration::MAX, 5)] {
            let trial = Trial { warm_up: 2, rounds: 3..=5, enough };
            let mut n = 0;
            let times = trial.time(|| {
                n += 1;
                Ok::<(), ()>(())
            });
            assert_eq!((n, times.expect("no round fails").rounds), (2 + expected, expected));
            assert_eq!(trial.time(|| Err(())), Err(()));
        }
    }

    #[test]
    fn times_have_median_extremes_and_spread() {
        let times = Times::from_ms(&[3.0, 1.0, 10.0, 2.0, 4.0]);
        let spread = (4.0 - 2.0) / 3.0;
        assert_eq!(times, Times { median_ms: 3.0, fastest_ms: 1.0, slowest_ms: 10.0, spread, rounds: 5 });
        assert!((times.per_s(6.0) - 2000.0).abs() < 1e-9);
        let of_two = Times::from_ms(&[3.0, 6.0]).spread;
        assert!((of_two - 0.5).abs() < 1e-12, "every one of few rounds counts");
        // For an even number of values the median is the upper one.
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
    }

    #[cfg(unix)]
    #[test]
    fn processor_time_grows_with_work() {
        let began = cpu_time().expect("Unix reports it");
        while cpu_time().expect("Unix reports it") == began {}
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_of_process_and_machine_is_reported() {
        let (now, peak) = (rss_mib().expect("Linux reports memory"), peak_rss_mib().expect("Linux reports memory"));
        assert!(now > 1.0 && peak > 1.0, "{now} {peak}");
        let machine = Machine::here().expect("Linux reports memory");
        assert!(machine.total >= machine.available && machine.available > 0);
    }
}
