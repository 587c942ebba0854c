/**
 * A conversation, with the model's chat template: each answer with the probabilities of its tokens, and beside that of
 * another model to the same messages with the same seed.
 */
import {
  answering, ask, copier, editor, events, field, keep, percent, remember, remembered, slider, state, statusLine, visible,
} from "./api.js";

const N_TOP = 5;
const TICK_MS = 250; // how often a wait is counted

/** The settings with a slider: title and range. */
const SLIDERS = {
  temperature: ["Temperature", { min: 0, max: 2, step: 0.05 }],
  top_p: ["Top-p", { min: 0.05, max: 1, step: 0.05 }],
  min_p: ["Min-p", { min: 0, max: 1, step: 0.01 }],
  repetition_penalty: ["Repetition penalty", { min: 0.5, max: 2, step: 0.05 }],
};
/** Those with a field. */
const FIELDS = {
  top_k: ["Top-k (0: all)", { min: 0, max: 1e6 }],
  tokens: ["Tokens at most", { min: 1, max: 32768 }],
  seed: ["Seed (-1: another each time)", { min: -1, max: 2 ** 31 }],
};

export function chat(main, run, about, all) {
  const defaults = { ...about.sampling, tokens: 512, seed: -1, beside: "" };
  const now = state(defaults);
  const status = statusLine();
  const log = page.element("div", { class: "chat", role: "log", "aria-live": "polite" });
  const area = page.element("textarea", { rows: 2, "aria-label": "Message", placeholder: "Ask something" });
  const earlier = remembered("messages");
  const messages = (Array.isArray(earlier) ? earlier : []).map(({ role, content }) => ({ role, content }));
  const first = messages[0]?.role === "system" ? messages.shift().content : "";
  const system = editor("System prompt", first, () => save());
  let writing = null;
  let editing = null; // the message that the next one replaces, with those after it

  /** The first `n` messages for a request, after the system prompt. */
  function conversation(n = messages.length) {
    const said = messages.slice(0, n).map(({ role, content }) => ({ role, content }));
    return system.value.trim() === "" ? said : [{ role: "system", content: system.value }, ...said];
  }

  function save() {
    remember("messages", conversation());
  }

  function draw() {
    log.replaceChildren(...messages.map(turn));
    page.set(log, { "aria-busy": String(writing !== null) });
    button.textContent = writing ? "Stop" : "Send";
    log.lastChild?.scrollIntoView({ block: "nearest" });
  }

  /** A message, what is known about it, and what can be done with it. */
  function turn(message, at) {
    const tool = (name, click, attributes) => page.element("button", { type: "button", click, ...attributes }, name);
    const isLast = at === messages.length - 1;
    const tools = [copier("Copy", () => message.content)];
    if (message.role === "user") {
      tools.push(tool("Edit", () => edit(at)), ...(isLast ? [tool("Send again", () => answer())] : []));
    } else {
      tools.push(
        tool("Regenerate", () => answer(at)),
        ...(message.tokens?.length > 0 ? [tool("Tokens", () => open(message), { "aria-pressed": String(message.isOpen === true) })] : []),
        tool("Look into this answer", () => look(at)),
        tool("Save as a record", () => record(at)),
      );
    }
    const answers = [message, ...(message.beside ? [message.beside] : [])];
    const isStale = editing !== null && at >= editing;
    return page.element(
      "div",
      { class: `turn ${message.role}${answers.length > 1 ? " pair" : ""}${isStale ? " stale" : ""}` },
      ...answers.map((one) => said(one, answers.length > 1)),
      page.element("div", { class: "tools", hidden: writing !== null }, ...tools),
    );
  }

  /** A text, or its tokens, and the facts about it. */
  function said(message, isNamed) {
    const { role, name, content, facts, tokens, chosen } = message;
    const parts = message.isOpen ? tokens.map((token, at) => shown(message, token, at)) : [content];
    const isWaiting = writing !== null && role === "assistant" && content === "";
    const bubble = page.element("div", { class: `bubble ${role}${isWaiting ? " waiting" : ""}` }, ...parts);
    if (message.isOpen) {
      page.set(bubble, { tabindex: 0, role: "group", "aria-label": "Tokens: arrow keys go through them" });
      bubble.addEventListener("keydown", ({ key }) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
        if (step) {
          choose(message, Math.min(Math.max((message.chosen ?? -1) + step, 0), tokens.length - 1));
        }
      });
    }
    return page.element(
      "div",
      {},
      ...(isNamed ? [page.element("h3", {}, name)] : []),
      bubble,
      ...(facts ? [page.element("p", { class: "hint" }, facts)] : []),
      ...(message.isOpen && chosen !== undefined ? [alternatives(tokens[chosen])] : []),
    );
  }

  function shown(message, { token, logprob }, at) {
    const attributes = { class: at === message.chosen ? "token present" : "token", click: () => choose(message, at) };
    const node = page.element("span", { ...attributes, title: percent(Math.exp(logprob)) }, token);
    node.style.setProperty("--share", Math.exp(logprob));
    return node;
  }

  /** The probability of a token, and the likeliest tokens at its place. */
  function alternatives({ token, logprob, top_logprobs: top }) {
    const name = (text) => page.element("code", {}, visible(text));
    const others = top.map((other) => page.element("li", {}, name(other.token), ` ${percent(Math.exp(other.logprob))}`));
    return page.element(
      "div",
      { "aria-live": "polite" },
      page.element("p", {}, name(token), ` had ${percent(Math.exp(logprob))}; the likeliest were`),
      page.element("ol", { class: "likeliest" }, ...others),
    );
  }

  function open(message) {
    message.isOpen = !message.isOpen;
    draw();
  }

  function choose(message, at) {
    message.chosen = at;
    draw();
    [...log.children][messages.indexOf(message)].querySelector(".bubble").focus({ preventScroll: true });
  }

  /** Streams the answer of a model into `reply`. */
  async function stream(reply, hasChat, seed, signal) {
    const asked = performance.now();
    const { tokens, seed: _, beside: __, ...sampling } = now;
    const [path, request] = await answering(reply.name, hasChat, run.name, conversation(messages.length - 1), signal);
    const scores = hasChat ? { logprobs: true, top_logprobs: N_TOP } : {};
    const options = { max_tokens: tokens, seed, stream_options: { include_usage: true }, ...sampling, ...scores };
    const body = about.stop.length > 0 ? { ...options, stop: about.stop } : options;
    let begun = null;
    let end = null;
    const update = (left = "") => {
      const s = (performance.now() - (begun ?? asked)) / 1000;
      const rate = reply.n > 1 ? `, ${((reply.n - 1) / s).toFixed(1)} per second` : "";
      reply.facts = begun === null ? `waiting, ${s.toFixed(0)} s` : `${reply.n} tokens${rate}${left}`;
      draw();
    };
    const clock = setInterval(() => begun === null && update(), TICK_MS);
    try {
      for await (const { choices, usage } of events(path, { ...request, ...body }, signal)) {
        const [choice] = choices;
        const text = choice?.delta?.content ?? choice?.text ?? "";
        if (text !== "") {
          begun ??= performance.now();
          reply.content += text;
          reply.n += choice.logprobs?.content.length ?? 1;
        }
        reply.tokens.push(...(choice?.logprobs?.content ?? []));
        end = choice?.finish_reason ?? end;
        if (usage) {
          reply.n = usage.completion_tokens;
          const left = about.context_length - usage.total_tokens;
          const isLong = end === "length" ? "; cut at the limit" : "";
          update(reply.name === run.name ? `${isLong}; ${left.toLocaleString("en")} of ${about.context_length.toLocaleString("en")} tokens are left` : isLong);
        } else if (text !== "") {
          update();
        }
      }
    } finally {
      clearInterval(clock);
    }
  }

  /** Answers the messages before `at`: all of them, or again those before an answer. */
  async function answer(at = messages.length) {
    if (writing) {
      return;
    }
    messages.length = at;
    const mine = (writing = new AbortController());
    const seed = now.seed < 0 ? Math.floor(Math.random() * 2 ** 31) : now.seed;
    const fresh = (name) => ({ role: "assistant", name, content: "", tokens: [], n: 0 });
    const reply = fresh(run.name);
    const other = all.find(({ name }) => name === now.beside);
    reply.beside = other && fresh(other.name);
    messages.push(reply);
    status.textContent = "";
    draw();
    const streams = [stream(reply, true, seed, mine.signal), ...(other ? [stream(reply.beside, other.has_chat, seed, mine.signal)] : [])];
    try {
      await Promise.all(streams);
      status.textContent = reply.content === "" ? "The model ended its answer at once." : "";
    } catch (error) {
      mine.abort(); // the other one
      status.textContent = error.name === "AbortError" ? "" : error.message;
    }
    if (reply.content === "") {
      messages.pop(); // the question stays
    }
    writing = null;
    save();
    draw();
  }

  function send() {
    const content = area.value.trim();
    if (writing || content === "") {
      return;
    }
    messages.length = editing ?? messages.length;
    if (messages.at(-1)?.role === "user") {
      messages.pop(); // one without an answer
    }
    [editing, area.value] = [null, ""];
    messages.push({ role: "user", content });
    save();
    answer();
  }

  function edit(at) {
    editing = at;
    area.value = messages[at].content;
    draw();
    area.focus();
  }

  async function look(at) {
    try {
      const body = { model: run.name, messages: conversation(at + 1), add_generation_prompt: false };
      const { prompt } = await ask("/apply-template", body);
      location.assign(`/run/${encodeURIComponent(run.name)}/look?${new URLSearchParams({ prompt })}`);
    } catch (error) {
      status.textContent = error.message;
    }
  }

  const records = editor("Records, one per line", stored() ?? "", (text) => stored(text));
  const download = page.element("a", { class: "button", download: `${run.name.replaceAll("/", "-")}.jsonl`, click: () => {
    download.href = `data:application/jsonl,${encodeURIComponent(records.value)}`;
  }, href: "#" }, "Download");
  const shelf = page.element("details", { hidden: records.value === "" },
    page.element("summary", {}, "Records for the next fine-tuning"),
    records, page.element("div", { class: "controls" }, copier("Copy the records", () => records.value), download));

  /** The records, which only the browser stores; one that may not store them has none. */
  function stored(write) {
    const key = `tinderbox-records-${run.name}`;
    try {
      return write === undefined ? localStorage.getItem(key) : localStorage.setItem(key, write);
    } catch {
      return "";
    }
  }

  /** Adds the conversation up to an answer to the records. */
  function record(at) {
    const line = JSON.stringify({ messages: conversation(at + 1) });
    if (!records.value.split("\n").includes(line)) {
      records.value += `${line}\n`;
      stored(records.value);
    }
    [shelf.hidden, shelf.open] = [false, true];
  }

  const button = page.element("button", {
    type: "button", class: "main", disabled: !about.has_chat, click: () => (writing ? writing.abort() : send()),
  }, "Send");
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && about.has_chat) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && editing !== null) {
      [editing, area.value] = [null, ""];
      draw();
    }
  });
  const fresh = page.element("button", { type: "button", click: () => begin() }, "New chat");

  function begin() {
    if (!writing) {
      messages.length = 0;
      editing = null;
      save();
      draw();
    }
  }

  const set = (name) => (value) => {
    now[name] = value;
    keep(now, defaults);
  };
  const others = all.filter(({ name, has_checkpoint: isThere }) => isThere && name !== run.name);
  const option = (name, title) => page.element("option", { value: name, selected: name === now.beside }, title);
  const beside = page.element("select", { change: () => set("beside")(beside.value) },
    option("", "no other model"),
    ...others.map(({ name }) => option(name, name === about.base ? `${name}, its base` : name)));
  const control = (make) => ([name, [title, range]]) => make(title, { ...range, value: now[name] }, set(name));
  main.append(
    page.element("h2", {}, "Chat"),
    ...(about.has_chat ? [] : [page.element("p", { class: "status", role: "alert" },
      "The tokenizer of this run has no chat template, so the model does not know what a message is. Write with it instead.")]),
    page.element("details", { open: first !== "" }, page.element("summary", {}, "System prompt"), system),
    log,
    area,
    page.element("div", { class: "controls" }, button, fresh,
      ...(others.length > 0 ? [page.element("label", { class: "slider" }, "Beside", beside)] : [])),
    status,
    page.element("details", { open: Object.keys(about.sampling).some((name) => now[name] !== defaults[name]) },
      page.element("summary", {}, "Sampling, at first as the model's own settings say"),
      page.element("div", { class: "controls" },
        ...Object.entries(SLIDERS).map(control(slider)), ...Object.entries(FIELDS).map(control(field)))),
    shelf,
  );
  draw();
}
