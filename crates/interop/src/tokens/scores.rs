//! The scores of SentencePiece's BPE, and the equivalent list of merges in the `tokenizers` library.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Two tokens that are merged.
pub(crate) type Merge = (String, String);

/// The merges of scored pieces: every way to make a piece from two others, highest score first.
///
/// Source: transformers, `generate_merges` in `convert_slow_tokenizer.py`, which made Llama's tokenizer.json.
pub(crate) fn merges(pieces: &[(&str, f32)]) -> Vec<Merge> {
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().map(|(id, (piece, _))| (*piece, id)).collect();
    let mut found = Vec::new();
    for (piece, score) in pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let mut ways: Vec<(usize, usize)> =
            cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?))).collect();
        ways.sort_unstable();
        found.extend(ways.into_iter().map(|(left, right)| (*score, pieces[left].0, pieces[right].0)));
    }
    // The sort is stable: ties stay in the order of the pieces.
    found.sort_by(|a, b| {
        let length = |(_, left, right): &(f32, &str, &str)| Reverse((left.chars().count(), right.chars().count()));
        b.0.total_cmp(&a.0).then_with(|| length(a).cmp(&length(b)))
    });
    found.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

/// Scores that give pieces the precedence of a list of merges: minus the rank of the first merge that makes the piece.
/// Pieces without a merge have the score 0, which is never used.
pub(crate) fn scores(merges: &[Merge]) -> HashMap<String, f32> {
    let mut scores = HashMap::new();
    for (place, (left, right)) in merges.iter().enumerate() {
        scores.entry(format!("{left}{right}")).or_insert(-(place as f32));
    }
    scores
}

/// Whether a list has all of [`merges`] in the same order, up to the order of the ways to make one piece.
pub(crate) fn are_all(list: &[Merge], pieces: &[(&str, f32)]) -> bool {
    let by_piece = |list: &[Merge]| -> Vec<Vec<Merge>> {
        let ways = list.chunk_by(|a, b| format!("{}{}", a.0, a.1) == format!("{}{}", b.0, b.1));
        ways.map(|ways| {
            let mut ways = ways.to_vec();
            ways.sort();
            ways
        })
        .collect()
    };
    by_piece(list) == by_piece(&merges(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(left: &str, right: &str) -> Merge {
        (left.to_owned(), right.to_owned())
    }

    #[test]
    fn merges_follow_scores_in_any_order_of_pieces() {
        let pieces = [("abc", -2.0), ("a", 0.0), ("b", 0.0), ("c", 0.0), ("bc", -1.0), ("ab", -3.0), ("abd", 9.0)];
        let expected = [merge("b", "c"), merge("ab", "c"), merge("a", "bc"), merge("a", "b")];
        assert_eq!(merges(&pieces), expected);
    }

    #[test]
    fn scores_reproduce_their_merges() {
        let list = [merge("\u{2581}", "t"), merge("\u{e9}", "\u{e9}"), merge("h", "e"), merge("\u{2581}t", "he")];
        let scores = scores(&list);
        let mut pieces: Vec<(&str, f32)> = scores.iter().map(|(piece, score)| (piece.as_str(), *score)).collect();
        pieces.sort_by(|a, b| a.0.cmp(b.0));
        pieces.extend(["\u{2581}", "t", "\u{e9}", "h", "e"].map(|piece| (piece, 0.0)));
        assert_eq!(merges(&pieces), list);
        assert!(are_all(&list, &pieces));
        let mut swapped = list.clone();
        swapped.swap(0, 1);
        assert!(!are_all(&swapped, &pieces));
        pieces.push(("\u{2581}th", -9.0)); // with e it would also make the piece of the last merge
        assert!(!are_all(&list, &pieces));
    }
}
