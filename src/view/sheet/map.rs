//! The token embedding as a map: tokens whose vectors are similar are near each other.

use crate::format::{fixed, grouped, percent};
use crate::inspect::EmbeddingMap;
use crate::view::sheet::{Content, Figure, Map, MapPoint, Sheet};

/// The number of tokens whose most similar ones are listed.
const N_NAMED: usize = 12;

/// The token embedding in the plane in which it varies most, and the tokens most similar to the most frequent.
pub fn embedding_map_sheet(map: &EmbeddingMap) -> Sheet {
    let [across, up] = map.explained;
    let points = map.tokens.iter().map(|token| {
        let named = token.nearest.iter().map(|(name, cosine)| format!("“{name}” {}", fixed(*cosine, 2)));
        let named = named.collect::<Vec<_>>().join(", ");
        let place = |(name, _): &(String, f64)| map.tokens.iter().position(|other| other.text == *name);
        MapPoint {
            name: token.text.clone(),
            at: [token.x, token.y],
            about: format!("“{}”, {} in the text. Most similar: {named}", token.text, grouped(token.count)),
            near: token.nearest.iter().filter_map(place).collect(),
        }
    });
    let similar = map.tokens.iter().take(N_NAMED).map(|token| {
        let near = token.nearest.iter().map(|(name, cosine)| format!("{name} {}", fixed(*cosine, 2)));
        format!("{}: {}", token.text, near.collect::<Vec<_>>().join("  "))
    });
    Sheet {
        heading: "The token embedding".to_owned(),
        lead: format!(
            "The {} most frequent tokens of the text, where similar vectors are near: the plane in which the vectors differ \
             most (principal components). It has {} of their variance, so look at the most similar by cosine, too.",
            map.tokens.len(),
            percent(across + up)
        ),
        figures: vec![
            Figure::new(
                format!("Across {} of the variance, up {}", percent(across), percent(up)),
                Content::Map(Map { points: points.collect() }),
            ),
            Figure::new("Most similar", Content::Lines(similar.collect())),
        ],
    }
}
