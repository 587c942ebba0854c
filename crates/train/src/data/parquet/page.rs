//! The pages of a column: their headers, and what they hold, unpacked.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::thrift::{Result, Value, damaged};

/// The bytes in which a header ends; more than enough for the longest values that some have.
const MAX_HEADER_BYTES: u64 = 1 << 16;

/// The file, the bytes that the pages of all columns have, and the most of them.
pub(super) struct Pages {
    pub(super) file: File,
    pub(super) held: usize,
    pub(super) most: usize,
}

/// A page of values, or a dictionary of them.
pub(super) struct Page {
    pub(super) kind: i64,
    pub(super) n_values: u64,
    pub(super) encoding: i64,
    /// The lengths of the levels, if they stand in the header: those of repetition first.
    pub(super) levels: [usize; 2],
    pub(super) bytes: Vec<u8>,
}

pub(super) const DATA: i64 = 0;
pub(super) const DICTIONARY: i64 = 2;
/// One whose levels are not packed.
pub(super) const DATA_V2: i64 = 3;

impl Pages {
    /// Reads the page at a position, which becomes that of the next one.
    pub(super) fn read(&mut self, position: &mut u64, codec: i64) -> Result<Page> {
        let cannot = |error| format!("cannot be read: {error}");
        let mut packed = Vec::new();
        self.file.seek(SeekFrom::Start(*position)).map_err(cannot)?;
        (&self.file).take(MAX_HEADER_BYTES).read_to_end(&mut packed).map_err(cannot)?;
        let mut rest = &packed[..];
        let header = Value::read(&mut rest)?;
        let header_len = packed.len() - rest.len();
        let size = |value: &Value, number| value.size(number).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (len, packed_len) = (size(&header, 2)?, size(&header, 3)?);
        if len.max(packed_len) > self.most.saturating_sub(self.held) {
            let mib = self.most as f64 / f64::from(1 << 20);
            return Err(format!(
                "has pages of more than {mib} MiB at once\n  hint: data.record_limit_mib raises this limit; smaller pages or \
                 row groups need less memory"
            ));
        }
        *position += (header_len + packed_len) as u64;
        packed.drain(..header_len);
        let missing = packed_len.saturating_sub(packed.len()) as u64;
        (&self.file).take(missing).read_to_end(&mut packed).map_err(cannot)?;
        packed.truncate(packed_len);
        if packed.len() < packed_len {
            return Err(damaged("a page ends early"));
        }
        let kind = header.int(1).unwrap_or(-1);
        let numbers = [(DATA, 5), (DICTIONARY, 7), (DATA_V2, 8)].into_iter().find(|(it, _)| *it == kind);
        let about = numbers.and_then(|(_, number)| header.get(number)).ok_or_else(|| damaged("a page of no kind"))?;
        let is_v2 = kind == DATA_V2;
        let levels = if is_v2 { [size(about, 6)?, size(about, 5)?] } else { [0; 2] };
        let n_levels = levels[0].saturating_add(levels[1]);
        if n_levels > len.min(packed_len) {
            return Err(damaged("a page is too short for its levels"));
        }
        let codec = if is_v2 && about.int(7) == Some(0) { 0 } else { codec };
        let values = unpacked(&packed[n_levels..], codec, len - n_levels)?;
        let encoding = about.int(if is_v2 { 4 } else { 2 }).unwrap_or(-1);
        let bytes = [&packed[..n_levels], &values].concat();
        Ok(Page { kind, n_values: about.size(1)?, encoding, levels, bytes })
    }
}

/// What was packed to some bytes, of a length that is known: a page of a few bytes can be packed of billions.
fn unpacked(packed: &[u8], codec: i64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut read = |from: &mut dyn Read| from.take(len as u64 + 1).read_to_end(&mut bytes).is_ok();
    let is_read = match codec {
        _ if len == 0 => true, // nulls have no bytes
        0 => read(&mut &*packed),
        1 if snap::raw::decompress_len(packed).ok() != Some(len) => false,
        1 => snap::raw::Decoder::new().decompress_vec(packed).map(|unpacked| bytes = unpacked).is_ok(),
        2 => read(&mut MultiGzDecoder::new(packed)),
        6 => StreamingDecoder::new(packed).is_ok_and(|mut decoder| read(&mut decoder)),
        _ => {
            let name =
                [(3, "LZO"), (4, "Brotli")].into_iter().find(|(it, _)| *it == codec).map_or("LZ4", |(_, name)| name);
            return Err(format!(
                "is packed with {name}\n  hint: `pandas.read_parquet(FILE).to_parquet(FILE)` in Python packs it with Snappy; \
                 zstd and gzip are read, too"
            ));
        }
    };
    if is_read && bytes.len() == len { Ok(bytes) } else { Err(damaged("a page cannot be unpacked")) }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::bufread::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn pages_are_unpacked_to_the_length_that_their_header_says() {
        let text = b"a page, and again a page, ".repeat(40);
        let mut gzip = Vec::new();
        GzEncoder::new(&text[..], Compression::fast()).read_to_end(&mut gzip).expect("memory can be read");
        let snappy = snap::raw::Encoder::new().compress_vec(&text).expect("it can be packed");
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        for (codec, packed) in [(0, &text), (1, &snappy), (2, &gzip), (6, &zstd)] {
            assert_eq!(unpacked(packed, codec, text.len()).as_ref(), Ok(&text), "{codec}");
            for len in [1, text.len() - 1, text.len() + 1, usize::MAX / 2] {
                assert!(unpacked(packed, codec, len).is_err(), "{codec}: {len}");
            }
            assert!(unpacked(&packed[..packed.len() / 2], codec, text.len()).is_err(), "{codec} cut off");
            assert_eq!(unpacked(b"", codec, 0), Ok(Vec::new()), "{codec}: nothing but nulls");
        }
        for (codec, name) in [(3, "LZO"), (4, "Brotli"), (5, "LZ4"), (7, "LZ4"), (-1, "LZ4")] {
            let error = unpacked(&text, codec, 1).expect_err(name);
            assert!(error.starts_with(&format!("is packed with {name}\n  hint: ")), "{error}");
        }
    }
}
