/** What each layer would have predicted, the parts behind a prediction, and the values of one text put into another. */
import { editor, field, keep, latest, state, statusLine } from "./api.js";
import { checkpoints } from "./checkpoints.js";
import { section } from "./view.js";

const DEFAULTS = { from: "", token: -1, layer: 0, head: 0, step: -1 };

export function why(main, run, about) {
  const defaults = { prompt: about.prompt, ...DEFAULTS };
  const now = state(defaults);
  const checkpoint = checkpoints(run, about, now, () => changed());
  const status = statusLine();
  const lens = section("sheet", "Layer by layer");
  const cell = section("sheet", "One token in one head, step by step", 2);
  const cellStatus = statusLine();
  const asked = () => ({ model: checkpoint.model(), prompt: now.prompt, ...(now.token < 0 ? {} : { token: now.token }) });
  const showLens = latest(status, async (signal) => {
    if (now.prompt !== "") {
      const view = now.from === "" ? { view: "lens" } : { view: "patching", from: now.from };
      await lens.show({ ...asked(), ...view }, signal);
    }
  });
  const showCell = latest(cellStatus, async (signal) => {
    if (now.prompt !== "") {
      await cell.show({ ...asked(), view: "explain", layer: now.layer, head: now.head }, signal);
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
  const token = page.element("input", {
    type: "number", min: 0, value: now.token < 0 ? "" : now.token, placeholder: "last",
    input: () => set("token")(token.value === "" ? -1 : Number(token.value)),
  });
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
      field("Layer", { min: 0, max: about.n_layers - 1, value: now.layer }, set("layer")),
      field("Head", { min: 0, max: about.n_heads - 1, value: now.head }, set("head")),
    ),
    status,
    lens.node,
    cellStatus,
    cell.node,
  );
  return changed();
}
