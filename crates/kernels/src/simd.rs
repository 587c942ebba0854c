//! The SIMD level: the instructions that the operations of this crate use.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::fmt;
use std::sync::OnceLock;

use pulp::{Arch, Scalar128b, WithSimd};

/// The environment variable that sets the level. Burn's own operations choose their instructions themselves.
const VARIABLE: &str = "TINDERBOX_SIMD";

/// An instruction set. On a CPU with fused multiply-adds, products of f32 have the same bytes at every level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SimdLevel {
    /// No SIMD instructions. Multiply-adds are fused if the CPU can do that.
    Scalar,
    /// Aarch64, 128 bits.
    Neon,
    /// AVX2 with FMA, 256 bits.
    Avx2,
    /// AVX-512 (F, BW, CD, DQ and VL), 512 bits.
    Avx512,
    /// AVX-512 and, for products in bfloat16, AMX.
    Amx,
}

/// `TINDERBOX_SIMD` is not the name of a level that this CPU has.
#[derive(Clone, Debug)]
pub struct SimdError(String);

impl fmt::Display for SimdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = SimdLevel::available().map(SimdLevel::name).collect();
        let problem = match SimdLevel::ALL.iter().any(|level| level.name() == self.0) {
            true => "this CPU does not have these instructions",
            false => "there is no such level",
        };
        write!(f, "{VARIABLE}={}: {problem}\n  hint: this CPU has {}", self.0, names.join(", "))?;
        write!(f, "; without the variable it uses {}", SimdLevel::best().name())
    }
}

impl std::error::Error for SimdError {}

impl SimdLevel {
    const ALL: [Self; 5] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512, Self::Amx];

    /// The level that this process uses: the one that `TINDERBOX_SIMD` names, or else the best that the CPU has.
    ///
    /// # Errors
    /// If the variable is not the name of a level that this CPU has. A program should ask before it computes anything:
    /// every operation of this crate would panic.
    pub fn current() -> Result<Self, SimdError> {
        static CURRENT: OnceLock<Result<SimdLevel, SimdError>> = OnceLock::new();
        let chosen = || match std::env::var_os(VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => Self::named(&name.to_string_lossy()),
        };
        CURRENT.get_or_init(chosen).clone()
    }

    /// The levels that this CPU has, from the slowest to the fastest.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.instructions().is_some())
    }

    /// The name in `TINDERBOX_SIMD`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    fn best() -> Self {
        Self::available().last().expect("every CPU has the scalar level")
    }

    fn named(name: &str) -> Result<Self, SimdError> {
        Self::available().find(|level| level.name() == name).ok_or_else(|| SimdError(name.to_owned()))
    }

    /// `None` if this CPU does not have them.
    fn instructions(self) -> Option<Instructions> {
        let arch = match self {
            Self::Scalar if has_fma() => return Some(Instructions::Fused),
            Self::Scalar => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "x86_64")]
            Self::Amx if is_x86_feature_detected!("avx512bf16") && has_amx() => return Self::Avx512.instructions(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Some(Arch::new()).filter(|arch| !matches!(arch, Arch::Scalar)),
            _ => None,
        };
        arch.map(Instructions::Simd)
    }

    /// Runs an operation with the instructions of this level, which the CPU must have.
    #[cfg(test)]
    pub(crate) fn dispatch<O: WithSimd>(self, operation: O) -> O::Output {
        self.instructions().expect("the CPU has the level").dispatch(operation)
    }
}

/// Runs an operation with the instructions of the current level.
pub(crate) fn dispatch<O: WithSimd>(operation: O) -> O::Output {
    static CURRENT: OnceLock<Instructions> = OnceLock::new();
    let current = CURRENT.get_or_init(|| match SimdLevel::current() {
        Ok(level) => level.instructions().expect("the CPU has the level"),
        Err(error) => panic!("{error}"),
    });
    current.dispatch(operation)
}

#[derive(Clone, Copy)]
enum Instructions {
    /// Those of a SIMD level; or none, on a CPU without fused multiply-adds.
    Simd(Arch),
    /// Scalar fused multiply-adds. Only for a CPU that has them.
    Fused,
}

impl Instructions {
    #[inline(always)]
    fn dispatch<O: WithSimd>(self, operation: O) -> O::Output {
        match self {
            Self::Simd(arch) => arch.dispatch(operation),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has the instructions.
            Self::Fused => unsafe { fused(operation) },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Fused => operation.with_simd(Scalar128b),
        }
    }
}

/// Whether the CPU has the matrix unit with arithmetic for bfloat16, and the system lets this process use it.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let has_unit = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES;
    has_unit && is_permitted()
}

/// Asks the system for the permission, which holds for all threads of the process.
///
/// Source: Linux, Documentation/arch/x86/xstate.rst
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_permitted() -> bool {
    use std::arch::asm;
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: isize = 0x1023;
    const XFEATURE_XTILEDATA: isize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call changes nothing but the permission, and an older system answers with an error.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn is_permitted() -> bool {
    false
}

/// Whether the CPU has scalar fused multiply-adds.
fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

/// Compiled for CPUs with fused multiply-adds. The level has arrays of four scalars, because [`pulp::Scalar`] does not
/// fuse.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
fn fused<O: WithSimd>(operation: O) -> O::Output {
    operation.with_simd(Scalar128b)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Repeats the tests of this crate, which compare fused operations with references, at each other level of this
    /// CPU, in a process of its own.
    #[test]
    fn tests_pass_at_every_level() {
        if std::env::var_os(VARIABLE).is_some() {
            return;
        }
        for level in SimdLevel::available().filter(|level| *level != SimdLevel::best()) {
            let mut this = Command::new(std::env::current_exe().expect("the system knows the test binary"));
            let out = this.env(VARIABLE, level.name()).output().expect("the test binary starts");
            assert!(out.status.success(), "{}:\n{}", level.name(), String::from_utf8_lossy(&out.stdout));
        }
    }
}
