//! The end of a fine-tuning: the new model compared with its base.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use super::print::{print, print_json};
use super::progress::Progress;
use super::question::Turn;
use crate::config::{DataConfig, GenerateConfig, PositionKind};
use crate::data::{self, BatchSource, Records, Split, Tokens};
use crate::format::{cut_in_the_middle, grouped, without_control};
use crate::generate::{Generator, LanguageModel};
use crate::run::{Answers, BeforeAndAfter, Checkpoint, RunDir, Trained};
use crate::tokenizer::Tokenizer;
use crate::train::evaluate::{self, Loss};
use crate::train::{Interrupter, Summary};

/// The default text that measures forgetting: passages of the project's documentation and stories.
const GENERAL_TEXT: &str = include_str!("../../data/general.txt");
/// The maximum number of held-out records, or of windows of the general text, that both models read.
const MAX_ROWS: usize = 128;
/// The number of questions answered by both models.
const N_QUESTIONS: usize = 3;
/// The maximum length of an answer, in tokens.
const ANSWER_TOKENS: usize = 120;
/// The number of characters of a prompt that are shown.
const SHOWN_OF_PROMPT: usize = 160;

/// The new model compared with its base.
pub(super) struct Compared {
    result: BeforeAndAfter,
    base_sha256: Option<String>,
    records: Records,
}

/// The comparison was interrupted; `--resume` makes it.
#[derive(Debug, thiserror::Error)]
#[error("the comparison was interrupted")]
pub(super) struct Interrupted;

/// Says how far the comparison is, and stops it.
pub(super) struct Watch<'a> {
    pub(super) progress: &'a Progress,
    pub(super) interrupter: &'a Interrupter,
}

impl Watch<'_> {
    /// Reports that a part of the comparison has done some of its work; false if it is to stop.
    fn goes_on(&self, part: &str, done: usize, of: usize) -> bool {
        self.progress.comparing(part, done, of);
        !self.interrupter.should_stop()
    }

    /// The losses of the models on a text.
    fn losses(
        &self,
        part: &str,
        models: [&Trained; 2],
        text: &dyn BatchSource,
        batch_size: usize,
    ) -> anyhow::Result<[Loss; 2]> {
        let loss = |place: usize| {
            let goes_on = |done, of| self.goes_on(part, place * of + done, 2 * of);
            let loss = evaluate::rows_while(&models[place].model, text, batch_size, MAX_ROWS, goes_on)?;
            loss.ok_or_else(|| anyhow::Error::from(Interrupted))
        };
        let losses = [loss(0)?, loss(1)?];
        text.check()?;
        Ok(losses)
    }

    /// The likeliest answer to a prompt.
    fn answer(
        &self,
        model: &LanguageModel,
        tokenizer: &Tokenizer,
        settings: &GenerateConfig,
        prompt: &str,
        n_before: usize,
    ) -> anyhow::Result<String> {
        let mut answer = String::new();
        for (n, piece) in Generator::new(model.clone(), tokenizer, settings, prompt, 0)?.enumerate() {
            let done = n_before * ANSWER_TOKENS + n;
            if !self.goes_on("answers to held-out records", done, 2 * N_QUESTIONS * ANSWER_TOKENS) {
                return Err(Interrupted.into());
            }
            answer.push_str(&piece?);
        }
        Ok(answer)
    }
}

impl Compared {
    /// Measures the run that has ended and its base, and saves the result in the run for its report. Nothing else trains
    /// there meanwhile. The checkpoint `base` is the base if the one that the run names is gone, and
    /// `data` has the records wherever they are.
    ///
    /// # Errors
    /// [`Interrupted`], if it was stopped.
    pub(super) fn new(
        base: &Path,
        data: DataConfig,
        general_text: Option<&Path>,
        summary: &Summary,
        watch: &Watch<'_>,
    ) -> anyhow::Result<Self> {
        let run = RunDir::open(&summary.run_dir)?;
        let lock = RunDir::lock(run.root())?;
        let mut after = Trained::open(run.root(), None)?;
        after.config.data = data;
        let device = after.config.train.device.parse()?;
        let state = Checkpoint::read_state(&after.checkpoint)?;
        let recorded = state.base(&after.checkpoint).filter(|base| base.is_dir()); // or it was moved
        let mut before = Trained::open(recorded.as_deref().unwrap_or(base), Some(&device))?;
        if before.config.model.position == PositionKind::Rope {
            // Records may be longer than what the base was trained on.
            before.model = before.model.with_context_length(after.config.model.context_length);
        }
        let split = after.corpus()?.records.context("a fine-tuning has records")?;
        let batch_size = after.config.train.batch_size;
        let models = [&before, &after];
        let general = general_split(general_text, &after)?;
        let held_out = watch.losses("held-out records", models, &split.val, batch_size)?;
        let general = general.map(|text| watch.losses("a general text", models, &text, batch_size)).transpose()?;
        let (tokenizer, generate) = (after.tokenizer, after.config.generate);
        let (ends, turn) = (generate.ends(&tokenizer), Turn::of(&tokenizer));
        let settings = GenerateConfig {
            temperature: 0.0, // the likeliest answers
            max_new_tokens: ANSWER_TOKENS,
            stop: generate.stop,
            stop_token_ids: generate.stop_token_ids,
            ..GenerateConfig::default()
        };
        let models = [before.model, after.model].map(|model| LanguageModel::from(&model));
        let mut answers = Vec::new();
        for (place, [prompt, expected]) in split.val.questions(N_QUESTIONS).into_iter().enumerate() {
            let expected = expected.split(|id| ends.contains(id)).next().unwrap_or_default();
            let [prompt, expected] = [&*prompt, expected].map(|ids| tokenizer.decode(ids));
            let question = turn.as_ref().map(|turn| turn.question(&prompt).trim().to_owned());
            let answer = |i: usize| watch.answer(&models[i], &tokenizer, &settings, &prompt, 2 * place + i);
            let [before, after] = [answer(0)?, answer(1)?];
            answers.push(Answers { prompt, question, expected, before, after });
        }
        let result = BeforeAndAfter {
            held_out_loss: held_out.map(|loss| loss.nats_per_token),
            general_loss: general.map(|losses| losses.map(|loss| loss.nats_per_token)),
            general_tokens: general.map_or(0, |[loss, _]| loss.tokens as u64),
            answers,
        };
        lock.check()?;
        result.write(&run)?;
        let base_sha256 = state.adapter.map(|adapter| adapter.base_sha256);
        Ok(Self { result, base_sha256, records: split.summary })
    }

    /// Prints the comparison, or with `json` the summary with it; `run` is the base as the user named it.
    pub(super) fn print(&self, run: &Path, json: bool, summary: &Summary) -> anyhow::Result<()> {
        let Self { result, base_sha256, records } = self;
        let BeforeAndAfter { held_out_loss: [before, after], general_loss, general_tokens, answers } = result;
        if json {
            let mut object = serde_json::to_value(summary)?;
            let more = json!({
                "base": run.to_string_lossy(),
                "base_sha256": base_sha256,
                "counted_tokens": records.counted_tokens,
                "skipped_records": records.skipped,
                "base_val_loss": before,
                "tuned_val_loss": after,
                "general_tokens": general_tokens,
                "base_general_loss": general_loss.map(|it| it[0]),
                "general_loss": general_loss.map(|it| it[1]),
            });
            if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
                object.extend(more);
            }
            return print_json(&object);
        }
        print(&format!(
            "{}: loss {before:.4} before, {after:.4} after; {} parameters trained\n",
            if records.preferences { "chosen answers of held-out preferences" } else { "held-out records" },
            grouped(summary.trained_parameters)
        ))?;
        if let Some([before, after]) = general_loss {
            print(&format!(
                "general text: loss {before:.4} before, {after:.4} after ({:+.1} %), on {} tokens\n",
                100.0 * (after / before - 1.0),
                grouped(*general_tokens)
            ))?;
        }
        for compared in answers {
            let question = cut_in_the_middle(&one_line(compared.question()), SHOWN_OF_PROMPT);
            let Answers { expected, before, after, .. } = compared;
            print(&format!("\nquestion  {question}\nexpected  {}\n", one_line(expected)))?;
            print(&format!("before    {}\nafter     {}\n", one_line(before), one_line(after)))?;
        }
        Ok(())
    }
}

/// The text that measures forgetting; `None` if the tokenizer lacks characters of the default one.
fn general_split(path: Option<&Path>, trained: &Trained) -> anyhow::Result<Option<Split>> {
    if let Some(path) = path {
        return Ok(Some(data::open_text(path, &trained.config.data, &trained.tokenizer)?));
    }
    let ids = trained.tokenizer.encode_prompt(GENERAL_TEXT).ok();
    Ok(ids.map(|ids| Split::from(Tokens::from_ids(&ids, GENERAL_TEXT.len() as u64))))
}

fn one_line(text: &str) -> String {
    without_control(&text.trim().replace('\n', " ")).into_owned()
}
