//! The `tinderbox` program. Everything it does is in the library.

use std::process::ExitCode;

/// Training allocates and frees every intermediate tensor, which takes much less time with it than with the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3: after how many milliseconds memory that was freed goes back to the system;
/// never, if negative.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    // A training step needs what the last one freed: to get it back from the system, page by page, takes up to 5 % of
    // the step. Other commands free what they do not need again.
    let command = std::env::args_os().nth(1).unwrap_or_default();
    if ["train", "bench", "plan"].iter().any(|name| command == *name) {
        #[allow(unsafe_code)]
        // SAFETY: the option is one of those there are, and may be set at any time. MIMALLOC_PURGE_DELAY goes before.
        unsafe {
            libmimalloc_sys::mi_option_set_default(PURGE_DELAY, -1);
        }
    }
    tinderbox::cli::main()
}
