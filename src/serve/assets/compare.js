/** Runs side by side: the comparison of curves and configs, and the completion of each after the same prompt. */
import { ask, askText, editor, field, keep, latest, slider, state, statusLine } from "./api.js";
import { pageFrame } from "./view.js";

const DEFAULTS = { runs: "", prompt: "", temperature: 0.8, seed: 1, tokens: 80 };
const MOST = 6;

export function compare(main, all) {
  const now = state(DEFAULTS);
  // Names are encoded twice, since a name may have a comma.
  const chosen = new Set(now.runs.split(",").filter((name) => name).map(decoded));
  const status = statusLine();
  const pageStatus = statusLine();
  const place = page.element("div", { class: "report" });
  const texts = page.element("div", { class: "columns even" });

  function decoded(name) {
    try {
      return decodeURIComponent(name);
    } catch {
      return name;
    }
  }

  const overlay = latest(pageStatus, async () => {
    const names = [...chosen];
    if (names.length < 2) {
      return place.replaceChildren(page.element("p", {}, "Tick two runs or more."));
    }
    const path = `/app/comparison/${encodeURIComponent(names.join("\n"))}`;
    await askText(path); // throws the error, if there is one
    return place.replaceChildren(pageFrame("Comparison", path));
  });

  const write = latest(status, async (signal) => {
    if (now.prompt === "") {
      return texts.replaceChildren();
    }
    const settings = { prompt: now.prompt, temperature: now.temperature, seed: now.seed, max_tokens: now.tokens };
    const names = [...chosen].filter((name) => all.some((run) => run.name === name && run.has_checkpoint));
    const written = await Promise.all(
      names.map((model) => ask("/v1/completions", { model, ...settings }, signal).catch((error) => ({ error }))),
    );
    return texts.replaceChildren(
      ...written.map(({ choices, error }, at) =>
        page.element(
          "section",
          { class: "written" },
          page.element("h3", {}, names[at]),
          page.element("p", { class: "text" }, page.element("span", { class: "prompt" }, now.prompt), choices?.[0].text ?? error.message),
        ),
      ),
    );
  });

  function changed() {
    now.runs = [...chosen].map(encodeURIComponent).join(",");
    keep(now, DEFAULTS);
  }

  const boxes = all.map(({ name }) => {
    const box = page.element("input", {
      type: "checkbox",
      change: () => {
        if (box.checked && chosen.size >= MOST) {
          box.checked = false;
          pageStatus.textContent = `At most ${MOST} runs are compared.`;
          return;
        }
        chosen[box.checked ? "add" : "delete"](name);
        changed();
        overlay();
        write();
      },
    });
    box.checked = chosen.has(name);
    return page.element("label", { class: "tick" }, box, name);
  });
  const set = (name) => (value) => {
    now[name] = value;
    changed();
  };
  main.append(
    page.element("fieldset", {}, page.element("legend", {}, "Runs"), ...boxes),
    page.element("h2", {}, "The same prompt and seed"),
    editor("Prompt", now.prompt, set("prompt")),
    page.element(
      "div",
      { class: "controls" },
      page.element("button", { type: "button", class: "main", click: () => write() }, "Write"),
      slider("Temperature", { min: 0, max: 2, step: 0.05, value: now.temperature }, set("temperature")),
      field("Seed", { min: 0, max: 2 ** 31, value: now.seed }, set("seed")),
      field("Tokens", { min: 1, max: 2000, value: now.tokens }, set("tokens")),
    ),
    status,
    texts,
    page.element("h2", {}, "Curves and configs"),
    pageStatus,
    place,
  );
  overlay();
  return write();
}
