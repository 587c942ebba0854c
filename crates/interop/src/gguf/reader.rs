//! Reads the numbers and strings of a header, without going beyond the end of the file.

use std::fs::File;
use std::io::{BufReader, Read};

/// The longest tensor name in ggml is 63 bytes; llama.cpp rejects keys longer than this, too.
const MAX_NAME: u64 = 1 << 16;

pub(super) struct Reader {
    from: BufReader<File>,
    at: u64,
    length: u64,
}

impl Reader {
    pub(super) fn new(file: File, length: u64) -> Self {
        Self { from: BufReader::new(file), at: 0, length }
    }

    /// The number of bytes read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn bytes(&mut self, n: u64) -> Result<Vec<u8>, String> {
        let left = self.length - self.at;
        if n > left {
            return Err(format!("{n} bytes should follow at byte {} of {}", self.at, self.length));
        }
        let mut bytes = vec![0; usize::try_from(n).map_err(|error| error.to_string())?];
        self.from.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        self.at += n;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn string(&mut self) -> Result<String, String> {
        let n = self.u64()?;
        let at = self.at;
        String::from_utf8(self.bytes(n)?).map_err(|_| format!("a text at byte {at} is not UTF-8"))
    }

    /// A string of limited length.
    pub(super) fn name(&mut self, what: &str) -> Result<String, String> {
        let name = self.string()?;
        match name.len() as u64 {
            0..=MAX_NAME => Ok(name),
            n => Err(format!("{what} of {n} bytes")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        if N as u64 > self.length - self.at {
            return Err(format!("it ends at byte {}, within its header", self.length));
        }
        self.from.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        self.at += N as u64;
        Ok(bytes)
    }
}
