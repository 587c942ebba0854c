//! Records for fine-tuning, such as conversations, as tokens; only some of them count in the loss.
//!
//! `record` parses a line, `render` makes tokens of it, and `examples` draws batches.

mod examples;
mod record;
mod render;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

pub use self::examples::Examples;
use self::record::Record;
use self::render::Renderer;
use super::source::TextSource;
use super::{DataError, Tokens};
use crate::config::{Config, DataConfig, ModelConfig};
use tinderbox_model::tokenizer::Tokenizer;

/// A record as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Whether each token counts in the loss.
    pub counts: Vec<bool>,
    /// The number of tokens that were cut off at its end.
    pub n_cut: usize,
    /// The worse answer to the same question, if this is the better one of a preference.
    pub rejected: Option<Box<Example>>,
}

impl Example {
    /// Truncates to this many tokens, both answers of a preference.
    fn cut(&mut self, max_tokens: usize) {
        self.n_cut = self.ids.len().saturating_sub(max_tokens);
        self.ids.truncate(max_tokens);
        self.counts.truncate(max_tokens);
        self.rejected.iter_mut().for_each(|rejected| rejected.cut(max_tokens));
    }

    /// The number of tokens that count and have others before them.
    pub fn n_counted(&self) -> usize {
        self.counts.iter().skip(1).filter(|counts| **counts).count()
    }
}

/// The largest fraction of records that may be skipped.
const MAX_SKIPPED: f64 = 0.1;

/// A summary of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Records {
    /// Records that are trained on or evaluated.
    pub used: usize,
    /// The rows of the training records: as many as records, or fewer if packed.
    pub rows: usize,
    /// Records without a token that counts: the answer is empty or beyond the longest length.
    pub skipped: usize,
    /// Records that were cut at the longest length.
    pub cut: usize,
    /// Tokens of the used records.
    pub tokens: u64,
    /// Those that count in the loss.
    pub counted_tokens: u64,
    /// The tokens of the longest record, before it was cut.
    pub longest: usize,
    /// Whether they are preferences; the token counts are then those of the chosen answers.
    pub preferences: bool,
    /// The number of records whose answer ends with a token that does not stop the model, and this token of the first of
    /// them; `None` if there are none.
    pub endless: Option<(usize, u32)>,
}

/// The records of both splits.
#[derive(Debug, Clone)]
pub struct SplitRecords {
    /// Those that are trained on.
    pub train: Examples,
    /// Those that are kept for validation.
    pub val: Examples,
    /// A summary of the records.
    pub summary: Records,
}

/// The number of validation records out of `n`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a number of records")]
pub(crate) fn n_held_out(n: usize, val_fraction: f64) -> usize {
    ((val_fraction * n as f64).round() as usize).max(1)
}

/// Reads the records of a config, and the SHA-256 of all lines. Its seed decides which are for validation.
pub(super) fn open(config: &Config, tokenizer: &Tokenizer) -> Result<(SplitRecords, [u8; 32]), DataError> {
    let Config { data, finetune, train, model, .. } = config;
    let max_tokens = max_tokens(finetune.max_tokens, model);
    let mut reading = ReadRecords::new(config, tokenizer, max_tokens)?;
    let configs = data.all_sources();
    for source in &TextSource::find_all(&configs)? {
        reading.read(source)?;
    }
    let (examples, summary, sha256) = reading.finish(&configs[0].path)?;
    if examples.len() < 2 {
        return Err(DataError::TooFewRecords { path: configs[0].path.clone(), n: examples.len() });
    }
    // Both splits keep their order.
    let mut random = ChaCha8Rng::seed_from_u64(train.seed);
    let mut order: Vec<(u64, usize)> = (0..examples.len()).map(|idx| (random.next_u64(), idx)).collect();
    order.sort_unstable();
    let n_val = n_held_out(examples.len(), data.val_fraction);
    let held: BTreeSet<usize> = order.iter().take(n_val).map(|(_, idx)| *idx).collect();
    let (val, train_examples): (Vec<_>, Vec<_>) =
        examples.into_iter().enumerate().partition(|(idx, _)| held.contains(idx));
    let [train, val] = [train_examples, val].map(|examples| {
        let examples = examples.into_iter().map(|(_, example)| example);
        Examples::new(examples.collect(), train.batch_size)
    });
    let train = if finetune.packing { train.packed(max_tokens) } else { train };
    let summary = Records { rows: train.n_filled_rows(), ..summary };
    Ok((SplitRecords { train, val, summary }, sha256))
}

/// All records of a file or folder, of at most `max_tokens` tokens and at most a context.
pub fn open_records(
    path: &Path,
    max_tokens: usize,
    config: &Config,
    tokenizer: &Tokenizer,
) -> Result<(Examples, Records), DataError> {
    let data = DataConfig { path: path.to_owned(), sources: Vec::new(), ..config.data.clone() };
    let max_tokens = self::max_tokens(max_tokens, &config.model);
    let mut reading = ReadRecords::new(config, tokenizer, max_tokens)?;
    reading.read(&TextSource::find(&data.all_sources()[0])?)?;
    let (examples, records, _) = reading.finish(path)?;
    let examples = Examples::new(examples, 1);
    let examples = if config.finetune.packing { examples.packed(max_tokens) } else { examples };
    let rows = examples.n_filled_rows();
    Ok((examples, Records { rows, ..records }))
}

/// The most tokens of a record; the last is only predicted.
fn max_tokens(max_tokens: usize, model: &ModelConfig) -> usize {
    max_tokens.min(model.context_length + 1)
}

struct ReadRecords<'a> {
    renderer: Renderer<'a>,
    max_tokens: usize,
    examples: Vec<Example>,
    records: Records,
    hash: Sha256,
}

impl<'a> ReadRecords<'a> {
    fn new(config: &Config, tokenizer: &'a Tokenizer, max_tokens: usize) -> Result<Self, DataError> {
        let Config { finetune, generate, .. } = config;
        let renderer =
            Renderer::new(tokenizer, finetune.train_on, generate, max_tokens).map_err(DataError::ChatTemplate)?;
        let (examples, records, hash) = (Vec::new(), Records::default(), Sha256::new());
        Ok(Self { renderer, max_tokens, examples, records, hash })
    }

    fn read(&mut self, source: &TextSource) -> Result<(), DataError> {
        for file in &source.files {
            let mut file = source.open(file, true)?;
            while let Some(line) = file.next_record(source.max_record_bytes)? {
                self.hash.update(line);
                let example = Record::parse(line).and_then(|record| self.renderer.render(&record));
                match example {
                    Ok(example) if self.is_other(&example) => {
                        let problem = "is a preference and others are not, or the other way round\n  hint: a run is trained \
                                       on one or the other";
                        return Err(file.in_line(problem.to_owned()));
                    }
                    Ok(example) => self.add(example),
                    Err(problem) => return Err(file.in_line(problem)),
                }
            }
        }
        Ok(())
    }

    /// Whether it differs from earlier records in being a preference.
    fn is_other(&self, example: &Example) -> bool {
        self.examples.first().is_some_and(|first| first.rejected.is_some() != example.rejected.is_some())
    }

    fn add(&mut self, mut example: Example) {
        let records = &mut self.records;
        records.longest = records.longest.max(example.ids.len());
        let endless = self.renderer.endless(&example);
        example.cut(self.max_tokens);
        records.cut += usize::from(example.n_cut > 0);
        let is_empty = example.rejected.as_ref().is_some_and(|rejected| rejected.n_counted() == 0);
        match example.n_counted() {
            0 => records.skipped += 1,
            _ if is_empty => records.skipped += 1,
            n => {
                records.used += 1;
                records.preferences = example.rejected.is_some();
                records.tokens += example.ids.len() as u64;
                records.counted_tokens += n as u64;
                if let Some(token) = endless {
                    records.endless.get_or_insert((0, token)).0 += 1;
                }
                self.examples.push(example);
            }
        }
    }

    fn finish(self, path: &Path) -> Result<(Vec<Example>, Records, [u8; 32]), DataError> {
        let Self { max_tokens, examples, records, hash, .. } = self;
        let path: PathBuf = path.to_owned();
        let n = records.used + records.skipped;
        if n == 0 {
            return Err(DataError::Empty { path });
        }
        if records.skipped as f64 > MAX_SKIPPED * n as f64 {
            return Err(DataError::RecordsSkipped { path, skipped: records.skipped, n, max_tokens });
        }
        Ok((examples, records, hash.finalize().into()))
    }
}

/// The tokens of records one after another, as one text.
pub(super) fn as_text(examples: &Examples, tokenizer: &Tokenizer) -> Tokens {
    let ids: Vec<u32> = examples.iter().flat_map(|example| example.ids.iter().copied()).collect();
    let bytes = tokenizer.decode(&ids).len() as u64;
    Tokens::from_ids(&ids, bytes)
}
