//! One token in one head, number by number: from its vector to the values that it gathers.

use burn::tensor::Tensor;
use serde::Serialize;

use super::capture::{capture, host};
use super::vectors::{dot, softmax};
use super::{HeadSelection, InspectError, Prompt};
use tinderbox_model::config::{ModelConfig, PositionKind};
use tinderbox_model::probe::Point;
use tinderbox_model::{Gpt, Norm};

/// The six steps of attention for one token in one head of a trained model.
///
/// Scores, weights and context are computed here by the plain formula, in double precision, from the queries, keys and
/// values that the model used; `model_weights` and `model_context` are the model's own results.
///
/// Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The text of each token of the prompt, `[T]`.
    pub tokens: Vec<String>,
    /// The layer, counted from 0.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
    /// The key/value head that this head reads, counted from 0.
    pub kv_head: usize,
    /// The heads that read the same keys and values, this one included.
    pub kv_shared_by: Vec<usize>,
    /// The position of the token, counted from 0.
    pub token: usize,
    /// D, the length of a query, a key and a value.
    pub head_dim: usize,
    /// The factor of scores, if the model sets one; otherwise they are divided by the square root of D.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// The cap of scores, if the model has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
    /// The attention window of this layer, the token itself included; `None` for all earlier tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// 1. The token's embedding, plus its position's if those are learned: `[C]`.
    pub embedding: Vec<f32>,
    /// The token's vector in the residual stream before the layer, `[C]`; in layer 0 the embedding.
    pub residual: Vec<f32>,
    /// That vector after the layer's norm, the input of the three projections, `[C]`.
    pub normed: Vec<f32>,
    /// 2. The token's query.
    pub query: Projection,
    /// The token's key.
    pub key: Projection,
    /// The token's value.
    pub value: Projection,
    /// The keys of all tokens after norm and rotation: `[T, D]`.
    pub keys: Vec<Vec<f32>>,
    /// The values of all tokens: `[T, D]`.
    pub values: Vec<Vec<f32>>,
    /// 3. The query times each key, `[T]`.
    pub scores: Vec<f64>,
    /// 4. The scores divided by the square root of D, or times `scale`, and capped if there is a cap: `[T]`.
    pub scaled: Vec<f64>,
    /// 5. The same with `None`, minus infinity, for later tokens and those before the window: `[T]`.
    pub masked: Vec<Option<f64>>,
    /// Their softmax, `[T]`: the weights sum to 1.
    pub weights: Vec<f64>,
    /// 6. The weighted sum of the values: `[D]`.
    pub context: Vec<f64>,
    /// The model's own weights, `[T]`.
    pub model_weights: Vec<f32>,
    /// The values that the model's own head gathers, `[D]`.
    pub model_context: Vec<f32>,
}

/// A head's query, key or value after each step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Projection {
    /// The normed vector times the learned matrix, plus the bias if there is one: `[D]`.
    pub projected: Vec<f32>,
    /// After the norm, if the model has `qk_norm`: `[D]`.
    pub normed: Option<Vec<f32>>,
    /// Rotated by the token's position, if positions are rotary: `[D]`.
    pub rotated: Option<Vec<f32>>,
}

impl Projection {
    /// The vector after the last step.
    pub fn used(&self) -> &[f32] {
        self.rotated.as_ref().or(self.normed.as_ref()).unwrap_or(&self.projected)
    }

    /// The vector after each step, with the step in words, where `letter` is q, k or v.
    pub fn steps(&self, letter: &str, position: usize) -> Vec<(String, &[f32])> {
        let Self { projected, normed, rotated } = self;
        let projected = (format!("{letter} = x W_{letter}"), &projected[..]);
        let normed = normed.as_ref().map(|vector| (format!("{letter} normed (qk_norm)"), &vector[..]));
        let rotated = rotated.as_ref().map(|vector| (format!("{letter} rotated by position {position}"), &vector[..]));
        [Some(projected), normed, rotated].into_iter().flatten().collect()
    }
}

impl Explanation {
    /// Follows the token at `token` through one head.
    ///
    /// # Errors
    /// If there is no such layer, head or token, or as for [`capture()`].
    pub fn new(model: &Gpt, prompt: &Prompt, [layer, head, token]: [usize; 3]) -> Result<Self, InspectError> {
        let config = model.config();
        HeadSelection::new(Some(layer), Some(head), config)?;
        prompt.check(token)?;
        let group = config.n_heads / config.n_kv_heads;
        let kv_head = head / group;

        let of_layer = [Point::Queries, Point::Keys, Point::Values, Point::Weights, Point::Heads];
        let recording = capture(model, prompt, &[&[Point::Embedding, Point::Residual], &of_layer[..]].concat())?;
        let vector = |point, head, t| recording.get(layer, point).vector(head, t).to_vec();
        let vectors = |point| (0..prompt.len()).map(|t| vector(point, kv_head, t)).collect::<Vec<_>>();
        let embedding = recording.get(None, Point::Embedding).vector(0, token);
        let residual = recording.residual(layer.checked_sub(1)).vector(0, token);
        let [residual, embedding] = [residual, embedding].map(|x| row(x, model));
        let residual = host(model.blocks[layer].input(residual, Some(embedding)))?;
        let (keys, values) = (vectors(Point::Keys), vectors(Point::Values));
        let used = [vector(Point::Queries, head, token), keys[token].clone(), values[token].clone()];
        let (normed, [query, key, value]) = project(model, &residual, [layer, head, kv_head], used)?;

        let (scale, softcap) = (config.attention_scale, config.attention_softcap);
        let window = config.attention_window_of(layer);
        let (scores, scaled, masked, weights) = weigh(query.used(), &keys, token, [scale, softcap], window);
        let context = gather(&weights, &values, 0..values.len());
        Ok(Self {
            tokens: prompt.texts.clone(),
            layer,
            head,
            kv_head,
            kv_shared_by: (kv_head * group..(kv_head + 1) * group).collect(),
            token,
            head_dim: config.head_dim,
            scale,
            softcap,
            window,
            embedding: recording.get(None, Point::Embedding).vector(0, token).to_vec(),
            residual,
            normed,
            query,
            key,
            value,
            keys,
            values,
            scores,
            scaled,
            masked,
            weights,
            context,
            model_weights: vector(Point::Weights, head, token),
            model_context: vector(Point::Heads, head, token),
        })
    }

    /// Step 4 in words: the scaling of scores.
    pub fn scaling(&self) -> String {
        let scaled = match self.scale {
            None => format!("divided by sqrt({}) = {:.4}", self.head_dim, (self.head_dim as f64).sqrt()),
            Some(scale) => format!("times {scale}, the model's attention_scale"),
        };
        let capped = self.softcap.map(|cap| format!(", capped at {cap} by its tanh (attention_softcap)"));
        scaled + &capped.unwrap_or_default()
    }

    /// Step 5 in words: the tokens that the head does not see.
    pub fn masked_tokens(&self) -> String {
        let before = self.window.map(|n| format!(" and those before the last {n}"));
        "later tokens".to_owned() + &before.unwrap_or_default()
    }

    /// Step 6 in words: the head's output after each step from the sum on.
    pub fn outputs(&self) -> Vec<(&'static str, Vec<f64>)> {
        vec![("= what the head gathers", self.context.clone())]
    }

    /// The sum of the values of some tokens, each times its weight.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn gathered_from(&self, tokens: impl IntoIterator<Item = usize>) -> Vec<f64> {
        gather(&self.weights, &self.values, tokens)
    }

    /// The largest difference between the plain formula's weights and the model's own.
    pub fn largest_difference(&self) -> f64 {
        largest_difference(&self.weights, &self.model_weights)
    }
}

/// The steps between the projections to queries and keys and their product, in words; empty if there are none.
pub fn preparation(config: &ModelConfig) -> String {
    let heads = if config.qk_norm_across_heads { "over all heads" } else { "in each head" };
    let norm = config.qk_norm.then(|| format!("normed {heads} (qk_norm)"));
    let rotation = (config.position == PositionKind::Rope).then(|| "turned by their position (rope)".to_owned());
    norm.into_iter().chain(rotation).collect::<Vec<_>>().join(" and ")
}

/// The differences between a model's attention and the plain formula, a sentence each.
pub fn differences(config: &ModelConfig) -> Vec<String> {
    let scale = config.attention_scale.map(|scale| format!("Scores are q · k times {scale}, not over √d."));
    let cap = config.attention_softcap.map(|cap| format!("Scores are capped: {cap} · tanh(score / {cap})."));
    let windows: Vec<String> = config.attention_window.iter().map(ToString::to_string).collect();
    let has_windows = config.attention_window.iter().any(|window| *window > 0);
    let windows = has_windows
        .then(|| format!("Layer by layer a token sees the last {} tokens; 0 means all.", windows.join(", ")));
    [scale, cap, windows].into_iter().flatten().collect()
}

/// `[C]` -> `[1, 1, C]`
fn row(x: &[f32], model: &Gpt) -> Tensor<3> {
    Tensor::<1>::from_floats(x, &model.device()).reshape([1, 1, -1])
}

/// The normed vector, and its projections in one head; `used` are the query, key and value after the last step.
fn project(
    model: &Gpt,
    residual: &[f32],
    [layer, head, kv_head]: [usize; 3],
    used: [Vec<f32>; 3],
) -> Result<(Vec<f32>, [Projection; 3]), InspectError> {
    let config = model.config();
    let block = &model.blocks[layer];
    let d = config.head_dim;
    let normed = block.attention_input(row(residual, model)); // [1, 1, C]
    let qkv = block.attention.qkv.forward(normed.clone()); // [1, 1, (H + 2 Hkv) D]
    let across_heads = config.qk_norm_across_heads.then(|| block.attention.norm_across_heads(qkv.clone()));
    let part = |qkv: &Tensor<3>, index: usize| qkv.clone().narrow(2, index * d, d); // [1, 1, D]
    let [q, k, v] = used;
    let through = |index: usize, norm: &Option<Norm>, used: Vec<f32>| -> Result<_, InspectError> {
        let projected = part(&qkv, index);
        let normed = norm.as_ref().map(|norm| match &across_heads {
            Some(normed) => part(normed, index),
            None => norm.forward(projected.clone()),
        });
        let mut projection =
            Projection { projected: host(projected)?, normed: normed.map(host).transpose()?, rotated: None };
        // For the last step, take what the model itself used, to the bit.
        match &mut projection.normed {
            _ if config.rotates(layer) => projection.rotated = Some(used),
            Some(normed) => *normed = used,
            None => projection.projected = used,
        }
        Ok(projection)
    };
    let query = through(head, &block.attention.q_norm, q)?;
    let key = through(config.n_heads + kv_head, &block.attention.k_norm, k)?;
    let value = Projection { projected: v, normed: None, rotated: None };
    Ok((host(normed)?, [query, key, value]))
}

type Weighed = (Vec<f64>, Vec<f64>, Vec<Option<f64>>, Vec<f64>);

/// The raw, scaled (and capped) and masked scores, and the weights: `softmax(mask(q k^T / sqrt(D)))`, as in the paper.
fn weigh(
    q: &[f32],
    keys: &[Vec<f32>],
    token: usize,
    [scale, softcap]: [Option<f64>; 2],
    window: Option<usize>,
) -> Weighed {
    let root = (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| dot(q, k)).collect();
    let scaled = scores.iter().map(|score| scale.map_or(score / root, |scale| score * scale));
    let scaled: Vec<f64> = scaled.map(|x| softcap.map_or(x, |cap| cap * (x / cap).tanh())).collect();
    let seen = window.map_or(0, |window| (token + 1).saturating_sub(window))..=token;
    let masked: Vec<Option<f64>> = (0..).zip(&scaled).map(|(at, x)| seen.contains(&at).then_some(*x)).collect();
    let weights = softmax(&masked.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)).collect::<Vec<_>>());
    (scores, scaled, masked, weights)
}

fn largest_difference(ours: &[f64], theirs: &[f32]) -> f64 {
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(ours, theirs)| (ours - f64::from(*theirs)).abs()).fold(0.0, f64::max)
}

/// The weighted sum of the values of some tokens.
fn gather(weights: &[f64], values: &[Vec<f32>], tokens: impl IntoIterator<Item = usize>) -> Vec<f64> {
    let mut context = vec![0.0; values[0].len()];
    for at in tokens {
        for (sum, v) in context.iter_mut().zip(&values[at]) {
            *sum += weights[at] * f64::from(*v);
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, prompt, small_config};
    use tinderbox_model::attention::Rotation;

    /// The first of the five worked examples: `it` over animal, street and because, `d_k` = 2.
    #[test]
    fn worked_example_is_reproduced() {
        let keys = [vec![3.0, 1.0], vec![1.0, 4.0], vec![1.5, 0.5]];
        let values = [vec![2.0, 1.5], vec![0.5, 0.3], vec![-0.5, 1.2]];
        let (scores, scaled, masked, weights) = weigh(&[3.0, 1.0], &keys, 2, [None; 2], None);
        assert!(masked.iter().all(Option::is_some));
        let context = gather(&weights, &values, 0..3);
        for (found, expected) in [
            (scores, &[10.0, 7.0, 5.0][..]),
            (scaled, &[7.071_068, 4.949_748, 3.535_534]),
            (weights, &[0.870_310, 0.104_327, 0.025_364]),
            (context, &[1.780_101, 1.367_199]),
        ] {
            assert!(largest_difference(&found, expected) < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn what_comes_later_has_no_weight() {
        let keys = [vec![1.0], vec![1.0], vec![9.0]];
        let (scores, _, masked, weights) = weigh(&[1.0], &keys, 1, [None; 2], None);
        assert_eq!(scores, [1.0, 1.0, 9.0]);
        assert_eq!(masked, [Some(1.0), Some(1.0), None]);
        assert_eq!(weights, [0.5, 0.5, 0.0]);
        let (_, scaled, masked, weights) = weigh(&[1.0], &keys, 1, [Some(3.0), None], Some(1));
        assert_eq!(scaled, [3.0, 3.0, 27.0]);
        assert_eq!(masked, [None, Some(3.0), None]);
        assert_eq!(weights, [0.0, 1.0, 0.0]);
    }

    #[test]
    fn explanation_steps_equal_the_model() {
        for (position, qk_norm, bias) in [
            (PositionKind::Learned, false, true),
            (PositionKind::Learned, true, false),
            (PositionKind::Rope, false, false),
            (PositionKind::Rope, true, true),
        ] {
            let plain = ModelConfig { position, bias, qk_norm, ..small_config() }.with_derived();
            let (attention_window, attention_scale) = (vec![0, 3], bias.then_some(1.0));
            // As in Gemma 2 and OLMo 2: scores that are capped, and norms of all heads together, after the layers only.
            let is_rough = position == PositionKind::Rope;
            let model = testing::model(&ModelConfig {
                attention_window,
                attention_scale,
                attention_softcap: is_rough.then_some(0.3),
                qk_norm_across_heads: is_rough,
                pre_norm: !is_rough,
                post_norm: is_rough,
                ..plain
            });
            let it = Explanation::new(&model, &prompt("hello"), [1, 3, 3]).expect("explained");
            assert_eq!((it.kv_head, &*it.kv_shared_by), (1, &[2, 3][..]));
            assert_eq!(it.query.normed.is_some(), qk_norm);
            assert_eq!(it.query.rotated.is_some(), position == PositionKind::Rope);
            assert_eq!(it.key.used(), it.keys[3]);
            assert_eq!(it.value.used(), it.values[3]);
            if let Some(rotated) = &it.query.rotated {
                let before = it.query.normed.as_ref().unwrap_or(&it.query.projected);
                let before = Tensor::<1>::from_floats(&**before, &model.device()).reshape([1, 1, 1, -1]);
                let turned =
                    host(Rotation::new(3..4, model.config(), false, &model.device()).apply(before)).expect("read");
                assert!(turned.iter().zip(rotated).all(|(a, b)| (a - b).abs() < 1e-5));
            }
            assert!(it.largest_difference() < 1e-5, "{}", it.largest_difference());
            assert!(largest_difference(&it.context, &it.model_context) < 1e-5);
        }
    }
}
