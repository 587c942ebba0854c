/** The table of runs: sorted by a click on a column, compared by ticking, updated while a run trains. */
import { ask, keep, latest, state, statusLine } from "./api.js";

const EVERY_MS = 3000;
const DEFAULTS = { sort: "name", down: 0, tick: "", filter: "" };

/** Columns: key, title, the text of a cell, and whether it is a number. */
const COLUMNS = [
  ["name", "Run", null, false],
  ["status", "Status", null, false],
  ["step", "Steps", ({ step, max_steps: most }) => (most && most !== step ? `${count(step)} of ${count(most)}` : count(step)), true],
  ["parameters", "Parameters", ({ parameters }) => (parameters === null ? "" : count(parameters)), true],
  ["loss", "Best loss", ({ loss, is_estimate: about }) => measured(loss, about), true],
  ["bits_per_byte", "Bits per byte", ({ bits_per_byte: bits, is_estimate: about }) => measured(bits, about), true],
  ["age", "Began", ({ age }) => (age === null ? "" : `${duration(age)} ago`), true],
  ["curve", "Loss", null, false],
];

/** What a run can be compared with: those of the same base, or else of the same size and length. */
function groupOf({ base, parameters, max_steps: steps }) {
  const parts = [parameters === null ? null : `${count(parameters)} parameters`, steps === null ? null : `${count(steps)} steps`];
  return base === null ? parts.filter((part) => part).join(", ") : `Tuned from ${base}`;
}

function measured(loss, isEstimate) {
  return loss === null ? "" : `${isEstimate ? "~" : ""}${loss.toFixed(4)}`;
}

/** A time in its largest unit. */
function duration(s) {
  const [length, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([least]) => s >= least) ?? [1, "s"];
  return `${Math.floor(s / length)} ${unit}`;
}

function count(n) {
  return Math.round(n).toLocaleString("en");
}

/** A sparkline of the training loss, on the scale of all runs. */
function sparkline({ curve, name }, [low, high]) {
  if (curve.length < 2) {
    return "";
  }
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
    return page.element("th", { scope: "col", class: isNumber ? `number ${key}` : key }, name);
  });
  const compare = page.element("a", { class: "button" }, "Compare");
  const table = page.element(
    "table",
    { class: "runs" },
    page.element("thead", {}, page.element("tr", {}, page.element("td"), ...heads)),
    body,
  );

  function row(run, scale) {
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
    const links = ["write", ...(run.has_chat ? ["chat"] : []), "look", "why"].map((view) => page.element("a", { href: `${at}/${view}` }, view));
    const cells = COLUMNS.map(([key, , text, isNumber]) => {
      const content = {
        name: () => page.element(
          "div",
          {},
          page.element("a", { href: at }, run.name),
          ...(run.settings ? [page.element("div", { class: "settings" }, run.settings)] : []),
          page.element("div", { class: "links" }, ...(run.has_checkpoint ? links : [])),
        ),
        status: () => page.element("span", { class: `badge ${run.status}` }, run.status === "running" ? "live" : run.status),
        curve: () => sparkline(run, scale),
      }[key];
      return page.element("td", { class: isNumber ? `number ${key}` : key }, content ? content() : text(run));
    });
    const shown = page.element("tr", {}, page.element("td", {}, box), ...cells);
    shown.querySelectorAll("a, input").forEach((node, at) => page.set(node, { "data-focus": `${at} ${run.name}` }));
    return shown;
  }

  function show() {
    const value = (run) => run[now.sort] ?? Infinity;
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.name < b.name ? -1 : 1);
    const words = now.filter.toLowerCase().split(/\s+/);
    const isMeant = ({ name, settings, status }) =>
      words.every((word) => `${name} ${settings} ${status}`.toLowerCase().includes(word));
    const sorted = all.filter(isMeant).sort(order);
    const losses = sorted.flatMap(({ curve }) => curve);
    const scale = [Math.min(...losses), Math.max(...losses)];
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    const groups = Map.groupBy(now.down ? sorted.reverse() : sorted, groupOf);
    const heading = (name) => page.element("tr", { class: "group" }, page.element("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, name));
    body.replaceChildren(...[...groups].flatMap(([name, members]) => [
      ...(groups.size > 1 && groups.size < sorted.length && name !== "" ? [heading(name)] : []),
      ...members.map((run) => row(run, scale)),
    ]));
    if (focused !== undefined) {
      [...body.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focused)?.focus({ preventScroll: true });
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
  const filter = page.element("input", {
    type: "search", class: "filter", placeholder: "Filter by name, setting or status", "aria-label": "Filter", input: () => {
      now.filter = filter.value;
      show();
    },
  });
  filter.value = now.filter;
  const empty = page.element("p", {}, "There is no run yet. Train one with `tinderbox train`: it appears here by itself.");
  empty.hidden = first.length > 0;
  main.append(
    page.element("h2", {}, "Runs"), empty, page.element("div", { class: "controls" }, filter, compare), status,
    page.element("div", { class: "scrolls" }, table),
  );
  show();
  setInterval(() => !document.hidden && refresh().then(() => (empty.hidden = all.length > 0)), EVERY_MS);
}
