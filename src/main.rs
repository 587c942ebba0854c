//! The `tinderbox` program, a thin wrapper around the library.

use std::env;
use std::process::ExitCode;

use libmimalloc_sys::mi_option_t;

/// Training allocates and frees every intermediate tensor, which is much faster with mimalloc than with the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` in mimalloc.h: the milliseconds until freed memory is returned to the system, or -1 for
/// never.
const MI_OPTION_PURGE_DELAY: mi_option_t = 15;

fn main() -> ExitCode {
    leave_out_desktop();
    tinderbox::cli::main(keep_freed_memory)
}

/// Without a desktop, leaves out the layer of Mesa that sorts GPUs by the one that shows the desktop: libwayland would
/// complain on standard error that `XDG_RUNTIME_DIR` is not set. The layer stays if a variable asks for a GPU.
#[allow(unsafe_code)]
fn leave_out_desktop() {
    let names = ["DISPLAY", "DRI_PRIME", "MESA_VK_DEVICE_SELECT", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"];
    if names.iter().all(|name| env::var_os(name).is_none()) {
        // SAFETY: no other thread has started.
        unsafe { env::set_var("NODEVICE_SELECT", "1") }
    }
}

/// Stops mimalloc from returning freed memory to the system. A training step needs the memory that the previous step
/// freed, and getting it back from the system page by page takes up to 5 % of the step.
#[allow(unsafe_code)]
fn keep_freed_memory() {
    // SAFETY: the option exists and may be set at any time. The variable MIMALLOC_PURGE_DELAY takes precedence.
    unsafe { libmimalloc_sys::mi_option_set_default(MI_OPTION_PURGE_DELAY, -1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test runs a second time with the variable set, which shows that the constant is the number of this option.
    #[test]
    #[allow(unsafe_code)]
    fn freed_memory_is_kept_unless_variable_says_otherwise() {
        let wanted = env::var("MIMALLOC_PURGE_DELAY");
        keep_freed_memory();
        // SAFETY: the option exists.
        let delay = unsafe { libmimalloc_sys::mi_option_get(MI_OPTION_PURGE_DELAY) };
        assert_eq!(delay.to_string(), wanted.as_deref().unwrap_or("-1"));
        if wanted.is_err() {
            let mut this = std::process::Command::new(env::current_exe().expect("a path"));
            let status = this.env("MIMALLOC_PURGE_DELAY", "7").status();
            assert!(status.expect("it starts").success());
        }
    }
}
