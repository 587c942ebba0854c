/** Every run in a table: sorted by a click on a column, compared by ticks, and looked after while one trains. */
import { ask, keep, latest, state, statusLine } from "./api.js";

const EVERY_MS = 3000;
const DEFAULTS = { sort: "name", down: 0, tick: "" };

/** Columns: key, title, the text of a cell, and whether it is a number. */
const COLUMNS = [
  ["name", "Run", null, false],
  ["status", "Status", null, false],
  ["step", "Steps", ({ step, max_steps: most }) => (most && most !== step ? `${count(step)} of ${count(most)}` : count(step)), true],
  ["parameters", "Parameters", ({ parameters }) => (parameters === null ? "" : count(parameters)), true],
  ["loss", "Best loss", ({ loss, is_estimate: about }) => (loss === null ? "" : `${about ? "~" : ""}${loss.toFixed(4)}`), true],
  ["curve", "Loss", null, false],
];

function count(n) {
  return Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
}

/** The training loss in a picture of words' height, falling from left to right. */
function sparkline({ curve, name }) {
  if (curve.length < 2) {
    return "";
  }
  const [low, high] = [Math.min(...curve), Math.max(...curve)];
  const points = curve.map((loss, at) => {
    const y = high > low ? (loss - low) / (high - low) : 0;
    return `${((at / (curve.length - 1)) * 118 + 1).toFixed(1)},${(23 - y * 22).toFixed(1)}`;
  });
  const label = `Training loss of ${name}: from ${curve[0].toFixed(2)} to ${curve.at(-1).toFixed(2)}`;
  return page.svg(
    "svg",
    { class: "spark", viewBox: "0 0 120 24", role: "img", "aria-label": label },
    page.svg("polyline", { points: points.join(" ") }),
  );
}

export function runs(main, first) {
  const now = state(DEFAULTS);
  let all = first;
  let ticked = new Set(now.tick.split(",").filter((name) => name));
  const status = statusLine();
  const body = page.element("tbody");
  const heads = COLUMNS.map(([key, title, , isNumber]) => {
    const click = () => {
      [now.sort, now.down] = [key, now.sort === key ? 1 - now.down : 0];
      show();
    };
    const name = key === "curve" ? title : page.element("button", { type: "button", class: "plain", click }, title);
    return page.element("th", { scope: "col", class: isNumber ? `number ${key}` : null }, name);
  });
  const compare = page.element("a", { class: "button" }, "Compare");
  const table = page.element(
    "table",
    { class: "runs" },
    page.element("thead", {}, page.element("tr", {}, page.element("td"), ...heads, page.element("td"))),
    body,
  );

  function row(run) {
    const box = page.element("input", {
      type: "checkbox",
      "aria-label": `Compare ${run.name}`,
      change: () => {
        ticked[box.checked ? "add" : "delete"](run.name);
        show();
      },
    });
    box.checked = ticked.has(run.name);
    const at = `/run/${encodeURIComponent(run.name)}`;
    const cells = COLUMNS.map(([key, , text, isNumber]) => {
      const content = {
        name: () => page.element("a", { href: at }, run.name),
        status: () => page.element("span", { class: `badge ${run.status}` }, run.status === "running" ? "live" : run.status),
        curve: () => sparkline(run),
      }[key];
      return page.element("td", { class: isNumber ? `number ${key}` : null }, content ? content() : text(run));
    });
    const links = ["write", "look", "why"].map((view) => page.element("a", { href: `${at}/${view}` }, view));
    cells.push(page.element("td", { class: "links" }, ...(run.has_checkpoint ? links : [])));
    return page.element("tr", {}, page.element("td", {}, box), ...cells);
  }

  function show() {
    const value = (run) => run[now.sort] ?? Infinity;
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.name < b.name ? -1 : 1);
    const sorted = [...all].sort(order);
    const focused = document.activeElement?.getAttribute("aria-label");
    body.replaceChildren(...(now.down ? sorted.reverse() : sorted).map(row));
    if (focused && !document.activeElement?.getAttribute("aria-label")) {
      [...body.querySelectorAll("input")].find((box) => box.getAttribute("aria-label") === focused)?.focus();
    }
    COLUMNS.forEach(([key], at) => {
      const direction = now.down ? "descending" : "ascending";
      page.set(heads[at], { "aria-sort": key === now.sort ? direction : null });
    });
    const names = [...ticked].filter((name) => all.some((run) => run.name === name));
    compare.hidden = names.length < 2;
    page.set(compare, { href: `/compare?runs=${names.map(encodeURIComponent).join(",")}` });
    keep({ ...now, tick: names.join(",") }, DEFAULTS);
  }

  const refresh = latest(status, async (signal) => {
    ({ runs: all } = await ask("/app/runs", undefined, signal));
    show();
  });
  const empty = page.element("p", {}, "There is no run yet. Train one with `tinderbox train`: it appears here by itself.");
  empty.hidden = first.length > 0;
  main.append(
    page.element("h2", {}, "Runs"), empty, page.element("div", { class: "scrolls" }, table), compare, status,
  );
  show();
  setInterval(() => !document.hidden && refresh().then(() => (empty.hidden = all.length > 0)), EVERY_MS);
}
