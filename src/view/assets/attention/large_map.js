/** The least pixels of a cell beside which a letter can be read. */
const LETTERS = 11;
/** The least pixels between two positions above columns. */
const NUMBERS = 30;
/** The fewest tokens of a side that zooming in leaves. */
const CLOSEST = 6;

/** One head's map in the window: all of it, or the part that the reader zoomed to. */
class LargeMap {
  constructor(attention, choice, close) {
    this.attention = attention;
    this.choice = choice;
    this.close = close;
    this.cell = { query: 0, key: 0 };
    /** The part that is shown: the first query and key, and how many of each. */
    this.part = { query: 0, key: 0, n: attention.nTokens };
    this.brush = null;
    this.drawn = "";
    this.place = placeChoosers(attention, choice);
    const button = (name, label, click) =>
      page.element("button", { type: "button", "aria-label": label, title: label, click }, name);
    const back = page.element("button", { type: "button", class: "back", click: close }, "← All heads");
    this.whole = button("Whole map", "Whole map (0)", () => this.zoom(Infinity));
    const zooms = [button("+", "Closer (+)", () => this.zoom(0.5)), button("−", "Further (−)", () => this.zoom(2)), this.whole];
    this.canvas = page.element("canvas", { "aria-hidden": "true" });
    this.bands = ["across", "down", "mark", "brush"].map((kind) => page.element("div", { class: kind }));
    this.map = page.element(
      "div",
      {
        class: "map",
        tabindex: 0,
        role: "group",
        "aria-label": "Map: arrow keys move from cell to cell, Home and End to the first and last key, + and − zoom",
        pointermove: (event) => this.pointAt(event),
        pointerdown: (event) => this.begin(event),
        pointerup: (event) => this.end(event),
        pointercancel: () => this.drop(),
        click: () => this.isBrushed || choice.keep(this.cell.query),
        keydown: (event) => this.step(event),
      },
      this.canvas,
      ...this.bands,
    );
    this.map.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.names = {
      query: page.element("div", { class: "queries", "aria-hidden": "true" }),
      key: page.element("div", { class: "keys", "aria-hidden": "true" }),
    };
    this.sheet = page.element("div", { class: "sheet" }, this.names.key, this.names.query, this.map);
    this.readout = page.element("p", { class: "readout", "aria-live": "polite" });
    this.node = page.element(
      "div",
      { class: "large", hidden: true },
      page.element("div", { class: "controls" }, back, ...this.place.nodes, ...zooms),
      this.readout,
      this.sheet,
      page.element("p", { class: "quiet" }, "Drag over a part to see it closer; Ctrl and the wheel zoom as well."),
    );
    new ResizeObserver(() => this.fit()).observe(this.node);
    addEventListener("resize", () => this.fit());
  }

  /** Starts at the chosen token's largest weight. */
  start() {
    const { attention, choice } = this;
    const query = choice.query;
    this.part = { query: 0, key: 0, n: attention.nTokens };
    this.cell = { query, key: attention.strongest(choice.layer, choice.head, query, 1)[0][0] };
    this.fit();
    this.update();
    this.map.focus({ preventScroll: true });
    this.node.scrollIntoView({ block: "nearest" });
  }

  /** Makes the map as large as the window allows, with as many names as have room. */
  fit() {
    const { attention } = this;
    if (this.node.clientWidth === 0) {
      return;
    }
    const longest = Math.min(Math.max(...attention.tokens.map((piece) => [...piece].length)), 10);
    const besides = 8 * longest + 40; // names and positions left of the map
    const above = longest === 1 ? 34 : 8 * longest + 34;
    const room = Math.min(this.node.clientWidth - besides, Math.max(innerHeight - 150 - above, 240));
    // A part is as large as the whole map, so that zooming moves nothing else.
    this.side = Math.min(room, 30 * attention.nTokens);
    const cell = this.side / this.part.n;
    this.sheet.style.setProperty("--side", `${this.side}px`);
    this.sheet.style.setProperty("--besides", `${besides}px`);
    this.sheet.style.setProperty("--above", `${above}px`);
    this.sheet.classList.toggle("upright", longest === 1);
    this.nameAxes(cell);
  }

  /** Names tokens along both axes: each, or at even distances where cells are smaller than letters. */
  nameAxes(cell) {
    const { attention, part } = this;
    const every = Math.ceil(LETTERS / cell);
    const apart = every * Math.ceil(NUMBERS / (every * cell)); // of numbers above columns
    for (const side of ["query", "key"]) {
      const names = [];
      for (let token = part[side]; token < part[side] + part.n; token += every) {
        const isNumbered = every === 1 ? token % 5 === 0 : side === "query" || (token - part[side]) % apart === 0;
        const position = isNumbered ? `${token} ` : "";
        const node = page.element("span", { "data-token": token }, page.element("small", {}, position), attention.tokens[token]);
        node.style.setProperty("--at", `${(token - part[side] + 0.5) * cell}px`);
        names.push(node);
      }
      this.names[side].replaceChildren(...names);
    }
    this.update();
  }

  /** The cell at a pointer. */
  cellAt(event) {
    const box = this.map.getBoundingClientRect();
    const at = (offset, length, first) =>
      first + Math.min(Math.max(Math.floor((offset / length) * this.part.n), 0), this.part.n - 1);
    return {
      query: at(event.clientY - box.top, box.height, this.part.query),
      key: at(event.clientX - box.left, box.width, this.part.key),
    };
  }

  pointAt(event) {
    const cell = this.cellAt(event);
    if (this.brush && event.buttons > 0) {
      this.brush.to = cell;
    }
    if (cell.key <= cell.query) {
      this.cell = cell;
    }
    this.update();
  }

  begin(event) {
    this.isBrushed = false;
    if (event.pointerType === "mouse" && event.button === 0) {
      this.brush = { from: this.cellAt(event), to: this.cellAt(event) };
    }
    this.pointAt(event);
  }

  /** Zooms to what was dragged over, unless that is hardly anything: then it was a click. */
  end() {
    if (this.brush) {
      const { from, to } = this.brush;
      const n = Math.max(Math.abs(to.query - from.query), Math.abs(to.key - from.key)) + 1;
      this.isBrushed = n >= 3;
      if (this.isBrushed) {
        this.look({ query: Math.min(from.query, to.query), key: Math.min(from.key, to.key), n });
      }
    }
    this.drop();
  }

  drop() {
    this.brush = null;
    this.update();
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    }
  }

  /** Shows `factor` times as many tokens, with the present cell where it is. */
  zoom(factor) {
    const n = Math.round(this.part.n * Math.min(factor, this.attention.nTokens));
    const share = (side) => (this.cell[side] - this.part[side]) / this.part.n;
    this.look({ query: this.cell.query - share("query") * n, key: this.cell.key - share("key") * n, n });
  }

  /** Shows a part, as far as there is one. */
  look({ query, key, n }) {
    const { nTokens } = this.attention;
    const held = Math.min(Math.max(n, Math.min(CLOSEST, nTokens)), nTokens);
    const within = (at) => Math.min(Math.max(Math.round(at), 0), nTokens - held);
    this.part = { query: within(query), key: within(key), n: held };
    this.fit();
  }

  step(event) {
    const { query, key } = this.cell;
    const act = {
      Escape: () => {
        event.stopPropagation(); // it closes the map, and releases no token
        this.close();
      },
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.zoom(Infinity),
      ArrowUp: () => this.walk(query - 1, key),
      ArrowDown: () => this.walk(query + 1, key),
      ArrowLeft: () => this.walk(query, key - 1),
      ArrowRight: () => this.walk(query, key + 1),
      Home: () => this.walk(query, 0),
      End: () => this.walk(query, query),
      PageUp: () => this.walk(query - 10, key),
      PageDown: () => this.walk(query + 10, key),
    }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      act();
    }
  }

  /** Goes to a cell, and takes the shown part along. */
  walk(toQuery, toKey) {
    const query = Math.min(Math.max(toQuery, 0), this.attention.nTokens - 1);
    this.cell = { query, key: Math.min(Math.max(toKey, 0), query) };
    const { part } = this;
    const follow = (side) => Math.min(Math.max(part[side], this.cell[side] - part.n + 1), this.cell[side]);
    const moved = { query: follow("query"), key: follow("key"), n: part.n };
    if (moved.query !== part.query || moved.key !== part.key) {
      this.look(moved);
    } else {
      this.update();
    }
  }

  redraw() {
    this.drawn = "";
  }

  update() {
    const { attention, choice, part } = this;
    const { query, key } = this.cell;
    this.place.update();
    const wanted = `${choice.layer} ${choice.head}`;
    if (this.drawn !== wanted) {
      drawMap(this.canvas, attention, choice.layer, choice.head);
      this.drawn = wanted;
    }
    const share = 100 / part.n;
    const span = (from, n) => [`${share * from}%`, `${share * n}%`];
    const put = (node, [top, height], [left, width]) => Object.assign(node.style, { top, height, left, width });
    const [across, down, mark, brush] = this.bands;
    put(this.canvas, span(-part.query, attention.nTokens), span(-part.key, attention.nTokens));
    put(across, span(query - part.query, 1), span(0, part.n));
    put(down, span(0, part.n), span(key - part.key, 1));
    put(mark, span(query - part.query, 1), span(key - part.key, 1));
    brush.hidden = !this.brush;
    if (this.brush) {
      const { from, to } = this.brush;
      const between = (side) =>
        span(Math.min(from[side], to[side]) - part[side], Math.abs(from[side] - to[side]) + 1);
      put(brush, between("query"), between("key"));
    }
    this.whole.disabled = part.n === attention.nTokens;
    for (const [side, at] of Object.entries(this.cell)) {
      for (const name of this.names[side].children) {
        name.classList.toggle("present", Number(name.dataset.token) === at);
      }
    }
    this.readout.replaceChildren(
      tokenName(attention, query),
      query === key ? " looks at itself " : " looks at ",
      ...(query === key ? [] : [tokenName(attention, key)]),
      " with weight ",
      page.element("strong", {}, attention.weight(choice.layer, choice.head, query, key).toFixed(4)),
    );
  }
}
