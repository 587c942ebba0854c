/** The most pixels of a thumbnail's side. */
const THUMBNAIL = 128;

/** Every head of every layer small, and one of them large. */
class ModelView {
  static title = "Model";
  static about =
    "Rows are layers, columns heads. In each map, down is the token that looks and across the one that it looks at; the " +
    "stronger the colour, the larger the weight = softmax(q · k / √d). The upper right is empty, as no token sees what " +
    "comes later. Click a map to open it.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.isOpen = false;
    this.thumbnails = attention.layers.flatMap((_, layer) =>
      attention.heads.map((_, head) => this.thumbnail(layer, head)),
    );
    const cells = [page.element("span", {})];
    cells.push(...attention.heads.map((head) => page.element("span", { class: "caption" }, `head ${head}`)));
    attention.layers.forEach((number, layer) => {
      cells.push(page.element("span", { class: "caption side" }, `layer ${number}`));
      cells.push(...this.thumbnails.slice(layer * attention.heads.length, (layer + 1) * attention.heads.length));
    });
    const grid = page.element("div", { class: "grid", role: "group", "aria-label": "Layers by heads" }, ...cells);
    grid.style.setProperty("--n-heads", attention.heads.length);
    roam(grid, this.thumbnails, gridMove(attention.heads.length, this.thumbnails.length));
    this.overview = page.element("div", { class: "scrolls" }, grid);
    const scale = legend();
    this.large = new LargeMap(attention, choice, () => this.close());
    this.node = page.element("div", { class: "model-view" }, scale, this.overview, this.large.node);
    this.redraw();
  }

  thumbnail(layer, head) {
    const name = `layer ${this.attention.layers[layer]} head ${this.attention.heads[head]}`;
    return page.element(
      "button",
      {
        type: "button",
        class: "thumbnail",
        "aria-label": `Open ${name}`,
        title: name,
        click: () => this.open(layer, head),
      },
      page.element("canvas", { "aria-hidden": "true" }),
    );
  }

  open(layer, head) {
    this.isOpen = true;
    this.choice.set({ layer, head });
    this.large.start();
  }

  close() {
    this.isOpen = false;
    this.update();
    this.thumbnails[this.choice.layer * this.attention.heads.length + this.choice.head].focus();
  }

  /** Draws the thumbnails, in the present theme's colour. */
  redraw() {
    this.isDrawn = false;
    if (this.node.isConnected) {
      this.update();
    }
  }

  update() {
    this.overview.hidden = this.isOpen;
    this.large.node.hidden = !this.isOpen;
    if (!this.isDrawn) {
      const color = colorOf(this.node, "--heat");
      this.thumbnails.forEach((thumbnail, index) => {
        const layer = Math.floor(index / this.attention.heads.length);
        const head = index % this.attention.heads.length;
        drawMap(thumbnail.firstChild, this.attention, layer, head, color, THUMBNAIL);
      });
      this.isDrawn = true;
      this.large.isDrawn = false;
    }
    if (this.isOpen) {
      this.large.update();
    }
  }
}

/** The most pixels of a large map's side. */
const MAP = 700;
/** The least pixels of a cell beside which a letter can be read. */
const LETTERS = 11;

/** One head's map with its tokens, cell by cell. */
class LargeMap {
  constructor(attention, choice, close) {
    this.attention = attention;
    this.choice = choice;
    this.cell = { query: 0, key: 0 };
    this.drawn = "";
    const n = attention.nTokens;
    this.place = placeChoosers(attention, choice);
    const back = page.element("button", { type: "button", class: "back", click: close }, "← All heads");
    this.canvas = page.element("canvas", { "aria-hidden": "true" });
    this.mark = page.element("div", { class: "mark" });
    this.map = page.element(
      "div",
      {
        class: "map",
        tabindex: 0,
        role: "group",
        "aria-label": "Map: arrow keys move from cell to cell",
        pointermove: (event) => this.pointAt(event),
        pointerdown: (event) => this.pointAt(event),
        click: () => choice.keep(this.cell.query),
        keydown: (event) => this.step(event, close),
      },
      this.canvas,
      this.mark,
    );
    const names = (side) => attention.tokens.map((piece) => page.element("span", { class: side }, piece));
    this.names = { query: names("query"), key: names("key") };
    const isUpright = attention.tokens.every((piece) => [...piece].length === 1);
    this.sheet = page.element(
      "div",
      { class: isUpright ? "sheet upright" : "sheet" },
      page.element("div", { class: "keys", "aria-hidden": "true" }, ...this.names.key),
      page.element("div", { class: "queries", "aria-hidden": "true" }, ...this.names.query),
      this.map,
    );
    this.sheet.style.setProperty("--n-tokens", n);
    this.readout = page.element("p", { class: "readout", "aria-live": "polite" });
    this.node = page.element(
      "div",
      { class: "large", hidden: true },
      page.element("div", { class: "controls" }, back, ...this.place.nodes),
      this.readout,
      page.element("div", { class: "scrolls" }, this.sheet),
    );
    // Cells as large as fit; names only beside cells that have room for letters.
    new ResizeObserver(() => this.fit()).observe(this.node);
  }

  /** Starts at the chosen token's largest weight. */
  start() {
    const { attention, choice } = this;
    const query = choice.query;
    this.cell = { query, key: attention.strongest(choice.layer, choice.head, query, 1)[0][0] };
    this.update();
    this.map.focus({ preventScroll: true });
  }

  fit() {
    const n = this.attention.nTokens;
    const longest = Math.max(...this.attention.tokens.map((piece) => [...piece].length));
    const besides = 9 * Math.min(longest, 12) + 16; // names left of the map
    const high = Math.max(Math.floor(MAP / n), 14); // names are worth a map higher than a screen
    const named = Math.min(Math.floor((this.node.clientWidth - besides) / n), high, 26);
    const hasNames = named >= LETTERS;
    const cell = hasNames ? named : Math.min(Math.max(this.node.clientWidth / n, 2), LETTERS);
    this.sheet.style.setProperty("--cell", `${cell}px`);
    this.sheet.classList.toggle("nameless", !hasNames);
  }

  pointAt(event) {
    const box = this.map.getBoundingClientRect();
    const n = this.attention.nTokens;
    const at = (offset, length) => Math.min(Math.max(Math.floor((offset / length) * n), 0), n - 1);
    const query = at(event.clientY - box.top, box.height);
    const key = at(event.clientX - box.left, box.width);
    if (key <= query) {
      this.cell = { query, key };
      this.update();
    }
  }

  step(event, close) {
    const { query, key } = this.cell;
    if (event.key === "Escape") {
      event.stopPropagation(); // it closes the map, and releases no token
      close();
    }
    const to = {
      ArrowUp: { query: query - 1, key },
      ArrowDown: { query: query + 1, key },
      ArrowLeft: { query, key: key - 1 },
      ArrowRight: { query, key: key + 1 },
    }[event.key];
    if (to) {
      event.preventDefault();
      const query = Math.min(Math.max(to.query, 0), this.attention.nTokens - 1);
      this.cell = { query, key: Math.min(Math.max(to.key, 0), query) };
      this.update();
    }
  }

  update() {
    const { attention, choice } = this;
    const { query, key } = this.cell;
    this.place.update();
    const color = colorOf(this.node, "--heat");
    const wanted = `${choice.layer} ${choice.head} ${color}`;
    if (this.drawn !== wanted) {
      drawMap(this.canvas, attention, choice.layer, choice.head, color);
      this.drawn = wanted;
    }
    this.mark.style.setProperty("--query", query);
    this.mark.style.setProperty("--key", key);
    this.names.query.forEach((name, token) => name.classList.toggle("present", token === query));
    this.names.key.forEach((name, token) => name.classList.toggle("present", token === key));
    this.readout.replaceChildren(
      tokenName(attention, query),
      query === key ? " looks at itself " : " looks at ",
      ...(query === key ? [] : [tokenName(attention, key)]),
      " with weight ",
      page.element("strong", {}, attention.weight(choice.layer, choice.head, query, key).toFixed(4)),
    );
  }
}
