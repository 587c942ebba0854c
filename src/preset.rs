//! The shipped configs and the text of the quick start, embedded in the program.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::config::Config;

/// A shipped config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name as a command-line argument.
    pub name: &'static str,
    /// The name of its file in `configs/`, without `.toml`; also accepted as an argument.
    pub stem: &'static str,
    /// One line about its model and text.
    pub about: &'static str,
    /// The file, byte for byte.
    pub toml: &'static str,
}

/// A preset from its name, its stem and its description.
macro_rules! preset {
    ($name:literal, $stem:literal, $about:literal) => {{
        let toml = include_str!(concat!("../configs/", $stem, ".toml"));
        Preset { name: $name, stem: $stem, about: $about, toml }
    }};
}

/// All presets, smallest first.
pub const PRESETS: [Preset; 7] = [
    preset!("quickstart", "quickstart", "a small GPT on the bundled stories, two minutes on two CPU cores"),
    preset!(
        "shakespeare-fast",
        "shakespeare-fast",
        "0.4 million parameters on tiny Shakespeare, with a recipe for a minute or two on two CPU cores"
    ),
    preset!(
        "shakespeare-laptop",
        "shakespeare-laptop",
        "0.9 million parameters on tiny Shakespeare, with the same recipe for five minutes"
    ),
    preset!(
        "shakespeare",
        "shakespeare-nanogpt",
        "nanoGPT's published CPU run: 0.8 million parameters on tiny Shakespeare"
    ),
    preset!(
        "shakespeare-gpu",
        "shakespeare-gpu",
        "nanoGPT's published GPU run: 10.6 million parameters on tiny Shakespeare"
    ),
    preset!("stories", "stories-15m", "llama2.c's stories15M: 15 million parameters on TinyStories, for a GPU"),
    preset!("gpt2", "gpt2-124m", "GPT-2 small: 124 million parameters, nanoGPT's recipe, for a large GPU"),
];

impl Preset {
    /// The preset with this name or file name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| [preset.name, preset.stem].contains(&name))
    }

    /// The file, loaded.
    ///
    /// # Panics
    /// Only because of a bug: the file is shipped.
    pub fn config(&self) -> Config {
        Config::from_toml(self.toml, Path::new(self.name), &[]).expect("a shipped config is right")
    }
}

/// The path at which the config of the quick start expects the stories.
pub const STORIES: &str = "data/stories.txt";

/// The stories, byte for byte.
///
/// # Panics
/// Only because of a bug: the build script has packed them.
pub fn stories() -> String {
    let packed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stories.txt.gz"));
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).expect("they were packed from a text");
    text
}
