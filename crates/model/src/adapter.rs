//! Low-rank adapters (LoRA): two narrow matrices beside the weight of a linear layer, which are trained instead of it.
//!
//! Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4; the factor of many ranks:
//! Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA"; the magnitudes: Liu et al. 2024,
//! "DoRA: Weight-Decomposed Low-Rank Adaptation".

use std::fmt;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::probe::{Pass, Probe};
use super::{Initial, Parameter, Role, init};
use tinderbox_kernels::{self as kernels, low_rank};

/// A matrix that can have an adapter. Queries, keys and values have one each, although their projection is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The projection to queries.
    Q,
    /// The projection to keys.
    K,
    /// The projection to values.
    V,
    /// The output projection of attention.
    AttentionOutput,
    /// The gate projection of a gated MLP.
    Gate,
    /// The up projection of an MLP.
    Up,
    /// The down projection of an MLP.
    Down,
}

impl Target {
    /// All linear layers of a block.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::AttentionOutput, Self::Gate, Self::Up, Self::Down];

    /// The targets in a weight with this role, from left to right, with their widths.
    fn in_weight(weight: &Parameter) -> Vec<(Self, usize)> {
        let whole = |target| vec![(target, weight.shape[1])];
        match weight.role {
            Role::Qkv(widths) => [Self::Q, Self::K, Self::V].into_iter().zip(widths).collect(),
            Role::AttentionOutput => whole(Self::AttentionOutput),
            Role::Gate => whole(Self::Gate),
            Role::Up => whole(Self::Up),
            Role::Down => whole(Self::Down),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The weights that have adapters, and the size of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// The inner width of each adapter, R. At least 1.
    pub rank: usize,
    /// An adapter's product is multiplied by alpha / R, or with `use_rslora` by alpha / sqrt(R).
    pub alpha: f64,
    /// See `alpha`.
    pub use_rslora: bool,
    /// Whether the lengths of the weight's columns are trained apart from their directions (DoRA).
    #[serde(default)]
    pub use_dora: bool,
    /// The probability of dropping an element of an adapter's input in training, in `[0, 1)`.
    pub dropout: f64,
    /// The matrices with adapters.
    pub targets: Vec<Target>,
    /// The blocks with adapters: so many, counted from the last; `None` for all of them.
    pub last_blocks: Option<usize>,
    /// Tokens whose vectors are trained, too, such as the roles of a chat template that is new to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
}

/// The name, within a layer, of the parameter that changes the vectors of tokens.
pub const TOKEN_ROWS: &str = "token_rows";

impl Lora {
    /// The factor of an adapter's product.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// The adapters of a model with these parameters, in their order.
    pub fn adapters(&self, table: &[Parameter]) -> Vec<AdapterRows> {
        let block = |weight: &Parameter| Parameter::block_of(&weight.path);
        let n_blocks = table.iter().filter_map(block).max().map_or(0, |last| last + 1);
        let first = self.last_blocks.map_or(0, |n| n_blocks.saturating_sub(n));
        let weights = table.iter().filter(|row| !row.is_bias() && block(row).is_some_and(|block| block >= first));
        weights.flat_map(|weight| self.adapters_of(weight)).collect()
    }

    /// The changes of the vectors of [`Lora::tokens`], in the token embedding and in an output layer that is not tied.
    pub fn token_rows(&self, table: &[Parameter]) -> Vec<Parameter> {
        let n = self.tokens.len();
        let of = |weight: &Parameter| {
            let width = match weight.role {
                Role::TokenEmbedding => weight.shape[1],
                Role::Output if !weight.is_bias() => weight.shape[0],
                _ => return None,
            };
            let layer = weight.path.strip_suffix(".weight")?;
            Some(trained(format!("{layer}.{TOKEN_ROWS}"), vec![n, width], Initial::Constant(0.0)))
        };
        table.iter().filter(|_| n > 0).filter_map(of).collect()
    }

    /// All trained parameters beside a model with these parameters.
    pub fn parameters(&self, table: &[Parameter]) -> Vec<Parameter> {
        let adapters = self.adapters(table).into_iter().flat_map(|rows| [Some(rows.a), Some(rows.b), rows.magnitude]);
        adapters.flatten().chain(self.token_rows(table)).collect()
    }

    fn adapters_of(&self, weight: &Parameter) -> Vec<AdapterRows> {
        let layer = weight.path.strip_suffix(".weight").unwrap_or(&weight.path);
        let mut first = 0;
        let all = Target::in_weight(weight).into_iter().map(|(target, width)| {
            first += width;
            (target, first - width..first)
        });
        let wanted = all.filter(|(target, _)| self.targets.contains(target)).enumerate();
        let rows = |(idx, (target, columns)): (usize, (Target, Range<usize>))| {
            let row = |name: &str, shape: &[usize], initial| {
                trained(format!("{layer}.adapters.{idx}.{name}"), shape.to_vec(), initial)
            };
            let n_inputs = weight.shape[0];
            // As PyTorch initializes a linear layer. With b at zero, new adapters change nothing.
            let bound = 1.0 / (n_inputs as f64).sqrt();
            AdapterRows {
                weight: weight.path.clone(),
                target,
                a: row("a", &[n_inputs, self.rank], Initial::Uniform(bound)),
                b: row("b", &[self.rank, columns.len()], Initial::Constant(0.0)),
                magnitude: self.use_dora.then(|| row("magnitude", &[columns.len()], Initial::Constant(1.0))),
                columns,
            }
        };
        wanted.map(rows).collect()
    }
}

fn trained(path: String, shape: Vec<usize>, initial: Initial) -> Parameter {
    Parameter { path, shape, role: Role::Adapter, initial, is_trained: true }
}

/// An adapter in the table of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterRows {
    /// The path of the weight that it changes.
    pub weight: String,
    /// The matrix that it changes.
    pub target: Target,
    /// The columns of the weight that it changes.
    pub columns: Range<usize>,
    /// The matrix that is applied to the layer's input, `[in, R]`.
    pub a: Parameter,
    /// The matrix after it, `[R, columns]`.
    pub b: Parameter,
    /// The lengths of the changed weight's columns, `[columns]`, if they are trained. Initially those of the base weight.
    pub magnitude: Option<Parameter>,
}

/// The adapter of some columns of a linear layer: `x weight` becomes `x weight + scale (x a) b` there.
#[derive(Module, Debug)]
pub struct Adapter {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
    magnitude: Option<Param<Tensor<1>>>,
    #[module(skip)]
    scale: f64,
    #[module(skip)]
    columns: Range<usize>,
    #[module(skip)]
    dropout: f64,
    /// The number of its dropout's [site](Pass::drop_at).
    #[module(skip)]
    site: u64,
}

impl Adapter {
    /// A new adapter of a layer with this weight, initialized from `seed`.
    pub(crate) fn new(rows: &AdapterRows, lora: &Lora, seed: u64, weight: &Tensor<2>) -> Self {
        let device = &weight.device();
        let [a, b] = [&rows.a, &rows.b].map(|row| {
            let shape: [usize; 2] = row.shape[..].try_into().expect("adapters are matrices");
            Param::from_tensor(Tensor::from_data(TensorData::new(init::draw(row, seed), shape), device))
        });
        Self {
            a,
            b,
            magnitude: rows.magnitude.as_ref().map(|_| {
                let columns = weight.clone().narrow(1, rows.columns.start, rows.columns.len());
                Param::from_tensor(lengths(columns.detach()))
            }),
            scale: lora.scale(),
            columns: rows.columns.clone(),
            dropout: lora.dropout,
            site: init::name_id(&rows.a.path),
        }
    }

    /// `out`, the output of the layer for `x`, with the adapter's part added.
    ///
    /// # Shapes
    /// `out: [.., out]`, `x: [.., in]` -> `[.., out]`
    pub(crate) fn add_to<const D: usize, P: Probe>(
        &self,
        out: Tensor<D>,
        x: Tensor<D>,
        pass: &Pass<'_, P>,
    ) -> Tensor<D> {
        let x = pass.drop_at(self.site, x, self.dropout);
        kernels::low_rank(out, x, self.narrow(), self.scale, self.columns.clone(), pass.precision())
    }

    /// Whether the lengths of the weight's columns are trained.
    pub(crate) fn has_magnitude(&self) -> bool {
        self.magnitude.is_some()
    }

    /// The layer's weight, changed by the adapter.
    pub(crate) fn merged_into(&self, weight: Tensor<2>) -> Tensor<2> {
        let merged = low_rank::merged(weight.clone(), self.narrow(), self.scale, self.columns.clone());
        if self.has_magnitude() { merged * self.factors(weight).unsqueeze() } else { merged }
    }

    /// The factors of the columns of the layer's output, `[out]`: the trained lengths over those of
    /// the changed weight's columns, through which no gradient flows, and ones where the adapter changes nothing.
    ///
    /// Source: Liu et al. 2024, section 4.3.
    pub(crate) fn factors(&self, weight: Tensor<2>) -> Tensor<1> {
        let n_columns = weight.dims()[1];
        let ones = |n: usize| Tensor::<1>::ones([n], &weight.device());
        let magnitude = match &self.magnitude {
            Some(magnitude) => magnitude.val(),
            None => return ones(n_columns),
        };
        let [a, b] = self.narrow().map(Tensor::detach);
        let columns = weight.clone().detach().narrow(1, self.columns.start, self.columns.len());
        let factors = magnitude / lengths(columns + a.matmul(b) * self.scale);
        let [before, after] = [self.columns.start, n_columns - self.columns.end].map(|n| (n > 0).then(|| ones(n)));
        Tensor::cat([before, Some(factors), after].into_iter().flatten().collect(), 0)
    }

    fn narrow(&self) -> [Tensor<2>; 2] {
        [self.a.val(), self.b.val()]
    }
}

/// The Euclidean lengths of the columns of a matrix.
///
/// # Shapes
/// `[n, columns]` -> `[columns]`
fn lengths(matrix: Tensor<2>) -> Tensor<1> {
    let n_columns = matrix.dims()[1];
    (matrix.clone() * matrix).sum_dim(0).sqrt().reshape([n_columns])
}
