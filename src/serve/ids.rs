//! Unpredictable ids, and times as OpenAI's API gives them.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// An unpredictable number below 2^63.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(SystemTime::now()) >> 1
}

/// A time in seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
