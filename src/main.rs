//! The `tinderbox` program. Everything it does is in the library.

use std::process::ExitCode;

/// Training allocates and frees every intermediate tensor, which is much faster with mimalloc than with the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tinderbox::cli::main(keep_freed_memory)
}

/// Stops mimalloc from returning freed memory to the system. A training step needs what the previous one freed;
/// getting it back from the system page by page takes up to 5 % of the step.
fn keep_freed_memory() {
    /// `mi_option_purge_delay` in mimalloc.h, which the bindings do not name: the delay in milliseconds until freed
    /// memory is returned, or -1 for never.
    const MI_OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    #[allow(unsafe_code)]
    // SAFETY: the option exists, and may be set at any time. The variable MIMALLOC_PURGE_DELAY takes precedence.
    unsafe {
        libmimalloc_sys::mi_option_set_default(MI_OPTION_PURGE_DELAY, -1);
    }
}
