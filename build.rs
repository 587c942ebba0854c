//! Packs the stories, which the program carries so that the quick start needs no checkout, and names the build profile.

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
    // `target/PROFILE/build/PACKAGE/out`: cargo's `PROFILE` calls `dist` a debug build.
    let profile = Path::new(&folder).ancestors().nth(3).and_then(Path::file_name).expect("cargo names the folder");
    println!("cargo::rustc-env=TINDERBOX_PROFILE={}", profile.to_string_lossy());
    Ok(())
}
