/** The cell that the reader chose last, to be read again where it was after the server drew its grid anew. */
let chosen = null;

/** Says in words what is under the pointer, or what the arrow keys reach: a cell of a grid, a token of a text or map. */
function walk(svg) {
  const section = svg.closest("section");
  const output = svg.closest("figure").querySelector("output");
  const said = output.firstElementChild;
  const scrolls = svg.closest(".scrolls");
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
  const wanted = Number(svg.dataset.chosen ?? last.column); // the column that the sheet is about
  let at = isGrid ? { row: last.row, column: wanted } : { row: 0, column: 0 };
  const relate = svg.classList.contains("map") ? neighbours(svg) : svg.classList.contains("graph") ? links(svg) : () => {};
  let pinned = null; // a part of a graph
  const texts = rows.flat().map((cell) => cell.dataset.about ?? "");
  const longest = texts.reduce((long, text) => (text.length > long.length ? text : long), said.textContent);
  page.set(output, { "data-longest": longest }); // its room, so that nothing moves under the pointer

  function show(to) {
    const cell = rows[to.row]?.[to.column];
    if (!cell) {
      return false;
    }
    svg.querySelectorAll(".present").forEach((old) => old.classList.remove("present"));
    at = to;
    const header = isGrid ? [cell.parentNode.querySelector("[role=rowheader]"), columns[at.column]] : [];
    [cell, ...header].forEach((node) => node.classList.add("present"));
    said.textContent = cell.dataset.about ?? "";
    relate(cell);
    return true;
  }

  /** Marks a column and shows the figures about it. */
  function turnTo(column) {
    columns.forEach((header, other) => header.classList.toggle("chosen", other === column));
    const token = Number(svg.dataset.first) + column;
    if (others.some((figure) => isAbout(figure, token))) {
      others.forEach((figure) => (figure.hidden = !isAbout(figure, token)));
    }
  }

  /** Scrolls a column that is out of view into the middle. */
  function reveal(column) {
    const [box, name, header] = [scrolls, svg.querySelector("[role=rowheader]"), columns[column]].map((node) => node.getBoundingClientRect());
    if (header.left < box.left + name.width || header.right > box.right) {
      scrolls.scrollLeft += header.left - (box.left + box.right) / 2;
    }
  }

  // A click, or Enter, chooses the token whose figures are shown below, or the head whose maps are on the page.
  const maps = page.section("attention");
  const others = [...section.querySelectorAll("figure[data-column]")];
  const isAbout = (figure, column) => Number(figure.dataset.column) === column;
  function choose() {
    if (svg.classList.contains("graph")) {
      pinned = pinned === at.column ? null : at.column;
      svg.classList.toggle("pinned", pinned !== null);
    }
    if ("heads" in svg.dataset && maps) {
      location.hash = `#${maps.id}&view=text&layer=${at.row}&head=${at.column}`;
    }
    if (!("first" in svg.dataset)) {
      return;
    }
    const token = Number(svg.dataset.first) + at.column;
    chosen = { label: svg.ariaLabel, at, left: scrolls.scrollLeft };
    turnTo(at.column);
    if (others.length > 0) {
      page.keep(section, { token });
    }
    svg.dispatchEvent(new CustomEvent("choose", { bubbles: true, detail: token }));
  }
  if ((others.length > 0 && "first" in svg.dataset) || (maps && "heads" in svg.dataset)) {
    page.set(svg, { "data-choosable": true });
  }
  function point(event) {
    if (event.type === "pointermove" && pinned !== null) {
      return false;
    }
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
    scrolls.scrollLeft = chosen.left;
    show(chosen.at);
  }
  if ("chosen" in svg.dataset) {
    turnTo(wanted);
    reveal(wanted);
  }
  if (others.length > 0 && "first" in svg.dataset) {
    page.onState(section, (state) => {
      const column = Number(state.get("token") ?? NaN) - Number(svg.dataset.first);
      if (column in columns) {
        turnTo(column);
        reveal(column);
      }
    });
  }
  if (svg.classList.contains("map")) {
    const find = (column) => {
      show({ row: 0, column });
      rows[0][column].scrollIntoView({ block: "nearest", inline: "center" });
    };
    output.before(search(rows[0], find));
  }
}

/** Shows the links of a part of a graph; a click or Enter pins them. */
function links(svg) {
  return ({ dataset: { node } }) => {
    for (const link of svg.querySelectorAll(".link")) {
      link.classList.toggle("off", link.dataset.from !== node && link.dataset.to !== node);
    }
  };
}

/** Shows a point of a map with its name, and those most similar to it, with lines to them. */
function neighbours(svg) {
  const points = new Map([...svg.querySelectorAll("[data-at]")].map((point) => [point.dataset.at, point]));
  const over = page.svg("g", { class: "related", "aria-hidden": "true" });
  svg.append(over);
  const place = (point) => {
    const { x, y, width, height } = point.getBBox();
    return [x + width / 2, y + height / 2];
  };
  return (point) => {
    const near = point.dataset.near.split(" ").flatMap((at) => points.get(at) ?? []);
    const [x, y] = place(point);
    const line = ([toX, toY]) => page.svg("line", { x1: x, y1: y, x2: toX, y2: toY });
    const name = (other) => {
      const [nameX, nameY] = place(other);
      const isNamed = other.tagName !== "circle";
      const attributes = { x: nameX, y: nameY + (isNamed ? 4.5 : -6), "text-anchor": "middle" };
      return page.svg("text", { ...attributes, class: other === point ? "itself" : null }, other.dataset.name);
    };
    over.replaceChildren(...near.map((other) => line(place(other))), ...near.map(name), name(point));
  };
}

/** A field that finds a token of a map by its name: the one that is equal, or else the first that contains it. */
function search(points, show) {
  const field = page.element("input", {
    type: "search", placeholder: "Find a token", "aria-label": "Find a token", class: "find",
    input: () => {
      const wanted = field.value.replaceAll(" ", "·");
      const names = points.map((point) => point.dataset.name);
      const isFound = (name) => wanted !== "" && name.toLowerCase().includes(wanted.toLowerCase());
      points.forEach((point, at) => point.classList.toggle("found", isFound(names[at])));
      const tests = [(name) => name === wanted, (name) => name === `·${wanted}`, isFound];
      const at = tests.map((test) => names.findIndex(test)).find((found) => found >= 0);
      if (at !== undefined && wanted !== "") {
        show(at);
      }
    },
  });
  return field;
}

/** Keeps the names of rows and the scale in view while a wide grid scrolls. */
function holdNames(scrolls) {
  const scale = scrolls.querySelector(".cells > .scale");
  const names = [...scrolls.querySelectorAll(".cells [role=rowheader]")];
  let held = null;
  scrolls.addEventListener("scroll", () => {
    if (names.length > 0) {
      if (held === null) {
        held = page.svg("g", { "aria-hidden": "true" }, ...names.map((name) => page.set(name.cloneNode(true), { role: null })));
        const rows = names[0].parentNode.parentNode;
        rows.after(page.svg("g", { transform: rows.getAttribute("transform") }, held)); // above the cells
      }
      [held, scale].filter((node) => node).forEach((node) => page.set(node, { transform: `translate(${scrolls.scrollLeft} 0)` }));
    }
  });
}

page.view("sheet", (section) => {
  section.querySelectorAll(".scrolls").forEach(holdNames);
  section.querySelectorAll("[data-walk]").forEach(walk);
  section.querySelector(".lead").after(page.actions(section, () => section));
});
