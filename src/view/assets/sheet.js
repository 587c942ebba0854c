/** The cell that the reader chose last, to be read again after the server drew its grid anew. */
let chosen = null;

/** Says in words what is under the pointer, or what the arrow keys reach: a cell of a grid, a token of a text or map. */
function walk(svg) {
  const output = svg.closest("figure").querySelector("output");
  for (const title of svg.querySelectorAll("title")) {
    title.parentNode.dataset.about = title.textContent; // said above the picture, and not in a tooltip as well
    title.remove();
  }
  const cells = [...svg.querySelectorAll("[role=row]")].map((row) => [...row.querySelectorAll("[role=cell]")]);
  const grid = cells.filter((row) => row.length > 0);
  const isGrid = grid.length > 0;
  const rows = isGrid ? grid : [[...svg.querySelectorAll("[data-about]")]];
  const columns = [...svg.querySelectorAll("[role=columnheader]")];
  const last = { row: rows.length - 1, column: rows[0].length - 1 };
  let at = isGrid ? last : { row: 0, column: 0 };

  function show(to) {
    const cell = rows[to.row]?.[to.column];
    if (!cell) {
      return false;
    }
    svg.querySelectorAll(".present").forEach((old) => old.classList.remove("present"));
    at = to;
    const header = isGrid ? [cell.parentNode.querySelector("[role=rowheader]"), columns[at.column]] : [];
    [cell, ...header].forEach((node) => node.classList.add("present"));
    output.textContent = cell.dataset.about ?? "";
    return true;
  }

  // A click, or Enter, chooses the token whose figures are shown below, or the head whose maps are on the page.
  const maps = page.section("attention");
  const others = [...svg.closest("section").querySelectorAll("figure[data-column]")];
  const isAbout = (figure, column) => Number(figure.dataset.column) === column;
  function choose() {
    if ("heads" in svg.dataset && maps) {
      location.hash = `#${maps.id}&view=text&layer=${at.row}&head=${at.column}`;
    }
    if (!("first" in svg.dataset)) {
      return;
    }
    const token = Number(svg.dataset.first) + at.column;
    chosen = { label: svg.ariaLabel, at };
    if (others.some((figure) => isAbout(figure, token))) {
      others.forEach((figure) => (figure.hidden = !isAbout(figure, token)));
    }
    svg.dispatchEvent(new CustomEvent("choose", { bubbles: true, detail: token }));
  }
  if ((others.length > 0 && "first" in svg.dataset) || (maps && "heads" in svg.dataset)) {
    page.set(svg, { "data-choosable": true });
  }
  function point(event) {
    const found = event.target.closest("[data-about]");
    const row = rows.findIndex((cells) => cells.includes(found));
    return row >= 0 && show({ row, column: rows[row].indexOf(found) });
  }
  page.set(svg, {
    pointermove: point,
    pointerdown: point,
    click: (event) => point(event) && choose(),
    focus: () => show(at),
    keydown: (event) => {
      const { row, column } = at;
      if (event.key === "Enter") {
        choose();
      }
      const by = (rows, columns) => (isGrid ? { row: row + rows, column: column + columns } : { row, column: column + rows + columns });
      const to = {
        ArrowLeft: by(0, -1),
        ArrowRight: by(0, 1),
        ArrowUp: by(-1, 0),
        ArrowDown: by(1, 0),
        Home: { row, column: 0 },
        End: { row, column: last.column },
      }[event.key];
      if (to && show(to)) {
        event.preventDefault();
        rows[at.row][at.column].scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    },
  });
  if (chosen?.label === svg.ariaLabel) {
    show(chosen.at);
  }
}

/** Keeps the names of rows in view while a wide grid scrolls. */
function holdNames(scrolls) {
  const names = [...scrolls.querySelectorAll(".cells [role=rowheader]")];
  let held = null;
  scrolls.addEventListener("scroll", () => {
    if (names.length > 0) {
      if (held === null) {
        held = page.svg("g", { "aria-hidden": "true" }, ...names.map((name) => page.set(name.cloneNode(true), { role: null })));
        names[0].parentNode.parentNode.append(held); // above the cells
      }
      page.set(held, { transform: `translate(${scrolls.scrollLeft} 0)` });
    }
  });
}

page.view("sheet", (section) => {
  section.querySelectorAll("[data-walk]").forEach(walk);
  section.querySelectorAll(".scrolls").forEach(holdNames);
  section.querySelector(".lead").after(page.actions(section, () => section));
});
