/**
 * Runs side by side: the comparison of curves and configs, and the answer of each to the same question, or its completion
 * of the same prompt, with the same seed.
 */
import { answering, ask, askText, editor, field, keep, latest, slider, state, statusLine } from "./api.js";
import { pageFrame } from "./view.js";

const DEFAULTS = { runs: "", seed: 1, tokens: 80, chat: 1 };
const QUESTION = "What is the capital of France?";
const MOST = 6;

export async function compare(main, all) {
  // Names are encoded twice, since a name may have a comma.
  const chosen = new Set(state(DEFAULTS).runs.split(",").filter((name) => name).map(decoded));
  const written = () => [...chosen].map((name) => all.find((run) => run.name === name)).filter((run) => run?.has_checkpoint);
  const templated = () => written().find((run) => run.has_chat);
  const [first] = written();
  // It begins as the first run would: with its settings, and with its text unless there is a question.
  const own = first && (await ask(`/app/run/${encodeURIComponent(first.name)}`).catch(() => null));
  const about = own ?? { sampling: { temperature: 0.8 }, prompt: "" };
  const defaults = { ...DEFAULTS, temperature: about.sampling.temperature, prompt: templated() ? QUESTION : about.prompt };
  const now = state(defaults);
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
    const settings = { temperature: now.temperature, seed: now.seed, max_tokens: now.tokens };
    const template = now.chat ? templated() : undefined;
    chat.hidden = !templated();
    const answer = async ({ name: model, has_chat: hasChat }) => {
      const [path, body] = template
        ? await answering(model, hasChat, template.name, [{ role: "user", content: now.prompt }], signal)
        : ["/v1/completions", { model, prompt: now.prompt }];
      const [{ message, text }] = (await ask(path, { ...body, ...settings }, signal)).choices;
      return message?.content ?? text;
    };
    const runs = written();
    const answers = await Promise.all(runs.map((run) => answer(run).catch((error) => error.message)));
    signal.throwIfAborted();
    const prompt = template ? [] : [page.element("span", { class: "prompt" }, now.prompt)];
    return texts.replaceChildren(
      ...runs.map(({ name, has_chat: hasChat }, at) =>
        page.element(
          "section",
          { class: "written" },
          page.element("h3", {}, name),
          ...(template && !hasChat ? [page.element("p", { class: "hint" }, `with the template of ${template.name}`)] : []),
          page.element("p", { class: "text" }, ...prompt.map((node) => node.cloneNode(true)), answers[at]),
        ),
      ),
    );
  });

  function changed() {
    now.runs = [...chosen].map(encodeURIComponent).join(",");
    keep(now, defaults);
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
  const asChat = page.element("input", { type: "checkbox", change: () => {
    set("chat")(Number(asChat.checked));
    write();
  } });
  asChat.checked = now.chat !== 0;
  const chat = page.element("label", { class: "tick" }, asChat, "As a question, with the chat template");
  const set = (name) => (value) => {
    now[name] = value;
    changed();
  };
  main.append(
    page.element("fieldset", {}, page.element("legend", {}, "Runs"), ...boxes),
    page.element("h2", {}, "The same prompt and seed"),
    editor("Prompt or question", now.prompt, set("prompt")),
    chat,
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
