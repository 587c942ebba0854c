//! Records for fine-tuning, such as conversations, as tokens; only some of them count in the loss.
//!
//! `record` parses a line by the names of its `fields`, and `message` the messages in it; `written` finds tokens of the
//! template in them, `render` makes tokens of them, `store` keeps these, and `examples` draws batches.

mod examples;
mod fields;
mod message;
mod record;
mod render;
mod store;
mod written;

use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

pub use self::examples::Examples;
use self::fields::Fields;
use self::render::Renderer;
use self::store::{NewStore, Place, Store};
use self::written::TemplateTokens;
use super::cache::Cache;
use super::reader::{ignore, report};
use super::rows::Rows;
use super::source::TextSource;
use super::texts::shown;
use super::{DataError, OnProgress, Purpose, Reading, Tokens};
use crate::config::{Config, DataConfig, FinetuneConfig, ModelConfig, SyncKind};
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
    /// Conversations that are more than one record, since the chat template writes their earlier turns in another way than
    /// the last.
    pub divided: usize,
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
    /// The number of records whose texts hold special tokens, which the chat template writes, too, and the first of them;
    /// `None` if there are none.
    pub written: Option<(usize, u32)>,
    /// Files and folders that are left out: hidden ones, and those that describe the records.
    pub left_out: Vec<PathBuf>,
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
pub(super) fn open(
    config: &Config,
    tokenizer: &Tokenizer,
    on_progress: OnProgress<'_>,
) -> Result<(SplitRecords, [u8; 32]), DataError> {
    let Config { data, finetune, train, model, .. } = config;
    let max_tokens = max_tokens(finetune.max_tokens, model);
    let configs = data.all_sources();
    let sources = TextSource::find_all(&configs)?.into_iter().map(TextSource::without_descriptions);
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let stored = Stored::open(&sources, config, tokenizer, max_tokens, on_progress)?;
    let Stored { tokens, places, records, sha256 } = stored;
    let lines = places.iter().scan(0, |n_begun, place| {
        *n_begun += usize::from(!place.continues);
        Some(*n_begun - 1)
    });
    let lines: Vec<usize> = lines.collect(); // the line of each record
    let n_lines = lines.last().map_or(0, |last| last + 1);
    if n_lines < 2 {
        return Err(DataError::TooFewRecords { path: configs[0].path.clone(), n: n_lines });
    }
    // Both splits keep their order, and each line is in one of them.
    let mut random = ChaCha8Rng::seed_from_u64(train.seed);
    let mut order: Vec<(u64, usize)> = (0..n_lines).map(|line| (random.next_u64(), line)).collect();
    order.sort_unstable();
    let mut rest = n_held_out(places.len(), data.val_fraction);
    let mut held = vec![false; n_lines];
    for (_, line) in order.into_iter().take(n_lines - 1) {
        held[line] = rest > 0;
        let range = lines.partition_point(|it| *it < line)..lines.partition_point(|it| *it <= line);
        rest = rest.saturating_sub(range.len());
    }
    // A pass ends with a whole batch, unless batches grow or ranks draw their own: then any row may be the only one.
    let has_any_rows = config.schedule.initial_batch_size.is_some() || config.distributed.sync == SyncKind::Local;
    let batch_size = if has_any_rows { 1 } else { train.batch_size };
    let [train, val] = [false, true].map(|is_held| {
        let places = places.iter().zip(&lines).filter(|(_, line)| held[**line] == is_held);
        Examples::new(tokens.clone(), places.map(|(place, _)| *place).collect(), batch_size)
    });
    let train = if finetune.packing { train.packed(max_tokens) } else { train };
    let summary = Records { rows: train.n_filled_rows(), ..records };
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
    let source = TextSource::find(&data.all_sources()[0])?.without_descriptions()?;
    let Stored { tokens, places, records, .. } = Stored::open(&[source], config, tokenizer, max_tokens, &ignore)?;
    let examples = Examples::new(tokens, places, 1);
    let examples = if config.finetune.packing { examples.packed(max_tokens) } else { examples };
    let rows = examples.n_filled_rows();
    Ok((examples, Records { rows, ..records }))
}

/// The most tokens of a record; the last is only predicted.
fn max_tokens(max_tokens: usize, model: &ModelConfig) -> usize {
    max_tokens.min(model.context_length + 1)
}

/// The version of rendering and encoding: files of other versions are not used.
const RULES: &[u8] = concat!("records 3, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();

/// All records, in the cache.
struct Stored {
    tokens: Tokens,
    places: Vec<Place>,
    /// A summary without rows.
    records: Records,
    /// Of all lines.
    sha256: [u8; 32],
}

impl Stored {
    /// Opens the records of at least one source. Their lines are read once for their hash, and again to make tokens of
    /// them, unless the cache has them.
    fn open(
        sources: &[TextSource],
        config: &Config,
        tokenizer: &Tokenizer,
        max_tokens: usize,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let Config { data, finetune, generate, .. } = config;
        let cache = Cache::open(data)?;
        sources.iter().try_for_each(|source| cache.check_apart(source))?;
        let renderer =
            Renderer::new(tokenizer, finetune.train_on, generate, max_tokens).map_err(DataError::ChatTemplate)?;
        // Others may be written with escapes.
        let theirs = finetune.map.iter().filter_map(|pair| pair.split_once('=')).filter(|(_, name)| name.is_ascii());
        let mut unseen: Vec<String> = theirs.map(|(_, name)| serde_json::Value::from(name).to_string()).collect();
        let sha256 = each_record(sources, finetune, Purpose::Scan, on_progress, |_, record| {
            if !unseen.is_empty() {
                let record = String::from_utf8_lossy(record);
                unseen.retain(|name| !record.contains(name.as_str()));
            }
            Ok(Ok(()))
        })?;
        if let Some(name) = unseen.into_iter().next() {
            return Err(DataError::Unmapped { path: sources[0].path.clone(), name });
        }
        let mut key = Sha256::new(); // of everything that determines the tokens, and which of them count
        for part in [RULES, tokenizer.to_json().as_bytes(), tokenizer.config_json().unwrap_or_default().as_bytes()] {
            key.update(Sha256::digest(part));
        }
        key.update(sha256);
        key.update(format!("{:?} {max_tokens} {:?}", finetune.train_on, generate.ends(tokenizer)));
        let text_fields: Vec<&String> = sources.iter().map(|source| &source.text_field).collect();
        key.update(format!("{:?} {:?} {text_fields:?}", finetune.map, finetune.ignored_fields));
        let store = Store { cache: &cache, key: key.finalize().into(), vocab_size: tokenizer.vocab_size() };
        let path = &sources[0].path;
        let found = if let Some(found) = store.open()? {
            found
        } else {
            let (tokens, records) = (TemplateTokens::of(tokenizer), Records::default());
            let mut reading = ReadRecords { tokens, renderer, store: store.create()?, records };
            let template = tokenizer.chat_template();
            let read = |source: &TextSource, record: &[u8]| {
                reading.read(&Fields::new(finetune, &source.text_field, template), record)
            };
            if each_record(sources, finetune, Purpose::Encode, on_progress, read)? != sha256 {
                return Err(DataError::Changed { path: path.clone() });
            }
            reading.store.finish(&reading.records)?;
            store.note(&format!("tokens of the records `{}`", shown(path)));
            store.open()?.ok_or_else(|| DataError::not_as_written(&cache.folder))?
        };
        cache.clean_up();
        let (tokens, places, mut records) = found;
        records.left_out = sources.iter().flat_map(|source| source.hidden.clone()).collect();
        let (skipped, n) = (records.skipped, records.used + records.skipped);
        if n == 0 {
            return Err(DataError::Empty { path: path.clone() });
        }
        if skipped as f64 > MAX_SKIPPED * n as f64 {
            let (path, context_length) = (path.clone(), config.model.context_length);
            return Err(DataError::RecordsSkipped { path, skipped, n, max_tokens, context_length });
        }
        Ok(Self { tokens, places, records, sha256 })
    }
}

/// Takes the records of all files, each with its source, and returns their SHA-256. A problem with one continues a sentence
/// about it.
fn each_record(
    sources: &[TextSource],
    finetune: &FinetuneConfig,
    purpose: Purpose,
    on_progress: OnProgress<'_>,
    mut take: impl FnMut(&TextSource, &[u8]) -> Result<Result<(), String>, DataError>,
) -> Result<[u8; 32], DataError> {
    let mut hash = Sha256::new();
    for source in sources {
        let mut reading = Reading { path: &source.path, purpose, bytes: 0, of: None };
        let fields = Fields::new(finetune, &source.text_field, None);
        for file in &source.files {
            let mut rows = Rows::open(source, file)?;
            while let Some(record) = rows.next(source.max_record_bytes, &|name| fields.reads(name))? {
                hash.update(record);
                reading.bytes += record.len() as u64;
                report(on_progress, &reading)?;
                take(source, record)?.map_err(|problem| rows.problem(problem))?;
            }
        }
    }
    Ok(hash.finalize().into())
}

struct ReadRecords<'a> {
    tokens: TemplateTokens,
    renderer: Renderer<'a>,
    store: NewStore,
    records: Records,
}

impl ReadRecords<'_> {
    fn read(&mut self, fields: &Fields<'_>, record: &[u8]) -> Result<Result<(), String>, DataError> {
        let rendered = fields.record(record).and_then(|record| {
            if let Some(token) = self.tokens.in_record(&record) {
                self.records.written.get_or_insert((0, token)).0 += 1;
            }
            self.renderer.render(&record)
        });
        let mut examples = match rendered {
            Ok(examples) => examples,
            Err(problem) => return Ok(Err(problem)),
        };
        // Of a conversation without its answers that are empty or cut off, the others remain.
        if examples.iter().any(|(example, _)| example.n_counted() > 0) {
            examples.retain(|(example, _)| example.n_counted() > 0);
        } else {
            examples.truncate(1);
        }
        for (idx, (example, endless)) in examples.into_iter().enumerate() {
            if self.records.used > 0 && self.records.preferences != example.rejected.is_some() {
                let problem = "is a preference and others are not, or the other way round\n  hint: a run is trained on one \
                               or the other";
                return Ok(Err(problem.to_owned()));
            }
            self.add(&example, endless, idx > 0)?;
        }
        Ok(Ok(()))
    }

    fn add(&mut self, example: &Example, endless: Option<u32>, continues: bool) -> Result<(), DataError> {
        let records = &mut self.records;
        records.longest = records.longest.max(example.ids.len() + example.n_cut);
        records.cut += usize::from(example.n_cut > 0);
        let is_empty = example.rejected.as_ref().is_some_and(|rejected| rejected.n_counted() == 0);
        if is_empty || example.n_counted() == 0 {
            records.skipped += 1;
            return Ok(());
        }
        records.used += 1;
        records.preferences = example.rejected.is_some();
        if let Some(token) = endless {
            records.endless.get_or_insert((0, token)).0 += 1;
        }
        self.store.add(example, continues)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use serde_json::json;

    use super::super::fixtures::folder;
    use super::*;

    #[test]
    fn records_are_kept_unless_damaged() {
        let record =
            |i: usize| json!({"prompt": format!("is {i}?"), "chosen": "yes ".repeat(i % 5 + 1), "rejected": "no"});
        let lines = (0..40).map(|i| record(i).to_string()).collect::<Vec<_>>().join("\n");
        let folder = folder([("a.jsonl", lines.as_bytes())]);
        let mut config = Config::default();
        config.data.path = folder.path().join("a.jsonl");
        config.data.cache_dir = Some(folder.path().join("cache"));
        let tokenizer = Tokenizer::byte().with_end_of_text();
        let opened = |config: &Config| {
            let (SplitRecords { train, val, summary }, sha256) = open(config, &tokenizer, &ignore).unwrap();
            let all: Vec<Example> = train.iter().chain(val.iter()).collect();
            (all, summary, sha256)
        };
        let kept = || -> Vec<(PathBuf, Vec<u8>)> {
            let files = fs::read_dir(folder.path().join("cache")).unwrap().map(|entry| entry.unwrap().path());
            let tokens = files.filter(|path| path.extension().is_some_and(|it| it == "tokens"));
            tokens.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
        };
        let first = opened(&config);
        assert_eq!((first.0.len(), first.1.used, first.1.preferences), (40, 40, true));
        let example = first.0.iter().find(|example| tokenizer.decode(&example.ids).starts_with("is 7?")).unwrap();
        let answer = |ids: &[u32], counts: &[bool]| {
            let counted = ids.iter().zip(counts).filter(|(_, counts)| **counts).map(|(id, _)| *id);
            tokenizer.decode(&counted.collect::<Vec<_>>())
        };
        assert_eq!(answer(&example.ids, &example.counts), "yes yes yes <|endoftext|>");
        let rejected = example.rejected.as_ref().unwrap();
        assert_eq!(answer(&rejected.ids, &rejected.counts), "no<|endoftext|>");
        assert_eq!(kept().len(), 2);
        for (path, good) in kept() {
            let mut damaged = good.clone();
            *damaged.last_mut().unwrap() ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(opened(&config), first);
            assert_eq!(fs::read(path).unwrap(), good);
        }
        config.finetune.max_tokens = 7;
        let shorter = opened(&config);
        assert!(shorter.0.iter().all(|example| example.ids.len() <= 7) && shorter.1.cut == 40);
        assert_eq!((shorter.2, kept().len()), (first.2, 4), "other tokens of the same lines");
    }

    #[test]
    fn divided_conversations_are_in_one_split() {
        let talk = |i: usize| {
            let message = |role: &str, content: String| json!({"role": role, "content": content});
            let turn = |n: usize| [message("user", format!("{i}?")), message("assistant", format!("yes {n}"))];
            let messages = [turn(1), turn(2), turn(3)].concat();
            json!({"messages": messages})
        };
        let lines = (10..40).map(|i| talk(i).to_string()).collect::<Vec<_>>().join("\n");
        let folder = folder([("a.jsonl", lines.as_bytes())]);
        let mut config = Config::default();
        config.data.path = folder.path().join("a.jsonl");
        config.data.cache_dir = Some(folder.path().join("cache"));
        let template =
            "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{% if not add_generation_prompt %}.{% endif %}";
        let tokenizer = Tokenizer::byte().with_chat_template(template, &["<|end|>"], "<|end|>").unwrap();
        for packing in [false, true, false] {
            config.finetune.packing = packing;
            let (SplitRecords { train, val, summary }, _) = open(&config, &tokenizer, &ignore).unwrap();
            assert_eq!((summary.used, summary.divided, train.n_records(), val.n_records()), (90, 30, 81, 9));
            assert_eq!(train.n_filled_rows() < 81, packing);
            let conversations = |examples: &Examples| -> Vec<String> {
                examples.iter().map(|example| tokenizer.decode(&example.ids[..2])).collect()
            };
            let (train, val) = (conversations(&train), conversations(&val));
            assert!(val.iter().all(|number| !train.contains(number)), "{val:?}");
        }
    }
}
