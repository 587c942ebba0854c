//! The texts of a config, scanned, and their token files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::{Cache, temporary};
use super::chunk::{Half, Needs};
use super::encode::encode;
use super::format_check::check_standard_input;
use super::reader::{OnProgress, Purpose, Reader, Reading, report};
use super::scan::Scan;
use super::source::{TextSource, is_standard_input};
use super::split::Division;
use super::stdin;
use super::tokens::{self, Tokens, Width, Writer};
use crate::config::{DataConfig, ValSplit};
use tinderbox_model::disk::Temporary;
use tinderbox_model::tokenizer::Tokenizer;

#[derive(Debug)]
pub(super) struct ScannedText {
    pub source: TextSource,
    pub scan: Scan,
    pub division: Division,
    /// How often windows are drawn from it, relative to the others.
    pub weight: f64,
    /// The path of the saved text, if it came from standard input.
    pub kept: Option<PathBuf>,
    /// Standard input that is not kept: dropping this removes the file.
    _received: Option<Temporary>,
}

/// The origin of the text of standard input.
#[derive(Debug, Clone, Copy)]
pub(super) enum StandardInput<'a> {
    /// Read now, and kept.
    Keep,
    /// Read now, and not needed again.
    Once,
    /// Read by an earlier run, which kept it under this hash.
    Kept(&'a str),
}

pub(super) struct Opening<'a> {
    pub data: &'a DataConfig,
    pub rule: ValSplit,
    pub seed: u64,
    pub cache: Cache,
    pub on_progress: OnProgress<'a>,
}

impl Opening<'_> {
    /// Finds and scans all texts of the config, in order.
    pub fn texts(&self, needs: Needs, standard_input: StandardInput<'_>) -> Result<Vec<ScannedText>, DataError> {
        let scanned = |source: TextSource, weight: f64| {
            let scan = Scan::read(&source, needs, self.on_progress)?;
            let division = scan.division(self.rule, self.data.val_fraction, self.seed, needs.kind);
            Ok(ScannedText { source, scan, division, weight, kept: None, _received: None })
        };
        let configs = self.data.all_sources();
        let config = &configs[0];
        if configs.len() > 1 || !is_standard_input(&config.path) {
            let sources = TextSource::find_all(&configs)?;
            sources.iter().try_for_each(|source| self.cache.check_apart(source))?;
            return sources
                .into_iter()
                .zip(self.data.weights())
                .map(|(source, weight)| scanned(source, weight))
                .collect();
        }
        if let StandardInput::Kept(text_sha256) = standard_input {
            let path = self.cache.kept_text(text_sha256);
            if !path.is_file() {
                return Err(DataError::NotKept { path });
            }
            let text = scanned(TextSource::of_standard_input(config, &path), 1.0)?;
            return Ok(vec![ScannedText { kept: Some(path), ..text }]);
        }
        let received = stdin::receive(&self.cache, self.on_progress)?;
        let source = TextSource::of_standard_input(config, received.path());
        check_standard_input(&source, config.format)?;
        let mut text = scanned(source, 1.0)?;
        let StandardInput::Keep = standard_input else {
            return Ok(vec![ScannedText { _received: Some(received), ..text }]);
        };
        let kept = self.cache.kept_text(&text_sha256(std::slice::from_ref(&text)));
        received.rename(&kept).map_err(|source| DataError::cache(&kept, source))?;
        text.source.files[0].path.clone_from(&kept);
        Ok(vec![ScannedText { kept: Some(kept), ..text }])
    }

    /// Opens the token file of a text, or writes it first if it is missing, with `first` before all other ids.
    pub fn tokens(
        &self,
        text: &ScannedText,
        tokenizer: &Tokenizer,
        first: Option<u32>,
    ) -> Result<(Tokens, Tokens), DataError> {
        let mut key = Sha256::new(); // of everything that determines the ids and their split
        key.update(Sha256::digest(RULES));
        key.update(text.scan.hash);
        key.update(Sha256::digest(tokenizer.to_json()));
        key.update(self.data.val_fraction.to_le_bytes());
        for id in [tokenizer.end_of_text(), first] {
            key.update(id.unwrap_or(u32::MAX).to_le_bytes());
        }
        if let Division::Documents(held_out) = &text.division {
            key.update(held_out.hash());
        }
        let key = key.finalize().into();
        let width = Width::of_vocabulary(tokenizer.vocab_size());
        let path = self.cache.path(&key, "tokens");
        let checking = |bytes| {
            report(self.on_progress, &Reading { path: &text.source.path, purpose: Purpose::Scan, bytes, of: None })
        };
        if let Some(halves) = tokens::open(&path, &key, width, &checking)? {
            return Ok(halves);
        }
        let fail = |source| DataError::cache(&path, source);
        let mut writer =
            temporary(&self.cache.folder).and_then(|file| Writer::create(file, &path, width)).map_err(fail)?;
        let first: Vec<u32> = first.into_iter().collect();
        writer.write(Half::Val, 0, &width.encode(&first)).map_err(fail)?; // only of texts without splits
        for half in text.division.passes() {
            let reader = Reader::new(&text.source, Needs::of_tokenizer(tokenizer)).divided(&text.division, *half);
            let reader = reader.with_progress(self.on_progress, Purpose::Encode, Some(text.scan.bytes));
            if encode(reader, tokenizer, &mut writer)? != text.scan.hash {
                return Err(DataError::Changed { path: text.source.path.clone() });
            }
        }
        writer.finish(&key).map_err(fail)?;
        let kind = format!("{:?}", tokenizer.kind()).to_lowercase();
        self.cache.note(&path, &format!("{kind} tokens of `{}`", shown(&text.source.path)));
        tokens::open(&path, &key, width, &checking)?.ok_or_else(|| DataError::not_as_written(&path))
    }
}

/// The path of a text from the root of the file system; `-` is standard input.
pub(super) fn shown(path: &Path) -> String {
    let whole = if is_standard_input(path) { None } else { std::path::absolute(path).ok() };
    whole.as_deref().unwrap_or(path).display().to_string()
}

/// The hexadecimal hash of a text, or of the hashes of several texts.
pub(super) fn text_sha256(texts: &[ScannedText]) -> String {
    let hash = match texts {
        [text] => text.scan.hash,
        texts => {
            let mut hash = Sha256::new();
            for text in texts {
                hash.update(text.scan.hash);
            }
            hash.finalize().into()
        }
    };
    hexadecimal(&hash)
}

pub(crate) fn hexadecimal(hash: &[u8; 32]) -> String {
    let mut digits = String::with_capacity(2 * hash.len());
    for byte in hash {
        write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
    }
    digits
}

/// The version of splitting and encoding: token files of other versions are not used.
const RULES: &[u8] = concat!("tokens 1, tinderbox ", env!("CARGO_PKG_VERSION")).as_bytes();
