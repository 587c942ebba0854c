/** The texts that were written, as a tree: each grows from the one in which a token was changed. Kept as long as the tab. */
import { visible } from "./api.js";

const MOST = 50;

export class Branches {
  /** `open(text)` shows a text. */
  constructor(key, open) {
    Object.assign(this, { key, open });
    this.list = page.element("ul", { class: "branches" });
    this.node = page.element("details", {}, page.element("summary", {}, "Branches"), this.list);
    try {
      this.texts = JSON.parse(sessionStorage.getItem(key)) ?? [];
    } catch {
      this.texts = [];
    }
  }

  /** Adds a text: in place of the one that it goes on from, or as a branch of `from`, whose token it replaces. */
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
    sessionStorage.setItem(this.key, JSON.stringify(this.texts));
    this.show();
  }

  /** The longest of the texts that this one goes on from. */
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
