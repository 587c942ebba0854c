/** The prediction of each layer, its attribution to the parts of the model, and patching with a second text. */
import { editor, keep, latest, state, statusLine } from "./api.js";
import { checkpoints } from "./checkpoints.js";
import { section } from "./view.js";

/** -1: the last token, the head in which it attends furthest back, and the current checkpoint. */
const DEFAULTS = { from: "", token: -1, layer: -1, head: -1, step: -1 };

export function why(main, run, about) {
  const defaults = { prompt: about.prompt, ...DEFAULTS };
  const now = state(defaults);
  const checkpoint = checkpoints(run, about, now, () => changed());
  const status = statusLine();
  const lens = section("sheet", "Layer by layer");
  const cell = section("sheet", "One token in one head, step by step", 2);
  const cellStatus = statusLine();
  const chosen = (...names) => Object.fromEntries(names.filter((name) => now[name] >= 0).map((name) => [name, now[name]]));
  const asked = () => ({ model: checkpoint.model(), prompt: now.prompt, ...chosen("token") });
  const showLens = latest(status, async (signal) => {
    if (now.prompt !== "") {
      const view = now.from === "" ? { view: "lens" } : { view: "patching", from: now.from };
      await lens.show({ ...asked(), ...view }, signal);
    }
  });
  const showCell = latest(cellStatus, async (signal) => {
    if (now.prompt !== "") {
      await cell.show({ ...asked(), view: "explain", ...chosen("layer", "head") }, signal);
    }
  });
  function changed() {
    keep(now, defaults);
    return Promise.all([showLens(), showCell()]);
  }
  const set = (name) => (value) => {
    now[name] = value;
    changed();
  };
  lens.node.addEventListener("choose", ({ detail }) => {
    token.value = detail;
    set("token")(detail);
  });
  const optional = (name, placeholder, max = Infinity) => page.element("input", {
    type: "number", min: 0, value: now[name] < 0 ? "" : now[name], placeholder,
    input: ({ target }) => set(name)(target.value === "" ? -1 : Math.min(Number(target.value), max)),
  });
  const token = optional("token", "last");
  main.append(
    page.element("h2", {}, "Why"),
    checkpoint.node,
    editor("Text", now.prompt, set("prompt")),
    page.element("details", { open: now.from !== "" },
      page.element("summary", {}, "Compare with a second text of as many tokens"),
      editor("Second text", now.from, set("from")),
      page.element("p", { class: "hint" }, "Its values replace those of the first, part by part: where that changes the prediction, the difference lies."),
    ),
    page.element("div", { class: "controls" },
      page.element("label", { class: "slider" }, "Token", token),
      page.element("label", { class: "slider" }, "Layer", optional("layer", "chosen", about.n_layers - 1)),
      page.element("label", { class: "slider" }, "Head", optional("head", "chosen", about.n_heads - 1)),
      page.element("span", { class: "hint" }, "A click on a column below chooses its token, too."),
    ),
    status,
    lens.node,
    cellStatus,
    cell.node,
  );
  return changed();
}
