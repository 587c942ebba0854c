//! Damage to the bytes of a file, for the tests of its readers.

use proptest::prelude::*;
use proptest::sample::Index;

/// A change to some bytes.
#[derive(Clone, Debug)]
pub enum Damage {
    FlipBit(Index, u8),
    /// Overwrites bytes, for instance with a binary number.
    Overwrite(Index, Vec<u8>),
    CutTail(Index),
    CutOut(Index, usize),
    /// Repeats a number of bytes a number of times.
    Repeat(Index, usize, usize),
    /// Swaps two pieces of a given length.
    Swap([Index; 2], usize),
    Insert(Index, Vec<u8>),
    /// Replaces the next decimal number.
    Number(Index, u64),
}

/// A few damages to one file.
pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let at = any::<Index>;
    let numbers = || {
        let sizes = vec![0, 1, 1 << 20, 400_000_000, 1 << 31, 1 << 40, u64::MAX];
        prop_oneof![prop::sample::select(sizes), 0..70_u64, any::<u64>()]
    };
    let binary = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        numbers().prop_map(|number| number.to_le_bytes()[..4].to_vec()),
        numbers().prop_map(|number| number.to_le_bytes().to_vec()),
    ];
    let damage = prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Damage::FlipBit(at, bit)),
        (at(), binary).prop_map(|(at, bytes)| Damage::Overwrite(at, bytes)),
        at().prop_map(Damage::CutTail),
        (at(), 1..200_usize).prop_map(|(at, n)| Damage::CutOut(at, n)),
        (at(), 1..200_usize, 1..50_usize).prop_map(|(at, n, times)| Damage::Repeat(at, n, times)),
        ([at(), at()], 1..200_usize).prop_map(|(both, n)| Damage::Swap(both, n)),
        (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at(), numbers()).prop_map(|(at, number)| Damage::Number(at, number)),
    ];
    prop::collection::vec(damage, 1..6)
}

/// `bytes` after all damages in turn.
pub fn damaged(bytes: &[u8], damages: &[Damage]) -> Vec<u8> {
    damages.iter().fold(bytes.to_vec(), |bytes, damage| if bytes.is_empty() { bytes } else { damage.apply(bytes) })
}

impl Damage {
    /// `bytes` is not empty.
    fn apply(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let n_bytes = bytes.len();
        let piece = |at: &Index, n: usize| at.index(n_bytes)..(at.index(n_bytes) + n).min(n_bytes);
        match self {
            Self::FlipBit(at, bit) => bytes[at.index(n_bytes)] ^= 1 << bit,
            Self::Overwrite(at, new) => {
                bytes[at.index(n_bytes)..].iter_mut().zip(new).for_each(|(old, new)| *old = *new);
            }
            Self::CutTail(at) => bytes.truncate(at.index(n_bytes)),
            Self::CutOut(at, n) => drop(bytes.drain(piece(at, *n))),
            Self::Repeat(at, n, times) => {
                let again = bytes[piece(at, *n)].repeat(*times);
                drop(bytes.splice(at.index(n_bytes)..at.index(n_bytes), again));
            }
            Self::Swap(both, n) => {
                let [one, other] = both.map(|at| at.index(n_bytes));
                let (first, second) = (one.min(other), one.max(other));
                let n = (*n).min(second - first).min(n_bytes - second);
                let (before, after) = bytes.split_at_mut(second);
                before[first..first + n].swap_with_slice(&mut after[..n]);
            }
            Self::Insert(at, new) => drop(bytes.splice(at.index(n_bytes)..at.index(n_bytes), new.clone())),
            Self::Number(at, number) => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let start = (at.index(n_bytes)..n_bytes).find(|at| is_digit(&bytes[*at]));
                if let Some(start) = start {
                    let n = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
                    drop(bytes.splice(start..start + n, number.to_string().into_bytes()));
                }
            }
        }
        bytes
    }
}

/// `whole` with one bit flipped, at each of about `n` evenly spread places, and truncated at as many.
pub fn everywhere(whole: &[u8], n: usize) -> impl Iterator<Item = Vec<u8>> {
    let places = move |length: usize| (0..n.min(length)).map(move |i| i * length / n.min(length));
    let flipped = places(whole.len()).map(|at| {
        let mut flipped = whole.to_vec();
        flipped[at] ^= 1 << (at % 8);
        flipped
    });
    flipped.chain(places(whole.len()).map(|at| whole[..at].to_vec()))
}

/// The number of cases per test; `TINDERBOX_FUZZ_TIMES` multiplies it.
pub fn cases(n: u32) -> ProptestConfig {
    let times: u32 = std::env::var("TINDERBOX_FUZZ_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    ProptestConfig { cases: n * times, ..ProptestConfig::default() }
}
