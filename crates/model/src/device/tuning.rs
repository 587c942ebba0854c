//! Configures how GPU kernels are tuned: cubecl tries several kernels for each shape, once in a process.

use burn::cubecl::config::autotune::AutotuneLevel;
use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::choice::AdapterKind;

/// Configures the whole process; this must be called before the first kernel, and later calls have no effect. Settings
/// in a `cubecl.toml` or `burn.toml`, or in `CUBECL_AUTOTUNE_LEVEL`, take precedence.
pub(super) fn configure(kind: AdapterKind) {
    let tuned_by_user = std::env::var_os("CUBECL_AUTOTUNE_LEVEL").is_some();
    let config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    CubeClRuntimeConfig::try_set(adjust(config, kind, tuned_by_user));
}

fn adjust(mut config: CubeClRuntimeConfig, kind: AdapterKind, tuned_by_user: bool) -> CubeClRuntimeConfig {
    // On a software adapter the first step consists almost entirely of tuning. `Full` is the only level that does not
    // first measure the adapter's peak speed, and one sample of each candidate is enough: a two-layer toy model starts
    // on lavapipe in 32 s instead of 41 s.
    let untouched = !tuned_by_user && matches!(config.autotune.level, AutotuneLevel::Balanced);
    if kind == AdapterKind::Software && untouched {
        config.autotune.level = AutotuneLevel::Full;
        config.autotune.bench.adaptive = false;
        config.autotune.bench.min_samples = 1;
        config.autotune.bench.max_samples = 1;
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_adapters_tune_briefly_unless_configured() {
        let default = CubeClRuntimeConfig::default;
        let samples = |kind| adjust(default(), kind, false).autotune.bench.samples();
        assert_eq!(samples(AdapterKind::Software), (1, 1));
        assert_eq!(samples(AdapterKind::Discrete), default().autotune.bench.samples());
        let forced = adjust(default(), AdapterKind::Software, true);
        assert!(matches!(forced.autotune.level, AutotuneLevel::Balanced));
        let mut config = default();
        config.autotune.level = AutotuneLevel::Extensive;
        let adjusted = adjust(config, AdapterKind::Software, false);
        assert!(matches!(adjusted.autotune.level, AutotuneLevel::Extensive));
    }
}
