/** The cell that the reader chose last, to be read again after the server drew its grid anew. */
let chosen = null;

/** A grid's cell in words: the one under the pointer, or the one that the arrow keys reach. */
function readCells(table) {
  const output = table.closest("figure").querySelector("output");
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1));
  const columns = [...table.tHead.rows[0].cells].slice(1);
  let at = { row: rows.length - 1, column: columns.length - 1 };

  function show(to) {
    const cell = rows[to.row]?.[to.column];
    if (!cell) {
      return false;
    }
    table.querySelectorAll(".present").forEach((old) => old.classList.remove("present"));
    at = to;
    [cell, cell.parentNode.cells[0], columns[at.column]].forEach((node) => node.classList.add("present"));
    output.textContent = cell.dataset.about ?? "";
    return true;
  }

  // A click, or Enter, chooses the column whose bars are shown below.
  const bars = [...table.closest("section").querySelectorAll("figure[data-column]")];
  const choose = () => {
    chosen = { label: table.ariaLabel, at };
    if (bars.some((figure) => Number(figure.dataset.column) === at.column)) {
      bars.forEach((figure) => (figure.hidden = Number(figure.dataset.column) !== at.column));
    }
    table.dispatchEvent(new CustomEvent("choose", { bubbles: true, detail: at.column }));
  };
  if (bars.length > 0) {
    page.set(table, { "data-choosable": true });
  }
  const point = (event) => {
    const cell = event.target.closest("td[data-about]");
    if (cell) {
      show({ row: rows.indexOf(rows.find((row) => row.includes(cell))), column: cell.cellIndex - 1 });
    }
  };
  page.set(table, {
    pointermove: point,
    pointerdown: point,
    click: (event) => event.target.closest("td[data-about]") && choose(),
    focus: () => show(at),
    keydown: (event) => {
      const { row, column } = at;
      if (event.key === "Enter") {
        choose();
      }
      const to = {
        ArrowLeft: { row, column: column - 1 },
        ArrowRight: { row, column: column + 1 },
        ArrowUp: { row: row - 1, column },
        ArrowDown: { row: row + 1, column },
        Home: { row, column: 0 },
        End: { row, column: columns.length - 1 },
      }[event.key];
      if (to && show(to)) {
        event.preventDefault();
        rows[at.row][at.column].scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    },
  });
  if (chosen?.label !== table.ariaLabel || !show(chosen.at)) {
    output.textContent = "Point at a cell, or walk with the arrow keys.";
  }
}

/** A text or a map in words: the token under the pointer, or the one that the arrow keys reach. */
function walk(node) {
  const output = node.closest("figure").querySelector("output");
  const all = [...node.querySelectorAll("[data-about]")];
  let at = 0;
  const show = (to) => {
    all[at].classList.remove("present");
    at = Math.min(Math.max(to, 0), all.length - 1);
    all[at].classList.add("present");
    output.textContent = all[at].dataset.about;
  };
  const point = (event) => {
    const found = event.target.closest("[data-about]");
    if (found) {
      show(all.indexOf(found));
    }
  };
  page.set(node, {
    pointermove: point,
    pointerdown: point,
    focus: () => show(at),
    keydown: (event) => {
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -all.length, End: all.length }[event.key];
      if (by) {
        event.preventDefault();
        show(at + by);
        all[at].scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    },
  });
  output.textContent = "Point at a token, or walk with the arrow keys.";
}

page.view("sheet", (section) => {
  section.querySelectorAll(".cells").forEach(readCells);
  section.querySelectorAll("[data-walk]").forEach(walk);
  section.querySelector(".lead").after(page.actions(section, () => section));
});
