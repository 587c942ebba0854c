//! The errors of distributed training.

use std::time::Duration;

/// The reason why several processes cannot train together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum DistributedError {
    #[error(
        "the launcher started {0} processes, and this program was built without MPI: it would train {0} copies of the \
         run\n  hint: build it with `cargo build --release --features mpi`, or start it without the launcher"
    )]
    NotCompiled(usize),
    #[error(
        "the launcher started {n_processes} processes, and each would {work}\n  hint: start it without the launcher; \
         only `tinderbox train` shares its work out"
    )]
    NotShared { n_processes: usize, work: &'static str },
    #[error(
        "the launcher started {launched} processes, and MPI finds {found}\n  hint: this program was built with another \
         MPI than the launcher's; `mpirun --version` names that one, and `ldd` on the program its own"
    )]
    OtherMpi { launched: usize, found: usize },
    #[error(
        "this MPI may be called from one thread only\n  hint: use one with MPI_THREAD_SERIALIZED, as the packages of \
         distributions have it"
    )]
    Threads,
    #[error(
        "{this} has another {what} than {first}\n  hint: use the same program, config and text on every machine, with the \
         same arguments"
    )]
    Differs { what: &'static str, this: String, first: String },
    #[error(
        "{0} cannot add up numbers with the other GPUs\n  hint: is NVIDIA's NCCL installed (`libnccl2`)? `--device cuda` \
         trains on one GPU"
    )]
    Cards(String),
    #[error(
        "standard input reaches rank 0 alone\n  hint: save the text in a file that every machine has, and name it as \
         data.path"
    )]
    StandardInput,
    #[error(
        "several ranks train beside a base in f32, which rank 0 sends them\n  hint: --set finetune.base_weights=f32, or \
         train on one device"
    )]
    RoundedBase,
    #[error("rank 0 has ended the run")]
    Ended,
    #[error(
        "{}, so all processes end; the last checkpoint stands\n  hint: look at {}; distributed.timeout_s allows more time",
        hangs(missing, *after), if missing.is_empty() { "the network" } else { "that machine" }
    )]
    Hangs { missing: Vec<String>, after: Duration },
}

fn hangs(missing: &[String], after: Duration) -> String {
    let after = after.as_secs_f64();
    match missing {
        [] => format!("an exchange took longer than {after} s, though every rank answers"),
        names => format!("{} kept the others waiting for {after} s, and did not answer", names.join(" and ")),
    }
}
