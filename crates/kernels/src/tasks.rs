//! Running tasks on all cores, and allocating the memory that they fill.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::simd;

/// The elements per task: enough work to be worth waking a core.
pub(crate) const CHUNK: usize = 8 * 1024;

/// Runs every task with the instructions of the current SIMD level, on all cores, or in this thread if the tasks
/// process so few `scalars` that waking the cores would take longer.
pub(crate) fn run<T: WithSimd<Output = ()> + Send>(scalars: usize, tasks: impl Iterator<Item = T>) {
    let run = |task| simd::dispatch(task);
    if scalars <= CHUNK {
        tasks.for_each(run);
    } else {
        tasks.collect::<Vec<_>>().into_par_iter().with_max_len(1).for_each(run);
    }
}

/// Like [`run`], with a task for each item.
///
/// The closure needs `move`, so that it holds its scalars, and `#[inline(always)]`: one that is not inlined is compiled
/// for the baseline CPU and is several times slower.
pub(crate) fn each<T: Send>(scalars: usize, items: impl Iterator<Item = T>, task: impl Fn(T) + Copy + Send) {
    run(scalars, items.map(|item| Each(item, task)));
}

struct Each<T, F>(T, F);

impl<T, F: Fn(T)> WithSimd for Each<T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(item, task) = self;
        task(item);
    }
}

/// Calls `task` with every index below `n`, on all cores under the same condition as [`run`], without allocating.
pub(crate) fn for_each(scalars: usize, n: usize, task: impl Fn(usize) + Sync + Send) {
    if scalars <= CHUNK {
        (0..n).for_each(task);
    } else {
        (0..n).into_par_iter().with_max_len(1).for_each(task);
    }
}

/// Allocates `n` elements without initializing them: zeroing would take a tenth of the time of a matrix product.
pub(crate) fn uninit(n: usize) -> Vec<MaybeUninit<f32>> {
    let mut out = Vec::with_capacity(n);
    // SAFETY: the capacity suffices, and `MaybeUninit` needs no initial value.
    unsafe {
        out.set_len(n);
    }
    out
}

/// Converts a vector of initialized elements to its ordinary type.
///
/// # Safety
/// Every element must have been written.
pub(crate) unsafe fn assume_init(scalars: Vec<MaybeUninit<f32>>) -> Vec<f32> {
    let mut scalars = std::mem::ManuallyDrop::new(scalars);
    let (start, n, capacity) = (scalars.as_mut_ptr(), scalars.len(), scalars.capacity());
    // SAFETY: this is the same allocation, which nothing else frees; `MaybeUninit<T>` has the layout of `T`.
    unsafe { Vec::from_raw_parts(start.cast(), n, capacity) }
}
