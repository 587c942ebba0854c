//! The shipped configs, embedded in the program.

use std::path::Path;

use crate::config::Config;

/// A shipped config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name as an argument.
    pub name: &'static str,
    /// The name of its file in `configs/`, without `.toml`; also accepted as an argument.
    pub stem: &'static str,
    /// Its model and text, in a line.
    pub about: &'static str,
    /// The file, byte for byte.
    pub toml: &'static str,
}

/// All of them, the smallest first.
pub const PRESETS: [Preset; 5] = [
    Preset {
        name: "quickstart",
        stem: "quickstart",
        about: "a small GPT on the bundled stories, two minutes on two CPU cores",
        toml: include_str!("../../configs/quickstart.toml"),
    },
    Preset {
        name: "shakespeare",
        stem: "shakespeare-nanogpt",
        about: "nanoGPT's published CPU run: 0.8 million parameters on tiny Shakespeare",
        toml: include_str!("../../configs/shakespeare-nanogpt.toml"),
    },
    Preset {
        name: "shakespeare-gpu",
        stem: "shakespeare-gpu",
        about: "nanoGPT's published GPU run: 10.6 million parameters on tiny Shakespeare",
        toml: include_str!("../../configs/shakespeare-gpu.toml"),
    },
    Preset {
        name: "stories",
        stem: "stories-15m",
        about: "llama2.c's stories15M: 15 million parameters on TinyStories, for a GPU",
        toml: include_str!("../../configs/stories-15m.toml"),
    },
    Preset {
        name: "gpt2",
        stem: "gpt2-124m",
        about: "GPT-2 small: 124 million parameters, nanoGPT's recipe, for a large GPU",
        toml: include_str!("../../configs/gpt2-124m.toml"),
    },
];

impl Preset {
    /// The preset with this name or file name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| [preset.name, preset.stem].contains(&name))
    }

    /// The file, loaded.
    ///
    /// # Panics
    /// Never, but for a bug: the file is shipped.
    #[must_use]
    pub fn config(&self) -> Config {
        Config::from_toml(self.toml, Path::new(self.name), &[]).expect("a shipped config is right")
    }
}
