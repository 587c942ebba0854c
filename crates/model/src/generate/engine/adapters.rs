//! Adapters beside the weights of an engine: each sequence uses the adapters of one fine-tuned model, or none.

use std::ops::Range;

use super::{Engine, in_f32};
use crate::config::ModelConfig;
use crate::{AdapterRows, Lora, Parameter, Target};
use tinderbox_kernels::decode::{Activation, ColumnAdapter, LowRank, PackedLinear, PackedRows, RowNorm, Rows};

#[derive(Debug)]
pub(super) struct PackedAdapters {
    layers: Vec<LayerAdapters>,
    /// The tokens whose vectors change.
    tokens: Vec<u32>,
    /// The changes of their embeddings, `[tokens, C]`.
    embedding_rows: Vec<f32>,
    /// Their changes of an output layer that is not tied to the embeddings, `[tokens, C]`.
    output_rows: Option<Vec<f32>>,
}

/// The adapters of a layer's matrices; `None` for a matrix without one.
#[derive(Debug, Default)]
pub(super) struct LayerAdapters {
    pub(super) qkv: Option<LowRank>,
    pub(super) output: Option<LowRank>,
    pub(super) gate: Option<LowRank>,
    pub(super) up: Option<LowRank>,
    pub(super) down: Option<LowRank>,
}

/// Consecutive rows of a pass that use the same adapters.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) adapters: usize,
    pub(super) rows: Range<usize>,
}

/// Memory for products that are not added or activated at once: where some rows use adapters, or a norm follows.
#[derive(Debug)]
pub(super) struct AdapterWork {
    /// `[n, R]`; of no rows without adapters.
    inner: PackedRows,
    /// The output of a projection to the residual stream, before it is added, `[n, C]`; of no rows without adapters and
    /// norms.
    to_residual: Rows,
    /// The output of the gate or up projection, before the activation, `[n, F]`; of no rows without adapters.
    hidden: Rows,
}

impl AdapterWork {
    pub(super) fn new(engine: &Engine, n_rows: usize) -> Self {
        let ModelConfig { d_model, d_ff, .. } = engine.config;
        let with_adapters = if engine.adapters.is_empty() { 0 } else { n_rows };
        let ranks = engine.adapters.iter().flat_map(|adapters| &adapters.layers).flat_map(LayerAdapters::ranks);
        Self {
            inner: PackedRows::new(with_adapters, ranks.max().unwrap_or(0)),
            to_residual: Rows::new(if engine.has_post_norms() { n_rows } else { with_adapters }, d_model),
            hidden: Rows::new(with_adapters, d_ff),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InLayer<'a> {
    pub(super) adapters: &'a [PackedAdapters],
    pub(super) groups: &'a [Group],
    pub(super) layer_idx: usize,
}

/// Selects the adapter of a matrix.
type Of = fn(&LayerAdapters) -> &Option<LowRank>;

impl InLayer<'_> {
    /// Changes `out`, the product of a matrix and `x`, in the rows that use adapters.
    fn apply(self, of: Of, x: &PackedRows, inner: &mut PackedRows, out: &mut Rows) {
        for Group { adapters, rows } in self.groups {
            if let Some(low_rank) = of(&self.adapters[*adapters].layers[self.layer_idx]) {
                low_rank.apply(x, rows.clone(), inner, out);
            }
        }
    }
}

/// Multiplies with the matrices of a layer, and with its adapters in the rows that use some. Rows without adapters have the
/// same bytes as in a pass without adapters.
#[derive(Debug)]
pub(super) struct Products<'a> {
    pub(super) adapters: InLayer<'a>,
    pub(super) n_rows: usize,
    pub(super) work: &'a mut AdapterWork,
}

impl Products<'_> {
    fn is_base_alone(&self) -> bool {
        self.adapters.groups.is_empty()
    }

    pub(super) fn store(&mut self, linear: &PackedLinear, of: Of, x: &PackedRows, out: &mut Rows) {
        linear.store(x, out);
        self.adapters.apply(of, x, &mut self.work.inner, out);
    }

    /// Adds the product of `x` to `out`, normalized first if there is a norm.
    pub(super) fn add(
        &mut self,
        linear: &PackedLinear,
        of: Of,
        norm: Option<&RowNorm>,
        x: &PackedRows,
        out: &mut Rows,
    ) {
        if norm.is_none() && self.is_base_alone() {
            return linear.add(x, out);
        }
        let AdapterWork { inner, to_residual, .. } = &mut *self.work;
        linear.store(x, to_residual);
        self.adapters.apply(of, x, inner, to_residual);
        match norm {
            Some(norm) => norm.add(to_residual, self.n_rows, out),
            None => out.add(to_residual, self.n_rows),
        }
    }

    pub(super) fn pack_into(&mut self, linear: &PackedLinear, of: Of, x: &PackedRows, out: &mut PackedRows) {
        let n_rows = self.n_rows;
        if self.is_base_alone() { linear.pack_into(x, out) } else { out.pack(self.hidden(linear, of, x), n_rows) }
    }

    /// Packs the activation of the product of `x` into `out`; see [`PackedLinear::activate`].
    pub(super) fn activate(
        &mut self,
        linear: &PackedLinear,
        of: Of,
        x: &PackedRows,
        activation: Activation,
        [gate, out]: [&mut PackedRows; 2],
    ) {
        let n_rows = self.n_rows;
        match self.is_base_alone() {
            true => linear.activate(x, activation, gate, out),
            false => out.activate(self.hidden(linear, of, x), n_rows, activation, gate),
        }
    }

    /// The product of `x` with the gate or up projection, adapters included.
    fn hidden(&mut self, linear: &PackedLinear, of: Of, x: &PackedRows) -> &Rows {
        let AdapterWork { inner, hidden, .. } = &mut *self.work;
        linear.store(x, hidden);
        self.adapters.apply(of, x, inner, hidden);
        hidden
    }
}

impl LayerAdapters {
    fn matrix_mut(&mut self, target: Target) -> &mut Option<LowRank> {
        match target {
            Target::Q | Target::K | Target::V => &mut self.qkv,
            Target::AttentionOutput => &mut self.output,
            Target::Gate => &mut self.gate,
            Target::Up => &mut self.up,
            Target::Down => &mut self.down,
        }
    }

    fn ranks(&self) -> impl Iterator<Item = usize> {
        let Self { qkv, output, gate, up, down } = self;
        [qkv, output, gate, up, down].into_iter().flatten().map(LowRank::rank)
    }
}

impl PackedAdapters {
    pub(super) fn new<E>(
        engine: &Engine,
        lora: &Lora,
        mut values: impl FnMut(&Parameter) -> Result<Vec<f32>, E>,
    ) -> Result<Self, E> {
        let table: Vec<Parameter> = Parameter::all(&engine.config, engine.vocab_size).collect();
        let mut layers: Vec<LayerAdapters> = engine.layers.iter().map(|_| LayerAdapters::default()).collect();
        for of_weight in lora.adapters(&table).chunk_by(|a, b| a.weight == b.weight) {
            let AdapterRows { weight, target, .. } = &of_weight[0];
            let block = Parameter::block_of(weight).expect("only layers of blocks have adapters");
            let (linear, factor) = engine.layers[block].linear(*target);
            let mut adapter = |rows: &AdapterRows| {
                let lengths = rows.magnitude.as_ref().map(&mut values).transpose()?;
                Ok(ColumnAdapter {
                    columns: rows.columns.clone(),
                    a: values(&rows.a)?,
                    b: values(&rows.b)?,
                    scale: in_f32(lora.scale() * factor),
                    lengths: lengths.map(|lengths| lengths.iter().map(|x| x * in_f32(factor)).collect()),
                })
            };
            let adapters = of_weight.iter().map(&mut adapter).collect::<Result<Vec<_>, E>>()?;
            *layers[block].matrix_mut(*target) = Some(LowRank::new(linear, &adapters));
        }
        let mut token_rows = lora.token_rows(&table).into_iter();
        let embedding_rows = token_rows.next().as_ref().map(&mut values).transpose()?.unwrap_or_default();
        let output_rows = token_rows.next().as_ref().map(&mut values).transpose()?;
        Ok(Self { layers, tokens: lora.tokens.clone(), embedding_rows, output_rows })
    }

    pub(super) fn add_to_embedding(&self, token: u32, out: &mut [f32]) {
        for (changed, change) in self.tokens.iter().zip(self.embedding_rows.chunks_exact(out.len())) {
            if *changed == token {
                out.iter_mut().zip(change).for_each(|(x, change)| *x += change);
            }
        }
    }

    pub(super) fn add_to_logits(&self, normed: &PackedRows, row: usize, logits: &mut [f32]) {
        let rows = self.output_rows.as_ref().unwrap_or(&self.embedding_rows);
        let width = rows.len() / self.tokens.len().max(1);
        for (token, change) in self.tokens.iter().zip(rows.chunks_exact(width.max(1))) {
            logits[*token as usize] += normed.dot(row, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::Arc;

    use burn::tensor::Device;

    use super::*;
    use crate::Gpt;
    use crate::config::{NormKind, PositionKind};
    use crate::generate::engine::{Decoder, Precision};
    use crate::parameters::{self, HostTensor};
    use tinderbox_kernels::Activation;

    const VOCAB_SIZE: usize = 19;

    /// A model whose weights are large enough that everything matters.
    fn base(config: &ModelConfig) -> Gpt {
        let gpt = Gpt::new(config, VOCAB_SIZE, 7, &Device::flex());
        let mut drawn = parameters::read(&gpt);
        for (name, tensor) in &mut drawn {
            let factor = if tensor.shape.len() == 2 { 12.0 } else { 1.0 };
            let shift = if name.ends_with("bias") { 0.1 } else { 0.0 };
            tensor.values.iter_mut().enumerate().for_each(|(i, x)| *x = *x * factor + shift * (i % 3) as f32);
        }
        parameters::assign(gpt, |path, _| drawn.remove(path)).expect("the same parameters")
    }

    fn configs() -> [ModelConfig; 2] {
        let small = ModelConfig {
            context_length: 160,
            d_model: 40,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 4,
            d_ff: 70,
            bias: true,
            ..ModelConfig::default()
        };
        let gated = ModelConfig {
            n_kv_heads: 2,
            position: PositionKind::Rope,
            norm: NormKind::RmsNorm,
            mlp: Activation::Swiglu,
            bias: false,
            tie_embeddings: false,
            residual_scale: 0.7,
            post_norm: true,
            logit_scale: 0.5,
            embedding_scale: 2.0,
            parallel_residual: true,
            ..small.clone()
        };
        [small.with_derived(), gated.with_derived()]
    }

    fn loras() -> [Lora; 3] {
        let plain = Lora {
            rank: 3,
            alpha: 6.0,
            use_rslora: false,
            use_dora: false,
            dropout: 0.0,
            targets: Target::ALL.to_vec(),
            last_blocks: None,
            tokens: Vec::new(),
        };
        let dora = Lora {
            rank: 5,
            use_dora: true,
            targets: [&Target::ALL[1..2], &Target::ALL[3..]].concat(),
            ..plain.clone()
        };
        let tokens = Lora { rank: 2, use_rslora: true, last_blocks: Some(1), tokens: vec![4, 18], ..plain.clone() };
        [plain, dora, tokens]
    }

    /// The base with adapters whose values are drawn from a seed, and these values.
    fn adapted(base: &Gpt, lora: &Lora, seed: usize) -> (Gpt, BTreeMap<String, HostTensor>) {
        let mut drawn = BTreeMap::new();
        let model = base.clone().adapted(lora, 1);
        let table: Vec<Parameter> = base.parameters().collect();
        let own: Vec<String> = lora.parameters(&table).into_iter().map(|row| row.path).collect();
        let mut weights = parameters::read(&model);
        let model = parameters::assign(model, |path, _| {
            let mut tensor = weights.remove(path)?;
            if own.iter().any(|own| own == path) {
                let is_length = path.ends_with("magnitude");
                for (i, x) in tensor.values.iter_mut().enumerate() {
                    let noise = ((i * 37 + path.len() * 11 + seed * 17) % 23) as f32 / 11.0 - 1.0;
                    *x = if is_length { *x * (1.0 + 0.3 * noise) } else { 0.3 * noise };
                }
                drawn.insert(path.to_owned(), tensor.clone());
            }
            Some(tensor)
        });
        (model.expect("the same parameters"), drawn)
    }

    /// An engine of the base in this precision with all adapters, and the merged models in f32.
    fn engine(config: &ModelConfig, precision: Precision) -> (Arc<Engine>, Vec<Gpt>) {
        let base = base(config);
        let mut engine = Engine::new(base.clone(), precision);
        let mut merged = vec![base.clone()];
        for (seed, lora) in loras().iter().enumerate() {
            let (model, mut values) = adapted(&base, lora, seed);
            let take = |row: &Parameter| {
                let tensor = values.remove(&row.path).expect("an adapter");
                assert_eq!(tensor.shape, row.shape);
                Ok::<_, Infallible>(tensor.values)
            };
            assert_eq!(engine.add_adapters(lora, take), Ok(seed));
            assert!(values.is_empty(), "{:?}", values.keys());
            merged.push(model);
        }
        (Arc::new(engine), merged)
    }

    fn sequences() -> Vec<(Option<usize>, Vec<u32>)> {
        let tokens = |seed: usize| (0..150).map(|i| (i * i + i * seed + seed) as u32 % VOCAB_SIZE as u32).collect();
        [Some(1), None, Some(0), Some(2), Some(1), None, Some(2)].into_iter().zip((0..).map(tokens)).collect()
    }

    /// The logits after each token of a sequence by itself. The first 130 tokens are read at once.
    fn alone(engine: &Arc<Engine>, adapters: Option<usize>, tokens: &[u32]) -> Vec<Vec<f32>> {
        let mut decoder = Decoder::new(engine.clone(), 1, 160);
        decoder.set_adapters(0, adapters);
        let mut seen = Vec::new();
        decoder.prefill_each(0, &tokens[..130], |logits| seen.push(logits.to_vec()));
        for token in &tokens[130..] {
            decoder.decode(&[Some(*token)]);
            seen.push(decoder.logits(0).to_vec());
        }
        seen
    }

    #[test]
    fn separate_adapters_equal_merged_weights() {
        for config in configs() {
            let (engine, merged) = engine(&config, Precision::F32);
            let merged: Vec<_> = merged.into_iter().map(|gpt| Arc::new(Engine::new(gpt, Precision::F32))).collect();
            let (_, tokens) = &sequences()[0];
            let of_merged = merged.iter().map(|engine| alone(engine, None, tokens));
            let of_merged: Vec<_> = of_merged.collect();
            for (i, want) in of_merged.iter().enumerate() {
                let got = alone(&engine, i.checked_sub(1), tokens);
                for (at, (got, want)) in got.iter().zip(want).enumerate() {
                    let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                    let away = got.iter().zip(want).fold(0.0_f32, |away, (x, y)| away.max((x - y).abs()));
                    assert!(away < 1e-4 * largest, "{i} at {at}: {away} of {largest}");
                }
                let away = |other: &[Vec<f32>]| (want[149][0] - other[149][0]).abs();
                assert!(of_merged.iter().enumerate().all(|(j, other)| i == j || away(other) > 1e-3), "{i} is another");
            }
        }
    }

    #[test]
    fn adapted_sequences_do_not_depend_on_others() {
        for (config, precision) in
            configs().into_iter().flat_map(|config| Precision::ALL.map(|one| (config.clone(), one)))
        {
            let (engine, _) = engine(&config, precision);
            let sequences = sequences();
            let alone: Vec<_> = sequences.iter().map(|(adapters, tokens)| alone(&engine, *adapters, tokens)).collect();
            // The base model computes what it computes in an engine without adapters.
            let plain = Arc::new(Engine::new(base(&config), precision));
            assert_eq!(super::tests::alone(&plain, None, &sequences[1].1), alone[1], "{precision}");
            let mut decoder = Decoder::new(engine, sequences.len(), 160);
            for (i, (adapters, tokens)) in sequences.iter().enumerate() {
                decoder.set_adapters(i, *adapters);
                decoder.prefill(i, &tokens[..5 + i]);
                assert_eq!(decoder.logits(i), alone[i][4 + i], "{precision}: {i}");
            }
            for step in 0..30 {
                let next =
                    |(i, (_, tokens)): (usize, &(_, Vec<u32>))| ((step + i) % 5 > 0).then(|| tokens[decoder.len(i)]);
                let next: Vec<_> = sequences.iter().enumerate().map(next).collect();
                decoder.decode(&next);
                for i in (0..sequences.len()).filter(|i| next[*i].is_some()) {
                    assert_eq!(decoder.logits(i), alone[i][decoder.len(i) - 1], "{precision}: {i} at step {step}");
                }
            }
        }
    }

    #[test]
    fn token_losses_use_adapters_of_first_sequence() {
        let (engine, merged) = engine(&configs()[0], Precision::F32);
        let tokens = &sequences()[3].1;
        let merged = Arc::new(Engine::new(merged[3].clone(), Precision::F32));
        let losses = |engine: &Arc<Engine>, adapters| {
            let mut decoder = Decoder::new(engine.clone(), 1, 160);
            decoder.set_adapters(0, adapters);
            decoder.token_losses(&tokens[..149], &tokens[1..])
        };
        let pairs = losses(&engine, Some(2)).into_iter().zip(losses(&merged, None));
        assert!(pairs.into_iter().all(|(beside, merged)| (beside - merged).abs() < 1e-3));
    }
}
