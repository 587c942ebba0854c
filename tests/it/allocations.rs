//! Counts what each thread allocates, to see that writing on allocates nothing, and what training keeps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use burn::tensor::Device;
use tinderbox::inference::{Engine, Precision, Session};

use crate::inference::wide;
use crate::properties::lively;

/// The system's allocator, which counts.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have no counter any more.
        ALLOCATIONS.try_with(|n| n.set(n.get() + 1)).ok();
        add_bytes(layout.size() as isize);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add_bytes(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn add_bytes(n: isize) {
    LIVE_BYTES.try_with(|bytes| bytes.set(bytes.get() + n)).ok();
}

/// Bytes that this thread allocated and did not free, less those that others allocated and it freed.
pub fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

fn allocations() -> usize {
    ALLOCATIONS.get()
}

#[test]
fn allocations_are_counted() {
    let before = (allocations(), live_bytes());
    let held = std::hint::black_box(vec![1_u8; 5]);
    assert_eq!((allocations(), live_bytes()), (before.0 + 1, before.1 + 5));
    drop(held);
    assert_eq!(live_bytes(), before.1);
}

#[test]
fn reading_on_allocates_nothing() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a thread can be started").install(|| {
        for (kind, precision) in (0..3).flat_map(|kind| Precision::ALL.map(|one| (kind, one))) {
            let gpt = lively(&wide(kind), 1, &Device::flex());
            let mut session = Session::new(Arc::new(Engine::new(&gpt, precision)), 3, 150);
            let mut read = || {
                session.clear(1);
                session.read(1, &[2; 140]);
                session.copy(1, 2);
                for _ in 0..9 {
                    session.step(&[None, Some(1), Some(3)]);
                }
            };
            read(); // threads may set up what they keep
            let before = allocations();
            read();
            assert_eq!(allocations() - before, 0, "{precision}");
        }
    });
}
