/** The most points of a curve that are drawn as dots, and the least part of the steps that can be shown. */
const MOST_DOTS = 60;
const LEAST_STEPS = 4;

/** A chart that shows some of its steps, in a linear or logarithmic axis, and reads out its values. */
class Chart {
  /** `ask` is called with the steps that a reader wants to see, and `null` for all. */
  constructor(figure, { digits, ceiling, mark, series }, ask) {
    Object.assign(this, { figure, digits, mark, series, ask, isLogarithmic: false, shown: null });
    this.ceiling = ceiling ?? Infinity;
    for (const curve of series) {
      curve.steps = curve.points.map((point) => point[0]);
      curve.values = curve.points.map((point) => point[1]);
    }
    this.all = [...new Set(series.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    this.index = this.all.length - 1;
    this.output = figure.querySelector("output");
    this.pictures = [...figure.querySelectorAll(":scope > svg")].map((svg) => this.picture(svg));
    page.set(figure, {
      tabindex: 0,
      focus: () => this.read(true),
      blur: () => this.read(false),
      keydown: (event) => this.key(event),
    });
    this.read(false);
  }

  get isPositive() {
    return this.series.every((curve) => curve.values.every((value) => value > 0));
  }

  /** A picture of the chart, which follows the pointer. */
  picture(svg) {
    const [x, y] = ["x", "y"].map((name) => {
      const [low, high, from, to] = svg.dataset[name].split(" ").map(Number);
      return axis([low, high], [from, to], false);
    });
    const hover = page.svg("g", { visibility: "hidden" });
    svg.append(hover);
    const picture = { svg, hover, drawing: svg.querySelector(".drawing"), x, y, whole: { x, y } };
    let from = null; // where a pointer was pressed
    const at = (event) => Math.min(Math.max(place(svg, event).x, picture.x.range[0]), picture.x.range[1]);
    const follow = (event) => {
      this.index = nearest(this.all, picture.x.number(at(event)));
      this.read(true);
      if (from !== null && Math.abs(at(event) - from) > 4) {
        const [left, right] = [from, at(event)].sort((a, b) => a - b);
        const [bottom, top] = picture.y.range;
        hover.append(page.svg("rect", { class: "brush", x: left, y: top, width: right - left, height: bottom - top }));
      }
    };
    page.set(svg, {
      pointermove: follow,
      pointerdown: (event) => {
        from = event.pointerType === "touch" || event.button !== 0 ? null : at(event);
        follow(event);
        if (from !== null) {
          svg.setPointerCapture(event.pointerId);
          event.preventDefault(); // no text is selected
          this.figure.focus({ preventScroll: true });
        }
      },
      pointerup: (event) => {
        if (from !== null && Math.abs(at(event) - from) > 4) {
          this.ask([from, at(event)].sort((a, b) => a - b).map((pixels) => picture.x.number(pixels)));
        }
        from = null;
      },
      pointercancel: () => (from = null),
      pointerleave: () => this.read(false),
      dblclick: () => this.ask(null),
    });
    return picture;
  }

  key(event) {
    const last = this.all.length - 1;
    const to = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      this.index = Math.min(Math.max(to, 0), last);
      this.read(true);
    } else if (event.key === "+") {
      this.zoomIn();
    } else if (event.key === "-" || event.key === "Escape") {
      this.ask(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Asks for half of the steps, around the one that is read. */
  zoomIn() {
    const [low, high] = this.shown ?? this.pictures[0].whole.x.domain;
    const half = (high - low) / 4;
    const middle = Math.min(Math.max(this.all[this.index], low + half), high - half);
    this.ask([middle - half, middle + half]);
  }

  /** Shows these steps, or all of them for `null`. */
  show(shown) {
    this.shown = shown;
    for (const picture of this.pictures) {
      this.draw(picture);
    }
    this.read(false);
  }

  draw(picture) {
    const { whole, drawing } = picture;
    const domain = this.shown ?? whole.x.domain;
    picture.x = axis(domain, whole.x.range, false);
    const visible = this.series.map((curve) => {
      const points = curve.points.filter(([step]) => step >= domain[0] && step <= domain[1]);
      return { ...curve, points };
    });
    const isWhole = this.shown === null && !this.isLogarithmic;
    picture.y = isWhole ? whole.y : axis(this.heights(visible, whole.y.domain), whole.y.range, this.isLogarithmic);
    drawing.replaceChildren(...this.axes(picture), ...visible.flatMap((curve) => this.curve(picture, curve)));
    const [step, value] = this.mark ?? [];
    if (this.mark && step >= domain[0] && step <= domain[1]) {
      drawing.append(...this.marked(picture, step, value));
    }
  }

  /** The lowest and the highest number of the visible curves, with some room. */
  heights(visible, whole) {
    const all = visible.flatMap((curve) => curve.points.map((point) => point[1]));
    const values = all.filter((value) => value <= this.ceiling);
    if (values.length === 0) {
      return this.isLogarithmic ? [1, 10] : whole;
    }
    const [low, high] = [Math.min(...values), Math.max(...values)];
    if (this.isLogarithmic) {
      const room = (high / low) ** 0.05;
      return room > 1 ? [low / room, high * room] : [low / 2, low * 2];
    }
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  axes({ x, y }) {
    const [left, right] = x.range;
    const [bottom, top] = y.range;
    const most = Math.max((bottom - top) / 42, 2);
    const heights = this.isLogarithmic ? logarithmicTicks(y.domain, most) : ticks(y.domain, most, 0);
    const widths = ticks(x.domain, Math.max((right - left) / 70, 2), 1);
    const line = (d) => page.svg("path", { class: "grid", d });
    const text = (at, name, anchor) => page.svg("text", { class: "tick", x: at[0], y: at[1], "text-anchor": anchor }, name);
    return [
      ...heights.flatMap(([number, name]) => [
        line(`M${left} ${y.at(number)}H${right}`),
        text([left - 8, y.at(number) + 4], name, "end"),
      ]),
      ...widths.flatMap(([number, name]) => [
        line(`M${x.at(number)} ${bottom}v4`),
        text([x.at(number), bottom + 18], name, "middle"),
      ]),
    ];
  }

  curve({ x, y }, { className, points, hasDots }) {
    const at = ([step, value]) => [x.at(step), y.at(value)].map((place) => place.toFixed(1));
    const path = points.map((point, i) => `${i === 0 ? "M" : "L"}${at(point).join(" ")}`).join("");
    const dots = points.length === 1 || (hasDots && points.length <= MOST_DOTS) ? points : [];
    return [
      page.svg("path", { class: `line ${className}`, d: path }),
      ...dots.map((point) => page.svg("circle", { class: `dot ${className}`, cx: at(point)[0], cy: at(point)[1], r: 2.5 })),
    ];
  }

  marked({ x, y }, step, value) {
    const [cx, cy] = [x.at(step), y.at(value)];
    const half = 3.3 * this.mark[2].length;
    const middle = Math.max(Math.min(cx, x.range[1] - half), x.range[0] + half);
    const above = cy - 16 > y.range[1] + 10 ? cy - 16 : cy + 26;
    return [
      page.svg("circle", { class: "mark", cx, cy, r: 5 }),
      page.svg("text", { class: "mark-label", x: middle, y: above, "text-anchor": "middle" }, this.mark[2]),
    ];
  }

  /** Says the values of the step, and marks it where `isMarked`. */
  read(isMarked) {
    const step = this.all[this.index];
    const { digits } = this;
    const value = (number) => (digits === null ? number.toExponential(2) : number.toFixed(digits));
    const found = this.series.map((curve) => ({ ...curve, at: nearest(curve.steps, step) }));
    const words = found.map(({ name, steps: at, values, at: i }) => {
      const where = at[i] === step ? "" : ` at step ${steps(at[i])}`;
      return page.element("span", {}, `${name} `, page.element("b", {}, value(values[i])), where);
    });
    this.output.replaceChildren(page.element("span", {}, "step ", page.element("b", {}, steps(step))), ...words);
    for (const { hover, x, y } of this.pictures) {
      const isInside = step >= x.domain[0] && step <= x.domain[1];
      page.set(hover, { visibility: isMarked && isInside ? "visible" : "hidden" });
      const [bottom, top] = y.range;
      const dots = found.map(({ className, steps: at, values, at: i }) =>
        page.svg("circle", { class: `dot ${className}`, cx: x.at(at[i]), cy: y.at(values[i]), r: 4 }));
      hover.replaceChildren(page.svg("path", { class: "rule", d: `M${x.at(step)} ${top}V${bottom}` }), ...dots);
    }
  }
}

page.view("curves", (section, numbers) => {
  const figures = [...section.querySelectorAll("figure")];
  const whole = page.element("button", { type: "button", hidden: true, click: () => show(null) }, "Whole run");
  // All charts show the same steps.
  const show = (asked) => {
    const steps = asked && asked[1] - asked[0] >= LEAST_STEPS ? asked : null;
    charts.forEach((chart) => chart.show(steps));
    whole.hidden = steps === null;
  };
  const charts = figures.map((figure, i) => new Chart(figure, numbers[i], show));
  const [large] = charts;
  const tools = page.element("span", { class: "tools" });
  if (large.isPositive) {
    const scale = page.element("button", { type: "button", "aria-pressed": "false" }, "Logarithmic");
    page.set(scale, {
      click: () => {
        large.isLogarithmic = !large.isLogarithmic;
        page.set(scale, { "aria-pressed": String(large.isLogarithmic) });
        large.show(large.shown);
      },
    });
    tools.append(scale);
  }
  tools.append(page.element("button", { type: "button", click: () => large.zoomIn() }, "Zoom in"), whole);
  large.figure.querySelector("figcaption").append(tools);
});
