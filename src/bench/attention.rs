//! The cost of attention as texts get longer.
//!
//! The scores of `T` tokens are `T x T` numbers: computed explicitly, their time and memory grow quadratically. The
//! fused operation computes the same result.

use std::fmt;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{noise_tensor, wait};
use crate::device::OpenDevice;
use crate::measure::{Times, Trial, peak_rss_mib, rss_mib};
use crate::model::attention::{causal_mask, scaled_dot_product_attention};
use tinderbox_kernels::{self as kernels, SelfAttention};

/// The size below which memory ratios are not shown, since a page or a thread takes as much.
const LEAST_MIB: f64 = 1.0;

/// The largest factor by which explicit attention's memory grows when the number of tokens doubles.
const PER_DOUBLING: f64 = 4.0;

/// The fraction of free memory to leave free.
const RESERVE: f64 = 0.1;

/// The way in which attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Scores, mask, softmax and the weighted sum, each materialized in memory, as a probe needs them.
    Explicit,
    /// The operation used in training and generation.
    Fused,
}

/// The passes that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    Forward,
    /// The forward pass, and the gradients of queries, keys and values.
    ForwardBackward,
}

impl Method {
    pub const ALL: [Self; 2] = [Self::Explicit, Self::Fused];
}

impl Pass {
    pub const ALL: [Self; 2] = [Self::Forward, Self::ForwardBackward];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Explicit { "explicit" } else { "fused" })
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Forward { "forward" } else { "forward and backward" })
    }
}

/// The dimensions of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    pub batch_size: usize,
    pub n_heads: usize,
    pub head_dim: usize,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    #[serde(rename = "way")]
    pub method: Method,
    pub pass: Pass,
    pub tokens: usize,
}

/// The cost of a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    #[serde(flatten)]
    pub times: Times,
    /// The peak memory of the first pass beyond queries, keys and values, in MiB; `None` if unknown, as on a GPU.
    pub extra_mib: Option<f64>,
}

/// A case with its cost, or with the reason why it was left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub case: Case,
    pub cost: Option<Cost>,
    /// Its time relative to the previous row.
    pub time_ratio: Option<f64>,
    /// Its memory relative to the previous row.
    pub memory_ratio: Option<f64>,
    /// The reason why it was left out.
    pub left_out: Option<String>,
}

/// Times `case`. The memory is that of this process, which must do nothing else.
pub fn measure(case: Case, shape: Shape, device: &OpenDevice, trial: &Trial) -> anyhow::Result<Cost> {
    let warm_up = Case { tokens: 16, ..case };
    compute(&projected(warm_up, shape, &device.device), case, shape)?; // starts threads, allocates buffers
    let qkv = projected(case, shape, &device.device);
    let before = rss_mib();
    compute(&qkv, case, shape)?;
    let extra_mib = before.zip(peak_rss_mib()).map(|(before, peak)| (peak - before).max(0.0));
    Ok(Cost {
        times: trial.time(|| compute(&qkv, case, shape))?,
        extra_mib: extra_mib.filter(|_| device.backend.is_cpu()),
    })
}

/// The queries, then keys, then values of all heads, `[B, T, 3 H D]`.
fn projected(case: Case, shape: Shape, device: &Device) -> Tensor<3> {
    let sizes = [shape.batch_size, case.tokens, 3 * shape.n_heads * shape.head_dim];
    match case.pass {
        Pass::Forward => noise_tensor(sizes, device),
        Pass::ForwardBackward => noise_tensor(sizes, &device.clone().autodiff()).require_grad(),
    }
}

fn compute(qkv: &Tensor<3>, case: Case, shape: Shape) -> anyhow::Result<()> {
    let gathered = gather(case.method, qkv.clone(), shape.n_heads);
    match case.pass {
        Pass::Forward => wait(&gathered),
        Pass::ForwardBackward => {
            let gradients = gathered.sum().backward();
            wait(&qkv.grad(&gradients).expect("it has a gradient"))
        }
    }
}

/// Attention by either method.
///
/// # Shapes
/// `qkv: [B, T, 3 H D]` -> `[B, T, H D]`
fn gather(method: Method, qkv: Tensor<3>, n_heads: usize) -> Tensor<3> {
    match method {
        Method::Explicit => {
            let [_, t, _] = qkv.dims();
            let mask = causal_mask(t, t, &qkv.device());
            let [q, k, v] = kernels::split_heads(qkv, n_heads, n_heads); // each [B, H, T, D]
            kernels::merge_heads(scaled_dot_product_attention(q, k, v, Some(mask)).0)
        }
        Method::Fused => {
            let [_, _, width] = qkv.dims();
            let attention = SelfAttention {
                n_heads,
                n_kv_heads: n_heads,
                norm: None,
                rotation: None,
                scale: kernels::attention_scale(width / (3 * n_heads)),
                softcap: None,
                window: None,
                dropout: None,
                lengths: None,
            };
            kernels::self_attention(qkv, attention)
        }
    }
}

/// The lengths from `shortest` to `longest`, each twice the one before.
pub fn lengths(shortest: usize, longest: usize) -> Vec<usize> {
    std::iter::successors(Some(shortest), |tokens| tokens.checked_mul(2))
        .take_while(|tokens| *tokens <= longest)
        .collect()
}

/// A row for each of `lengths`, each twice the one before. Rows that may need more than `available_mib`, or for which
/// `measure` fails, are left out.
pub fn series(
    method: Method,
    pass: Pass,
    lengths: &[usize],
    available_mib: impl Fn() -> Option<f64>,
    mut measure: impl FnMut(Case) -> Result<Cost, String>,
) -> Vec<Row> {
    let (mut rows, mut before, mut needed_mib) = (Vec::new(), None::<Cost>, None::<f64>);
    for &tokens in lengths {
        let case = Case { method, pass, tokens };
        let measured = match lacking(needed_mib, available_mib()) {
            Some(why) => Err(why),
            None => measure(case),
        };
        let (cost, left_out) = (measured.as_ref().ok().copied(), measured.err());
        let both = before.zip(cost);
        let large = |cost: Cost| cost.extra_mib.filter(|mib| *mib >= LEAST_MIB);
        rows.push(Row {
            case,
            cost,
            time_ratio: both.map(|(before, cost)| cost.times.median_ms / before.times.median_ms),
            memory_ratio: both.and_then(|(before, cost)| Some(large(cost)? / large(before)?)),
            left_out,
        });
        needed_mib = cost.map_or(needed_mib, |cost| cost.extra_mib).map(|mib| PER_DOUBLING * mib);
        before = cost;
    }
    rows
}

/// The reason why a row is left out; `None` if the memory suffices.
fn lacking(needed_mib: Option<f64>, available_mib: Option<f64>) -> Option<String> {
    let (needed, available) = needed_mib.zip(available_mib)?;
    (needed > available * (1.0 - RESERVE))
        .then(|| format!("it may need {needed:.0} MiB, and {available:.0} MiB are free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(median_ms: f64, extra_mib: Option<f64>) -> Cost {
        Cost { times: Times::of(&[median_ms]), extra_mib }
    }

    /// Linear time, quadratic memory.
    #[allow(clippy::unnecessary_wraps, reason = "as `series` takes it")]
    fn square(case: Case) -> Result<Cost, String> {
        let tokens = case.tokens as f64;
        Ok(cost(tokens, Some(tokens * tokens)))
    }

    fn explicit(lengths: &[usize], mib: Option<f64>, measure: impl FnMut(Case) -> Result<Cost, String>) -> Vec<Row> {
        series(Method::Explicit, Pass::Forward, lengths, || mib, measure)
    }

    #[test]
    fn lengths_double_up_to_the_longest() {
        assert_eq!(lengths(64, 512), [64, 128, 256, 512]);
        assert_eq!(lengths(64, 511), [64, 128, 256]);
        assert_eq!(lengths(4, 3), [0; 0]);
        assert_eq!(lengths(usize::MAX, usize::MAX), [usize::MAX]);
    }

    #[test]
    fn a_ratio_is_that_to_the_row_before() {
        let rows = explicit(&[1, 2, 4], None, square);
        let ratios: Vec<_> = rows.iter().map(|row| (row.time_ratio, row.memory_ratio)).collect();
        let doubled = (Some(2.0), Some(4.0));
        assert_eq!(ratios, [(None, None), doubled, doubled]);
        let of_little = explicit(&[1, 2], None, |_| Ok(cost(1.0, Some(0.5))));
        assert_eq!(of_little[1].memory_ratio, None, "pages and threads");
    }

    #[test]
    fn what_may_not_fit_is_not_tried_and_what_follows_neither() {
        let mut tried = Vec::new();
        let rows = explicit(&[10, 20, 40, 80], Some(500.0), |case| {
            tried.push(case.tokens);
            square(case)
        });
        assert_eq!(tried, [10, 20], "10 tokens say that 20 need 400 of the 450 MiB that may be taken");
        let said: Vec<_> = rows.iter().map(|row| row.left_out.as_deref()).collect();
        let short_of = |needed| Some(format!("it may need {needed} MiB, and 500 MiB are free"));
        assert_eq!(said, [None, None, short_of(1600).as_deref(), short_of(6400).as_deref()]);
        assert_eq!(rows[2].cost, None);
    }

    #[test]
    fn a_row_that_fails_is_left_out_and_the_next_has_no_ratio() {
        let rows = explicit(&[10, 20, 40], None, |case| match case.tokens {
            20 => Err("killed".to_owned()),
            _ => square(case),
        });
        assert_eq!(rows[1].left_out.as_deref(), Some("killed"));
        assert_eq!(rows[1].time_ratio, None);
        assert_eq!((rows[2].time_ratio, rows[2].cost.is_some()), (None, true));
    }

    #[cfg(feature = "flex")]
    #[test]
    fn both_methods_compute_the_same() {
        let case = Case { method: Method::Explicit, pass: Pass::Forward, tokens: 33 };
        let qkv = projected(case, Shape { batch_size: 2, n_heads: 3, head_dim: 8 }, &Device::flex());
        let [explicit, fused] = Method::ALL.map(|method| gather(method, qkv.clone(), 3).into_data());
        explicit.assert_approx_eq::<f32>(&fused, burn::tensor::Tolerance::absolute(1e-5));
    }
}
