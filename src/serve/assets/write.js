/**
 * A text and its completion: tokens with probabilities and alternatives, the distribution of the next token, and a branch
 * for each chosen alternative.
 */
import { ask, editor, events, field, keep, latest, percent, slider, state, statusLine, visible } from "./api.js";
import { Branches } from "./branches.js";
import { checkpoints } from "./checkpoints.js";

const DEFAULTS = { seed: 1, tokens: 60, step: -1 };
const N_TOP = 20; // the API's maximum

export function write(main, run, about) {
  const { temperature, top_p } = about.sampling;
  const defaults = { ...DEFAULTS, prompt: about.prompt, temperature, top_p };
  const now = state(defaults);
  const status = statusLine();
  const area = editor("Text", now.prompt, (text) => changed(text));
  const flow = page.element("div", { class: "flow", "aria-hidden": "true" }); // screen readers read the field above it
  const others = page.element("div", { class: "others", role: "group", "aria-label": "Alternatives", "aria-live": "polite" });
  const next = page.element("div", { class: "next" });
  const branches = new Branches((text) => replace(text));
  const checkpoint = checkpoints(run, about, now, () => changed(area.value));
  let read = []; // the characters of the scored text
  let chosen = -1; // the token whose alternatives are shown
  let scored = []; // the tokens of the scored text as {token, logprob, top, offset}
  let after = []; // the likeliest next tokens as [text, log-probability]
  let writing = null;
  let given = Infinity; // the number of characters before the generated ones

  const sampling = () => ({ temperature: now.temperature, top_p: now.top_p, seed: now.seed, max_tokens: now.tokens });

  /** Scores the text and the next token in one request; the server has cached the common prefix. */
  const score = latest(status, async (signal) => {
    const wanted = area.value;
    const body = { model: checkpoint.model(), prompt: wanted, max_tokens: 1, temperature: 0, echo: true, logprobs: N_TOP };
    if (wanted === "") {
      [scored, after, read] = [[], [], []];
      return show();
    }
    const response = await ask("/v1/completions", body, signal).catch(async (error) => {
      if (error.code !== "context_length_exceeded") {
        throw error;
      }
      const { tokens } = await ask("/tokenize", { model: checkpoint.model(), content: wanted, add_special: true }, signal);
      return ask("/v1/completions", { ...body, prompt: tokens.slice(-about.context_length) }, signal);
    });
    const { text, logprobs } = response.choices[0];
    const { tokens, token_logprobs: own, top_logprobs: top, text_offset: offset } = logprobs;
    const all = tokens.map((token, at) => ({ token, logprob: own[at], top: ranked(top[at]), offset: offset[at] }));
    // The end of the text is kept; the beginning may not fit the context.
    const dropped = Array.from(wanted).length - (all.at(-1)?.offset ?? 0);
    after = all.pop()?.top ?? [];
    scored = all.map((token) => ({ ...token, offset: token.offset + dropped }));
    read = Array.from(wanted);
    return text && show();
  });

  function ranked(top) {
    return Object.entries(top ?? {}).sort((a, b) => b[1] - a[1]);
  }

  function changed(text, isWritten = false) {
    if (!isWritten) {
      given = Infinity;
    }
    chosen = -1;
    now.prompt = text;
    keep(now, defaults);
    draw();
    return score();
  }

  /** Shows another text in the editor. */
  function replace(text) {
    stop();
    area.value = text;
    others.replaceChildren();
    return changed(text);
  }

  function stop() {
    writing?.abort();
    writing = null;
    button.textContent = "Write";
  }

  /** Continues the text, token by token. */
  async function begin() {
    const mine = (writing = new AbortController());
    button.textContent = "Stop";
    const begun = Array.from(area.value).length;
    given = Math.min(given, begun);
    const body = { model: checkpoint.model(), prompt: area.value, ...sampling() };
    try {
      for await (const { choices } of events("/v1/completions", body, mine.signal)) {
        area.value += choices[0]?.text ?? "";
        draw();
      }
      status.textContent = "";
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "" : error.message;
    }
    if (writing === mine) {
      stop();
    }
    branches.add(area.value);
    await changed(area.value, true);
  }

  /** Replaces a token, and continues the text from there. */
  function branch(at, token) {
    stop();
    branches.add(area.value);
    const text = Array.from(area.value).slice(0, scored[at].offset).join("") + token;
    branches.add(text, { from: area.value, token });
    given = Math.min(given, scored[at].offset);
    area.value = text;
    others.replaceChildren();
    return begin();
  }

  /** The alternatives of a token. */
  function alternatives(at) {
    const { token, logprob, top } = scored[at];
    const choose = ([other, score]) =>
      page.element(
        "button",
        {
          type: "button",
          class: "option",
          disabled: other === token || other.startsWith("bytes:"),
          title: `Go on with ${visible(other)}`,
          click: () => branch(at, other),
        },
        page.element("code", {}, visible(other)),
        ` ${percent(Math.exp(score))}`,
      );
    const known = logprob === null ? "begins the text" : `had ${percent(Math.exp(logprob))}`;
    others.replaceChildren(
      page.element("h3", {}, page.element("code", {}, visible(token)), ` ${known}`),
      ...(top.length > 0 ? [page.element("p", {}, "Go on from here with"), ...top.map(choose)] : []),
    );
    chosen = at;
    draw();
  }

  /**
   * Draws the text below its field: the tokens of the part that was scored, the rest as plain text, and before them the
   * beginning that no longer fits the context.
   */
  function draw() {
    const text = Array.from(area.value);
    let same = 0;
    while (same < read.length && read[same] === text[same]) {
      same += 1;
    }
    const known = scored.filter((_, at) => end(at) <= same);
    const first = known.length > 0 ? known[0].offset : 0;
    const last = known.length > 0 ? end(known.length - 1) : 0;
    const nodes = known.map(({ logprob, offset }, at) => {
      const share = logprob === null ? 0 : Math.exp(logprob);
      const classes = ["token", ...(offset >= given ? ["written"] : []), ...(at === chosen ? ["present"] : [])];
      const attributes = { class: classes.join(" "), "data-logprob": logprob };
      const node = page.element("span", attributes, text.slice(offset, end(at)).join(""));
      node.style.setProperty("--share", logprob === null ? 1 : share);
      return node;
    });
    const beginning = page.element("span", { class: first > 0 ? "unread" : null }, text.slice(0, first).join(""));
    flow.replaceChildren(beginning, ...nodes, text.slice(last).join(""), "\u200b"); // gives an empty last line its height
  }

  /** The end of a token, in characters of the text. */
  function end(at) {
    return scored[at + 1]?.offset ?? read.length;
  }

  /** Shows the alternatives of the token at the caret. */
  function atCaret() {
    const place = Array.from(area.value.slice(0, area.selectionStart)).length;
    const at = scored.findIndex((token, index) => token.offset <= place && place < end(index));
    if (at >= 0 && area.selectionStart === area.selectionEnd && area.value === read.join("")) {
      alternatives(at);
    }
  }

  function show() {
    draw();
    distribution();
  }

  /** The next token's distribution with this temperature and top-p. */
  function distribution() {
    // A temperature of 0 takes the likeliest.
    const powers = after.map(([, logprob], at) =>
      now.temperature === 0 ? Number(at === 0) : Math.exp((logprob - after[0][1]) / now.temperature),
    );
    const sum = powers.reduce((total, power) => total + power, 0);
    let before = 0;
    const rows = after.map(([token], at) => {
      const share = powers[at] / sum;
      const isIn = before < now.top_p || at === 0;
      before += share;
      return { token, share, isIn };
    });
    const kept = rows.filter(({ isIn }) => isIn).reduce((total, { share }) => total + share, 0);
    next.replaceChildren(
      ...rows.map(({ token, share, isIn }) => {
        const shown = isIn ? share / kept : 0;
        const bar = page.element("span", { class: "bar" });
        bar.style.setProperty("--share", shown);
        return page.element(
          "button",
          {
            type: "button",
            class: isIn ? "option" : "option out",
            disabled: token.startsWith("bytes:"),
            title: `Append ${visible(token)}`,
            click: () => replace(area.value + token),
          },
          page.element("code", {}, visible(token)),
          bar,
          page.element("span", { class: "number" }, percent(shown)),
        );
      }),
    );
  }

  const setting = (name) => (value) => {
    now[name] = value;
    keep(now, defaults);
    distribution();
  };
  const button = page.element("button", { type: "button", class: "main", click: () => (writing ? stop() : begin()) }, "Write");
  area.addEventListener("click", atCaret);
  area.addEventListener("keyup", (event) => /^(Arrow|Home|End|Page)/.test(event.key) && atCaret());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      writing ? stop() : begin();
    }
  });
  main.append(
    page.element(
      "div",
      { class: "columns" },
      page.element(
        "section",
        {},
        page.element("h2", {}, "Write"),
        checkpoint.node,
        page.element("div", { class: "pad" }, flow, area),
        page.element(
          "div",
          { class: "controls" },
          button,
          field("Tokens", { min: 1, max: 2000, value: now.tokens }, setting("tokens")),
          field("Seed", { min: 0, max: 2 ** 31, value: now.seed }, setting("seed")),
          page.element("span", { class: "hint" }, "Ctrl+Enter writes; a click on a token, or the arrow keys, show what else could have come; the stronger its line, the less likely it was; what the model wrote is coloured"),
        ),
        status,
        others,
        branches.node,
      ),
      page.element(
        "section",
        {},
        page.element("h2", {}, "Next token"),
        slider("Temperature", { min: 0, max: 2, step: 0.05, value: now.temperature }, setting("temperature")),
        slider("Top-p", { min: 0.05, max: 1, step: 0.05, value: now.top_p }, setting("top_p")),
        page.element("p", { class: "hint" }, `Shares among the ${N_TOP} likeliest tokens, with this temperature and top-p`),
        next,
      ),
    ),
  );
  branches.show();
  return score();
}
