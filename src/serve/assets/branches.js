/** The completions as a tree, kept in the address: each branches off where a token was replaced. */
import { remember, remembered, visible } from "./api.js";

const MOST = 50;

/** The length of the common beginning of two texts. */
function shared(one, other) {
  let n = 0;
  while (n < one.length && one[n] === other[n]) {
    n += 1;
  }
  return n;
}

/** The texts of an address, each as its parent, its token, and the rest after their common beginning. */
function read(list) {
  const texts = [];
  for (const [parent, token, n, rest] of list) {
    texts.push({ parent, token, text: (texts[parent]?.text ?? "").slice(0, n) + rest });
  }
  return texts;
}

export class Branches {
  /** `open(text)` shows a text. */
  constructor(open) {
    this.open = open;
    this.list = page.element("ul", { class: "branches" });
    this.node = page.element("details", { open: true }, page.element("summary", {}, "Branches"), this.list);
    try {
      this.texts = read(remembered("branches") ?? []);
    } catch {
      this.texts = []; // a damaged link
    }
  }

  /** Adds a text: replaces the text that it continues, or becomes a branch of `from`, where it replaces a token. */
  add(text, fork = null) {
    const grown = this.texts.find((other) => text.startsWith(other.text));
    if (fork) {
      const parent = this.texts.findIndex((other) => other.text === fork.from);
      this.texts.push({ text, parent, token: fork.token });
    } else if (this.texts.some((other) => other.text.startsWith(text))) {
      return;
    } else if (grown) {
      this.longest(text).text = text;
    } else {
      this.texts.push({ text, parent: -1, token: null });
    }
    if (this.texts.length > MOST) {
      this.texts.shift();
      this.texts.forEach((other) => (other.parent = Math.max(other.parent - 1, -1)));
    }
    remember("branches", this.texts.map(({ parent, token, text: whole }) => {
      const n = shared(this.texts[parent]?.text ?? "", whole);
      return [parent, token, n, whole.slice(n)];
    }));
    this.show();
  }

  /** The longest text that this one continues. */
  longest(text) {
    const begun = this.texts.filter((other) => text.startsWith(other.text));
    return begun.reduce((long, other) => (other.text.length > long.text.length ? other : long));
  }

  show() {
    this.node.hidden = this.texts.length < 2;
    const items = (parent) =>
      this.texts.flatMap((branch, at) => {
        if (branch.parent !== parent) {
          return [];
        }
        const end = visible(branch.text.slice(-60));
        const name = branch.token === null ? end : `${visible(branch.token)} … ${end}`;
        const inner = items(at);
        const button = page.element("button", { type: "button", class: "plain", click: () => this.open(branch.text) }, name);
        return [page.element("li", {}, button, ...(inner.length > 0 ? [page.element("ul", {}, ...inner)] : []))];
      });
    this.list.replaceChildren(...items(-1));
  }
}
