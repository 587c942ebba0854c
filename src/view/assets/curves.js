/** The most points of a curve that are drawn as dots, and the least part of the steps that can be shown. */
const MOST_DOTS = 60;
const LEAST_STEPS = 4;

/** The x axes of curves, and the largest factor of smoothing; 0 is none. */
const AXES = { step: "steps", tokens: "tokens", seconds: "time" };
const MOST_SMOOTHING = 0.98;

/** The running mean of `values` that forgets by `weight`, each divided by the weights that it has had. */
function smoothed(values, weight) {
  let [sum, weights] = [0, 0];
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

/** A place on the x axis in words. */
function placeName(across, x) {
  return across === "seconds" ? x.toFixed(x < 100 ? 1 : 0) : steps(Math.round(x));
}

/** A chart that shows some of its steps, in a linear or logarithmic axis, and reads out its values. */
class Chart {
  /**
   * `shared.ask` is called with the steps that a reader wants to see, and `null` for all, `shared.follow` when a place is
   * pointed at; `shared.hidden` has the names of the curves that are not shown.
   */
  constructor(figure, { digits, ceiling, mark, series, across, logarithmic, ranked, listed }, shared) {
    Object.assign(this, { figure, digits, mark, series, listed, ranked, across, shared, shown: null, smoothing: 0 });
    this.isLogarithmic = logarithmic && series.every((curve) => curve.points.every((point) => point[1] > 0));
    this.ceiling = ceiling ?? Infinity;
    for (const [index, curve] of series.entries()) {
      Object.assign(curve, { index, raw: curve.points });
    }
    this.arrange();
    this.index = this.all.length - 1;
    this.output = figure.querySelector("output");
    this.legend();
    this.pictures = [...figure.querySelectorAll(":scope > svg")].map((svg) => this.picture(svg));
    page.set(figure, {
      tabindex: 0,
      focus: ({ target }) => target === figure && this.read(true),
      blur: () => this.leave(),
      keydown: (event) => this.key(event),
    });
    if (this.isLogarithmic) {
      this.show(null);
    }
    this.read(false);
  }

  ask(steps) {
    this.shared.ask(steps);
  }

  /** Whether every curve knows its tokens and its time. */
  get hasProgress() {
    return this.series.every((curve) => curve.tokens && curve.seconds);
  }

  /** The curves that are not hidden. */
  get visible() {
    return this.series.filter((curve) => !this.shared.hidden.has(curve.name));
  }

  /** Puts the points in place: over steps, tokens or time, smoothed or not. */
  arrange() {
    for (const curve of this.series) {
      curve.steps = curve[this.across] ?? curve.raw.map((point) => point[0]);
      const values = curve.raw.map((point) => point[1]);
      curve.values = this.smoothing > 0 ? smoothed(values, this.smoothing) : values;
      curve.points = curve.steps.map((step, at) => [step, curve.values[at]]);
      curve.rough = this.smoothing > 0 ? curve.steps.map((step, at) => [step, values[at]]) : null;
    }
    const numbers = this.visible.flatMap((curve) => curve.steps);
    this.all = [...new Set(numbers)].sort((a, b) => a - b);
  }

  /** Draws everything anew, after curves were hidden, smoothed or put elsewhere. */
  again({ across = this.across, smoothing = this.smoothing } = {}) {
    const isElsewhere = across !== this.across;
    Object.assign(this, { across, smoothing, isChanged: true });
    this.arrange();
    this.index = this.all.length - 1;
    for (const picture of this.pictures) {
      picture.whole.x = axis([0, this.all.at(-1) ?? 1], picture.whole.x.range, false);
    }
    this.show(isElsewhere ? null : this.shown);
  }

  /** Makes the entries of the legend switches, where there are several. */
  legend() {
    const entries = [...this.figure.querySelectorAll(".legend > span")].slice(0, this.listed.length);
    entries.forEach((entry, at) => {
      const names = this.listed[at].map((index) => this.series[index].name);
      const isHidden = () => names.every((name) => this.shared.hidden.has(name));
      const button = page.element(
        "button",
        { type: "button", class: "curve", "aria-pressed": String(!isHidden()), title: "Hide or show" },
        ...entry.childNodes,
      );
      page.set(button, { click: () => this.shared.hide(names, !isHidden()) });
      this.shared.onHide(() => page.set(button, { "aria-pressed": String(!isHidden()) }));
      entry.replaceChildren(button);
    });
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
      this.pick(picture, event);
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
      pointerleave: () => this.leave(),
      dblclick: () => this.ask(null),
    });
    return picture;
  }

  key(event) {
    if (event.target.closest("input, select, button")) {
      return; // it has keys of its own
    }
    const last = this.all.length - 1;
    const to = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      this.index = Math.min(Math.max(to, 0), last);
      this.read(true);
    } else if (this.grouped.length > 0 && ["ArrowUp", "ArrowDown"].includes(event.key)) {
      const at = this.grouped.findIndex(({ name }) => name === this.shared.picked);
      const next = event.key === "ArrowUp" ? Math.max(at, 0) - 1 : at + 1;
      this.shared.pick(this.grouped.at(next % this.grouped.length).name);
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

  /** The visible curves that the pointer picks: those of several runs, or that share an entry of the legend. */
  get grouped() {
    const several = this.listed.filter((indices) => this.ranked || indices.length > 1).flat();
    return several.map((index) => this.series[index]).filter(({ name }) => !this.shared.hidden.has(name));
  }

  /** Picks the nearest of them to a pointer. */
  pick({ svg, y }, event) {
    const pointer = place(svg, event).y;
    const distance = ({ steps: at, values }) => Math.abs(y.at(values[nearest(at, this.all[this.index])]) - pointer);
    const found = this.grouped.reduce((best, curve) => (best && distance(best) <= distance(curve) ? best : curve), null);
    this.shared.pick(found?.name ?? null);
  }

  /** Highlights the picked curve. */
  highlight() {
    const picked = this.series.findIndex(({ name }) => name === this.shared.picked);
    this.figure.classList.toggle("is-picked", picked >= 0);
    for (const path of this.figure.querySelectorAll("[data-curve]")) {
      path.classList.toggle("picked", Number(path.dataset.curve) === picked);
    }
  }

  leave() {
    this.shared.pick(null);
    this.read(false);
  }

  /** Asks for half of the steps, around the one that is read. */
  zoomIn() {
    const [low, high] = this.shown ?? this.pictures[0].whole.x.domain;
    const half = (high - low) / 4;
    const middle = Math.min(Math.max(this.all[this.index], low + half), high - half);
    this.ask([middle - half, middle + half]);
  }

  /** Shows these steps, or all of them for `null`, and reads one of them: at first the last. */
  show(shown) {
    const [low, high] = shown ?? [-Infinity, Infinity];
    const step = shown ? Math.min(Math.max(this.all[this.index], low), high) : this.all.at(-1);
    this.index = nearest(this.all, step);
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
    const inside = (points) => points?.filter(([step]) => step >= domain[0] && step <= domain[1]);
    const visible = this.visible.map((curve) => ({ ...curve, points: inside(curve.points), rough: inside(curve.rough) }));
    const isWhole = this.shown === null && !this.isLogarithmic && !this.isChanged;
    picture.y = isWhole ? whole.y : axis(this.heights(visible, whole.y.domain), whole.y.range, this.isLogarithmic);
    drawing.replaceChildren(...this.axes(picture), ...visible.flatMap((curve) => this.curve(picture, curve)));
    const [step, value] = this.mark ?? [];
    if (this.mark && this.across === "step" && step >= domain[0] && step <= domain[1]) {
      drawing.append(...this.marked(picture, step, value));
    }
  }

  /** The lowest and the highest number of the visible curves, with some room. */
  heights(visible, whole) {
    const all = visible.flatMap((curve) => (curve.rough ?? curve.points).map((point) => point[1]));
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
    const widths = ticks(x.domain, Math.max((right - left) / 70, 2), this.across === "seconds" ? 0 : 1);
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

  curve({ x, y }, { index, className, points, rough, hasDots }) {
    const at = ([step, value]) => [x.at(step), y.at(value)].map((place) => place.toFixed(1));
    const line = (all) => all.map((point, i) => `${i === 0 ? "M" : "L"}${at(point).join(" ")}`).join("");
    const path = line(points);
    const dots = points.length === 1 || (hasDots && points.length <= MOST_DOTS) ? points : [];
    return [
      ...(rough ? [page.svg("path", { class: `line rough ${className}`, d: line(rough) })] : []),
      page.svg("path", { class: `line ${className}`, "data-curve": index, d: path }),
      ...dots.map((point) => page.svg("circle", { class: `dot ${className}`, cx: at(point)[0], cy: at(point)[1], r: 2.5 })),
    ];
  }

  marked({ x, y }, step, value) {
    const [cx, cy] = [x.at(step), y.at(value)];
    const half = 3.3 * this.mark[2].length;
    const middle = Math.max(Math.min(cx, x.range[1] - half), x.range[0] + half);
    // Above or below the point, or at the top: where it covers least of the curves.
    const [bottom, top] = y.range;
    const points = this.visible.flatMap((curve) => curve.points.map(([at, number]) => [x.at(at), y.at(number)]));
    const covered = (line) =>
      points.filter(([px, py]) => Math.abs(px - middle) < half && py >= line - 14 && py < line + 6).length;
    const lines = [cy - 16, cy + 26, top + 14].filter((line) => line > top + 10 && line < bottom - 4);
    const above = lines.reduce((best, line) => (covered(line) < covered(best) ? line : best), lines[0] ?? top + 14);
    return [
      page.svg("circle", { class: "mark", cx, cy, r: 5 }),
      page.svg("text", { class: "mark-label", x: middle, y: above, "text-anchor": "middle" }, this.mark[2]),
    ];
  }

  /** Says the values of the step, and marks it where `isMarked`, in all charts. */
  read(isMarked) {
    this.mention(isMarked);
    this.shared.follow(this, this.all[this.index], isMarked);
  }

  /** Reads the place that another chart is read at. */
  join(x, isMarked) {
    if (this.all.length > 0) {
      this.index = nearest(this.all, x);
      this.mention(isMarked);
    }
  }

  mention(isMarked) {
    if (this.all.length === 0) {
      this.output.replaceChildren("All curves are hidden: the legend brings them back.");
      this.pictures.forEach(({ hover }) => page.set(hover, { visibility: "hidden" }));
      return;
    }
    const step = this.all[this.index];
    const { digits, across } = this;
    const fixed = (number) => (digits === 0 ? steps(Math.round(number)) : number.toFixed(digits));
    const value = (number) => (digits === null ? number.toExponential(2) : fixed(number));
    const isVisible = ({ name }) => !this.shared.hidden.has(name);
    // In the order of the legend; of those that share an entry, the picked one.
    const isRead = (index, indices) => indices.length === 1 || this.series[index].name === this.shared.picked;
    const found = this.listed
      .flatMap((indices) => indices.filter((index) => isRead(index, indices) && isVisible(this.series[index])))
      .map((index) => ({ ...this.series[index], at: nearest(this.series[index].steps, step) }));
    const words = found.map(({ name, steps: at, values, at: i }) => {
      const [here, there] = [step, at[i]].map((x) => placeName(across, x));
      const where = here === there ? "" : ` at ${across} ${there}`;
      return page.element("span", {}, `${name} `, page.element("b", {}, value(values[i])), where);
    });
    this.output.replaceChildren(page.element("span", {}, `${across} `, page.element("b", {}, placeName(across, step))), ...words);
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
  // Disabled rather than hidden, so that nothing moves when it can be used.
  const whole = page.element("button", { type: "button", disabled: true, click: () => show(null) }, "Whole run");
  // All charts show the same steps, the same curves, and are read at the same place.
  const show = (asked) => {
    const least = charts[0].across === "seconds" ? 0 : LEAST_STEPS;
    const steps = asked && asked[1] - asked[0] >= least ? asked : null;
    charts.forEach((chart) => chart.show(steps));
    whole.disabled = steps === null;
  };
  const switches = [];
  const shared = {
    hidden: new Set(),
    picked: null, // the name of the highlighted curve
    pick(name) {
      if (shared.picked !== name) {
        shared.picked = name;
        charts?.forEach((chart) => chart.highlight());
      }
    },
    ask: show,
    onHide: (changed) => switches.push(changed),
    hide(names, isHidden) {
      names.forEach((name) => shared.hidden[isHidden ? "add" : "delete"](name));
      switches.forEach((changed) => changed());
      charts.forEach((chart) => chart.again());
    },
    follow(source, x, isMarked) {
      charts?.filter((chart) => chart !== source).forEach((chart) => chart.join(x, isMarked));
    },
  };
  let charts = null; // until all are made, none is followed
  charts = figures.map((figure, i) => new Chart(figure, numbers[i], shared));
  const [large] = charts;
  const tools = page.element("span", { class: "tools" });
  if (large.isPositive) {
    const scale = page.element("button", { type: "button", "aria-pressed": String(large.isLogarithmic) }, "Logarithmic");
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
  if (large.across === "step" && charts.every((chart) => chart.hasProgress)) {
    const options = Object.entries(AXES).map(([value, name]) => page.element("option", { value }, name));
    const over = page.element("select", {
      "aria-label": "Over", change: () => {
        whole.disabled = true;
        charts.forEach((chart) => chart.again({ across: over.value }));
      },
    }, ...options);
    tools.append(page.element("label", {}, "over ", over));
  }
  if (charts.some((chart) => chart.series.some((curve) => curve.raw.length > 20))) {
    const smooth = page.element("input", {
      type: "range", min: 0, max: MOST_SMOOTHING, step: 0.02, value: 0, "aria-label": "Smoothing",
      input: () => charts.forEach((chart) => chart.again({ smoothing: Number(smooth.value) })),
    });
    tools.append(page.element("label", {}, "smooth ", smooth));
  }
  large.figure.querySelector("figcaption").append(tools);
});
