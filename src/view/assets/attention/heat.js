/** The scale of weights in the present theme: the tokens `--heat-0` to `--heat-9`, with colours between them. */
class Heat {
  static STEPS = 256;
  static #now = null;

  /** The scale of the present theme. */
  static get now() {
    Heat.#now ??= new Heat();
    return Heat.#now;
  }

  /** Forgets the scale of a theme that was changed. */
  static turn() {
    Heat.#now = null;
  }

  constructor() {
    const stops = resolved(Array.from({ length: 10 }, (_, at) => `var(--heat-${at})`)).map(rgb);
    this.bytes = Uint8ClampedArray.from({ length: 3 * Heat.STEPS }, (_, index) => {
      const at = (Math.floor(index / 3) / (Heat.STEPS - 1)) * (stops.length - 1);
      const below = Math.min(Math.floor(at), stops.length - 2);
      const [one, next] = [stops[below][index % 3], stops[below + 1][index % 3]];
      return Math.round(one + (next - one) * (at - below));
    });
    this.styles = Array.from({ length: Heat.STEPS }, (_, step) => {
      const color = this.bytes.subarray(3 * step, 3 * step + 3);
      return [`rgb(${color.join(" ")})`, luminance(color) > 0.179 ? "#000" : "#fff"];
    });
  }

  /** The place of a weight on the scale, 0 to 255: by its root, so that small weights show. */
  static step(weight) {
    return Math.round(strength(weight) * (Heat.STEPS - 1));
  }

  /** The colours of a weight and of letters on it: black or white, whichever can be read better. */
  of(weight) {
    return this.styles[Heat.step(weight)];
  }
}

page.onTheme(() => Heat.turn());

/** Red, green and blue of `rgb(..)`, 0 to 255. */
function rgb(color) {
  return color.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** Source: WCAG 2.2, "relative luminance". */
function luminance(color) {
  const [red, green, blue] = Array.from(color, (x) => (x <= 10 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
