//! A [`Session`] inside burn-train: its "epoch" is our evaluation interval.
//!
//! burn-train brings the interrupter, the frame of the loop, and its metrics with whatever renders them; the
//! steps, the evaluations and the checkpoints are ours, since its own optimiser and resume are not exact. It is told once per log
//! interval and once per evaluation, with numbers that were read back already.

use std::sync::{Arc, Mutex};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn::train::logger::{EvaluationProgressLogger, MetricLogger, TrainingProgressLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, SupervisedLearningStrategy,
    SupervisedTraining, SupervisedTrainingEventProcessor, TrainLoader, TrainOutput, TrainStep,
    TrainingComponents, TrainingItem, TrainingStrategy, ValidLoader,
};

use super::observer::{Evaluation, Logged, Summary};
use super::session::{Advanced, Session};
use super::{Interrupter, TrainError, metrics};

/// Runs a session to its end inside burn-train; `renderer` shows its metrics.
pub(super) fn run(
    session: Session,
    renderer: Option<Box<dyn MetricsRenderer>>,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let (done, left) = session.evaluations();
    let bystander = Bystander::new(session.device());
    let strategy = Arc::new(Intervals { slot: Mutex::new(Slot::Ready(Box::new(session))) });
    let learner = Learner::new(bystander, SgdConfig::new().init(), 0.0);
    // burn-train's own files would be a second set beside ours, and its logger in memory grows with the run.
    let training = SupervisedTraining::new(".", Arc::new(NoBatches), Arc::new(NoBatches))
        .with_application_logger(None)
        .with_metric_logger(NoLogger)
        .with_interrupter(interrupter.clone())
        .with_training_strategy(TrainingStrategy::Custom(strategy.clone()))
        .checkpoint(done)
        .num_epochs(done + left)
        .renderer(renderer.unwrap_or_else(|| Box::new(NoRenderer)))
        .metric_train_numeric(metrics::train_loss())
        .metric_valid_numeric(metrics::val_loss())
        .metric_train_numeric(metrics::learning_rate())
        .metric_train_numeric(metrics::speed())
        .metric_train_numeric(metrics::gradient_norm())
        .metric_train_numeric(metrics::peak_memory());
    let result = training.launch(learner);
    let outcome = std::mem::replace(&mut *lock(&strategy.slot), Slot::Running);
    match (outcome, result.error) {
        (Slot::Done(Ok(_)), Some(error)) => Err(TrainError::Loop(error.to_string())),
        (Slot::Done(result), _) => result, // the session's own error says more than what followed from it
        (Slot::Ready(_) | Slot::Running, _) => {
            unreachable!("`launch` runs the strategy to its end")
        }
    }
}

/// The strategy: intervals of steps, each closed by an evaluation.
struct Intervals {
    slot: Mutex<Slot>,
}

/// The session goes in and its result comes out by the same door, since burn-train shares its strategy.
enum Slot {
    Ready(Box<Session>),
    Running,
    Done(Result<Summary, TrainError>),
}

fn lock(slot: &Mutex<Slot>) -> std::sync::MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Processor = SupervisedTrainingEventProcessor<Bystander>;

impl SupervisedLearningStrategy<Bystander> for Intervals {
    fn fit(
        &self,
        components: TrainingComponents<Bystander>,
        learner: Learner<Bystander>,
        _: TrainLoader<Bystander>,
        _: ValidLoader<Bystander>,
        _: usize,
    ) -> (Bystander, Processor) {
        let mut processor = components.event_processor;
        let session = std::mem::replace(&mut *lock(&self.slot), Slot::Running);
        if let Slot::Ready(mut session) = session {
            let result = fit(&mut session, &mut processor, &components.interrupter);
            *lock(&self.slot) = Slot::Done(result);
        }
        (learner.model(), processor)
    }
}

fn fit(
    session: &mut Session,
    processor: &mut Processor,
    interrupter: &Interrupter,
) -> Result<Summary, TrainError> {
    let max_steps = session.max_steps();
    let progress = |step| Progress::new(step, max_steps, Some("steps".to_owned()));
    let (mut epoch, _) = session.evaluations();
    while !session.is_done() {
        epoch += 1;
        interrupter.fail_on_error(processor.process_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: max_steps,
        }));
        let advanced = session.advance(|logged| {
            let item = TrainingItem::new(
                logged.clone(),
                progress(logged.step),
                Some(logged.step),
                Some(logged.learning_rate.into()),
            );
            interrupter.fail_on_error(processor.process_train(LearnerEvent::ProcessedItem(item)));
        })?;
        interrupter.fail_on_error(processor.process_train(LearnerEvent::EndSplit(epoch)));
        if advanced == Advanced::Interrupted {
            return session.finish(true);
        }
        interrupter.fail_on_error(processor.process_valid(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: max_steps,
        }));
        let evaluation = session.evaluate()?;
        let step = evaluation.step;
        let item = TrainingItem::new(evaluation, progress(step), Some(step), None);
        interrupter.fail_on_error(processor.process_valid(LearnerEvent::ProcessedItem(item)));
        interrupter.fail_on_error(processor.process_valid(LearnerEvent::EndSplit(epoch)));
        interrupter.fail_on_error(processor.process_train(LearnerEvent::EndEpoch(epoch)));
    }
    session.finish(false)
}

/// The model that burn-train passes around. Ours stays in the session: burn-train clones its own at each
/// turn, and a weight that is held twice cannot be updated in place.
#[derive(Module, Debug)]
struct Bystander {
    /// Says which device it is on, which burn-train asks before anything else.
    anchor: Param<Tensor<1>>,
}

impl Bystander {
    fn new(device: &Device) -> Self {
        Self { anchor: Param::from_tensor(Tensor::zeros([1], device)) }
    }
}

impl TrainStep for Bystander {
    type Input = ();
    type Output = Logged;

    fn step(&self, (): ()) -> TrainOutput<Logged> {
        unreachable!("the session makes its own steps")
    }
}

impl InferenceStep for Bystander {
    type Input = ();
    type Output = Evaluation;

    fn step(&self, (): ()) -> Evaluation {
        unreachable!("the session makes its own evaluations")
    }
}

/// The loader of a strategy that draws its own batches.
struct NoBatches;

impl DataLoader<()> for NoBatches {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<()> + 'a> {
        unreachable!("the session draws its own batches")
    }

    fn num_items(&self) -> usize {
        0
    }

    fn to_device(&self, _: &Device) -> Arc<dyn DataLoader<()>> {
        Arc::new(Self)
    }

    fn slice(&self, _: usize, _: usize) -> Arc<dyn DataLoader<()>> {
        Arc::new(Self)
    }
}

/// A logger that keeps nothing: the session has its own logs.
struct NoLogger;

impl MetricLogger for NoLogger {
    fn log(&mut self, _: MetricsUpdate, _: usize, _: &Split) {}

    fn read_numeric(&mut self, _: &str, _: usize, _: &Split) -> Result<Vec<NumericEntry>, String> {
        Ok(Vec::new())
    }

    fn log_metric_definition(&mut self, _: MetricDefinition) {}
    fn log_epoch_summary(&mut self, _: EpochSummary) {}
}

/// The renderer of a run whose observer brings none.
struct NoRenderer;

impl MetricsRenderer for NoRenderer {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}

impl MetricsRendererTraining for NoRenderer {
    fn update_train(&mut self, _: MetricState) {}
    fn update_valid(&mut self, _: MetricState) {}
}

impl MetricsRendererEvaluation for NoRenderer {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}

impl TrainingProgressLogger for NoRenderer {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, _: Option<&str>) {}
    fn update_epoch(&mut self, _: usize) {}
    fn start_split(&mut self, _: &str, _: usize) {}
    fn update_split(&mut self, _: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _: String) {}
}

impl EvaluationProgressLogger for NoRenderer {
    fn start_global_progress(&mut self, _: usize) {}
    fn start_test(&mut self, _: &str, _: usize) {}
    fn update_test_progress(&mut self, _: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _: String) {}
}
