//! What a run measures, as burn-train's metrics.
//!
//! Each is a column of a log interval or of an evaluation: a number that was read back already, so that
//! burn-train's queue holds no tensors.

use std::sync::Arc;

use burn::backend::ExecutionError;
use burn::tensor::TensorReadError;
use burn::train::ItemLazy;
use burn::train::metric::{
    Adaptor, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
    NumericEntry, SerializedEntry,
};

use super::observer::{Evaluation, Logged};
use crate::measure::peak_rss_mib;

/// The mean loss of a log interval's steps.
pub(super) fn train_loss() -> Column<Logged> {
    Column::new("loss", "nats/token", |logged| Some(logged.train_loss))
}

/// The estimated loss on the validation split: the same metric as [`train_loss`], on another split.
pub(super) fn val_loss() -> Column<Evaluation> {
    Column::new("loss", "nats/token", |evaluation| Some(evaluation.val_loss))
}

/// The learning rate of a log interval's last step.
pub(super) fn learning_rate() -> Column<Logged> {
    Column::new("learning rate", "", |logged| Some(logged.learning_rate))
}

/// The tokens of a step over the median time of a log interval's steps.
pub(super) fn speed() -> Column<Logged> {
    let column = Column::new("speed", "tokens/s", |logged: &Logged| Some(logged.tokens_per_s));
    Column { higher_is_better: true, ..column }
}

/// The norm of all gradients of a log interval's last step, before clipping.
pub(super) fn gradient_norm() -> Column<Logged> {
    Column::new("gradient norm", "", |logged| Some(f64::from(logged.gradient_norm)))
}

/// The most memory that the process held so far.
pub(super) fn peak_memory() -> Column<Logged> {
    Column::new("peak memory", "MiB", |_| peak_rss_mib())
}

/// One number of what was measured; there may be none.
#[derive(Clone)]
pub(super) struct Column<T> {
    name: MetricName,
    unit: &'static str,
    higher_is_better: bool,
    value: fn(&T) -> Option<f64>,
    latest: Option<f64>,
}

impl<T> Column<T> {
    fn new(name: &str, unit: &'static str, value: fn(&T) -> Option<f64>) -> Self {
        Self { name: Arc::new(name.to_owned()), unit, higher_is_better: false, value, latest: None }
    }

    fn entry(&self) -> SerializedEntry {
        match self.latest {
            Some(value) => SerializedEntry::new(format!("{value:.4}"), value.to_string()),
            None => SerializedEntry::not_available(None),
        }
    }
}

impl<T: Clone> Metric for Column<T> {
    type Input = T;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: (!self.unit.is_empty()).then(|| self.unit.to_owned()),
            higher_is_better: self.higher_is_better,
        }
        .into()
    }

    fn update(&mut self, item: &T, _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.latest = (self.value)(item);
        Ok(self.entry())
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry())
    }

    fn clear(&mut self) {
        self.latest = None;
    }
}

impl<T> Numeric for Column<T> {
    fn value(&self) -> Option<NumericEntry> {
        self.latest.map(NumericEntry::Value)
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.value()
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(self.latest.unwrap_or(f64::NAN)) // an interval may be without a log line
    }
}

impl ItemLazy for Logged {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<Self> for Logged {
    fn adapt(&self) -> Self {
        self.clone()
    }
}

impl ItemLazy for Evaluation {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<Self> for Evaluation {
    fn adapt(&self) -> Self {
        self.clone()
    }
}
