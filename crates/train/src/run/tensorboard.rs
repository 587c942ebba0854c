//! The event file of `TensorBoard`.
//!
//! A file is a sequence of records: the length of the data (8 bytes), its checksum, the data, and its checksum, all
//! little-endian. The data is a protocol buffer, an `Event`; only the fields in use are declared here.
//!
//! Sources: `tensorboard/compat/proto/{event,summary,tensor}.proto`, and `TensorFlow`'s `core/lib/io/record_writer.h`.

use std::path::PathBuf;

use prost::Message;

use super::layout::{RunDir, TENSORBOARD};
use super::log_file::{LogFile, unix_s};
use super::{RunError, cannot_write};
use tinderbox_model::disk::{create_dir_all, sync_names_beside};

/// The name of the file. `TensorBoard` reads every file with `tfevents` in its name.
pub(super) const EVENTS: &str = "events.out.tfevents.tinderbox";

/// The format version, in the first record of a file.
const FILE_VERSION: &str = "brain.Event:2";

/// Bytes around the data: length and checksum before it, checksum after it.
const HEADER_BYTES: usize = 12;
const FOOTER_BYTES: usize = 4;

/// `DT_STRING` of `types.proto`.
const STRING: i32 = 7;

pub(crate) fn open(run: &RunDir) -> Result<LogFile, RunError> {
    let folder = run.join(TENSORBOARD);
    create_dir_all(&folder).map_err(cannot_write(&folder))?;
    let path = path(run);
    let mut file = LogFile::open(path.clone())?;
    if file.is_empty()? {
        sync_names_beside(&path).map_err(cannot_write(&path))?;
        file.write(&opening(unix_s()))?;
    }
    Ok(file)
}

pub(super) fn path(run: &RunDir) -> PathBuf {
    run.join(TENSORBOARD).join(EVENTS)
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

/// A `Summary.Value`: a number, or a text as a tensor with one string, for the text plugin.
#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Strings>,
    /// An encoded message: see [`TEXT_PLUGIN`].
    #[prost(bytes = "vec", optional, tag = "9")]
    metadata: Option<Vec<u8>>,
}

/// A `TensorProto` of strings.
#[derive(Clone, PartialEq, Message)]
struct Strings {
    #[prost(int32, tag = "1")]
    dtype: i32,
    /// An encoded message: see [`ONE_STRING`].
    #[prost(bytes = "vec", tag = "2")]
    shape: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

/// `TensorShapeProto { dim: [Dim { size: 1 }] }`
const ONE_STRING: [u8; 4] = *b"\x12\x02\x08\x01";

/// `SummaryMetadata { plugin_data: PluginData { plugin_name: "text" } }`
const TEXT_PLUGIN: [u8; 8] = *b"\x0a\x06\x0a\x04text";

fn opening(wall_time: f64) -> Vec<u8> {
    record(&Event { wall_time, file_version: Some(FILE_VERSION.to_owned()), ..Event::default() })
}

/// A record with a number for each tag.
pub(crate) fn scalars(wall_time: f64, step: usize, numbers: &[(impl AsRef<str>, f64)]) -> Vec<u8> {
    let values = numbers.iter().map(|(tag, number)| SummaryValue {
        tag: tag.as_ref().to_owned(),
        #[allow(clippy::cast_possible_truncation, reason = "the format has 32 bits")]
        simple_value: Some(*number as f32),
        ..SummaryValue::default()
    });
    summary(wall_time, step, values.collect())
}

/// A record with a text. `TensorBoard` renders it as Markdown: indented, it is shown verbatim.
pub(crate) fn text(wall_time: f64, step: usize, tag: &str, text: &str) -> Vec<u8> {
    let lines = text.lines().map(|line| format!("    {line}\n"));
    let string_val = vec![lines.collect::<String>().into_bytes()];
    let value = SummaryValue {
        tag: tag.to_owned(),
        tensor: Some(Strings { dtype: STRING, shape: ONE_STRING.to_vec(), string_val }),
        metadata: Some(TEXT_PLUGIN.to_vec()),
        ..SummaryValue::default()
    };
    summary(wall_time, step, vec![value])
}

fn summary(wall_time: f64, step: usize, value: Vec<SummaryValue>) -> Vec<u8> {
    record(&Event {
        wall_time,
        step: i64::try_from(step).unwrap_or(i64::MAX),
        summary: Some(Summary { value }),
        ..Event::default()
    })
}

fn record(event: &Event) -> Vec<u8> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length).to_le_bytes(), &data, &checksum(&data).to_le_bytes()].concat()
}

/// The number of bytes before the first record that is torn or belongs to a step after `step`.
pub(super) fn records_up_to(file: &[u8], step: usize) -> usize {
    let mut at = 0;
    while let Some(data) = first_record(&file[at..])
        && let Ok(event) = Event::decode(data)
        && usize::try_from(event.step).is_ok_and(|at| at <= step)
    {
        at += HEADER_BYTES + data.len() + FOOTER_BYTES;
    }
    at
}

/// The data of the first record of `bytes`; `None` if it is torn.
fn first_record(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (length_checksum, rest) = rest.split_first_chunk::<4>()?;
    if checksum(length).to_le_bytes() != *length_checksum {
        return None;
    }
    let (data, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let (data_checksum, _) = rest.split_first_chunk::<4>()?;
    (checksum(data).to_le_bytes() == *data_checksum).then_some(data)
}

/// CRC-32C, masked as the format asks.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Records written by Python's tensorboard 2.21: `RecordWriter` of the same events.
    const OPENING: &str = "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110";
    const SCALARS: &str = "3700000000000000e7e8ca590900005040fc54d94110ac022a290a110a0a6c6f73732f7472\
        61696e150000c03f0a140a0d6772616469656e745f6e6f726d1500000000ac571a75";
    const TEXT: &str = "4300000000000000b18525a00900008040fc54d94110ac022a350a330a0673616d706c6542\
        1f0807120412020801421520202020546865206361740a202020207361742e0a4a080a060a04746578746c90771e";

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn scalars_at(step: usize) -> Vec<u8> {
        let numbers = [("loss/train", 1.5), ("gradient_norm", 0.0)];
        scalars(1_700_000_001.25, step, &numbers)
    }

    #[test]
    fn records_match_python_writer() {
        assert_eq!(hexadecimal(&opening(1_700_000_000.5)), OPENING);
        assert_eq!(hexadecimal(&scalars_at(300)), SCALARS);
        let sample = text(1_700_000_002.0, 300, "sample", "The cat\nsat.");
        assert_eq!(hexadecimal(&sample), TEXT);
    }

    #[test]
    fn broken_event_file_is_kept_up_to_damage() {
        let whole = [opening(1.0), scalars_at(1)].concat();
        let file = [whole.clone(), scalars_at(2)].concat();
        for at in whole.len()..file.len() {
            assert_eq!(records_up_to(&file[..at], 9), whole.len(), "cut at {at}");
            let mut broken = file.clone();
            broken[at] ^= 1;
            assert_eq!(records_up_to(&broken, 9), whole.len(), "broken at {at}");
        }
    }
}
