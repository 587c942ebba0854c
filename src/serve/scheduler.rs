//! The thread of a model: sequences take slots as these become free, and each round generates one token of each.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::TensorReadError;
use tokio::runtime::{self, Runtime};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::counters::Metrics;
use super::error::ApiError;
use super::score::Score;
use super::unsent::Outbox;
use crate::config::GenerateConfig;
use crate::generate::{Batch, End, GenerateError, Guide, LanguageModel, Logits, Sampler, Sequence};
use crate::tokenizer::Tokenizer;

/// The maximum number of tokens of a prompt read between two tokens of the other sequences (chunked prefill).
const CHUNK: usize = 128;

/// An idle model keeps the keys and values of its last sequences for this time, for requests that continue them.
const KEEP_CACHED: Duration = Duration::from_mins(5);

/// How often a model without active sequences looks whether a client has read.
const PARKED: Duration = Duration::from_millis(10);

/// A guide, with its share of the schemas in flight.
#[derive(Clone, Debug)]
pub(super) struct Guided {
    pub(super) guide: Guide,
    _values: Arc<OwnedSemaphorePermit>,
}

impl Guided {
    pub(super) fn new(guide: Guide, values: OwnedSemaphorePermit) -> Self {
        Self { guide, _values: Arc::new(values) }
    }
}

/// The settings of the sequences of a request.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) config: GenerateConfig,
    /// Logit biases, by token.
    pub(super) bias: Arc<[(u32, f32)]>,
    /// Allows the next tokens; `None` if all are allowed.
    pub(super) guide: Option<Guided>,
    /// Whether the tokens of the prompt are scored as well.
    pub(super) scores_prompt: bool,
    /// The number of most probable tokens with each score; `None` for no scores.
    pub(super) n_top: Option<usize>,
}

pub(super) struct SequenceRequest {
    /// Its index within the request.
    pub(super) idx: usize,
    /// The index of its adapters.
    pub(super) adapters: Option<usize>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) prompt: Arc<[u32]>,
    pub(super) settings: Arc<Settings>,
    /// Its index among the sequences of the same prompt and seed.
    pub(super) sample_idx: u64,
    pub(super) deadline: Instant,
    /// Closed once no client waits for the sequence; shared by the sequences of a request.
    pub(super) events: UnboundedSender<Event>,
    /// Counts the events that are not sent.
    pub(super) outbox: Arc<Outbox>,
}

#[derive(Debug)]
pub(super) struct Event {
    /// The sequence's index within the request.
    pub(super) idx: usize,
    pub(super) kind: EventKind,
}

impl Event {
    /// About the memory that it takes.
    pub(super) fn n_bytes(&self) -> usize {
        let of_score = |score: &Score| size_of_val(score) + size_of_val(&*score.top);
        size_of_val(self)
            + match &self.kind {
                EventKind::Read { scores, .. } => scores.iter().map(of_score).sum(),
                EventKind::Token { text, score, .. } => text.len() + score.as_ref().map_or(0, of_score),
                EventKind::End(_) | EventKind::Failed(_) => 0,
            }
    }
}

#[derive(Debug)]
pub(super) enum EventKind {
    /// Its prompt was read; `n_cached` of its tokens were cached.
    Read {
        scores: Vec<Score>,
        n_cached: usize,
    },
    /// A token was generated.
    Token {
        /// The number of characters between the prompt and the token.
        offset: usize,
        /// The text that can be shown now; may be empty.
        text: String,
        score: Option<Score>,
    },
    End(End),
    Failed(ApiError),
}

/// The queue of sequences for a model's thread.
pub(super) struct Queue {
    requests: UnboundedSender<Vec<SequenceRequest>>,
    load: Arc<Load>,
    max_waiting: usize,
}

#[derive(Default)]
struct Load {
    n_waiting: AtomicUsize,
    busy_slots: AtomicUsize,
    cache_bytes: AtomicUsize,
}

impl Queue {
    /// Queues all sequences of a request or none.
    pub(super) fn submit(&self, request: Vec<SequenceRequest>) -> Result<(), ApiError> {
        let n = request.len();
        let add = |n_waiting: usize| Some(n_waiting + n).filter(|sum| *sum <= self.max_waiting);
        let added = self.load.n_waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|n| ApiError::busy(&format!("{n} completions are waiting to be generated")))?;
        self.requests.send(request).map_err(|_| stopped())
    }

    pub(super) fn n_waiting(&self) -> usize {
        self.load.n_waiting.load(Ordering::Relaxed)
    }

    /// The number of slots in use.
    pub(super) fn n_busy(&self) -> usize {
        self.load.busy_slots.load(Ordering::Relaxed)
    }

    /// The bytes of memory that keys and values take now.
    pub(super) fn cache_bytes(&self) -> usize {
        self.load.cache_bytes.load(Ordering::Relaxed)
    }

    /// Whether the thread of the model is still running.
    pub(super) fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }
}

/// The thread of a model ended without an error, which only a bug can cause.
pub(super) fn stopped() -> ApiError {
    ApiError::unavailable("the model has stopped after an internal error")
}

/// The slots for the sequences that a model generates at once.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Their number. At least 1.
    pub n: usize,
    /// The maximum number of tokens [proposed](Batch::speculating) at once to the only sequence.
    pub speculate: usize,
}

/// A model, with its active and waiting sequences.
pub(super) struct Scheduler {
    model: LanguageModel,
    slots: Slots,
    batch: Batch<Active>,
    tokenizer: Tokenizer,
    requests: UnboundedReceiver<Vec<SequenceRequest>>,
    /// The sequences of each request, in the order in which they came.
    waiting: Vec<VecDeque<SequenceRequest>>,
    /// Sequences whose client has to read first, with the tokens that they continue with.
    parked: Vec<(Active, Vec<u32>)>,
    load: Arc<Load>,
    /// See [`KEEP_CACHED`].
    keep_cached: Duration,
    /// Waits for requests.
    timer: Runtime,
}

/// A sequence with a slot.
struct Active {
    request: SequenceRequest,
    sequence: Sequence,
    /// Scores of the prompt tokens read so far.
    scores: Vec<Score>,
    was_read: bool,
}

impl Scheduler {
    /// A scheduler with these slots, and its queue of up to `max_waiting` sequences.
    pub(super) fn new(
        model: LanguageModel,
        tokenizer: Tokenizer,
        slots: Slots,
        max_waiting: usize,
    ) -> std::io::Result<(Queue, Self)> {
        let timer = runtime::Builder::new_current_thread().enable_time().build()?;
        let (sender, requests) = unbounded_channel();
        let (batch, load) = (empty_batch(&model, slots), Arc::<Load>::default());
        let (waiting, parked) = (Vec::new(), Vec::new());
        let queue = Queue { requests: sender, load: load.clone(), max_waiting };
        let keep_cached = KEEP_CACHED;
        Ok((queue, Self { model, slots, batch, tokenizer, requests, waiting, parked, load, keep_cached, timer }))
    }

    /// Generates until the queue is closed and empty.
    pub(super) fn run(mut self) {
        while self.receive() {
            // A panic is a bug that one sequence met; it must not end the model for later requests.
            let turn = panic::catch_unwind(AssertUnwindSafe(|| self.turn()));
            let error = match turn {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(ApiError::failed(format!("the device failed: {error}"))),
                Err(_) => Some(ApiError::bug()),
            };
            if let Some(error) = error {
                self.batch.sequences().for_each(|active| active.request.send(EventKind::Failed(error.clone())));
                self.batch = empty_batch(&self.model, self.slots); // its cache may be incomplete
            }
            self.load.busy_slots.store(self.batch.len(), Ordering::Relaxed);
            self.load.cache_bytes.store(self.batch.cache_bytes(), Ordering::Relaxed);
        }
    }

    /// Receives queued sequences; waits for them if no sequence is active. False once none can follow.
    fn receive(&mut self) -> bool {
        if self.waiting.is_empty() && self.parked.is_empty() && self.batch.is_empty() {
            let Self { requests, timer, keep_cached, .. } = &mut *self;
            let soon = timer.block_on(async { timeout(*keep_cached, requests.recv()).await });
            let next = soon.unwrap_or_else(|_| {
                self.batch.forget();
                self.load.cache_bytes.store(0, Ordering::Relaxed);
                self.requests.blocking_recv()
            });
            match next {
                Some(request) => self.waiting.push(request.into()),
                None => return false,
            }
        }
        while let Ok(request) = self.requests.try_recv() {
            self.waiting.push(request.into());
        }
        true
    }

    fn turn(&mut self) -> Result<(), TensorReadError> {
        self.drop_abandoned();
        self.admit();
        if self.batch.is_empty() {
            if !self.parked.is_empty() || !self.waiting.is_empty() {
                thread::sleep(PARKED); // until a client has read
            }
            return Ok(());
        }
        // Reads the last tokens and part of the prompts, then generates a token of each fully read sequence.
        let choose = |active: &mut Active, logits: &[f32], n_cached| (active.generate(logits, n_cached), ());
        self.batch.step(Active::score_prompt, choose)?;
        let parked = self.batch.take(|active| active.was_read && active.request.outbox.is_full());
        self.load.n_waiting.fetch_add(parked.len(), Ordering::Relaxed);
        self.parked.extend(parked);
        Ok(())
    }

    /// Drops sequences that no client waits for, or that took too long.
    fn drop_abandoned(&mut self) {
        let now = Instant::now();
        let n_parked = self.parked.len();
        self.parked.retain(|(active, _)| active.request.is_wanted(now));
        let mut n_dropped = n_parked - self.parked.len();
        self.waiting.retain(|request| {
            let is_wanted = request[0].is_wanted(now);
            n_dropped += if is_wanted { 0 } else { request.len() };
            is_wanted
        });
        self.load.n_waiting.fetch_sub(n_dropped, Ordering::Relaxed);
        self.batch.retain(|active| active.request.is_wanted(now));
    }

    fn admit(&mut self) {
        while self.batch.has_free_slot()
            && let Some((active, tokens, logits)) = self.next()
        {
            self.load.n_waiting.fetch_sub(1, Ordering::Relaxed);
            let adapters = active.request.adapters;
            self.batch.join(active, adapters, &tokens, logits);
            self.load.busy_slots.store(self.batch.len(), Ordering::Relaxed);
        }
    }

    /// The next sequence, and the tokens that it joins with: of the request with the fewest slots, and among these of the
    /// one that has waited longest. Requests take turns, however many sequences each has; those whose clients have to
    /// read first are left out.
    fn next(&mut self) -> Option<(Active, Arc<[u32]>, Logits)> {
        let n_slots = |request: &SequenceRequest| {
            let is_same = |active: &&Active| Arc::ptr_eq(&active.request.outbox, &request.outbox);
            request.outbox.has_room().then(|| self.batch.sequences().filter(is_same).count())
        };
        let parked =
            (0..).zip(&self.parked).filter_map(|(at, (active, _))| Some((n_slots(&active.request)?, at))).min();
        let new = (0..).zip(&self.waiting).filter_map(|(at, request)| Some((n_slots(&request[0])?, at))).min();
        match (parked, new) {
            (Some((n, at)), new) if new.is_none_or(|(n_of_new, _)| n <= n_of_new) => {
                let (active, tokens) = self.parked.remove(at);
                Some((active, tokens.into(), Logits::Last))
            }
            (_, Some((_, at))) => {
                let request = self.waiting[at].pop_front().expect("a request has sequences");
                if self.waiting[at].is_empty() {
                    self.waiting.remove(at);
                }
                let logits = if request.settings.scores_prompt { Logits::Each } else { Logits::Last };
                let tokens = request.prompt.clone();
                Some((Active::new(request, &self.tokenizer), tokens, logits))
            }
            _ => None,
        }
    }
}

fn empty_batch(model: &LanguageModel, slots: Slots) -> Batch<Active> {
    Batch::new(model.clone(), slots.n, model.config().context_length, CHUNK).speculating(slots.speculate)
}

impl SequenceRequest {
    /// Whether a client still waits for it and its deadline has not passed; reports a passed deadline.
    fn is_wanted(&self, now: Instant) -> bool {
        let is_late = now >= self.deadline;
        if is_late {
            self.send(EventKind::Failed(ApiError::late()));
        }
        !is_late && !self.events.is_closed()
    }

    fn send(&self, kind: EventKind) {
        let event = Event { idx: self.idx, kind };
        self.outbox.add(event.n_bytes());
        self.events.send(event).ok(); // a closed receiver is noticed each round
    }
}

impl Active {
    fn new(request: SequenceRequest, tokenizer: &Tokenizer) -> Self {
        let SequenceRequest { prompt, settings, sample_idx, .. } = &request;
        let Settings { config, bias, guide, .. } = &**settings;
        let mut sequence = Sequence::new(tokenizer, config, prompt, *sample_idx);
        let sampler = Sampler::of_sequence(tokenizer, config, prompt.len(), *sample_idx);
        sequence.set_sampler(Box::new(
            sampler.with_bias(bias.clone()).with_guide(guide.as_ref().map(|guided| guided.guide.clone())),
        ));
        Self { request, sequence, scores: Vec::new(), was_read: false }
    }

    fn score_prompt(&mut self, logits: &[f32]) {
        let Self { request, scores, .. } = self;
        if scores.is_empty() {
            scores.push(Score::first(request.prompt[0]));
        }
        if let Some(token) = request.prompt.get(scores.len()) {
            scores.push(Score::new(logits, *token, request.settings.n_top.unwrap_or(0)));
        }
    }

    /// Generates a token; `None` if the sequence is finished.
    fn generate(&mut self, logits: &[f32], n_cached: usize) -> Option<u32> {
        let Self { request, sequence, scores, was_read } = self;
        if !std::mem::replace(was_read, true) {
            request.metrics.read(request.prompt.len(), n_cached);
            request.send(EventKind::Read { scores: std::mem::take(scores), n_cached });
            if sequence.is_done() {
                request.send(EventKind::End(End::Length));
                return None;
            }
        }
        let generated = match sequence.generate(logits) {
            Ok(generated) => generated,
            Err(error) => {
                let message = error.to_string();
                let is_of_request = matches!(error, GenerateError::NoToken(_));
                let error = if is_of_request { ApiError::bad_request(message) } else { ApiError::failed(message) };
                request.send(EventKind::Failed(error));
                return None;
            }
        };
        request.metrics.generated_tokens.fetch_add(1, Ordering::Relaxed);
        let n_top = request.settings.n_top;
        let (next, score) = (generated.next(), n_top.map(|n_top| Score::new(logits, generated.token, n_top)));
        let text = String::from_utf8(generated.text).expect("the text of a sequence is whole characters");
        request.send(EventKind::Token { offset: generated.offset, text, score });
        if let Some(end) = generated.end {
            request.send(EventKind::End(end));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::ModelConfig;
    use crate::model::Gpt;
    use crate::serve::unsent::Unsent;

    /// The sequences of a request, and the receiver of their events.
    fn request(n: usize, token: u32, max_new_tokens: usize) -> (Vec<SequenceRequest>, UnboundedReceiver<Event>) {
        request_with(n, token, max_new_tokens, &Outbox::new(&Unsent::new(1 << 40)))
    }

    fn request_with(
        n: usize,
        token: u32,
        max_new_tokens: usize,
        outbox: &Arc<Outbox>,
    ) -> (Vec<SequenceRequest>, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        let sequence = |idx| SequenceRequest {
            idx,
            adapters: None,
            metrics: Arc::default(),
            prompt: [token].into(),
            settings: Arc::new(Settings {
                config: GenerateConfig { max_new_tokens, ..GenerateConfig::default() },
                bias: Arc::default(),
                guide: None,
                scores_prompt: false,
                n_top: None,
            }),
            sample_idx: 0,
            deadline: Instant::now() + Duration::from_mins(1),
            events: events.clone(),
            outbox: outbox.clone(),
        };
        ((0..n).map(sequence).collect(), receiver)
    }

    fn started(n_slots: usize, keep_cached: Duration) -> Queue {
        let tokenizer = Tokenizer::char_from_alphabet("abcdefghi".chars()).expect("the alphabet is valid");
        let config = ModelConfig { d_model: 16, n_layers: 1, n_heads: 2, n_kv_heads: 2, ..ModelConfig::default() };
        let model = Gpt::new(&config.with_derived(), tokenizer.vocab_size(), 7, &Device::flex());
        let slots = Slots { n: n_slots, speculate: 0 };
        let started = Scheduler::new((&model).into(), tokenizer, slots, 100);
        let (queue, mut scheduler) = started.expect("a timer needs nothing");
        scheduler.keep_cached = keep_cached;
        thread::spawn(|| scheduler.run());
        queue
    }

    #[test]
    fn idle_model_frees_its_cache() {
        let mut held = Vec::new();
        for keep_cached in [KEEP_CACHED, Duration::ZERO] {
            let queue = started(2, keep_cached);
            assert_eq!(queue.cache_bytes(), 0);
            for _ in 0..2 {
                let (sequences, mut events) = request(2, 1, 3);
                queue.submit(sequences).expect("the queue has room");
                while events.blocking_recv().is_some() {}
            }
            let began = Instant::now();
            while (queue.cache_bytes() == 0) == (keep_cached == KEEP_CACHED) {
                assert!(began.elapsed() < Duration::from_mins(1), "{keep_cached:?}: {}", queue.cache_bytes());
                thread::yield_now();
            }
            held.push(queue.cache_bytes());
        }
        // Two slots of a layer, each with memory for 32 positions of two heads, padded to 32 scalars.
        assert_eq!(held, [2 * 32 * 2 * 2 * 32 * 4, 0]);
    }

    #[test]
    fn panic_fails_only_active_sequences() {
        let queue = started(2, KEEP_CACHED);
        for _ in 0..2 {
            let (wrong, mut events) = request(1, 1_000_000, 3); // no request has such a token
            queue.submit(wrong).expect("the queue has room");
            assert!(matches!(events.blocking_recv().expect("the sequence sends an event").kind, EventKind::Failed(_)));
            let (right, mut events) = request(2, 1, 3);
            queue.submit(right).expect("the queue has room");
            let mut n_ended = 0;
            while let Some(event) = events.blocking_recv() {
                assert!(!matches!(event.kind, EventKind::Failed(_)), "{event:?}");
                n_ended += usize::from(matches!(event.kind, EventKind::End(_)));
            }
            assert_eq!(n_ended, 2);
            assert!(queue.is_open());
        }
    }

    #[test]
    fn requests_take_turns() {
        let queue = started(2, KEEP_CACHED);
        let (many, mut of_many) = request(90, 1, 400);
        queue.submit(many).expect("the queue has room");
        of_many.blocking_recv().expect("the first request starts");
        let (few, mut of_few) = request(2, 2, 5);
        queue.submit(few).expect("the queue has room");
        while of_few.blocking_recv().is_some() {}
        assert!(queue.n_waiting() > 80, "{} sequences of the first request wait", queue.n_waiting());
    }

    /// The text of each sequence, and the most events that waited to be read.
    fn texts(queue: &Queue, outbox: &Arc<Outbox>) -> (Vec<String>, usize) {
        let (sequences, mut events) = request_with(3, 1, 600, outbox);
        queue.submit(sequences).expect("the queue has room");
        let (mut texts, mut n_most) = (vec![String::new(); 3], 0);
        while let Some(event) = events.blocking_recv() {
            if outbox.is_full() {
                let (few, mut of_few) = request(2, 2, 5);
                queue.submit(few).expect("the queue has room");
                while of_few.blocking_recv().is_some() {} // others have the slots meanwhile
            }
            n_most = n_most.max(events.len());
            outbox.remove(event.n_bytes());
            if let EventKind::Token { text, .. } = event.kind {
                texts[event.idx] += &text;
            }
        }
        (texts, n_most)
    }

    #[test]
    fn unread_stream_waits_and_continues() {
        let queue = started(2, KEEP_CACHED);
        let (free, _) = texts(&queue, &Outbox::new(&Unsent::new(1 << 40)));
        let (waiting, n_most) = texts(&queue, &Outbox::new(&Unsent::new(256 * 3000)));
        assert_eq!(free, waiting);
        assert!(n_most < 100, "{n_most} events wait");
        assert!(free.iter().all(|text| text.len() > 500), "{free:?}");
    }
}
