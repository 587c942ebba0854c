//! The configs that are shipped with the program, in it.

/// A shipped config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// How it is asked for.
    pub name: &'static str,
    /// What it trains, in a line.
    pub about: &'static str,
    /// The file, byte for byte.
    pub toml: &'static str,
}

/// All of them, the smallest first.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "quickstart",
        about: "a small GPT on the bundled stories, two minutes on two CPU cores",
        toml: include_str!("../../configs/quickstart.toml"),
    },
    Preset {
        name: "shakespeare",
        about: "nanoGPT's published CPU run: 0.8 million parameters on tiny Shakespeare",
        toml: include_str!("../../configs/shakespeare-nanogpt.toml"),
    },
    Preset {
        name: "stories",
        about: "llama2.c's stories15M: 15 million parameters on TinyStories, for a GPU",
        toml: include_str!("../../configs/stories-15m.toml"),
    },
    Preset {
        name: "gpt2",
        about: "GPT-2 small: 124 million parameters, nanoGPT's recipe, for a large GPU",
        toml: include_str!("../../configs/gpt2-124m.toml"),
    },
];

impl Preset {
    /// The preset of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}
