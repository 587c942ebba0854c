//! Thrift's compact protocol, in which Parquet describes its contents.

use prost::encoding::decode_varint;

/// A problem, which continues a sentence about the file or a row of it.
pub(super) type Result<T> = std::result::Result<T, String>;

/// A file that is not as its format says, at a part of it.
pub(super) fn damaged(part: &str) -> String {
    format!(
        "is damaged, or was cut off: {part}\n  hint: download or write it again; `pandas.read_parquet(FILE)` in Python says \
         whether others can read it"
    )
}

pub(super) enum Value {
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
    /// Numbered fields.
    Struct(Vec<(i64, Value)>),
}

const STRUCT: u8 = 12;

impl Value {
    /// Reads a struct, and leaves what follows it. A damaged one has not many values, and few in each other.
    pub(super) fn read(from: &mut &[u8]) -> Result<Self> {
        Self::of_kind(STRUCT, from, &mut (1 << 20), 32)
    }

    fn of_kind(kind: u8, from: &mut &[u8], n_left: &mut u32, depth: u32) -> Result<Self> {
        let Some((n, depth)) = n_left.checked_sub(1).zip(depth.checked_sub(1)) else {
            return Err(damaged("its description is too long or too deep"));
        };
        *n_left = n;
        Ok(match kind {
            1 | 2 => Self::Int(i64::from(kind == 1)), // true or false
            3 => Self::Int(i64::from(bytes(from, 1)?[0].cast_signed())),
            4..=6 => Self::Int(int(from)?),
            7 => Self::Text(bytes(from, 8)?.to_vec()), // a number, which Parquet has not
            8 => {
                let n = varint(from)?;
                Self::Text(bytes(from, n)?.to_vec())
            }
            9 | 10 => {
                let head = bytes(from, 1)?[0];
                let n = if head >> 4 == 15 { varint(from)? } else { u64::from(head >> 4) };
                let kind = (head & 15).max(3); // bits are bytes in a list
                Self::List((0..n).map(|_| Self::of_kind(kind, from, n_left, depth)).collect::<Result<_>>()?)
            }
            STRUCT => {
                let (mut fields, mut number) = (Vec::new(), 0_i64);
                loop {
                    let head = bytes(from, 1)?[0];
                    if head == 0 {
                        break Self::Struct(fields);
                    }
                    number = if head < 16 { int(from)? } else { number.wrapping_add(i64::from(head >> 4)) };
                    fields.push((number, Self::of_kind(head & 15, from, n_left, depth)?));
                }
            }
            _ => return Err(damaged("its description has a value of no type")),
        })
    }

    pub(super) fn get(&self, number: i64) -> Option<&Self> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|(it, _)| *it == number).map(|(_, value)| value)
    }

    pub(super) fn int(&self, number: i64) -> Option<i64> {
        if let Some(Self::Int(n)) = self.get(number) { Some(*n) } else { None }
    }

    /// A size in a field; 0 if there is none.
    pub(super) fn size(&self, number: i64) -> Result<u64> {
        u64::try_from(self.int(number).unwrap_or(0)).map_err(|_| damaged("a size is below 0"))
    }

    /// The items of a list in a field; none if there is none.
    pub(super) fn list(&self, number: i64) -> &[Self] {
        if let Some(Self::List(items)) = self.get(number) { items } else { &[] }
    }
}

/// A signed number, whose last bit is its sign.
fn int(from: &mut &[u8]) -> Result<i64> {
    varint(from).map(|n| (n >> 1).cast_signed() ^ -(n & 1).cast_signed())
}

pub(super) fn varint(from: &mut &[u8]) -> Result<u64> {
    decode_varint(from).map_err(|_| damaged("a number is cut off"))
}

fn bytes<'a>(from: &mut &'a [u8], n: u64) -> Result<&'a [u8]> {
    let split = usize::try_from(n).ok().and_then(|n| from.split_at_checked(n));
    let (bytes, rest) = split.ok_or_else(|| damaged("its description ends early"))?;
    *from = rest;
    Ok(bytes)
}
