//! Model files with changed or missing bytes: they are rejected, or are a different model, but nothing panics, and no
//! number in them makes the program allocate out of proportion to the file.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::interop::{self, ForeignModel, InteropError, Outgoing};

use crate::allocations::most_held;
use crate::damage::{cases, damaged, damages};
use crate::fixtures::{Folder, Model, copy, import};

/// A model in a file to be damaged.
struct Victim {
    folder: Folder,
    /// The file or folder to open.
    path: PathBuf,
    file: PathBuf,
    bytes: Vec<u8>,
    /// The number of bytes before the values: lengths, names and offsets.
    n_header: usize,
}

impl Victim {
    fn gguf() -> Self {
        let folder = Folder::new();
        let outgoing = Outgoing::open(&import(&Model::for_gguf("llama"), &folder)).expect("a run");
        let file = gguf::export(&outgoing, TensorType::F16, &folder.path("it.gguf"), false).expect("written");
        let bytes = fs::read(&file).expect("read");
        let last = b"output_norm.weight";
        let header =
            bytes.windows(last.len()).position(|window| window == last).expect("it is there") + last.len() + 24;
        Self { folder, path: file.clone(), file, bytes, n_header: header }
    }

    fn safetensors() -> Self {
        let folder = Folder::new();
        let model = folder.path("model");
        copy(Model::of("llama").path(), &model);
        let file = model.join("model.safetensors");
        let bytes = fs::read(&file).expect("read");
        let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))).expect("short");
        Self { folder, path: model, file, bytes, n_header: header }
    }

    /// Opens and imports the model with `bytes` as the content of its file.
    fn open(&self, bytes: &[u8]) -> Result<(), InteropError> {
        fs::write(&self.file, bytes).expect("written");
        let (most, opened) = most_held(|| -> Result<(), InteropError> {
            let source = ForeignModel::open(&self.path)?;
            interop::import(&source, "there", &self.folder.path("again"), true).map(drop)
        });
        let allowed = 40 * self.bytes.len() + (1 << 20);
        assert!(most < allowed, "{most} bytes for a file of {}: {opened:?}", bytes.len());
        opened
    }
}

/// Damages the header, or any part of the file.
fn check(victim: &Victim) {
    victim.open(&victim.bytes).expect("it is whole");
    let config = ProptestConfig { failure_persistence: None, ..cases(400) };
    let mut runner = prop::test_runner::TestRunner::new(config);
    let ran = runner.run(&(damages(), prop::bool::weighted(0.9)), |(damages, in_header)| {
        let n = if in_header { victim.n_header } else { victim.bytes.len() };
        let (before, after) = victim.bytes.split_at(n);
        victim.open(&[&damaged(before, &damages)[..], after].concat()).ok();
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn no_damage_of_a_gguf_file_makes_it_panic_or_allocate() {
    check(&Victim::gguf());
}

#[test]
fn no_damage_of_a_safetensors_file_makes_it_panic_or_allocate() {
    check(&Victim::safetensors());
}

/// Gives every setting of a GGUF file invalid values.
#[test]
fn no_setting_of_a_gguf_file_makes_it_panic() {
    let victim = Victim::gguf();
    let prefix = b"llama.";
    let starts = victim.bytes.windows(prefix.len()).enumerate().filter(|(_, window)| window == prefix).map(|it| it.0);
    let settings: Vec<usize> = starts.collect();
    assert!(settings.len() > 8, "{settings:?}");
    for key in settings {
        let length = usize::try_from(u64::from_le_bytes(victim.bytes[key - 8..key].try_into().expect("8 bytes")));
        let end = key + length.expect("short");
        let name = String::from_utf8_lossy(&victim.bytes[key..end]);
        let value = end + 4; // after its type
        for new in [0_u32, 1, 3, u32::MAX, f32::NAN.to_bits(), f32::INFINITY.to_bits(), (-1.0_f32).to_bits()] {
            let mut bytes = victim.bytes.clone();
            bytes[value..value + 4].copy_from_slice(&new.to_le_bytes());
            match victim.open(&bytes) {
                // `llama.vocab_size` is ignored: the rows of the embedding determine it.
                Ok(()) => assert!(new != u32::MAX || name == "llama.vocab_size", "{name}"),
                Err(error) => assert!(error.to_string().contains("it.gguf"), "{name}: {error}"),
            }
        }
    }
}
