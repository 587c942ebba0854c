/** The most pixels of a small map's side. */
const STRIP = 64;

/** Every head small, in rows of a layer: pointing at one shows it, a click chooses it. */
class HeadStrip {
  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.isDrawn = false;
    const nHeads = attention.heads.length;
    this.places = attention.layers.flatMap((_, layer) => attention.heads.map((_, head) => ({ layer, head })));
    this.buttons = this.places.map((place) => this.button(place));
    const rows = attention.layers.flatMap((number, layer) => [
      page.element("span", { class: "caption" }, `layer ${number}`),
      ...this.buttons.slice(layer * nHeads, (layer + 1) * nHeads),
    ]);
    const names = attention.heads.map((number) => page.element("span", { class: "caption head" }, `${number}`));
    rows.unshift(page.element("span", { class: "caption" }, "head"), ...names);
    this.grid = page.element("div", { class: "heads", role: "group", "aria-label": "Heads, a row for each layer" }, ...rows);
    this.grid.style.setProperty("--n-heads", nHeads);
    roam(this.grid, this.buttons, gridMove(nHeads, this.buttons.length));
    this.node = page.element("div", { class: "scrolls" }, this.grid);
  }

  button(place) {
    const { attention, choice } = this;
    const name = `head ${attention.layers[place.layer]}.${attention.heads[place.head]}`;
    const effect = attention.effect(place.layer, place.head);
    const without = effect === null ? "" : `: without it the loss of this text changes by ${fixed(effect, 3)}`;
    return page.element(
      "button",
      {
        type: "button",
        class: "small-map",
        "aria-label": name,
        title: name + without,
        pointerenter: (event) => event.pointerType === "mouse" && choice.preview(place),
        pointerleave: (event) => event.pointerType === "mouse" && choice.preview(null),
        click: () => choice.open(place),
      },
      page.element("canvas", { "aria-hidden": "true" }),
    );
  }

  redraw() {
    this.isDrawn = false;
  }

  update() {
    if (!this.isDrawn) {
      this.isDrawn = true;
      drawInTurn(this.places, ({ layer, head }, at) =>
        drawMap(this.buttons[at].firstChild, this.attention, layer, head, STRIP),
      );
    }
    const { layer, head } = this.choice;
    this.places.forEach((place, at) => {
      const isPresent = place.layer === layer && place.head === head;
      page.set(this.buttons[at], { "aria-pressed": String(isPresent) });
    });
  }
}

/** Calls `draw(item, index)` for every item, once the page is shown, and with pauses in which it answers. */
function drawInTurn(items, draw) {
  let at = 0;
  const next = () => {
    const end = performance.now() + 12;
    while (at < items.length && performance.now() < end) {
      draw(items[at], at);
      at += 1;
    }
    if (at < items.length) {
      setTimeout(next);
    }
  };
  setTimeout(next);
}
