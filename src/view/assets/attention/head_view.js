/** The most lines: more are slow, and cannot be told apart. */
const MOST_LINES = 4000;
/** The least weight of a line, before the reader moves the slider. */
const LEAST = 0.05;

/** Lines from each query to its keys, a colour for each head. */
class HeadView {
  static key = "heads";
  static title = "Heads";
  static about =
    "A line leads from a token that looks (left) to one that it looks at (right); the stronger, the larger the weight = " +
    "softmax(q · k / √d). A token's weights sum to 1. Up to six heads have a colour each; of more, the one switched on " +
    "last stands out. Point at a token on either side or at a head to see its lines alone; click a token to keep it.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.least = LEAST;
    const { layers, heads, nTokens } = attention;
    this.pairs = [];
    this.inks = new Map();
    this.layer = chooser(
      "Layer",
      layers,
      () => choice.layer,
      (layer) => choice.set({ layer }),
    );

    this.chips = heads.map((number, head) => this.chip(number, head));
    const all = page.element("button", { type: "button", click: () => this.setAll(true) }, "all");
    const none = page.element("button", { type: "button", click: () => this.setAll(false) }, "none");
    // All chips together are left: from one to the next, lines are drawn once.
    const leave = () => choice.previewed && choice.preview(null);
    const group = { class: "chips", role: "group", "aria-label": "Heads", pointerleave: leave };
    const chips = page.element("div", group, "Heads", ...this.chips);
    if (heads.length > 1) {
      chips.append(all, none);
    }

    this.slider = page.element("input", {
      type: "range",
      min: 0,
      max: 0.5,
      step: 0.01,
      value: this.least,
      input: () => {
        this.least = Number(this.slider.value);
        this.update();
      },
    });
    this.leastText = page.element("output");
    const least = page.element("label", { class: "chooser" }, "Lines from weight", this.slider, this.leastText);

    this.columns = ["query", "key"].map((side) =>
      attention.tokens.map((_, token) => tokenButton(attention, choice, token, side)),
    );
    const column = (side, label, buttons) =>
      page.element("div", { class: `column ${side}`, role: "group", "aria-label": label }, ...buttons);
    this.lines = new TallCanvas("lines", (...canvas) => this.drawLines(...canvas));
    this.blocks = new TallCanvas("blocks", (...canvas) => this.drawBlocks(...canvas));
    const diagram = page.element(
      "div",
      { class: "diagram" },
      page.element("div", { class: "caption" }, "looks"),
      page.element("div", { class: "caption end" }, "is looked at"),
      column("query", "Tokens that look", this.columns[0]),
      this.lines.node,
      this.blocks.node,
      column("key", "Tokens that are looked at", this.columns[1]),
    );
    diagram.style.setProperty("--n-tokens", nTokens);
    const items = this.columns.flat();
    roam(diagram, items, (key, at) => {
      const token = at % nTokens;
      const column = at - token;
      return {
        ArrowUp: token > 0 ? at - 1 : undefined,
        ArrowDown: token < nTokens - 1 ? at + 1 : undefined,
        ArrowLeft: token,
        ArrowRight: nTokens + token,
        Home: column,
        End: column + nTokens - 1,
      }[key];
    });

    this.readout = page.element("div", { class: "readout", "aria-live": "polite" });
    this.node = page.element(
      "div",
      { class: "head-view" },
      page.element("div", { class: "controls" }, this.layer.node, chips, least),
      page.element("div", { class: "split" }, diagram, this.readout),
    );
    this.node.style.setProperty("--n-heads", heads.length);
  }

  /** The switch of one head. */
  chip(number, head) {
    const { choice } = this;
    const toggle = () => {
      const active = new Set(choice.active);
      const isOn = !active.delete(head);
      if (isOn) {
        active.add(head);
      }
      choice.set({ active, previewed: null, ...(isOn && { head }) });
    };
    const point = () => choice.preview({ layer: choice.layer, head });
    return page.element(
      "button",
      {
        type: "button",
        class: "chip",
        title: `head ${number}: click to switch it, double-click to see it alone`,
        pointerenter: (event) => event.pointerType === "mouse" && point(),
        focus: (event) => event.target.matches(":focus-visible") && point(),
        blur: () => choice.previewed && choice.preview(null),
        click: toggle,
        dblclick: () => choice.set({ active: new Set([head]), head }),
      },
      String(number),
    );
  }

  setAll(on) {
    this.choice.set({ active: new Set(on ? this.attention.heads.keys() : []) });
  }

  update() {
    const { choice } = this;
    this.layer.update();
    this.chips.forEach((chip, head) => {
      page.set(chip, { "aria-pressed": String(choice.active.has(head)) });
      chip.style.setProperty("--color", this.color(head));
    });
    this.columns.forEach((buttons, index) => {
      const side = index === 0 ? "query" : "key";
      const is = (place, token) => place?.side === side && place.token === token;
      buttons.forEach((button, token) => {
        button.classList.toggle("present", is(choice.present, token));
        page.set(button, { "aria-pressed": String(is(choice.kept, token)) });
      });
    });
    const isCut = this.findPairs();
    this.leastText.textContent = this.least.toFixed(2) + (isCut ? `, the strongest ${MOST_LINES}` : "");
    this.lines.redraw();
    this.blocks.redraw();
    this.readout.replaceChildren(...this.explained());
    this.readout.classList.toggle("passing", choice.pointed !== null);
  }

  redraw() {
    this.inks = new Map();
    if (this.node.isConnected) {
      this.lines.redraw();
      this.blocks.redraw();
    }
  }

  color(head) {
    return headColor(head, this.attention.heads.length, this.choice.head);
  }

  /** A head's colour in the present theme. */
  ink(head) {
    const color = this.color(head);
    if (!this.inks.has(color)) {
      this.inks.set(color, resolved([color])[0]);
    }
    return this.inks.get(color);
  }

  /** Finds the pairs to draw, every strong one or all of the present token or head, and whether some are left out. */
  findPairs() {
    const { attention, choice } = this;
    const { present } = choice;
    const isOfKey = present?.side === "key";
    const queries = present?.side === "query" ? [present.token] : [...attention.tokens.keys()];
    const pairs = [];
    let least = Math.max(0.001, present ? 0 : this.least);
    let isCut = false;
    const cut = () => {
      isCut = true;
      pairs.sort((a, b) => b.weight - a.weight); // of equal weights the first stays first
      pairs.length = MOST_LINES;
      least = pairs.at(-1).weight;
    };
    const heads = choice.previewed ? [choice.head] : [...choice.active].sort((a, b) => a - b);
    for (const head of heads) {
      for (const query of queries) {
        const row = attention.weights(choice.layer, head, query);
        const [begin, end] = isOfKey ? [present.token, Math.min(present.token + 1, row.length)] : [0, row.length];
        for (let key = begin; key < end; key += 1) {
          if (row[key] > least || (row[key] === least && !isCut)) {
            pairs.push({ head, query, key, weight: row[key] });
          }
        }
        if (pairs.length > 4 * MOST_LINES) {
          cut();
        }
      }
    }
    if (pairs.length > MOST_LINES) {
      cut();
    }
    this.pairs = pairs;
    this.lines.node.pairs = pairs; // for scripts that ask what is drawn
    return isCut;
  }

  /** The height of a pair's token in the diagram, in rows. */
  row(head, token) {
    // The lines of each head are a little lower than those of the head before, so that they do not overlap.
    return token + 0.5 + (0.5 * (head + 0.5)) / this.attention.heads.length - 0.25;
  }

  drawLines(context, width, height) {
    const row = height / this.attention.nTokens;
    const isChosen = ({ head }) => head === this.choice.head;
    const chosenLast = [...this.pairs].sort((a, b) => isChosen(a) - isChosen(b)); // it lies above the others
    for (const { head, query, key, weight } of chosenLast) {
      context.strokeStyle = this.ink(head);
      context.globalAlpha = strength(weight);
      context.lineWidth = 0.5 + 3 * weight;
      context.beginPath();
      context.moveTo(0, row * this.row(head, query));
      context.lineTo(width, row * this.row(head, key));
      context.stroke();
    }
  }

  /** The share of each head at the other end of a line, beside the token's name. */
  drawBlocks(context, width, height) {
    if (!this.choice.present) {
      return;
    }
    const row = height / this.attention.nTokens;
    const column = width / this.attention.heads.length;
    for (const { head, query, key, weight } of this.pairs) {
      const other = this.choice.present.side === "query" ? key : query;
      context.fillStyle = this.ink(head);
      context.globalAlpha = strength(weight);
      context.fillRect(column * head, row * (other + 0.1), 0.9 * column, 0.8 * row);
    }
  }

  /** The present token's strongest partners in words and numbers. */
  explained() {
    const { attention, choice } = this;
    const { present } = choice;
    if (!present) {
      return [
        page.element("p", { class: "quiet" }, "Point at a token: here stand the three that each head looks at most."),
      ];
    }
    const { token, side } = present;
    const isQuery = side === "query";
    const title = page.element(
      "h3",
      {},
      tokenName(attention, token),
      isQuery ? " looks most at" : " is looked at most by",
    );
    const rows = [...choice.active]
      .sort((a, b) => a - b)
      .map((head) => {
        const partners = isQuery
          ? attention.strongest(choice.layer, head, token, 3)
          : attention.admirers(choice.layer, head, token, 3);
        const cells = partners.map(([partner, weight]) =>
          page.element("td", {}, tokenName(attention, partner), bar(weight, 3, this.color(head))),
        );
        const name = page.element("th", { scope: "row" }, swatch(this.color(head)), `head ${attention.heads[head]}`);
        return page.element("tr", { "data-head": attention.heads[head] }, name, ...cells);
      });
    return [title, page.element("table", {}, page.element("tbody", {}, ...rows))];
  }
}
