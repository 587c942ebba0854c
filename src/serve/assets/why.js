/** What each layer would have predicted, the parts behind a prediction, and the values of one text put into another. */
import { editor, keep, latest, state, statusLine } from "./api.js";
import { section } from "./view.js";

const DEFAULTS = { prompt: "The ", from: "", token: -1 };

export function why(main, run) {
  const now = state(DEFAULTS);
  const status = statusLine();
  const lens = section("sheet", "Layer by layer");
  const show = latest(status, async (signal) => {
    if (now.prompt !== "") {
      const token = now.token < 0 ? {} : { token: now.token };
      const from = now.from === "" ? {} : { from: now.from };
      await lens.show({ model: run.name, prompt: now.prompt, view: now.from === "" ? "lens" : "patching", ...token, ...from }, signal);
    }
  });
  const set = (name) => (value) => {
    now[name] = value;
    keep(now, DEFAULTS);
    show();
  };
  const token = page.element("input", {
    type: "number", min: 0, value: now.token < 0 ? "" : now.token, placeholder: "last",
    input: () => set("token")(token.value === "" ? -1 : Number(token.value)),
  });
  main.append(
    page.element("h2", {}, "Why"),
    editor("Text", now.prompt, set("prompt")),
    page.element("details", { open: now.from !== "" },
      page.element("summary", {}, "Compare with a second text of as many tokens"),
      editor("Second text", now.from, set("from")),
      page.element("p", { class: "hint" }, "Its values replace those of the first, part by part: where that changes the prediction, the difference lies."),
    ),
    page.element("div", { class: "controls" }, page.element("label", { class: "slider" }, "After token", token)),
    status,
    lens.node,
  );
  return show();
}
