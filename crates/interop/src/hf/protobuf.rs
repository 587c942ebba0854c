//! The wire format of Protocol Buffers: the fields of a message by their numbers, without a schema.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding/>

use std::iter;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// An integer, an enum or a bool. Negative numbers are in two's complement.
    Integer(u64),
    /// A number of four or eight bytes, little-endian.
    Fixed(&'a [u8]),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
}

/// The fields of a message, in its order, each with its number. A malformed field is the last one.
///
/// # Errors
/// Of a malformed field, the offset of its first byte in the message.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, Field<'_>), String>> {
    let mut rest = message;
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let start = message.len() - rest.len();
        let found = field(&mut rest);
        if found.is_none() {
            rest = &[];
        }
        Some(found.ok_or_else(|| format!("the field at byte {start} is malformed or not whole")))
    })
}

/// The next field; `None` if it is malformed. Its tag has its number above three bits for the kind of its value; the
/// kinds 3 and 4 are groups, which nothing writes any more.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = integer(rest)?;
    let value = match tag & 7 {
        0 => Field::Integer(integer(rest)?),
        1 => Field::Fixed(take(rest, 8)?),
        2 => {
            let length = usize::try_from(integer(rest)?).ok()?;
            Field::Bytes(take(rest, length)?)
        }
        5 => Field::Fixed(take(rest, 4)?),
        _ => return None,
    };
    Some((tag >> 3, value)).filter(|(number, _)| *number > 0)
}

/// An integer in groups of seven bits, the lowest first; all bytes but the last have their highest bit set.
fn integer(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_field_is_read() {
        // The first is the example of the format's description: 150 in field 1.
        let message = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 2, b'h', b'i'],
            &[0x1d, 0, 0, 0x80, 0x3f],
            &[0x21, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xc8, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ];
        let message = message.concat();
        let expected = [
            (1, Field::Integer(150)),
            (2, Field::Bytes(b"hi")),
            (3, Field::Fixed(&[0, 0, 0x80, 0x3f])),
            (4, Field::Fixed(&[1, 2, 3, 4, 5, 6, 7, 8])),
            (41, Field::Integer(u64::MAX)), // -1
        ];
        let found: Vec<_> = fields(&message).map(|field| field.expect("it is well-formed")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_malformed_field_is_the_last_one() {
        let long = [0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for malformed in [&[0x08][..], &[0x12, 3, b'h', b'i'], &[0x1d, 0, 0], &[0x0b], &[0x00, 1], &long, &huge] {
            let message = [&[0x08, 1][..], malformed].concat();
            let found: Vec<_> = fields(&message).collect();
            let error = "the field at byte 2 is malformed or not whole".to_owned();
            assert_eq!(found, [Ok((1, Field::Integer(1))), Err(error)], "{malformed:?}");
        }
    }
}
