//! Pages of HTML that stand alone: styles, scripts and data are in the file, and nothing is ever fetched.
//!
//! A [`Page`] is a title and sections. What a section shows is a [`Fragment`]: some HTML, and for one that moves
//! its styles, its scripts and its data. Several fragments, also of one kind, share a page without knowing of each
//! other: styles and scripts of a kind are written once, styles hold only inside its sections, and its script is
//! called with one section's element and data at a time (see `page.js`). Ids belong to the page.
//!
//! A page is safe to open whatever text it shows: [`escape()`] is for text between tags and in attributes, data is
//! written by [`Page::render`] so that it cannot end its element, and the browser is told to run the page's own
//! script, known by its hash, and no other.
//!
//! This part knows nothing of what pages are about.

mod base64;
mod escape;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

pub use base64::base64;
pub use escape::escape;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What a section shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// What kind of section it is, one word in lower case: its class, and the name that its script registers
    /// a view by.
    pub kind: &'static str,
    /// Style sheets. Their rules hold inside sections of this kind only.
    pub styles: &'static [&'static str],
    /// Scripts, one scope for all of a kind. Together they call `page.view(kind, build)` once.
    pub scripts: &'static [&'static str],
    /// HTML, in which all text that comes from elsewhere went through [`escape()`]. It has no ids.
    pub body: String,
    /// A JSON document for the view.
    pub data: Option<String>,
}

impl Fragment {
    /// HTML that needs no script and no styles but the page's, in a section of class `kind`.
    #[must_use]
    pub fn still(kind: &'static str, body: String) -> Self {
        Self { kind, styles: &[], scripts: &[], body, data: None }
    }
}

/// A page in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    title: String,
    lead: String,
    sections: Vec<(String, Fragment)>,
}

impl Page {
    /// An empty page. `title` is its heading, `lead` a sentence below it, both plain text; the sentence may be
    /// empty.
    #[must_use]
    pub fn new(title: &str, lead: &str) -> Self {
        Self { title: title.to_owned(), lead: lead.to_owned(), sections: Vec::new() }
    }

    /// Adds a section below those that are there. `heading` is plain text.
    #[must_use]
    pub fn section(mut self, heading: &str, fragment: Fragment) -> Self {
        self.sections.push((heading.to_owned(), fragment));
        self
    }

    /// The whole file.
    #[must_use]
    pub fn render(&self) -> String {
        let script = self.script();
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; \
             base-uri 'none'; form-action 'none'",
            base64(&Sha256::digest(&script))
        );
        let lead = match self.lead.as_str() {
            "" => String::new(),
            lead => format!("<p class=\"page-lead\">{}</p>\n", escape(lead)),
        };
        format!(
            "<!doctype html>\n\
             <html lang=\"en\">\n\
             <head>\n\
             <meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"generator\" content=\"tinderbox {version}\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>{title}</title>\n\
             <style>\n{style}</style>\n\
             </head>\n\
             <body>\n\
             <header class=\"page-header\">\n\
             <h1>{title}</h1>\n\
             <button type=\"button\" class=\"page-theme\" hidden></button>\n\
             </header>\n\
             {lead}{contents}\
             <main>\n\
             {sections}\
             </main>\n\
             <script>{script}</script>\n\
             </body>\n\
             </html>\n",
            version = env!("CARGO_PKG_VERSION"),
            title = escape(&self.title),
            style = self.style(),
            contents = self.contents(),
            sections = self.body(),
        )
    }

    /// The fragments of which each kind has its first.
    fn kinds(&self) -> impl Iterator<Item = &Fragment> {
        let mut seen = BTreeSet::new();
        let fragments = self.sections.iter().map(|(_, fragment)| fragment);
        fragments.filter(move |fragment| seen.insert(fragment.kind))
    }

    fn style(&self) -> String {
        let mut style = STYLE.to_owned();
        for fragment in self.kinds().filter(|fragment| !fragment.styles.is_empty()) {
            let rules = fragment.styles.concat();
            writeln!(style, "section.{} {{\n{rules}}}", fragment.kind).expect("a string");
        }
        style
    }

    /// One script, so that one hash allows it; a block for each kind, so that their names do not meet.
    fn script(&self) -> String {
        let mut script = format!("\n{SCRIPT}");
        for fragment in self.kinds().filter(|fragment| !fragment.scripts.is_empty()) {
            let parts = fragment.scripts.join("\n");
            writeln!(script, "\n{{\n{parts}}}").expect("a string");
        }
        script.push_str("\npage.start();\n");
        script
    }

    /// Links to the sections, where there are several.
    fn contents(&self) -> String {
        if self.sections.len() < 2 {
            return String::new();
        }
        let mut list = "<nav class=\"page-contents\" aria-label=\"Contents\">\n<ol>\n".to_owned();
        for (number, (heading, _)) in (1..).zip(&self.sections) {
            let heading = escape(heading);
            writeln!(list, "<li><a href=\"#section-{number}\">{heading}</a></li>")
                .expect("a string");
        }
        list + "</ol>\n</nav>\n"
    }

    fn body(&self) -> String {
        let mut body = String::new();
        for (number, (heading, fragment)) in (1..).zip(&self.sections) {
            let Fragment { kind, body: html, data, .. } = fragment;
            let heading = escape(heading);
            write!(
                body,
                "<section id=\"section-{number}\" class=\"{kind}\" data-view=\"{kind}\">\n<h2>{heading}</h2>\n{html}\n"
            )
            .expect("a string");
            if !fragment.scripts.is_empty() {
                body.push_str(
                    "<noscript><p>This part of the page needs JavaScript.</p></noscript>\n",
                );
            }
            if let Some(data) = data {
                let data = escape::json(data);
                writeln!(body, "<script type=\"application/json\">{data}</script>")
                    .expect("a string");
            }
            body.push_str("</section>\n");
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(data: &str) -> Fragment {
        Fragment {
            kind: "example",
            styles: &["p { color: red; }\n"],
            scripts: &["const one = 1;\n", "page.view(\"example\", () => one);\n"],
            body: "<p>x</p>".to_owned(),
            data: Some(data.to_owned()),
        }
    }

    /// What stands between the first `start` and the `end` after it.
    fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
        let (_, rest) = text.split_once(start).expect("a start");
        rest.split_once(end).expect("an end").0
    }

    #[test]
    fn a_kinds_styles_and_scripts_are_written_once() {
        let page = Page::new("A page", "")
            .section("One", moving("[1]"))
            .section("Still", Fragment::still("words", "<p>y</p>".to_owned()))
            .section("Two", moving("[2]"));
        let html = page.render();
        assert_eq!(html.matches("const one = 1;").count(), 1);
        assert_eq!(html.matches("section.example {").count(), 1);
        assert!(!html.contains("section.words"));
        assert_eq!(html.matches("<section ").count(), 3);
        assert_eq!(html.matches("type=\"application/json\"").count(), 2);
        assert!(html.contains("<li><a href=\"#section-3\">Two</a></li>"));
        let single = Page::new("A page", "").section("One", moving("[1]"));
        assert!(!single.render().contains("<nav"));
    }

    #[test]
    fn text_and_data_stay_what_they_are() {
        let evil = "</title></script><script>alert(1)</script><!--\"'&";
        let data = serde_json::to_string(&[evil]).expect("plain data");
        let page = Page::new(evil, evil).section(evil, moving(&data));
        let html = page.render();
        assert_eq!(html.matches("<script").count(), 2, "its own and the data");
        assert_eq!(html.matches("</script").count(), 2);
        assert_eq!(html.matches("<title>").count(), 1);
        assert!(!html.contains("alert(1)</") && !html.contains("<!--"));
        let written = between(&html, "<script type=\"application/json\">", "</script>");
        let read: Vec<String> = serde_json::from_str(written).expect("still JSON");
        assert_eq!(read, [evil]);
    }

    #[test]
    fn the_browser_runs_this_script_and_fetches_nothing() {
        let html = Page::new("A page", "").section("One", moving("1")).render();
        let script = between(&html, "<script>", "</script>");
        let policy = between(&html, "Content-Security-Policy\" content=\"", "\"");
        let hash = base64(&Sha256::digest(script));
        assert!(policy.contains(&format!("script-src 'sha256-{hash}'")), "{policy}");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!html.contains("https:"));
        let other = html.replace("http://www.w3.org/2000/svg", ""); // a name, not an address
        assert!(!other.contains("http:"));
    }

    /// A checkout with other line ends would have another hash than the browser, which reads them all as `\n`.
    #[test]
    fn assets_have_plain_line_ends() {
        assert!(!STYLE.contains('\r') && !SCRIPT.contains('\r'));
    }
}
