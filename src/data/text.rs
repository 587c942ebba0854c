//! The texts that a config names, each found and read once.

use std::fmt::Write as _;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::DataError;
use super::cache::Cache;
use super::divide::Place;
use super::progress::OnProgress;
use super::reader::Needs;
use super::source::{self, Source};
use super::standard_input::{self, Received};
use super::survey::Survey;
use crate::config::{DataConfig, SourceConfig};

/// A text of which it is known what it is.
#[derive(Debug)]
pub(super) struct Text {
    pub source: Source,
    pub survey: Survey,
    /// Where it ends for training and begins for validation.
    pub place: Place,
    /// How often windows are drawn from it, relative to the others.
    pub weight: f64,
    /// Where it is kept, if it came through standard input.
    pub kept: Option<PathBuf>,
    /// It came through standard input, and is gone with this value.
    _received: Option<Received>,
}

/// Where a text of standard input comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum StandardInput<'a> {
    /// It is read now, and kept.
    Keep,
    /// It is read now, and not needed again.
    Once,
    /// It was read before, had this hash, and was kept.
    Kept(&'a str),
}

/// Finds and surveys all texts of a config, in their order.
///
/// # Errors
/// If one cannot be read, is not what the tokenizer needs, or is in another, too, and if `watch` puts an end
/// to it.
pub(super) fn all(
    data: &DataConfig,
    needs: Needs,
    cache: &Cache,
    standard_input: StandardInput<'_>,
    on_progress: OnProgress<'_>,
) -> Result<Vec<Text>, DataError> {
    let configs = data.all_sources();
    if let [config] = &configs[..]
        && standard_input::is_meant(&config.path)
    {
        let text = of_standard_input(config, data, needs, cache, standard_input, on_progress)?;
        return Ok(vec![text]);
    }
    let sources = find(&configs)?;
    sources.iter().try_for_each(|source| cache.check_apart(source))?;
    let texts = sources.into_iter().zip(&configs);
    texts
        .map(|(source, config)| Text::new(source, config.weight, data, needs, on_progress))
        .collect()
}

/// Finds texts that do not come through standard input.
///
/// # Errors
/// If one is not there, or is in another, too.
pub(super) fn find(configs: &[SourceConfig]) -> Result<Vec<Source>, DataError> {
    let sources = configs.iter().map(Source::find);
    let sources: Vec<Source> = sources.collect::<Result<_, _>>()?;
    source::check_apart(&sources)?;
    Ok(sources)
}

fn of_standard_input(
    config: &SourceConfig,
    data: &DataConfig,
    needs: Needs,
    cache: &Cache,
    standard_input: StandardInput<'_>,
    on_progress: OnProgress<'_>,
) -> Result<Text, DataError> {
    let of_file = |file| {
        let source = Source::of_standard_input(config, file);
        Text::new(source, config.weight, data, needs, on_progress)
    };
    match standard_input {
        StandardInput::Kept(text_sha256) => {
            let kept = standard_input::find_kept(cache, text_sha256)?;
            Ok(Text { kept: Some(kept.clone()), ..of_file(&kept)? })
        }
        StandardInput::Keep => {
            let received = Received::all(cache, on_progress)?;
            received.check_format(config)?;
            let mut text = of_file(received.path())?;
            let kept = received.keep(cache, &text_sha256(std::slice::from_ref(&text)))?;
            text.source.files[0].path.clone_from(&kept);
            text.kept = Some(kept);
            Ok(text)
        }
        StandardInput::Once => {
            let received = Received::all(cache, on_progress)?;
            received.check_format(config)?;
            let text = of_file(received.path())?;
            Ok(Text { _received: Some(received), ..text })
        }
    }
}

impl Text {
    fn new(
        source: Source,
        weight: f64,
        data: &DataConfig,
        needs: Needs,
        on_progress: OnProgress<'_>,
    ) -> Result<Self, DataError> {
        let survey = Survey::read(&source, needs, on_progress)?;
        Ok(Self {
            place: Place::of(data.val_fraction, needs.unit, survey.n_units),
            source,
            survey,
            weight,
            kept: None,
            _received: None,
        })
    }
}

/// The hash of a text, in hexadecimal, or of the hashes of several.
pub(super) fn text_sha256(texts: &[Text]) -> String {
    match texts {
        [text] => hexadecimal(&text.survey.hash),
        texts => {
            let mut hash = Sha256::new();
            for text in texts {
                hash.update(text.survey.hash);
            }
            hexadecimal(&hash.finalize())
        }
    }
}

/// Bytes as two digits each.
fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(digits, "{byte:02x}").expect("a string takes all that is written");
    }
    digits
}
