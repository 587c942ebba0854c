//! The settings that launchers give to the processes they start: how many there are, and which cores they may use.

use std::num::NonZero;

/// Variables with the number of processes: of Open MPI; of MPICH, Intel MPI and Slurm's PMI; of MVAPICH; of `srun`.
const SIZES: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"];

/// How many processes the launcher started; 0 without one.
pub(super) fn n_processes() -> usize {
    n_processes_in(|name| std::env::var(name).ok())
}

fn n_processes_in(variable: impl Fn(&str) -> Option<String>) -> usize {
    SIZES.into_iter().find_map(|name| variable(name)?.parse().ok()).unwrap_or(0)
}

/// The cores that this process may use, as Linux lists them; empty elsewhere.
pub(super) fn allowed_cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim().to_owned()
}

/// Computes on a share of the allowed cores, which are also those of other processes, `n_sharing` in all. A thread more
/// would wait for theirs in each step. `RAYON_NUM_THREADS` takes precedence.
pub(super) fn limit_threads(n_sharing: usize) {
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return;
    }
    let n_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let n_threads = (n_cores / n_sharing.max(1)).max(1);
    // Fails if something was computed before, which then goes on with the threads that it has.
    rayon::ThreadPoolBuilder::new().num_threads(n_threads).build_global().ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launcher_says_how_many_processes_it_started() {
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
