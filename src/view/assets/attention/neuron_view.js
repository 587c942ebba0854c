/** How a query and the keys become weights, number by number. */
class NeuronView {
  static key = "neurons";
  static title = "Neurons";
  static about =
    "Why a token looks where it does. Its query q meets the key k of every token that it may see: their numbers are " +
    "multiplied one by one, the products summed to q · k, that is divided by √d, and the softmax of those are the weights. " +
    "Choose the token that looks in the prompt, and point at a cell for its numbers.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.key = 0; // the row and the column of the pointer
    this.dimension = 0;
    this.shown = ""; // the head and the query of the rows
    this.isSorted = false;
    this.marked = null; // the row of `key`, once that is marked
    this.place = placeChoosers(attention, choice);
    const sort = page.element("input", {
      type: "checkbox",
      change: () => {
        this.isSorted = sort.checked;
        this.update();
      },
    });
    const sorting = page.element("label", { class: "chooser" }, sort, "Largest weights first");
    this.strip = tokenStrip(attention, choice);
    this.readout = page.element("div", { class: "readout", "aria-live": "polite" });
    // The row of a key is never replaced, so that it keeps the focus and nothing moves.
    this.options = attention.tokens.map((_, key) =>
      page.element("div", { class: "row", role: "option", tabindex: -1, "aria-selected": "false", "data-key": key }),
    );
    const list = page.element("div", { class: "rows", role: "listbox", "aria-label": "Keys" }, ...this.options);
    this.lazy = new LazyRows(
      list,
      attention.nTokens,
      (key) => this.fill(key),
      (key) => this.empty(key),
    );
    this.asking = page.element("div", { class: "row asking" });
    this.table = page.element("div", { class: "neurons" }, this.heading(), this.asking, list);
    this.table.style.setProperty("--n-dimensions", attention.headDim);
    this.table.addEventListener("pointermove", (event) => this.pointAt(event));
    this.table.addEventListener("pointerdown", (event) => this.pointAt(event));
    this.table.addEventListener("focusin", (event) => this.pointAtRow(event.target));
    this.table.addEventListener("keydown", (event) => this.step(event));
    this.note = page.element("p", { class: "quiet" });
    this.scales = page.element("p", { class: "scales" });
    this.node = page.element(
      "div",
      { class: "neuron-view" },
      page.element("div", { class: "controls" }, ...this.place.nodes, sorting),
      this.strip.node,
      this.scales,
      this.readout,
      this.table,
      this.note,
    );
  }

  redraw() {
    if (this.node.isConnected) {
      this.update();
    }
  }

  update() {
    const { attention, choice } = this;
    this.place.update();
    this.strip.update();
    const { q, rows } = score(attention, choice.layer, choice.head, choice.query);
    this.q = q;
    this.rows = rows;
    const shown = `${choice.layer} ${choice.head} ${choice.query}`;
    if (this.shown !== shown) {
      // start at the largest product
      this.key = largest(
        rows.map((row) => row.softmax),
        1,
      )[0][0];
      this.dimension = largest(rows[this.key].products.map(Math.abs), 1)[0]?.[0] ?? 0;
      this.shown = shown;
    }
    this.colors = { positive: colorOf("--positive"), negative: colorOf("--negative") };
    const most = (vectors) =>
      Math.max(...vectors.map((vector) => vector.reduce((a, x) => Math.max(a, Math.abs(x)), 0)));
    const vectorScale = most([q, ...rows.map((row) => row.k)]);
    const productScale = most(rows.map((row) => row.products));
    this.scale = { vector: vectorScale, product: productScale };
    this.asking.replaceChildren(...this.question());
    this.options.forEach((option, key) => {
      const isMasked = this.isMasked(key);
      option.classList.toggle("masked", isMasked);
      page.set(option, { "aria-disabled": String(isMasked), "aria-label": this.label(key) });
    });
    const order = this.isSorted ? [...rows].sort((a, b) => b.softmax - a.softmax) : rows;
    this.order = [...order.map((row) => this.options[row.key]), ...this.options.slice(choice.query + 1)];
    this.order.forEach((option, place) => (option.style.order = place));
    this.lazy.refill(this.order.map((option) => Number(option.dataset.key)));
    this.scales.replaceChildren(
      "colours: ",
      page.element("span", { class: "swatch negative" }),
      "below 0, ",
      page.element("span", { class: "swatch positive" }),
      `above 0; full strength is ${vectorScale.toFixed(2)} in q and k, ${productScale.toFixed(2)} in products`,
    );
    this.note.textContent = this.remark();
    this.point();
  }

  heading() {
    const names = {
      name: "token",
      k: "k, by dimension",
      products: "q × k, by dimension",
      sum: "q · k",
      scaled: this.attention.scaling,
      weight: "weight",
    };
    const cells = Object.entries(names).map(([kind, name]) => page.element("span", { class: kind }, name));
    return page.element("div", { class: "row heading", "aria-hidden": "true" }, ...cells);
  }

  /** The contents of the query's row. */
  question() {
    const { attention, choice } = this;
    return [
      page.element("span", { class: "name" }, "q of ", tokenName(attention, choice.query)),
      page.element("span", { class: "k" }, this.cells(this.q, this.scale.vector, "its query")),
      page.element("span", { class: "products quiet" }, "times the k of each of these:"),
    ];
  }

  isMasked(key) {
    const { layer, query } = this.choice;
    return key > query || key < this.attention.firstSeen(layer, query);
  }

  /** Why a key is masked. */
  mask(key) {
    return key > this.choice.query ? "comes later" : "before the window";
  }

  label(key) {
    const name = tokenText(this.attention, key);
    if (this.isMasked(key)) {
      return `${name}: ${this.mask(key)}, masked`;
    }
    const { sum, scaled, softmax } = this.rows[key];
    return `${name}: q · k ${fixed(sum, 3)}, scaled ${fixed(scaled, 3)}, weight ${softmax.toFixed(4)}`;
  }

  /** Fills the row of a key. */
  fill(key) {
    const { attention, choice } = this;
    if (this.isMasked(key)) {
      this.fillMasked(key);
      return;
    }
    const { k, products, sum, scaled } = this.rows[key];
    const own = attention.weight(choice.layer, choice.head, choice.query, key);
    this.show(
      key,
      page.element("span", { class: "name" }, tokenName(attention, key)),
      page.element("span", { class: "k" }, this.cells(k, this.scale.vector)),
      page.element("span", { class: "products" }, this.cells(products, this.scale.product)),
      page.element("span", { class: "sum" }, fixed(sum, 3)),
      page.element("span", { class: "scaled" }, fixed(scaled, 3)),
      page.element("span", { class: "weight" }, bar(own, 4)),
    );
  }

  /** Fills the row of a masked key. */
  fillMasked(key) {
    this.show(
      key,
      page.element("span", { class: "name" }, tokenName(this.attention, key)),
      page.element("span", { class: "k quiet" }, `${this.mask(key)}: masked`),
    );
  }

  /** Puts parts into the row of a key, which are its name from now on. */
  show(key, ...parts) {
    page.set(this.options[key], { "aria-label": null }).replaceChildren(...parts);
  }

  /** Empties the row of a key, which keeps a name. */
  empty(key) {
    page.set(this.options[key], { "aria-label": this.label(key) }).replaceChildren();
  }

  /** A vector as cells: a canvas with a pixel for each dimension, stretched. */
  cells(vector, scale, label) {
    const canvas = page.element("canvas", { width: vector.length, height: 1 });
    const context = canvas.getContext("2d");
    vector.forEach((x, dimension) => {
      const color = x < 0 ? this.colors.negative : this.colors.positive;
      context.fillStyle = `rgb(${color} / ${scale > 0 ? Math.abs(x) / scale : 0})`;
      context.fillRect(dimension, 0, 1, 1);
    });
    const role = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
    return page.element("span", { class: "cells", ...role }, canvas);
  }

  pointAt(event) {
    const cells = event.target.closest(".cells");
    if (cells) {
      const box = cells.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * this.attention.headDim);
      this.dimension = Math.min(Math.max(at, 0), this.attention.headDim - 1);
    }
    this.pointAtRow(event.target);
  }

  pointAtRow(target) {
    const row = target.closest("[data-key]:not(.masked)");
    this.key = row ? Number(row.dataset.key) : this.key;
    this.point();
  }

  step(event) {
    const row = this.order.indexOf(event.target);
    const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = this.order[row + move];
    if (row >= 0 && next && !next.classList.contains("masked")) {
      event.preventDefault();
      next.focus();
    } else if (row >= 0 && turn) {
      event.preventDefault();
      this.dimension = (this.dimension + turn + this.attention.headDim) % this.attention.headDim;
      this.point();
    }
  }

  /** Marks the row and the dimension of the pointer, and shows their numbers. */
  point() {
    const { attention, choice, dimension } = this;
    const { key, k, products, sum, scaled, softmax } = this.rows[this.key];
    this.table.style.setProperty("--dimension", dimension);
    if (this.marked !== this.options[key]) {
      const mark = (option, isPresent) => {
        page.set(option, { "aria-selected": String(isPresent) });
        option.tabIndex = isPresent ? 0 : -1;
      };
      this.marked && mark(this.marked, false);
      this.marked = this.options[key];
      mark(this.marked, true);
    }
    const own = attention.weight(choice.layer, choice.head, choice.query, key);
    const line = (...parts) => page.element("p", {}, ...parts);
    this.readout.replaceChildren(
      line(
        tokenName(attention, choice.query),
        key === choice.query ? " looks at itself" : " looks at ",
        ...(key === choice.query ? [] : [tokenName(attention, key)]),
      ),
      line(
        `dimension ${dimension} of ${attention.headDim}: `,
        `q ${fixed(this.q[dimension], 3)} × k ${fixed(k[dimension], 3)} = ${fixed(products[dimension], 3)}`,
      ),
      line(`sum of all ${attention.headDim} products: q · k = ${fixed(sum, 3)}`),
      line(
        `${attention.scaling} = ${fixed(scaled, 3)}, softmax: ${softmax.toFixed(4)}, the model's weight: ${own.toFixed(4)}`,
      ),
    );
  }

  remark() {
    const { attention, choice, rows } = this;
    const weight = (key) => attention.weight(choice.layer, choice.head, choice.query, key);
    const off = Math.max(...rows.map((row) => Math.abs(row.softmax - weight(row.key))));
    const prepared = attention.prepared ? `q and k are shown as they are compared, ${attention.prepared}. ` : "";
    const kvHead = attention.kvHeads[choice.head];
    const shared = kvHead === attention.heads[choice.head] ? "" : `The keys are those of key head ${kvHead}. `;
    const exact = `Computed here from the model's own q and k; its own weights differ by at most ${off.toExponential(0)}.`;
    return "Tokens that come later are masked: their weights are 0. " + prepared + shared + exact;
  }
}
