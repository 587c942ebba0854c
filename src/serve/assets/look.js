/**
 * Attention of a text while it is typed, in the views of `tinderbox inspect attention`, and its completions by the whole
 * model and without the heads that are switched off.
 */
import { ask, editor, field, keep, latest, percent, state, statusLine, visible } from "./api.js";
import { checkpoints } from "./checkpoints.js";
import { section } from "./view.js";

const PAUSE_MS = 400;
/** The most heads that are buttons with names; more are a map, a column for each layer. */
const MOST_NAMED = 64;
const DEFAULTS = { off: "", tokens: 40, step: -1 };

export function look(main, run, about) {
  const defaults = { prompt: about.prompt, ...DEFAULTS };
  const now = state(defaults);
  const off = new Set(now.off.split(",").filter((head) => head));
  const checkpoint = checkpoints(run, about, now, () => changed());
  const status = statusLine();
  const compared = statusLine();
  const area = editor("Text", now.prompt, (prompt) => {
    now.prompt = prompt;
    changed();
  });
  const view = section("attention", "Attention");
  const texts = page.element("div", { class: "columns even", "aria-live": "polite" });
  let effects = null;

  const attention = latest(status, async (signal) => {
    if (now.prompt !== "") {
      await view.show({ model: checkpoint.model(), prompt: now.prompt, view: "attention" }, signal);
      // Removing each head in turn takes longer, so this waits until the text stays the same.
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      signal.throwIfAborted();
      ({ effects } = await ask("/app/view", { model: checkpoint.model(), prompt: now.prompt, view: "effects" }, signal));
      shade();
    }
  });
  const written = latest(compared, async (signal) => {
    if (now.prompt === "") {
      return texts.replaceChildren();
    }
    const ablate = [...off].map((head) => head.split(".").map(Number));
    const body = { model: checkpoint.model(), prompt: now.prompt, max_tokens: now.tokens, ablate };
    return show(await ask("/v1/inspect", body, signal));
  });

  function changed() {
    now.off = [...off].sort().join(",");
    keep(now, defaults);
    return Promise.all([attention(), written()]);
  }

  /** A completion after its prompt; tokens that differ from the other completion are marked. */
  function text(title, read, other, change) {
    const tokens = read.continuation.tokens.map((token, at) =>
      page.element(
        "span",
        { class: other && other.continuation.tokens[at] !== token ? "differs" : null },
        token,
      ),
    );
    const loss = read.loss === null ? "" : `loss of the prompt ${read.loss.toFixed(4)}`;
    const guesses = read.next.map(({ token, probability }) =>
      page.element("li", {}, page.element("code", {}, visible(token)), ` ${percent(probability)}`),
    );
    return page.element(
      "section",
      { class: "written" },
      page.element("h3", {}, title),
      page.element("p", { class: "hint" }, loss, change && page.element("strong", { class: "change" }, ` ${change}`)),
      page.element("p", { class: "text" }, page.element("span", { class: "prompt" }, now.prompt), ...tokens),
      page.element("ol", { class: "likeliest", "aria-label": "The likeliest next tokens" }, ...guesses),
    );
  }

  function show(found) {
    const { ablation } = found;
    if (!ablation) {
      return texts.replaceChildren(text("The whole model", found, null, ""));
    }
    const rise = found.loss === null ? null : ablation.loss - found.loss;
    const change = rise === null ? "" : `${rise < 0 ? "−" : "+"}${Math.abs(rise).toFixed(4)}`;
    const heads = `Without ${off.size === 1 ? "head" : "heads"} ${[...off].sort().join(", ")}`;
    return texts.replaceChildren(
      text("The whole model", found, ablation, ""),
      text(heads, ablation, found, change),
    );
  }

  const isMap = about.n_layers * about.n_heads > MOST_NAMED;
  const switches = Array.from({ length: about.n_layers }, (_, layer) =>
    Array.from({ length: about.n_heads }, (_, head) => {
      const name = `${layer}.${head}`;
      const node = page.element(
        "button",
        {
          type: "button",
          class: "head",
          "data-head": name,
          "aria-label": `Head ${name}`,
          "aria-pressed": String(off.has(name)),
          click: () => {
            off[off.has(name) ? "delete" : "add"](name);
            page.set(node, { "aria-pressed": String(off.has(name)) });
            changed();
          },
        },
        isMap ? "" : name,
      );
      return node;
    }),
  );

  /** Shows the rise of the loss without each head. */
  function shade() {
    const largest = Math.max(...(effects ?? [[0]]).flat().map(Math.abs), 1e-9);
    switches.forEach((row, layer) =>
      row.forEach((node, head) => {
        const effect = effects?.[layer]?.[head];
        const known = effect === undefined ? "" : `: without it the loss of this text changes by ${effect.toFixed(3)}`;
        page.set(node, { title: `Head ${node.dataset.head}${known}` });
        node.style.setProperty("--share", effect === undefined ? 0 : Math.min(Math.abs(effect) / largest, 1));
        node.classList.toggle("helps", effect < 0);
      }),
    );
  }

  const all = page.element("button", { type: "button", click: () => restore() }, "All on");
  function restore() {
    off.clear();
    switches.flat().forEach((node) => page.set(node, { "aria-pressed": "false" }));
    changed();
  }

  const grid = page.element("div", { class: isMap ? "switches map" : "switches", role: "group", "aria-label": "Heads that are switched off" }, ...switches.flat());
  grid.style.setProperty("--n-heads", about.n_heads);
  // Tab reaches one head, arrow keys the others.
  const heads = switches.flat();
  heads.forEach((node, at) => (node.tabIndex = at === 0 ? 0 : -1));
  const [across, down] = isMap ? [about.n_heads, 1] : [1, about.n_heads];
  grid.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -across, ArrowRight: across, ArrowUp: -down, ArrowDown: down }[event.key];
    const to = heads[heads.indexOf(event.target) + by];
    if (to) {
      event.preventDefault();
      [event.target.tabIndex, to.tabIndex] = [-1, 0];
      to.focus();
    }
  });
  main.append(
    page.element("h2", {}, "Look"),
    checkpoint.node,
    area,
    status,
    page.element(
      "div",
      { class: "controls" },
      page.element("h3", {}, "Heads"),
      all,
      field("Tokens", { min: 1, max: 512, value: now.tokens }, (tokens) => {
        now.tokens = tokens;
        changed();
      }),
      page.element("span", { class: "hint" }, `A click switches a head off. ${isMap ? "A column is a layer; the colour" : "The bar"} is how much the loss of the text depends on it.`),
    ),
    page.element("div", { class: "scrolls" }, grid),
    compared,
    texts,
    view.node,
  );
  return changed();
}
