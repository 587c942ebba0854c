//! A value of GGUF metadata, and its encoding.

use super::reader::Reader;

/// A number type, by its code in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NumberType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl NumberType {
    fn of_code(code: u32) -> Option<Self> {
        use NumberType::{Bool, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, F32, Bool, U64, I64, F64].into_iter().find(|kind| *kind as u32 == code)
    }

    fn n_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// A number of any type, including booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    kind: NumberType,
    /// Its bytes, little-endian, padded with zeros.
    bytes: [u8; 8],
}

impl Number {
    fn new(kind: NumberType, little_endian: &[u8]) -> Self {
        let mut bytes = [0; 8];
        bytes[..kind.n_bytes()].copy_from_slice(little_endian);
        Self { kind, bytes }
    }

    /// The value of an integer; `None` for a float or a boolean.
    #[allow(clippy::cast_possible_truncation, reason = "the bytes above those of its type are zero")]
    pub fn integer(self) -> Option<i128> {
        let bits = u64::from_le_bytes(self.bytes);
        match self.kind {
            NumberType::U8 | NumberType::U16 | NumberType::U32 | NumberType::U64 => Some(bits.into()),
            NumberType::I8 => Some((bits as u8).cast_signed().into()),
            NumberType::I16 => Some((bits as u16).cast_signed().into()),
            NumberType::I32 => Some((bits as u32).cast_signed().into()),
            NumberType::I64 => Some(bits.cast_signed().into()),
            NumberType::F32 | NumberType::F64 | NumberType::Bool => None,
        }
    }

    /// The value of any number; an f32 is read by its shortest decimal form: 1e-6, not 9.99999997e-7.
    pub fn float(self) -> Option<f64> {
        let bits = u64::from_le_bytes(self.bytes);
        match self.kind {
            #[allow(clippy::cast_possible_truncation, reason = "the bytes above those of its type are zero")]
            NumberType::F32 => Some(shortest(f32::from_bits(bits as u32))),
            NumberType::F64 => Some(f64::from_bits(bits)),
            NumberType::Bool => None,
            _ => self.integer().map(|n| n as f64),
        }
    }

    fn bool(self) -> Option<bool> {
        (self.kind == NumberType::Bool).then_some(self.bytes[0] != 0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(Number),
    String(String),
    Array(Array),
}

/// Values of one type, stored as compactly as in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Array {
    Numbers(NumberType, Vec<u8>),
    Strings(Vec<String>),
}

impl Value {
    pub(super) fn u32(number: u32) -> Self {
        Self::Number(Number::new(NumberType::U32, &number.to_le_bytes()))
    }

    /// A number in single precision, as llama.cpp needs it.
    #[allow(clippy::cast_possible_truncation, reason = "to single precision")]
    pub(crate) fn f32(number: f64) -> Self {
        Self::Number(Number::new(NumberType::F32, &(number as f32).to_le_bytes()))
    }

    pub(crate) fn count(n: usize) -> Self {
        Self::u32(u32::try_from(n).expect("counts of a model are below 2^32"))
    }

    pub(crate) fn bool(truth: bool) -> Self {
        Self::Number(Number::new(NumberType::Bool, &[u8::from(truth)]))
    }

    pub(crate) fn string(text: impl Into<String>) -> Self {
        Self::String(text.into())
    }

    pub(super) fn f32s(numbers: &[f32]) -> Self {
        Self::Array(Array::Numbers(NumberType::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
    }

    pub(super) fn i32s(numbers: &[i32]) -> Self {
        Self::Array(Array::Numbers(NumberType::I32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
    }

    pub(super) fn strings(texts: Vec<String>) -> Self {
        Self::Array(Array::Strings(texts))
    }

    pub(super) fn integer(&self) -> Option<i128> {
        if let Self::Number(number) = self { number.integer() } else { None }
    }

    pub(super) fn float(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.float() } else { None }
    }

    pub(super) fn truth(&self) -> Option<bool> {
        if let Self::Number(number) = self { number.bool() } else { None }
    }

    pub(super) fn numbers(&self) -> Option<Vec<Number>> {
        let Self::Array(Array::Numbers(kind, bytes)) = self else { return None };
        Some(bytes.chunks_exact(kind.n_bytes()).map(|bytes| Number::new(*kind, bytes)).collect())
    }

    /// The value for an error message: a number or short string verbatim, otherwise its type.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Number(number) => match (number.bool(), number.integer(), number.float()) {
                (Some(truth), ..) => truth.to_string(),
                (_, Some(integer), _) => integer.to_string(),
                (.., float) => float.unwrap_or(f64::NAN).to_string(),
            },
            Self::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
            Self::Array(Array::Numbers(kind, bytes)) => format!("{} numbers", bytes.len() / kind.n_bytes()),
            Self::Array(Array::Strings(texts)) => format!("{} texts", texts.len()),
        }
    }

    /// Reads a type and a value of that type.
    pub(super) fn read(from: &mut Reader) -> Result<Self, String> {
        match from.u32()? {
            STRING => Ok(Self::String(from.string()?)),
            ARRAY => Ok(Self::Array(Array::read(from)?)),
            code => {
                let kind = NumberType::of_code(code).ok_or_else(|| unknown(code))?;
                Ok(Self::Number(Number::new(kind, &from.bytes(kind.n_bytes() as u64)?)))
            }
        }
    }

    /// Appends the type and the value.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Number(Number { kind, bytes }) => {
                to.extend((*kind as u32).to_le_bytes());
                to.extend(&bytes[..kind.n_bytes()]);
            }
            Self::String(text) => {
                to.extend(STRING.to_le_bytes());
                write_string(text, to);
            }
            Self::Array(array) => {
                to.extend(ARRAY.to_le_bytes());
                array.write(to);
            }
        }
    }
}

impl Array {
    /// Reads a type, a length, and that many values. Memory grows as they are read. Like llama.cpp, it reads no arrays
    /// within arrays.
    fn read(from: &mut Reader) -> Result<Self, String> {
        let (code, n) = (from.u32()?, from.u64()?);
        if code == STRING {
            return (0..n).map(|_| from.string()).collect::<Result<_, _>>().map(Self::Strings);
        }
        let kind = NumberType::of_code(code).ok_or_else(|| unknown(code))?;
        from.bytes(n.saturating_mul(kind.n_bytes() as u64)).map(|bytes| Self::Numbers(kind, bytes))
    }

    fn write(&self, to: &mut Vec<u8>) {
        let mut head = |code: u32, n: usize| {
            to.extend(code.to_le_bytes());
            to.extend((n as u64).to_le_bytes());
        };
        match self {
            Self::Numbers(kind, bytes) => {
                head(*kind as u32, bytes.len() / kind.n_bytes());
                to.extend(bytes);
            }
            Self::Strings(texts) => {
                head(STRING, texts.len());
                for text in texts {
                    write_string(text, to);
                }
            }
        }
    }
}

pub(super) fn write_string(text: &str, to: &mut Vec<u8>) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

fn unknown(code: u32) -> String {
    format!("values of the unknown type {code}")
}

/// The number with the shortest decimal form that is this one in single precision.
pub(super) fn shortest(number: f32) -> f64 {
    number.to_string().parse().expect("a float prints as a number")
}
