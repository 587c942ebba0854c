//! The thread of a model: texts take places as these become free, and each round generates one token of every text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::ApiError;
use super::metrics::Metrics;
use super::score::Score;
use crate::config::GenerateConfig;
use crate::generate::{Batch, ChooseToken, End, LanguageModel, Logits, Sampler, Sequence};
use crate::tokenizer::Tokenizer;

/// A text to be generated.
#[derive(Debug)]
pub(super) struct Sample {
    /// Its index within the request.
    pub(super) idx: usize,
    pub(super) prompt: Arc<[u32]>,
    pub(super) config: Arc<GenerateConfig>,
    /// Its index among the texts of the same prompt and seed.
    pub(super) choice_idx: u64,
    /// Logit biases, by token.
    pub(super) bias: Arc<[(u32, f32)]>,
    /// Whether the tokens of the prompt are scored as well.
    pub(super) scores_prompt: bool,
    /// The number of most probable tokens with each score; `None` for no scores.
    pub(super) n_top: Option<usize>,
    pub(super) deadline: Instant,
    /// Closed once no client waits for the text any more.
    pub(super) events: UnboundedSender<Event>,
}

/// Something that happened to a text.
#[derive(Debug)]
pub(super) struct Event {
    /// The text's index within the request.
    pub(super) idx: usize,
    pub(super) kind: EventKind,
}

#[derive(Debug)]
pub(super) enum EventKind {
    /// Its prompt was read; `n_shared` of its tokens were cached.
    Read { scores: Vec<Score>, n_shared: usize },
    /// A token was generated.
    Token {
        /// The number of characters between the prompt and the token.
        offset: usize,
        /// The text that can now be shown; often empty.
        text: String,
        score: Option<Score>,
    },
    /// It is finished.
    End(End),
    /// It failed.
    Failed(ApiError),
}

/// The queue of texts for a model's thread.
#[derive(Debug)]
pub(super) struct Queue {
    samples: UnboundedSender<Sample>,
    n_waiting: Arc<AtomicUsize>,
    most_waiting: usize,
}

impl Queue {
    /// A queue for `most_waiting` texts, and its receiving end, for [`Scheduler::new`].
    pub(super) fn new(most_waiting: usize) -> (Self, QueueEnd) {
        let (samples, receiver) = unbounded_channel();
        let n_waiting = Arc::new(AtomicUsize::new(0));
        let end = QueueEnd { samples: receiver, n_waiting: n_waiting.clone() };
        (Self { samples, n_waiting, most_waiting }, end)
    }

    /// Queues all of these texts or none.
    pub(super) fn submit(&self, samples: Vec<Sample>) -> Result<(), ApiError> {
        let n = samples.len();
        let add = |n_waiting: usize| Some(n_waiting + n).filter(|sum| *sum <= self.most_waiting);
        self.n_waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(ApiError::busy)?;
        let sent = samples.into_iter().try_for_each(|sample| self.samples.send(sample));
        sent.map_err(|_| stopped())
    }

    /// The number of waiting texts.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting.load(Ordering::Relaxed)
    }

    /// Whether the thread of the model is still running.
    pub(super) fn is_open(&self) -> bool {
        !self.samples.is_closed()
    }
}

/// The thread of a model has ended, which only a bug can cause.
pub(super) fn stopped() -> ApiError {
    ApiError::unavailable("the model has stopped after an internal error; the server has to be started again")
}

/// The receiving end of a [`Queue`].
#[derive(Debug)]
pub(super) struct QueueEnd {
    samples: UnboundedReceiver<Sample>,
    n_waiting: Arc<AtomicUsize>,
}

/// A model, with its active and waiting texts.
#[derive(Debug)]
pub(super) struct Scheduler {
    batch: Batch,
    tokenizer: Tokenizer,
    queue: QueueEnd,
    waiting: VecDeque<Sample>,
    /// The active texts, by place.
    texts: Vec<Option<Text>>,
    metrics: Arc<Metrics>,
}

/// A text with a place.
#[derive(Debug)]
struct Text {
    sample: Sample,
    sequence: Sequence,
    /// Scores of the prompt tokens read so far.
    scores: Vec<Score>,
    was_read: bool,
}

impl Scheduler {
    /// A scheduler with `n_places` places.
    pub(super) fn new(
        model: LanguageModel,
        tokenizer: Tokenizer,
        n_places: usize,
        queue: QueueEnd,
        metrics: Arc<Metrics>,
    ) -> Self {
        let texts = std::iter::repeat_with(|| None).take(n_places).collect();
        Self { batch: Batch::new(model, n_places), tokenizer, queue, waiting: VecDeque::new(), texts, metrics }
    }

    /// Generates until no more texts can be queued.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.drop_abandoned();
            self.admit();
            if self.texts.iter().any(Option::is_some) {
                self.round();
            }
        }
    }

    /// Receives queued texts; waits for them if there is nothing else to do. False once none can follow.
    fn receive(&mut self) -> bool {
        let is_idle = self.waiting.is_empty() && self.texts.iter().all(Option::is_none);
        if is_idle {
            match self.queue.samples.blocking_recv() {
                Some(sample) => self.waiting.push_back(sample),
                None => return false,
            }
        }
        while let Ok(sample) = self.queue.samples.try_recv() {
            self.waiting.push_back(sample);
        }
        true
    }

    /// Drops texts that no client waits for any more, or that took too long.
    fn drop_abandoned(&mut self) {
        let now = Instant::now();
        let n_before = self.waiting.len();
        self.waiting.retain(|sample| sample.is_wanted(now));
        self.queue.n_waiting.fetch_sub(n_before - self.waiting.len(), Ordering::Relaxed);
        for place in 0..self.texts.len() {
            if self.texts[place].as_ref().is_some_and(|text| !text.sample.is_wanted(now)) {
                self.leave(place);
            }
        }
    }

    fn leave(&mut self, place: usize) {
        self.texts[place] = None;
        self.batch.leave(place);
        self.metrics.busy_places.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives free places to the longest-waiting texts.
    fn admit(&mut self) {
        while let Some(sample) = self.waiting.front() {
            let logits = if sample.scores_prompt { Logits::Each } else { Logits::Last };
            let Some(place) = self.batch.join(&sample.prompt, logits) else { return };
            let sample = self.waiting.pop_front().expect("it was looked at");
            self.queue.n_waiting.fetch_sub(1, Ordering::Relaxed);
            self.metrics.busy_places.fetch_add(1, Ordering::Relaxed);
            self.texts[place] = Some(Text::new(sample, &self.tokenizer));
        }
    }

    /// Reads the tokens generated last, and part of the prompts; then generates a token of every text that was read.
    fn round(&mut self) {
        let Self { batch, texts, .. } = self;
        let read = batch.step(|place, logits| {
            let text = texts[place].as_mut().expect("a text has a place");
            text.score_prompt(logits);
        });
        if let Err(error) = read {
            let error = ApiError::failed(format!("the device failed: {error}"));
            self.texts.iter().flatten().for_each(|text| text.sample.send(EventKind::Failed(error.clone())));
            for place in 0..self.texts.len() {
                if self.texts[place].is_some() {
                    self.leave(place);
                }
            }
            return;
        }
        let Self { batch, texts, metrics, .. } = self;
        let read = texts.iter_mut().enumerate().filter_map(|(place, text)| {
            let logits = batch.logits(place)?;
            Some((place, text.as_mut()?, logits, batch.n_shared(place)))
        });
        let write = |(place, text, logits, n_shared): (usize, &mut Text, &[f32], usize)| {
            (place, text.write(logits, n_shared, metrics))
        };
        let mut read: Vec<_> = read.collect();
        let written: Vec<(usize, Option<u32>)> = match read.len() {
            1 => read.pop().map(write).into_iter().collect(),
            _ => read.into_par_iter().map(write).collect(),
        };
        for (place, token) in written {
            match token {
                Some(token) => self.batch.push(place, token),
                None => self.leave(place),
            }
        }
    }
}

impl Sample {
    /// Whether a client still waits for it and its deadline has not passed; reports a passed deadline.
    fn is_wanted(&self, now: Instant) -> bool {
        let is_late = now >= self.deadline;
        if is_late {
            self.send(EventKind::Failed(ApiError::unavailable("the request took longer than the server allows")));
        }
        !is_late && !self.events.is_closed()
    }

    fn send(&self, kind: EventKind) {
        self.events.send(Event { idx: self.idx, kind }).ok(); // a closed receiver is noticed each round
    }
}

impl Text {
    fn new(sample: Sample, tokenizer: &Tokenizer) -> Self {
        let mut sequence = Sequence::new(tokenizer, &sample.config, &sample.prompt, sample.choice_idx);
        if !sample.bias.is_empty() {
            let sampler = Sampler::new(&sample.config, sample.choice_idx).without(tokenizer.gaps());
            sequence.set_sampler(Box::new(Biased { sampler, bias: sample.bias.clone(), logits: Vec::new() }));
        }
        Self { sample, sequence, scores: Vec::new(), was_read: false }
    }

    /// Scores the next prompt token.
    fn score_prompt(&mut self, logits: &[f32]) {
        let Self { sample, scores, .. } = self;
        if scores.is_empty() {
            scores.push(Score::first(sample.prompt[0]));
        }
        if let Some(token) = sample.prompt.get(scores.len()) {
            scores.push(Score::new(logits, *token, sample.n_top.unwrap_or(0)));
        }
    }

    /// Generates a token; `None` if the text is finished.
    fn write(&mut self, logits: &[f32], n_shared: usize, metrics: &Metrics) -> Option<u32> {
        if !self.was_read {
            self.was_read = true;
            metrics.read(self.sample.prompt.len(), n_shared);
            let scores = std::mem::take(&mut self.scores);
            self.sample.send(EventKind::Read { scores, n_shared });
            if self.sequence.is_done() {
                self.sample.send(EventKind::End(End::Length));
                return None;
            }
        }
        let written = match self.sequence.write(logits) {
            Ok(written) => written,
            Err(error) => {
                self.sample.send(EventKind::Failed(ApiError::failed(error.to_string())));
                return None;
            }
        };
        metrics.written_tokens.fetch_add(1, Ordering::Relaxed);
        let score = self.sample.n_top.map(|n_top| Score::new(logits, written.token, n_top));
        let text = String::from_utf8(written.text).expect("whole characters");
        self.sample.send(EventKind::Token { offset: written.offset, text, score });
        if let Some(end) = written.end {
            self.sample.send(EventKind::End(end));
            return None;
        }
        Some(written.token)
    }
}

/// A sampler with biased logits.
#[derive(Debug)]
struct Biased {
    sampler: Sampler,
    bias: Arc<[(u32, f32)]>,
    /// A reusable buffer of biased logits.
    logits: Vec<f32>,
}

impl ChooseToken for Biased {
    fn choose(&mut self, logits: &[f32], text: &[u32]) -> Option<u32> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        for (token, bias) in &*self.bias {
            if let Some(logit) = self.logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        self.sampler.choose(&self.logits, text)
    }
}
