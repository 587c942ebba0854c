//! Packs the stories, which the program carries so that the quick start needs no checkout.

use std::fs::File;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

const STORIES: &str = "data/stories.txt";

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed={STORIES}");
    let folder = std::env::var_os("OUT_DIR").expect("cargo names the folder");
    let mut packed = GzEncoder::new(File::create(Path::new(&folder).join("stories.txt.gz"))?, Compression::best());
    std::io::copy(&mut File::open(STORIES)?, &mut packed)?;
    packed.finish()?;
    Ok(())
}
