//! The values of a column, one by one, as JSON, with the levels that say where in a record they stand.

use super::page::{DATA_V2, DICTIONARY, Pages};
use super::runs::{Runs, number, part};
use super::schema::{Chunk, Form, Leaf};
use super::thrift::{Result, damaged};

pub(super) struct Column {
    leaf: Leaf,
    chunk: Chunk,
    /// Its dictionary, and where the values of that begin.
    dictionary: Vec<u8>,
    starts: Vec<u32>,
    /// The current page, and the number of its values that are left.
    page: Vec<u8>,
    n_left: u64,
    reps: Runs,
    defs: Runs,
    values: Values,
    /// The levels of the next value, once they were read.
    next: Option<(u32, u32)>,
}

/// The values of a page: the place of the next, in bits, or their numbers in the dictionary.
enum Values {
    Plain(usize),
    Numbers(Runs),
}

impl Column {
    /// The column of a row group, whose start and number of values become those of what was not read.
    pub(super) fn new(leaf: Leaf, chunk: Chunk) -> Self {
        let (dictionary, starts, page, n_left, next) = (Vec::new(), Vec::new(), Vec::new(), 0, None);
        let (reps, defs, values) = (Runs::new(0, 0), Runs::new(0, 0), Values::Plain(0));
        Self { leaf, chunk, dictionary, starts, page, n_left, reps, defs, values, next }
    }

    /// The repetition and the definition level of the next value; `None` if there are no more.
    pub(super) fn levels(&mut self, pages: &mut Pages) -> Result<Option<(u32, u32)>> {
        if self.next.is_none() {
            while self.n_left == 0 {
                if self.chunk.n_values == 0 {
                    return Ok(None);
                }
                self.read_page(pages)?;
            }
            self.n_left -= 1;
            let (rep, def) = (self.reps.next(&self.page)?, self.defs.next(&self.page)?);
            if rep > self.leaf.max_rep || def > self.leaf.max_def {
                return Err(damaged("a value stands deeper than its column"));
            }
            self.next = Some((rep, def));
        }
        Ok(self.next)
    }

    /// Writes the next value, or null.
    pub(super) fn write(&mut self, pages: &mut Pages, json: &mut Vec<u8>) -> Result<()> {
        let levels = self.levels(pages)?;
        let (_, def) = levels.ok_or_else(|| damaged("a column has fewer values than rows"))?;
        self.next = None;
        let form = self.leaf.form;
        match &mut self.values {
            _ if def < self.leaf.max_def => {
                json.extend_from_slice(b"null");
                Ok(())
            }
            Values::Plain(at) if form == Form::Bool => {
                *at += 1;
                write(form, &[u8::from(number(&self.page, *at - 1, 1)? == 1)], json)
            }
            Values::Numbers(numbers) if form == Form::Bool => {
                write(form, &[u8::from(numbers.next(&self.page)? == 1)], json)
            }
            Values::Plain(at) => {
                let value = plain(&self.page, *at / 8, form)?;
                *at += 8 * (value.len() + form.before());
                write(form, value, json)
            }
            Values::Numbers(numbers) => {
                let start = self.starts.get(numbers.next(&self.page)? as usize);
                let start = *start.ok_or_else(|| damaged("a value is not in the dictionary of its column"))?;
                write(form, plain(&self.dictionary, start as usize, form)?, json)
            }
        }
    }

    fn read_page(&mut self, pages: &mut Pages) -> Result<()> {
        pages.held -= std::mem::take(&mut self.page).len();
        let page = pages.read(&mut self.chunk.start, self.chunk.codec)?;
        pages.held += page.bytes.len();
        let Leaf { form, max_rep, max_def } = self.leaf;
        let (bytes, n_values) = (page.bytes, page.n_values);
        if page.kind == DICTIONARY {
            pages.held -= self.dictionary.len();
            (self.dictionary, self.starts) = (bytes, Vec::new());
            let mut at = 0;
            for _ in 0..n_values {
                self.starts.push(u32::try_from(at).unwrap_or(u32::MAX)); // pages have less than 2 GiB
                at += plain(&self.dictionary, at, form)?.len() + form.before();
            }
            return Ok(());
        }
        let mut at = 0;
        let mut levels = |max: u32, len: usize| -> Result<Runs> {
            let mut len = len;
            if page.kind != DATA_V2 && max > 0 {
                (len, at) = (number(&bytes, at * 8, 32)? as usize, at + 4);
            }
            let runs = Runs::new(u32::BITS - max.leading_zeros(), at);
            at += part(&bytes, at, len)?.len();
            Ok(runs)
        };
        (self.reps, self.defs) = (levels(max_rep, page.levels[0])?, levels(max_def, page.levels[1])?);
        self.values = match page.encoding {
            0 => Values::Plain(at * 8),
            _ if at == bytes.len() => Values::Plain(0), // nulls
            2 | 8 => Values::Numbers(Runs::new(u32::from(bytes[at]).min(32), at + 1)),
            3 if form == Form::Bool => Values::Numbers(Runs::new(1, at + 4)), // after their length
            encoding => {
                let names = ["BIT_PACKED", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"];
                let name = usize::try_from(encoding - 4).ok().and_then(|idx| names.get(idx));
                return Err(format!(
                    "has values in the encoding {}\n  hint: `pandas.read_parquet(FILE).to_parquet(FILE)` in Python writes \
                     them in a common one",
                    name.unwrap_or(&"BYTE_STREAM_SPLIT, or a newer one")
                ));
            }
        };
        let n_later = self.chunk.n_values.checked_sub(n_values);
        self.chunk.n_values = n_later.ok_or_else(|| damaged("a page has more values than its column"))?;
        (self.page, self.n_left) = (bytes, n_values);
        Ok(())
    }
}

impl Form {
    /// The bytes before a value, which are its length.
    fn before(self) -> usize {
        if self == Self::Text { 4 } else { 0 }
    }
}

/// The bytes of a value that stands at a place.
fn plain(bytes: &[u8], at: usize, form: Form) -> Result<&[u8]> {
    let len = match form {
        Form::Text => number(bytes, at * 8, 32)? as usize,
        Form::Bool | Form::I32 | Form::U32 | Form::F32 => 4,
        Form::I64 | Form::U64 | Form::F64 => 8,
    };
    part(bytes, at + form.before(), len)
}

/// Writes a value as JSON; a number that JSON has not, as null.
fn write(form: Form, value: &[u8], json: &mut Vec<u8>) -> Result<()> {
    let mut bytes = [0; 8];
    let n = value.len().min(8);
    bytes[..n].copy_from_slice(&value[..n]);
    let int = i64::from_le_bytes(bytes);
    #[allow(clippy::cast_possible_truncation, reason = "the bytes that are there")]
    let written = match form {
        Form::Bool => serde_json::to_writer(json, &(int == 1)),
        Form::I32 => serde_json::to_writer(json, &(int as i32)),
        Form::I64 => serde_json::to_writer(json, &int),
        Form::U32 | Form::U64 => serde_json::to_writer(json, &int.cast_unsigned()),
        Form::F32 => serde_json::to_writer(json, &f64::from(f32::from_bits((int as i32).cast_unsigned()))),
        Form::F64 => serde_json::to_writer(json, &f64::from_bits(int.cast_unsigned())),
        Form::Text => {
            let text = str::from_utf8(value).map_err(|_| damaged("a text is not UTF-8"))?;
            serde_json::to_writer(json, text)
        }
    };
    written.map_err(|error| damaged(&error.to_string()))
}
