//! A comparison of a run with another project's model, as text.

use std::collections::BTreeMap;

use crate::format::counted;
use crate::interop::verify::{TensorComparison, TensorResult, Verification};
use crate::view::terminal::table::table;

/// The tensors that differ, the number of equal tensors, and the comparison of the predictions.
pub fn verification(found: &Verification, n_columns: usize) -> String {
    let mut text = String::new();
    let is_listed = |tensor: &&TensorComparison| !matches!(tensor.result, TensorResult::Equal | TensorResult::Rounded);
    let rows: Vec<[String; 5]> = found.tensors.iter().filter(is_listed).map(row).collect();
    if !rows.is_empty() {
        text += &table("TENSOR|RESULT|TYPE|>MAX DIFFERENCE|SHAPE", &rows, n_columns);
        text.push('\n');
    }
    let n = found.tensors.len();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in &found.tensors {
        *counts.entry(name(tensor.result)).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(result, n)| format!("{n} {result}")).collect();
    text += &format!("{} of the family {}: {}\n", counted(n as u64, "tensor"), found.family, counts.join(", "));
    let rounded = found.tensors.iter().filter(|tensor| tensor.result == TensorResult::Rounded);
    let farthest = rounded.max_by(|a, b| a.max_difference.unwrap_or(0.0).total_cmp(&b.max_difference.unwrap_or(0.0)));
    if let Some(TensorComparison { name, dtype: Some(dtype), max_difference: Some(max), .. }) = farthest {
        text += &format!("rounded ones differ no more than {dtype} explains: by at most {max:.1e}, in {name}\n");
    }
    for setting in &found.settings {
        text += &format!("{setting}\n");
    }
    if let Some(logits) = &found.logits {
        let ids = if logits.same_ids { "the same ids" } else { "other ids" };
        text += &format!(
            "{}, {ids} by both tokenizers: logits differ by at most {:.1e}, the likeliest next token is the same after {} \
             of {}\n",
            counted(logits.n_tokens as u64, "token"),
            logits.max_difference,
            logits.n_same_argmax,
            logits.n_tokens,
        );
    }
    text += if found.same { "the same model\n" } else { "not the same model\n" };
    text
}

fn row(tensor: &TensorComparison) -> [String; 5] {
    let difference = match (tensor.max_difference, tensor.n_different) {
        (Some(max), Some(n)) => format!("{max:.1e} in {n}"),
        _ => String::new(),
    };
    let other = tensor.other_shape.as_ref().map_or_else(String::new, |shape| format!(", {shape:?} in the file"));
    let dtype = tensor.dtype.unwrap_or_default().to_owned();
    let shape = format!("{:?}{other}", tensor.shape);
    [tensor.name.clone(), name(tensor.result).to_owned(), dtype, difference, shape]
}

fn name(result: TensorResult) -> &'static str {
    match result {
        TensorResult::Equal => "equal",
        TensorResult::Rounded => "rounded",
        TensorResult::Different => "different",
        TensorResult::Misshapen => "misshapen",
        TensorResult::Missing => "missing in the file",
        TensorResult::Extra => "extra in the file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::Family;
    use crate::interop::verify::LogitComparison;

    #[test]
    fn verification_counts_equal_tensors_and_lists_others() {
        let tensor = |name: &str, result, max: Option<f32>| TensorComparison {
            name: name.to_owned(),
            result,
            shape: vec![2, 3],
            other_shape: (result == TensorResult::Misshapen).then(|| vec![3, 2]),
            dtype: (result != TensorResult::Missing).then_some("BF16"),
            max_difference: max,
            n_different: max.map(|_| 4),
        };
        let mut found = Verification {
            same: false,
            family: Family::from_name("llama").expect("llama is a known family"),
            settings: vec!["model.norm_eps = 1e-5, and 1e-6 in the file".to_owned()],
            tensors: vec![
                tensor("a", TensorResult::Equal, Some(0.0)),
                tensor("b", TensorResult::Rounded, Some(0.001)),
                tensor("c", TensorResult::Different, Some(0.5)),
                tensor("d", TensorResult::Missing, None),
                tensor("e", TensorResult::Misshapen, None),
            ],
            logits: None,
        };
        insta::assert_snapshot!(verification(&found, 100), @"
        TENSOR  RESULT               TYPE  MAX DIFFERENCE  SHAPE
        c       different            BF16     5.0e-1 in 4  [2, 3]
        d       missing in the file                        [2, 3]
        e       misshapen            BF16                  [2, 3], [3, 2] in the file

        5 tensors of the family llama: 1 different, 1 equal, 1 misshapen, 1 missing in the file, 1 rounded
        rounded ones differ no more than BF16 explains: by at most 1.0e-3, in b
        model.norm_eps = 1e-5, and 1e-6 in the file
        not the same model
        ");
        found.tensors.truncate(2);
        found.settings.clear();
        found.same = true;
        found.logits = Some(LogitComparison { n_tokens: 1, same_ids: true, max_difference: 2e-6, n_same_argmax: 1 });
        insta::assert_snapshot!(verification(&found, 100), @"
        2 tensors of the family llama: 1 equal, 1 rounded
        rounded ones differ no more than BF16 explains: by at most 1.0e-3, in b
        1 token, the same ids by both tokenizers: logits differ by at most 2.0e-6, the likeliest next token is the same after 1 of 1
        the same model
        ");
    }
}
