//! The `tinderbox` program. Everything it does is in the library.

use std::process::ExitCode;

/// Training allocates and frees every intermediate tensor: a plain step falls from 71 to 56 ms with it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3: after how many milliseconds memory that was freed goes back to the system;
/// never, if negative.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    // A step needs what the last one freed. To get it back from the system, page by page, takes 5 % of the step.
    #[allow(unsafe_code)]
    // SAFETY: the option is one of those there are, and may be set at any time.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, -1);
    }
    tinderbox::cli::main()
}
