//! Small images as PNG files.
//!
//! Source: W3C 2003, "Portable Network Graphics (PNG) Specification".

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// A square greyscale image of `side * side` pixels, row by row.
///
/// # Panics
/// If the number of pixels is different.
pub(crate) fn grey(side: usize, pixels: &[u8]) -> Vec<u8> {
    assert_eq!(pixels.len(), side * side, "a square");
    let length = u32::try_from(side).expect("an image is smaller than 4 GiB").to_be_bytes();
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let grey_of_8_bits = [8, 0, 0, 0, 0];
    chunk(&mut file, *b"IHDR", &[&length[..], &length, &grey_of_8_bits].concat());
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    for row in pixels.chunks(side) {
        packed.write_all(&[0]).expect("memory takes any bytes"); // the row's filter type: none
        packed.write_all(row).expect("memory takes any bytes");
    }
    chunk(&mut file, *b"IDAT", &packed.finish().expect("memory takes any bytes"));
    chunk(&mut file, *b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend(u32::try_from(data.len()).expect("an image is smaller than 4 GiB").to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let mut crc = Crc::new();
    crc.update(&file[start..]);
    file.extend(crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;

    use super::*;

    #[test]
    fn png_holds_pixels() {
        let file = grey(2, &[0, 85, 170, 255]);
        // The checksum of the empty last chunk, with which every PNG file ends.
        assert!(file.ends_with(b"\0\0\0\0IEND\xae\x42\x60\x82"));
        assert_eq!(file[16..29], [0, 0, 0, 2, 0, 0, 0, 2, 8, 0, 0, 0, 0]);
        let length = u32::from_be_bytes(file[33..37].try_into().expect("chunks have four bytes")) as usize;
        let mut pixels = Vec::new();
        ZlibDecoder::new(&file[41..41 + length]).read_to_end(&mut pixels).expect("the image data is deflated");
        assert_eq!(pixels, [0, 0, 85, 0, 170, 255]);
    }
}
