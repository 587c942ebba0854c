//! The model card: describes the model, its training and its training text, for users of the folder.

use std::fmt::Write;

use crate::{InteropError, Outgoing};
use tinderbox_model::format::{compact, grouped};
use tinderbox_train::config::{FinetuneConfig, TrainOn, ValSplit};
use tinderbox_train::run::RunInfo;

/// The card, in Markdown; `curve` is the file name of a loss plot beside it.
pub(super) fn card(model: &Outgoing, curve: Option<&str>) -> Result<String, InteropError> {
    let info = RunInfo::read(&model.run)?;
    let mut card = String::new();
    let parameters = model.n_parameters() as u64;
    let context = grouped(model.model().context_length as u64);
    let mut line = |text: &str| writeln!(card, "{text}").expect("writing to a string cannot fail");
    line("---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- tinderbox\n---\n");
    line(&format!("# {}\n", model.name()));
    line(&format!(
        "A language model of the family `{}` with {} parameters ({}), a vocabulary of {} tokens and a context of \
         {context} tokens, written by [Tinderbox](https://crates.io/crates/tinderbox).\n",
        model.family,
        compact(parameters),
        grouped(parameters),
        grouped(model.vocab_size() as u64),
    ));
    line("```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n");
    line("tokenizer = AutoTokenizer.from_pretrained(\".\")\nmodel = AutoModelForCausalLM.from_pretrained(\".\")");
    line("inputs = tokenizer(\"...\", return_tensors=\"pt\")");
    line("print(tokenizer.decode(model.generate(**inputs)[0]))\n```\n");
    line("## Data\n");
    let from = model.state.started_from.as_ref();
    match from {
        Some(from) if model.state.is_imported() => line(&format!("The weights are those of `{from}`.\n")),
        Some(from) => line(&format!("The first weights were those of `{from}`.\n")),
        None => {}
    }
    if model.config.data.has_text() {
        let data = &model.config.data;
        for (source, weight) in data.all_sources().iter().zip(data.weights()) {
            line(&format!("- `{}`, drawn with weight {weight}", source.path.display()));
        }
        let fraction = model.config.data.val_fraction;
        line(&match model.config.data.val_split {
            _ if model.config.finetune.base.is_some() => {
                format!("\nOf the records, {fraction} was kept for validation, drawn at random.\n")
            }
            Some(ValSplit::Documents) => format!(
                "\nOf each, {fraction} was kept for validation: of several files whole documents, of a single one the \
                 end.\n"
            ),
            Some(ValSplit::End) | None => format!("\nOf each, the last {fraction} was kept for validation.\n"),
        });
    }
    if !model.state.is_imported() {
        line("## Training\n");
        let tokens = info.tokens.map_or_else(String::new, |n| format!(" on {} tokens, with repetition", grouped(n)));
        line(&format!("The checkpoint after {} steps of a run that went{tokens}.\n", grouped(model.state.step as u64)));
        if let Some(loss) = info.val_loss {
            let bits = info.val_bits_per_byte.map_or_else(String::new, |bits| format!(", {bits:.4} bits per byte"));
            let mark = if info.is_estimate { "about " } else { "" };
            let (unit, condition) = (info.loss_unit(), condition(model, info.val_accuracy));
            line(&format!("Best validation loss: {mark}{loss:.4} {unit}{bits}. {condition}\n"));
        }
        if let Some(curve) = curve {
            line(&format!("![The loss during training]({curve})\n"));
        }
    }
    line(&format!("## Config\n\n```toml\n{}```", model.config.to_toml()));
    Ok(card)
}

/// The tokens that the loss counts: those of answers, or of a text with or without the ends of documents.
fn condition(model: &Outgoing, preferred: Option<f64>) -> String {
    let FinetuneConfig { base, train_on, .. } = &model.config.finetune;
    if let Some(share) = preferred {
        return format!("It is that of preferences; of the chosen answers, {:.0} % are preferred.", 100.0 * share);
    }
    if base.is_some() {
        let counted =
            if *train_on == TrainOn::All { "all tokens of the records" } else { "the answers and their ends" };
        return format!("It counts {counted}.");
    }
    let Some(end) = model.tokenizer.end_of_text() else {
        return "It does not count ends of documents: the tokenizer has no token for them.".to_owned();
    };
    let end = model.tokenizer.piece(end);
    let at = model.config.data.document_separator.as_ref();
    let at = at.map_or_else(String::new, |separator| format!(", and after each {separator:?} within a file"));
    format!(
        "It counts the token `{end}`, which follows each document: each file of a folder, each record of JSON Lines{at}."
    )
}
