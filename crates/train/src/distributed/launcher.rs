//! The settings that launchers pass to the processes they start: the number of processes and their allowed cores.

use std::num::NonZero;

/// The environment variables with the number of processes: Open MPI; MPICH, Intel MPI and Slurm's PMI; MVAPICH; `srun`.
const SIZES: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"];

/// The number of processes that the launcher started, or 0 without a launcher.
pub(super) fn n_processes() -> usize {
    n_processes_in(|name| std::env::var(name).ok())
}

fn n_processes_in(variable: impl Fn(&str) -> Option<String>) -> usize {
    SIZES.into_iter().find_map(|name| variable(name)?.parse().ok()).unwrap_or(0)
}

/// The cores that this process may use, in the list format of Linux; empty on other systems.
pub(super) fn allowed_cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim().to_owned()
}

/// Limits this process to its share of the allowed cores, which `n_sharing` processes use in all: with more threads,
/// the processes would compete for cores in each step. `RAYON_NUM_THREADS` takes precedence.
pub(super) fn limit_threads(n_sharing: usize) {
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return;
    }
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let n_threads = (n_cores / n_sharing.max(1)).max(1);
    // This fails if the thread pool has been used before; the pool then keeps its threads.
    rayon::ThreadPoolBuilder::new().num_threads(n_threads).build_global().ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_state_process_count() {
        let with = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> = pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            n_processes_in(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone()))
        };
        assert_eq!(with(&[]), 0);
        assert_eq!(with(&[("OMPI_COMM_WORLD_SIZE", "4")]), 4);
        assert_eq!(with(&[("PMI_SIZE", "3")]), 3);
        assert_eq!(
            with(&[("SLURM_STEP_NUM_TASKS", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]),
            2,
            "mpirun within a Slurm step"
        );
        assert_eq!(with(&[("PMI_SIZE", "many")]), 0);
    }
}
