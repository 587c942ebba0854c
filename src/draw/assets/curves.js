/** Shows the values of a chart at the step of the pointer, or the step that the arrow keys reach. */
function readOut(figure, { digits, series }) {
  const output = figure.querySelector("output");
  const value = (number) => (digits === null ? number.toExponential(2) : number.toFixed(digits));
  const curves = series.map(({ name, className, points }) => ({
    name,
    className,
    steps: points.map((point) => point[0]),
    values: points.map((point) => point[1]),
  }));
  const all = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const pictures = [...figure.querySelectorAll(":scope > svg")].map((svg) => {
    const scale = (name) => {
      const [low, high, from, to] = svg.dataset[name].split(" ").map(Number);
      return {
        at: (number) => from + ((Math.min(Math.max(number, low), high) - low) / (high - low)) * (to - from),
        number: (at) => low + ((at - from) / (to - from)) * (high - low),
        range: [from, to],
      };
    };
    const hover = page.svg("g", { visibility: "hidden" });
    svg.append(hover);
    return { svg, hover, x: scale("x"), y: scale("y") };
  });
  let index = all.length - 1;

  function show(isMarked) {
    const step = all[index];
    const found = curves.map((curve) => ({ ...curve, at: nearest(curve.steps, step) }));
    const words = found.map(({ name, steps: at, values, at: i }) => {
      const where = at[i] === step ? "" : ` at step ${steps(at[i])}`;
      return page.element("span", {}, `${name} `, page.element("b", {}, value(values[i])), where);
    });
    output.replaceChildren(page.element("span", {}, "step ", page.element("b", {}, steps(step))), ...words);
    for (const { hover, x, y } of pictures) {
      page.set(hover, { visibility: isMarked ? "visible" : "hidden" });
      const [bottom, top] = y.range;
      const dots = found.map(({ className, steps: at, values, at: i }) =>
        page.svg("circle", { class: `dot ${className}`, cx: x.at(at[i]), cy: y.at(values[i]), r: 4 }));
      hover.replaceChildren(
        page.svg("path", { class: "rule", d: `M${x.at(step)} ${top}V${bottom}` }), ...dots);
    }
  }

  for (const { svg, x } of pictures) {
    const follow = (event) => {
      index = nearest(all, x.number(place(svg, event).x));
      show(true);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", () => show(false));
  }
  page.set(figure, {
    tabindex: 0,
    focus: () => show(true),
    blur: () => show(false),
    keydown: (event) => {
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: all.length - 1 }[event.key];
      if (to !== undefined) {
        index = Math.min(Math.max(to, 0), all.length - 1);
        show(true);
        event.preventDefault();
      }
    },
  });
  show(false);
}

page.view("curves", (section, charts) => {
  for (const figure of section.querySelectorAll("figure")) {
    readOut(figure, charts[figure.dataset.chart]);
  }
});
