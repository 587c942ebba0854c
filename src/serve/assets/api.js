/** Requests to the server, and the state of a view in the page's address. */

const KEY = "tinderbox-key"; // where the key is stored until the tab is closed

/** Sets a cookie with the key for a frame about to load, which cannot send headers. */
export function lendKey() {
  const key = sessionStorage.getItem(KEY);
  if (key) {
    document.cookie = `tinderbox_key=${key}; path=/app; samesite=strict; max-age=10`;
  }
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

/** A response; asks for the key if one is needed. Throws the server's error message. */
async function respond(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(), signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not answer. Is it still running?");
  }
  if (response.status === 401) {
    const key = prompt("This server needs an API key:");
    if (key) {
      sessionStorage.setItem(KEY, key.trim());
      return respond(path, body, signal);
    }
  }
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw Object.assign(new Error(told?.error?.message ?? `The server says ${response.status}.`), told?.error);
  }
  return response;
}

/** The JSON response of a path, with or without a request body. */
export async function ask(path, body, signal) {
  return (await respond(path, body, signal)).json();
}

/** The text response of a path. */
export async function askText(path) {
  return (await respond(path)).text();
}

/** The events of a streamed response, one by one. */
export async function* events(path, body, signal) {
  const response = await respond(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole.filter((part) => !part.startsWith(":"))) { // comments keep a waiting connection open
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") {
        return;
      }
      const json = JSON.parse(data);
      if (json.error) {
        throw new Error(json.error.message);
      }
      yield json;
    }
  }
  throw new Error("The connection was lost.");
}

/**
 * The path and the body of a request that answers a conversation. A model without a template gets the prompt that the
 * template of `other` makes.
 */
export async function answering(model, hasChat, other, messages, signal) {
  if (hasChat) {
    return ["/v1/chat/completions", { model, messages }];
  }
  const { prompt } = await ask("/apply-template", { model: other, messages }, signal);
  return ["/v1/completions", { model, prompt }];
}

/** The delay before a request to a busy server is repeated. */
const RETRY_MS = 200;
/** The delay before a request is sent, so that one is sent for several keys. */
const PAUSE_MS = 120;

/**
 * Wraps `work(signal, ...arguments)`: a new call aborts the one before it. Errors are shown in `status`, and after a second
 * how long it takes; while the server is busy, the call is repeated.
 */
export function latest(status, work) {
  let present = null;
  return async (...given) => {
    present?.abort();
    const mine = (present = new AbortController());
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    const begun = performance.now();
    const clock = setInterval(() => {
      const s = Math.floor((performance.now() - begun) / 1000);
      if (present === mine && s > 0) {
        page.set(status, { "data-busy": `computing, ${s} s` });
      }
    }, 250);
    for (let isBusy = true; isBusy && present === mine; ) {
      isBusy = false;
      try {
        await work(mine.signal, ...given);
        if (present === mine) {
          status.textContent = "";
        }
      } catch (error) {
        if (error.name !== "AbortError" && present === mine) {
          status.textContent = error.message;
          isBusy = error.type === "rate_limit_error";
        }
      }
      if (isBusy) {
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    clearInterval(clock);
    if (present === mine) {
      page.set(status, { "data-busy": null });
    }
  };
}

/** A line for an error; empty if there is none. */
export function statusLine() {
  return page.element("p", { class: "status", role: "status" });
}

/** A message instead of a view. */
export function problem(text) {
  return page.element("p", { class: "status", role: "alert" }, text);
}

/** The state in the address, with these defaults; numbers stay numbers. */
export function state(defaults) {
  const query = new URLSearchParams(location.search);
  const value = (name, usual) => {
    const found = query.get(name);
    if (found === null) {
      return usual;
    }
    return typeof usual === "number" ? (Number.isFinite(Number(found)) ? Number(found) : usual) : found;
  };
  return Object.fromEntries(Object.entries(defaults).map(([name, usual]) => [name, value(name, usual)]));
}

/** Stores the state in the address, except for default values. */
export function keep(values, defaults) {
  const changed = Object.entries(values).filter(([name, value]) => value !== defaults[name]);
  const query = new URLSearchParams(changed).toString();
  history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
}

/** The value after the `#` of the address, which is not sent to the server; `null` if there is none. */
export function remembered(name) {
  try {
    return JSON.parse(new URLSearchParams(location.hash.slice(1)).get(name));
  } catch {
    return null; // a damaged link
  }
}

/** Replaces that value. */
export function remember(name, value) {
  const hash = new URLSearchParams({ [name]: JSON.stringify(value) });
  history.replaceState(null, "", `${location.pathname}${location.search}#${hash}`);
}

/** A text for a button, with visible line ends and blanks. */
export function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "→").replace(/^ | $/g, "·").replace(/^$/, "∅");
}

/** A fraction as a percentage. */
export function percent(share) {
  if (share > 0 && share < 1e-4) {
    return "< 0.01 %";
  }
  return share >= 0.1 || share === 0 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toPrecision(2)} %`;
}

/** A labelled input; `set(number)` is called with each change. */
export function slider(label, { min, max, step, value, digits = 2 }, set) {
  const shown = page.element("output", {}, value.toFixed(digits));
  const input = page.element("input", {
    type: "range", min, max, step, value, "aria-label": label,
    input: () => {
      shown.textContent = Number(input.value).toFixed(digits);
      set(Number(input.value));
    },
  });
  return page.element("label", { class: "slider" }, label, input, shown);
}

/** A field for a whole number. */
export function field(label, { min, max, value }, set) {
  const input = page.element("input", {
    type: "number", min, max, value,
    change: () => {
      input.value = Math.min(Math.max(Math.round(Number(input.value)), min), max);
      set(Number(input.value));
    },
  });
  return page.element("label", { class: "slider" }, label, input);
}

/** A button that copies what `text()` returns. */
export function copier(label, text) {
  const button = page.element("button", { type: "button", click: () => copy() }, label);
  async function copy() {
    await navigator.clipboard.writeText(text()).then(() => (button.textContent = "Copied"), () => (button.textContent = "The browser does not allow it"));
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

/** A text field as high as its text, up to a third of the screen. */
export function editor(label, value, set) {
  const area = page.element("textarea", { rows: 3, spellcheck: "false", "aria-label": label, input: () => set(area.value) });
  area.value = value;
  return area;
}
