//! Log-probabilities of tokens, by the model alone: before temperature, bias and all other settings.

/// A token with its log-probability, and the most probable tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Score {
    pub(super) token: u32,
    /// In nats; `None` for the first token of a prompt, which has no predecessor.
    pub(super) logprob: Option<f32>,
    /// In descending order; ties by token.
    pub(super) top: Vec<(u32, f32)>,
}

impl Score {
    /// The score of the first token of a prompt.
    pub(super) fn first(token: u32) -> Self {
        Self { token, logprob: None, top: Vec::new() }
    }

    /// The score of a token after these logits, with the `n_top` most probable of all.
    pub(super) fn new(logits: &[f32], token: u32, n_top: usize) -> Self {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
        let log_sum = f64::from(max) + sum.ln();
        #[allow(clippy::cast_possible_truncation, reason = "a logit has no more digits")]
        let logprob = |token: u32| (f64::from(logits[token as usize]) - log_sum) as f32;
        let top = likeliest(logits, n_top).into_iter().map(|token| (token, logprob(token))).collect();
        Self { token, logprob: Some(logprob(token)), top }
    }
}

/// The tokens of the `n` highest logits, by insertion sort, since `n` is small.
fn likeliest(logits: &[f32], n: usize) -> Vec<u32> {
    let mut top: Vec<u32> = Vec::with_capacity(n + 1);
    for (token, logit) in (0..).zip(logits) {
        let is_full = top.len() == n;
        if is_full && top.last().is_none_or(|last| *logit <= logits[*last as usize]) {
            continue;
        }
        let at = top.partition_point(|other| logits[*other as usize] >= *logit);
        top.insert(at, token);
        top.truncate(n);
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_the_log_softmax() {
        let logits = [1.0, 3.0, 3.0, -100.0, 2.0];
        let score = Score::new(&logits, 4, 3);
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let want = |x: f64| (x - sum.ln()) as f32;
        assert_eq!(score.logprob, Some(want(2.0)));
        assert_eq!(score.top, [(1, want(3.0)), (2, want(3.0)), (4, want(2.0))]);
        assert_eq!(Score::new(&logits, 3, 0).logprob, Some(want(-100.0)));
        assert_eq!(Score::new(&logits, 3, 0).top, []);
        assert_eq!(likeliest(&logits, 9), [1, 2, 4, 0, 3]);
        assert_eq!(Score::new(&[1e30, -1e30], 0, 1).logprob, Some(0.0));
    }
}
