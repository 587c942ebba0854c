/** How far from the screen a row is filled, in pixels. */
const NEAR = 1000;

/**
 * The rows of a long list, all equally high, which are filled when they come near the screen: filling thousands takes
 * seconds. `fill(index)` and `empty(index)` do so, and neither changes the row's height.
 */
class LazyRows {
  constructor(list, n, fill, empty) {
    Object.assign(this, { list, fill, empty });
    this.order = [...Array(n).keys()];
    this.filled = new Set();
    document.addEventListener("scroll", () => this.fillNear(), { passive: true });
    addEventListener("resize", () => this.fillNear());
  }

  /** Fills anew. `order` holds the rows from top to bottom, where that has changed. */
  refill(order = this.order) {
    this.order = order;
    const old = this.filled;
    this.filled = new Set();
    this.fillNear();
    old.forEach((index) => this.filled.has(index) || this.empty(index));
  }

  fillNear() {
    const { top, height } = this.list.getBoundingClientRect();
    const rowAt = (y) => Math.floor((y - top) / (height / this.order.length));
    const end = height > 0 ? rowAt(innerHeight + NEAR) + 1 : 0; // none of a list that is not shown
    for (const index of this.order.slice(Math.max(rowAt(-NEAR), 0), Math.max(end, 0))) {
      if (!this.filled.has(index)) {
        this.filled.add(index);
        this.fill(index);
      }
    }
  }
}
