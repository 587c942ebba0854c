//! Standalone HTML pages: styles, scripts and data are in the file, and nothing is ever fetched.
//!
//! A page is safe to open whatever text it shows: [`escape()`] is for text between tags and in attributes, data cannot
//! end its element, and the browser runs only the page's script, identified by its hash.

pub(crate) mod attention;
pub(crate) mod curves;
mod packing;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};

use crate::view::escape::escape;
use crate::view::theme::TOKENS;

pub(crate) const STYLE: &str = include_str!("../assets/page.css");
/// The logo: a spark.
pub(crate) const SPARK: &str = include_str!("../assets/spark.svg");
const SCRIPT: &str = include_str!("../assets/page.js");
const PICTURE: &str = include_str!("../assets/picture.js");

/// The start of the element that marks pages as made here.
const GENERATOR: &str = "<meta name=\"generator\" content=\"tinderbox ";

/// Whether a text is a page that was made here, by any version.
#[cfg(any(feature = "cli", feature = "serve"))]
pub(crate) fn is_page(text: &str) -> bool {
    text.split_once("</head>").is_some_and(|(head, _)| head.contains(GENERATOR))
}

/// The content of a section.
///
/// Sections of one kind share their styles and scripts, which are written once. Styles apply only inside sections of
/// their kind; the script is called with the element and the data of one section at a time (see `page.js`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// One lower-case word: the CSS class of the section, and the name under which its script registers a view.
    pub kind: &'static str,
    pub styles: &'static [&'static str],
    /// Scripts that share one scope and call `page.view(kind, build)` once.
    pub scripts: &'static [&'static str],
    /// HTML without ids, with all external text escaped.
    pub body: String,
    pub data: Option<String>,
    /// Base64 texts, which the script reads one at a time. Large data goes here: a browser is slow to load a long
    /// element, and parses all of a document at once.
    pub lists: Vec<String>,
}

impl Fragment {
    pub const fn empty(kind: &'static str, styles: &'static [&'static str], scripts: &'static [&'static str]) -> Self {
        Self { kind, styles, scripts, body: String::new(), data: None, lists: Vec::new() }
    }
}

/// A page with sections below their headings. `about` names a run and its step, also in the window's title and on pictures
/// that a reader saves. It and the lead may be empty; all is plain text.
pub(crate) fn page(title: &str, about: &str, lead: &str, sections: &[(impl AsRef<str>, Fragment)]) -> String {
    let (mut contents, mut body) = (String::new(), String::new());
    let mut kinds: Vec<&Fragment> = Vec::new(); // the first fragment of each kind
    for (number, (heading, fragment)) in (1..).zip(sections) {
        let heading = escape(heading.as_ref());
        contents += &format!("<li><a href=\"#section-{number}\">{heading}</a></li>\n");
        body += &section(number, &heading, heading == escape(title), fragment);
        if kinds.iter().all(|known| known.kind != fragment.kind) {
            kinds.push(fragment);
        }
    }
    if sections.len() > 1 {
        contents = format!("<nav class=\"page-contents\" aria-label=\"Contents\">\n<ol>\n{contents}</ol>\n</nav>\n");
    } else {
        contents.clear();
    }
    let script = script(&kinds);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; \
         base-uri 'none'; form-action 'none'",
        BASE64_STANDARD.encode(Sha256::digest(&script))
    );
    let window_title = match about {
        "" => escape(title),
        about => escape(&format!("{title} · {about}")),
    };
    let paragraph = |class: &str, text: &str| match text {
        "" => String::new(),
        text => format!("<p class=\"{class}\">{}</p>\n", escape(text)),
    };
    let (about, lead) = (paragraph("page-about", about), paragraph("page-lead", lead));
    format!(
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <head>\n\
         <meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         {GENERATOR}{version}\">\n\
         <link rel=\"icon\" href=\"data:image/svg+xml;base64,{icon}\">\n\
         <title>{window_title}</title>\n\
         <style>\n{style}</style>\n\
         </head>\n\
         <body>\n\
         <header class=\"page-header\">\n\
         <img class=\"page-mark\" src=\"data:image/svg+xml;base64,{icon}\" alt=\"\">\n\
         <h1>{title}</h1>\n\
         <button type=\"button\" class=\"page-theme\" hidden></button>\n\
         </header>\n\
         <main>\n\
         {about}{lead}{contents}\
         {body}\
         </main>\n\
         <script>{script}</script>\n\
         </body>\n\
         </html>\n",
        version = env!("CARGO_PKG_VERSION"),
        icon = BASE64_STANDARD.encode(SPARK),
        title = escape(title),
        style = style(&kinds),
    )
}

pub(crate) fn style(kinds: &[&Fragment]) -> String {
    let mut style = [TOKENS, STYLE].concat();
    for fragment in kinds.iter().filter(|fragment| !fragment.styles.is_empty()) {
        style += &format!("section.{} {{\n{}}}\n", fragment.kind, fragment.styles.concat());
    }
    style
}

/// A single script, so that one hash allows it; a block per kind keeps their names separate.
pub(crate) fn script(kinds: &[&Fragment]) -> String {
    let mut script = format!("\n{SCRIPT}{PICTURE}");
    for fragment in kinds.iter().filter(|fragment| !fragment.scripts.is_empty()) {
        script += &format!("\n{{\n{}}}\n", fragment.scripts.join("\n"));
    }
    script + "\npage.start();\n"
}

/// A section; a heading that repeats the title is there only for the names of pictures.
fn section(number: usize, heading: &str, is_title: bool, fragment: &Fragment) -> String {
    let Fragment { kind, scripts, body, data, lists, .. } = fragment;
    let hidden = if is_title { " hidden" } else { "" };
    let mut html = format!(
        "<section id=\"section-{number}\" class=\"{kind}\" data-view=\"{kind}\">\n<h2{hidden}>{heading}</h2>\n{body}\n"
    );
    if !scripts.is_empty() {
        html += "<noscript><p>This part of the page needs JavaScript.</p></noscript>\n";
    }
    if let Some(data) = data {
        html += &format!("<script type=\"application/json\">{}</script>\n", escape_json(data));
    }
    for list in lists {
        html += "<script type=\"text/plain\">";
        html += list;
        html += "</script>\n";
    }
    html + "</section>\n"
}

/// Escapes a JSON document for a `<script>`: nothing in it can end the element or start a comment.
fn escape_json(document: &str) -> String {
    document.replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(data: &str) -> Fragment {
        let scripts = &["const one = 1;\n", "page.view(\"example\", () => one);\n"];
        let empty = Fragment::empty("example", &["p { color: red; }\n"], scripts);
        Fragment { body: "<p>x</p>".to_owned(), data: Some(data.to_owned()), ..empty }
    }

    /// The text between the first `start` and the `end` after it.
    fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
        let (_, rest) = text.split_once(start).expect("the page has this element");
        rest.split_once(end).expect("the element is closed").0
    }

    #[test]
    fn page_escapes_text_and_data() {
        let evil = "</title></script><script>alert(1)</script><!--<script>]]>\"'&amp;\u{2028}\\";
        let data = serde_json::to_string(&[evil]).expect("a page's data is plain");
        let html = page(evil, "", evil, &[(evil, moving(&data))]);
        assert_eq!(html.matches("<script").count(), 2, "its own and the data");
        assert_eq!(html.matches("</script").count(), 2);
        assert_eq!(html.matches("<title>").count(), 1);
        assert!(!html.contains("alert(1)</") && !html.contains("<!--"));
        let written = between(&html, "<script type=\"application/json\">", "</script>");
        assert!(!written.contains(['<', '>', '&']), "{written}");
        let read: Vec<String> = serde_json::from_str(written).expect("escaped JSON stays JSON");
        assert_eq!(read, [evil]);
    }

    #[test]
    fn policy_allows_only_own_script() {
        let html = page("A page", "", "", &[("One", moving("1"))]);
        let script = between(&html, "<script>", "</script>");
        let policy = between(&html, "Content-Security-Policy\" content=\"", "\"");
        let hash = BASE64_STANDARD.encode(Sha256::digest(script));
        assert!(policy.contains(&format!("script-src 'sha256-{hash}'")), "{policy}");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!html.contains("https:"));
        let other = html.replace("http://www.w3.org/2000/svg", ""); // a namespace, not an address
        assert!(!other.contains("http:"));
    }
}
