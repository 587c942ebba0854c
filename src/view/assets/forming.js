page.view("forming", (section, { steps: evaluations, heads, scores }) => {
  const figure = section.querySelector("figure");
  const output = section.querySelector("output");
  const invitation = output.textContent;
  let [picked, at] = [0, evaluations.length - 1]; // where the keys go on from

  const panels = [...figure.querySelectorAll(".panel")].map((panel) => {
    const { score, box, last } = panel.dataset;
    const [left, right, top, bottom] = box.split(" ").map(Number);
    const area = page.svg("rect", { class: "area", x: left, y: top, width: right - left, height: bottom - top });
    const rule = page.svg("path", { class: "rule", visibility: "hidden" });
    panel.append(rule, area);
    const x = (evaluation) => left + (evaluations[evaluation] / Number(last)) * (right - left);
    const follow = (event) => {
      const pointer = place(panel, event);
      at = nearest(evaluations, ((pointer.x - left) / (right - left)) * Number(last));
      let least = Infinity;
      scores[score].forEach((line, head) => {
        const distance = Math.abs(bottom - line[at] * (bottom - top) - pointer.y);
        if (line[at] !== null && distance < least) {
          [picked, least] = [head, distance];
        }
      });
      if (least < Infinity) {
        show([score]);
      }
    };
    area.addEventListener("pointermove", follow);
    area.addEventListener("pointerdown", follow);
    return { rule, place: () => page.set(rule, { d: `M${x(at)} ${top}V${bottom}` }) };
  });

  /** Shows the picked head in all charts, and reads out these scores. */
  function show(read) {
    figure.classList.add("is-picked");
    for (const path of figure.querySelectorAll(".head")) {
      path.classList.toggle("picked", Number(path.dataset.head) === picked);
    }
    for (const panel of panels) {
      panel.place();
      page.set(panel.rule, { visibility: "visible" });
    }
    const known = read.filter((score) => scores[score][picked][at] !== null);
    output.replaceChildren(
      page.element("span", {}, "head ", page.element("b", {}, heads[picked])),
      page.element("span", {}, "step ", page.element("b", {}, steps(evaluations[at]))),
      ...known.map((score) =>
        page.element("span", {}, `${score} `, page.element("b", {}, scores[score][picked][at].toFixed(2)))));
  }

  function leave() {
    figure.classList.remove("is-picked");
    figure.querySelectorAll(".picked").forEach((path) => path.classList.remove("picked"));
    panels.forEach(({ rule }) => page.set(rule, { visibility: "hidden" }));
    output.textContent = invitation;
  }

  page.set(figure, {
    tabindex: 0,
    pointerleave: leave,
    focus: () => show(Object.keys(scores)),
    blur: leave,
    keydown: (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      const move = moves[event.key];
      if (move) {
        picked = (picked + move[0] + heads.length) % heads.length;
        at = Math.min(Math.max(at + move[1], 0), evaluations.length - 1);
        show(Object.keys(scores));
        event.preventDefault();
      }
    },
  });
});
