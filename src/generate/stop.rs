//! Ending a text where a stop text would stand, without ever showing a part of it.

/// Holds back what could still become a stop text.
#[derive(Clone, Debug)]
pub(super) struct StopTexts {
    stops: Vec<String>,
    held: String,
}

impl StopTexts {
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    /// Takes a further piece and returns what can be shown, and whether a stop text was met: then the
    /// text ends with what is returned.
    pub(super) fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = first {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| self.longest_start(stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back and did not become a stop text.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that a stop text begins with.
    fn longest_start(&self, stop: &str) -> usize {
        let starts = stop.char_indices().map(|(at, _)| at).skip(1);
        starts.filter(|at| self.held.ends_with(&stop[..*at])).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut texts = StopTexts::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = texts.push(piece);
            out.push_str(&text);
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&texts.finish());
        (out, false)
    }

    #[test]
    fn ends_before_the_stop_text_even_across_pieces() {
        assert_eq!(shown(&["END"], &["abE", "N", "Dcd"]), ("ab".to_owned(), true));
        assert_eq!(shown(&["\n\n", "x"], &["a\n", "\nb"]), ("a".to_owned(), true));
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
    }

    #[test]
    fn what_only_looked_like_a_stop_text_is_shown() {
        assert_eq!(shown(&["END"], &["abE", "Nd"]), ("abENd".to_owned(), false));
        assert_eq!(shown(&["END"], &["abEN"]), ("abEN".to_owned(), false));
        assert_eq!(shown(&["éa"], &["é", "b"]), ("éb".to_owned(), false));
        assert_eq!(shown(&[], &["any"]), ("any".to_owned(), false));
    }
}
