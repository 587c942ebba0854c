/** The prompt as text, coloured by the weights of one token, and below it all heads to choose from. */
class TextView {
  static key = "text";
  static title = "Text";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.tokens = attention.tokens.map((_, token) => this.token(token));
    this.flow = page.element(
      "div",
      { class: "flow", role: "group", "aria-label": "The prompt, token by token" },
      ...this.words(),
    );
    const n = this.tokens.length;
    roam(this.flow, this.tokens, (key, at) => ({
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: this.onNextLine(at, -1),
      ArrowDown: this.onNextLine(at, 1),
      Home: 0,
      End: n - 1,
    })[key]);
    this.sides = [
      ["query", "who it looks at"],
      ["key", "who looks at it"],
    ].map(([side, name]) =>
      page.element("button", { type: "button", "data-side": side, click: () => choice.turn(side) }, name),
    );
    const sides = page.element("div", { class: "switch", role: "group", "aria-label": "Direction" }, ...this.sides);
    this.heads = new HeadStrip(attention, choice);
    this.readout = page.element("div", { class: "readout", "aria-live": "polite" });
    this.lead = page.element("p", { class: "telling" });
    this.node = page.element(
      "div",
      { class: "text-view" },
      this.lead,
      page.element("div", { class: "controls" }, sides, legend()),
      this.flow,
      // Below the text, so that a small screen begins with the text.
      page.element(
        "p",
        { class: "about" },
        "Point at a token, or walk with the arrow keys: the colours of the others are its attention weights. The bar " +
          "below a token is the probability that the model gave it. A click keeps a token selected.",
      ),
      this.readout,
      this.heads.node,
    );
  }

  /** A button for a token, with the probability that it had. */
  token(token) {
    const { attention } = this;
    const node = tokenButton(attention, this.choice, token, () => this.choice.side);
    const text = attention.texts[token];
    node.textContent = { "\n": "↵", "\t": "→" }[text] ?? (text.includes("\n") ? attention.tokens[token] : text);
    const chance = attention.chance(token);
    if (chance !== null) {
      node.append(page.element("i", { class: "chance" }));
      node.lastChild.style.setProperty("--share", chance);
    }
    return node;
  }

  /** The tokens in groups that no line ends in: words, and the blanks between them. */
  words() {
    const words = [];
    let word = [];
    this.attention.texts.forEach((text, token) => {
      if (/^\s/.test(text) && word.length > 0) {
        words.push(page.element("span", { class: "word" }, ...word));
        word = [];
      }
      if (/\n$/.test(text)) {
        words.push(page.element("span", { class: "word" }, ...word, this.tokens[token]), page.element("br"));
        word = [];
      } else if (/^\s+$/.test(text)) {
        words.push(page.element("span", { class: "word" }, this.tokens[token]));
      } else {
        word.push(this.tokens[token]);
      }
    });
    return [...words, page.element("span", { class: "word" }, ...word)];
  }

  /** The token above or below. */
  onNextLine(at, direction) {
    const from = this.tokens[at].getBoundingClientRect();
    let best = at;
    let least = Infinity;
    let line = null;
    for (let to = at + direction; to >= 0 && to < this.tokens.length; to += direction) {
      const box = this.tokens[to].getBoundingClientRect();
      if (Math.abs(box.top - from.top) > 2) {
        line ??= box.top;
        if (Math.abs(box.top - line) > 2) {
          break;
        }
        const off = Math.abs(box.left + box.width / 2 - from.left - from.width / 2);
        [best, least] = off < least ? [to, off] : [best, least];
      }
    }
    return best;
  }

  /** A sentence about the chosen head and token, and a button that leads back to those with which the page opens. */
  tell() {
    const { attention, choice } = this;
    const { telling, layers, heads, names } = attention;
    this.lead.hidden = !telling;
    if (!telling) {
      return;
    }
    const { layer, head } = choice.place;
    const { token, side } = choice.kept ?? { token: choice.first, side: "query" };
    const partners = side === "query" ? attention.strongest(layer, head, token, 1) : attention.admirers(layer, head, token, 1);
    const partner = partners[0]?.[0] ?? token;
    const [query, key] = side === "query" ? [token, partner] : [partner, token];
    const [queryName, keyName] = [names[query], names[key]];
    const name = `${layers[layer]}.${heads[head]}`;
    const share = percent(attention.weight(layer, head, query, key));
    const whom = {
      0: "itself",
      1: `the token before, ${keyName}`,
    }[query - key] ?? `${keyName}, ${query - key} tokens before`;
    const but = attention.isWithoutFirst ? " but for the first token" : "";
    const sentences = [`Head ${name}: ${queryName} gives ${share} of its attention${but} to ${whom}.`];
    const [n, nAfter] = [attention.followers(layer, head, key), attention.nTokens - 1 - key];
    if (n > 1) {
      sentences.push(`${n === nAfter ? `All ${n}` : `${n} of the ${nAfter}`} tokens after ${keyName} look at it most.`);
    }
    const go = () => choice.set({ place: telling.place, pointed: null, kept: { token: telling.query, side: "query" } });
    const back = page.element("button", { type: "button", click: go }, "Show the most telling head");
    back.hidden = query === telling.query && layer === telling.place.layer && head === telling.place.head;
    this.lead.replaceChildren(sentences.join(" "), " ", back);
    page.set(this.lead, { "data-head": name, "data-query": query, "data-key": key });
  }

  redraw() {
    this.heads.redraw();
    if (this.node.isConnected) {
      this.update();
    }
  }

  update() {
    const { attention, choice } = this;
    const { token, side } = choice.present ?? { token: choice.first, side: choice.side };
    const isQuery = side === "query";
    this.sides.forEach((button) => page.set(button, { "aria-pressed": String(button.dataset.side === side) }));
    const weights = isQuery
      ? attention.weights(choice.layer, choice.head, token)
      : attention.weightsFor(choice.layer, choice.head, token);
    this.tokens.forEach((node, other) => {
      const isSeen = isQuery ? other <= token : other >= token;
      const [color, letters] = isSeen ? Heat.now.of(weights[other]) : ["", ""];
      node.style.background = color;
      node.style.color = letters;
      node.classList.toggle("present", other === token);
      node.classList.toggle("masked", !isSeen);
      page.set(node, { "aria-pressed": String(other === choice.kept?.token) });
    });
    this.tell();
    this.heads.update();
    this.readout.replaceChildren(this.partners(token, isQuery), this.guesses(token));
  }

  /** The tokens that this one looks at most, or is looked at most by. */
  partners(token, isQuery) {
    const { attention, choice } = this;
    const { layer, head } = choice;
    const list = isQuery ? attention.strongest(layer, head, token, 5) : attention.admirers(layer, head, token, 5);
    const name = `${attention.layers[layer]}.${attention.heads[head]}`;
    const title = page.element(
      "h3",
      {},
      `Head ${name}: `,
      tokenName(attention, token),
      isQuery ? " looks most at" : " is looked at most by",
    );
    const items = list.map(([partner, weight]) => [tokenName(attention, partner), weight]);
    return page.element("div", { class: "partners" }, title, shares(items));
  }

  /** The model's prediction after a token. */
  guesses(token) {
    const { attention } = this;
    const { top, came } = attention.predictions[token];
    const title = page.element("h3", {}, "Predictions after ", tokenName(attention, token));
    const items = top.map(([text, chance]) => [page.element("span", { class: "piece" }, text), chance]);
    const parts = [title, shares(items)];
    if (came !== null) {
      const next = page.element("span", { class: "piece" }, attention.tokens[token + 1]);
      const [chance, rank] = came;
      parts.push(page.element("p", { class: "quiet" }, next, ` follows: ${percent(chance)}, rank ${rank}`));
    }
    return page.element("div", { class: "guesses" }, ...parts);
  }
}

/** Names with bars of their shares, from 0 to 1. */
function shares(items) {
  const rows = items.flatMap(([name, share]) => {
    const bar = page.element("span", { class: "share" }, page.element("i"));
    bar.firstChild.style.width = `${100 * share}%`;
    return [name, bar, page.element("span", { class: "number" }, percent(share))];
  });
  return page.element("div", { class: "shares" }, ...rows);
}

function percent(share) {
  return share >= 0.1 || share === 0 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toPrecision(2)} %`;
}
