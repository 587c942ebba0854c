page.view("forming", (section, { steps: evaluations, heads, scores }) => {
  const figure = section.querySelector("figure");
  const output = section.querySelector("output");
  const invitation = output.textContent;

  function pick(index) {
    figure.classList.toggle("is-picked", index !== null);
    for (const path of figure.querySelectorAll(".head")) {
      path.classList.toggle("picked", Number(path.dataset.head) === index);
    }
  }

  for (const panel of figure.querySelectorAll(".panel")) {
    const { score, box, last } = panel.dataset;
    const [left, right, top, bottom] = box.split(" ").map(Number);
    const area = page.svg("rect", { class: "area", x: left, y: top, width: right - left, height: bottom - top });
    panel.append(area);
    const follow = (event) => {
      const { x, y } = place(panel, event);
      const at = nearest(evaluations, ((x - left) / (right - left)) * Number(last));
      const height = (value) => bottom - value * (bottom - top);
      let best = null;
      scores[score].forEach((line, head) => {
        const value = line[at];
        if (value !== null && (best === null || Math.abs(height(value) - y) < best.distance)) {
          best = { head, value, distance: Math.abs(height(value) - y) };
        }
      });
      if (best !== null) {
        pick(best.head);
        output.replaceChildren(
          page.element("span", {}, "head ", page.element("b", {}, heads[best.head])),
          page.element("span", {}, `${score} `, page.element("b", {}, best.value.toFixed(2))),
          page.element("span", {}, "step ", page.element("b", {}, steps(evaluations[at]))));
      }
    };
    area.addEventListener("pointermove", follow);
    area.addEventListener("pointerdown", follow);
  }
  figure.addEventListener("pointerleave", () => {
    pick(null);
    output.textContent = invitation;
  });
});
