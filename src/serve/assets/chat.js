/** A conversation, with the model's chat template. */
import { events, field, keep, remember, remembered, slider, state, statusLine } from "./api.js";

const DEFAULTS = { temperature: 0.8, tokens: 200 };

export function chat(main, run, about) {
  const now = state(DEFAULTS);
  const status = statusLine();
  const log = page.element("div", { class: "chat", role: "log", "aria-live": "polite" });
  const area = page.element("textarea", { rows: 2, "aria-label": "Message" });
  const messages = [];
  const earlier = remembered("messages");
  let writing = null;

  function bubble(role, content) {
    const node = page.element("p", { class: `bubble ${role}` }, content);
    log.append(node);
    node.scrollIntoView({ block: "nearest" });
    return node;
  }

  async function send() {
    if (writing) {
      return writing.abort();
    }
    const content = area.value.trim();
    if (content === "") {
      return undefined;
    }
    area.value = "";
    messages.push({ role: "user", content });
    bubble("user", content);
    const answer = bubble("assistant", "");
    writing = new AbortController();
    button.textContent = "Stop";
    const body = { model: run.name, messages, temperature: now.temperature, max_tokens: now.tokens };
    try {
      for await (const { choices } of events("/v1/chat/completions", body, writing.signal)) {
        answer.textContent += choices[0]?.delta.content ?? "";
      }
      status.textContent = "";
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "" : error.message;
    }
    messages.push({ role: "assistant", content: answer.textContent });
    remember("messages", messages);
    [writing, button.textContent] = [null, "Send"];
    return undefined;
  }

  const button = page.element("button", { type: "button", class: "main", disabled: !about.has_chat, click: send }, "Send");
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && about.has_chat) {
      event.preventDefault();
      send();
    }
  });
  for (const { role, content } of Array.isArray(earlier) ? earlier : []) {
    messages.push({ role, content });
    bubble(role, content);
  }
  const fresh = page.element("button", { type: "button", click: () => begin() }, "New chat");

  function begin() {
    if (!writing) {
      messages.length = 0;
      log.replaceChildren();
      remember("messages", messages);
    }
  }

  const set = (name) => (value) => {
    now[name] = value;
    keep(now, DEFAULTS);
  };
  main.append(
    page.element("h2", {}, "Chat"),
    ...(about.has_chat ? [] : [page.element("p", { class: "status", role: "alert" },
      "The tokenizer of this run has no chat template, so the model does not know what a message is. Write with it instead.")]),
    log,
    area,
    page.element(
      "div",
      { class: "controls" },
      button,
      fresh,
      slider("Temperature", { min: 0, max: 2, step: 0.05, value: now.temperature }, set("temperature")),
      field("Tokens", { min: 1, max: 2000, value: now.tokens }, set("tokens")),
    ),
    status,
  );
}
