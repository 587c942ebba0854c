//! What the fields of records are called, and which of them mean nothing.

use crate::config::FinetuneConfig;

/// What the fields of records mean.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    /// Pairs of our name of a field and that of the record.
    pub(super) map: Vec<(&'a str, &'a str)>,
    pub(super) ignored: &'a [String],
    /// The chat template, which may name other roles and other fields of messages.
    pub(super) template: Option<&'a str>,
}

impl<'a> Fields<'a> {
    /// The text of a record is in its field `text_field`.
    pub(super) fn new(config: &'a FinetuneConfig, text_field: &'a str, template: Option<&'a str>) -> Self {
        let mut map: Vec<(&str, &str)> = config.map.iter().filter_map(|pair| pair.split_once('=')).collect();
        if text_field != "text" {
            map.push(("text", text_field));
        }
        Self { map, ignored: &config.ignored_fields, template }
    }

    /// Whether a column of this name is read.
    pub(super) fn reads(&self, name: &str) -> bool {
        !self.ignored.iter().any(|ignored| ignored == name)
            && (self.map.iter().any(|(_, sent)| *sent == name) || !means_nothing(name))
    }

    /// Whether a field of this name says nothing that a model could learn from it.
    pub(super) fn is_neutral(&self, name: &str) -> bool {
        self.ignored.iter().any(|ignored| ignored == name) || means_nothing(name)
    }
}

/// Whether a name is that of a field that says where a record is from or how good it is.
fn means_nothing(name: &str) -> bool {
    const LAST: &str = "id idx index uuid hash source dataset subset split origin metadata meta category categories topic \
                        topics tag tags domain language lang license url date timestamp model score scores rating ratings \
                        quality difficulty tokens length turns views";
    let name = name.to_lowercase();
    let is_row = name.is_empty() || name.starts_with("__index_level") || name.starts_with("unnamed:"); // of pandas
    let mut words = name.split(['_', '-', ' ', '.']);
    let (first, last) = (words.next().unwrap_or_default(), words.next_back());
    let is_count = ["n", "num", "score", "rating"].contains(&first) && last.is_some();
    is_row || is_count || LAST.split(' ').any(|word| word == last.unwrap_or(first))
}
