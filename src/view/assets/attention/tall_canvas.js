/** The pixels up to which a canvas is as high as its box. More take long to draw, at each move of a pointer. */
const HELD = 1800;
/** The most pixels of a canvas that is as high as its box for a picture: browsers hold no more. */
const HIGHEST = 30000;

/**
 * A canvas in a box of any height: it holds the part around the screen, since no browser holds ten thousands of pixels.
 * `draw(context, width, height)` draws in pixels of the whole box.
 */
class TallCanvas {
  constructor(name, draw) {
    this.draw = draw;
    this.top = 0;
    this.canvas = page.element("canvas");
    this.node = page.element("div", { class: name, "aria-hidden": "true" }, this.canvas);
    this.canvas.addEventListener("picture", () => this.redraw(HIGHEST));
    new ResizeObserver(() => this.redraw()).observe(this.node);
    document.addEventListener("scroll", () => this.follow(), { passive: true });
  }

  redraw(most = Math.max(HELD, 2 * innerHeight) * devicePixelRatio) {
    const box = this.node.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) {
      return; // not shown
    }
    const held = Math.min(box.height, most / devicePixelRatio);
    const middle = innerHeight / 2 - box.top;
    this.top = Math.min(Math.max(middle - held / 2, 0), box.height - held);
    this.canvas.style.top = `${this.top}px`;
    this.canvas.style.height = `${held}px`;
    this.canvas.width = Math.round(box.width * devicePixelRatio);
    this.canvas.height = Math.round(held * devicePixelRatio);
    const context = this.canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    context.translate(0, -this.top);
    this.draw(context, box.width, box.height);
  }

  /** Holds the part that is on the screen now. */
  follow() {
    const { top, bottom } = this.node.getBoundingClientRect();
    const held = this.canvas.getBoundingClientRect();
    const isHeld = Math.max(top, 0) >= held.top - 1 && Math.min(bottom, innerHeight) <= held.bottom + 1;
    if (!isHeld) {
      this.redraw();
    }
  }
}
