/** The most pixels of a thumbnail's side. */
const THUMBNAIL = 128;

/** Every head of every layer small, and one of them large. */
class ModelView {
  static key = "model";
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
      drawInTurn(this.thumbnails, (thumbnail, index) => {
        const layer = Math.floor(index / this.attention.heads.length);
        const head = index % this.attention.heads.length;
        drawMap(thumbnail.firstChild, this.attention, layer, head, THUMBNAIL);
      });
      this.isDrawn = true;
      this.large.redraw();
    }
    if (this.isOpen) {
      this.large.update();
    }
  }
}
