/** Parts of several views. */

/** The most heads with a colour each: as many as the palette has series. */
const N_SERIES = 6;

/** A head's colour: its own among few heads; among more, which nobody could tell apart, the chosen one stands out. */
function headColor(head, nHeads, chosen) {
  if (nHeads <= N_SERIES) {
    return `var(--series-${head})`;
  }
  return head === chosen ? "var(--accent)" : "var(--plain)";
}

/** A small square of a colour. */
function swatch(color) {
  const node = page.element("span", { class: "swatch" });
  node.style.background = color;
  return node;
}

/**
 * Colours as the present theme has them, for a canvas. Asked of the page, as a view may not be in it yet, and all at once,
 * as the browser styles the page anew for each question.
 */
function resolved(colors) {
  const probes = colors.map((color) => {
    const probe = page.element("span");
    probe.style.color = color;
    return probe;
  });
  const all = page.element("span", { hidden: true }, ...probes);
  document.body.append(all);
  const found = probes.map((probe) => getComputedStyle(probe).color);
  all.remove();
  return found;
}

/** A token of the style sheet in the present theme, as "red green blue". */
function colorOf(name) {
  return rgb(resolved([`var(${name})`])[0]).join(" ");
}

/** The strength of a weight's colour, from 0 to 1: its root, as in all of Tinderbox's pictures, so that small weights show. */
function strength(weight) {
  return Math.sqrt(Math.min(Math.max(weight, 0), 1));
}

/** A token's text and position, as `the` 4. */
function tokenName(attention, token) {
  return page.element(
    "span",
    { class: "name" },
    page.element("span", { class: "piece" }, attention.tokens[token]),
    page.element("span", { class: "position" }, String(token)),
  );
}

/** A token's text and position in plain text, for labels. */
function tokenText(attention, token) {
  return `${attention.tokens[token]} at ${token}`;
}

/** A number with this many digits, and a true minus sign unless it is 0. */
function fixed(x, digits) {
  const text = x.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A number with a bar of that share behind it. */
function bar(weight, digits, color) {
  const node = page.element("span", { class: "bar" }, weight.toFixed(digits));
  node.style.setProperty("--share", `${100 * weight}%`);
  if (color) {
    node.style.setProperty("--color", color);
  }
  return node;
}

/** A labelled list to choose from; `get` returns the chosen index, `set` takes the new one. */
function chooser(label, names, get, set) {
  const options = names.map((name, index) => page.element("option", { value: index }, String(name)));
  const list = page.element("select", { change: () => set(Number(list.value)) }, ...options);
  const node = page.element("label", { class: "chooser" }, label, list);
  return { node, update: () => (list.value = String(get())) };
}

/** The choosers of a layer and of a head. */
function placeChoosers(attention, choice) {
  const layer = chooser(
    "Layer",
    attention.layers,
    () => choice.layer,
    (layer) => choice.set({ layer }),
  );
  const head = chooser(
    "Head",
    attention.heads,
    () => choice.head,
    (head) => choice.set({ head }),
  );
  return {
    nodes: [layer.node, head.node],
    update() {
      layer.update();
      head.update();
    },
  };
}

/**
 * Moves the focus among `items` by arrow keys; the tab key reaches one of them at a time.
 * `move(key, index)` returns the new index, or `undefined`.
 */
function roam(container, items, move) {
  items.forEach((item, index) => (item.tabIndex = index === 0 ? 0 : -1));
  container.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target);
    const to = at < 0 ? undefined : items[move(event.key, at)];
    if (to) {
      event.preventDefault();
      to.focus();
    }
  });
  container.addEventListener("focusin", (event) => {
    if (items.includes(event.target)) {
      items.forEach((item) => (item.tabIndex = item === event.target ? 0 : -1));
    }
  });
}

/** The index that an arrow key leads to, in `n` items in rows of `nColumns`; `undefined` outside. */
function gridMove(nColumns, n) {
  return (key, at) => {
    const column = at % nColumns;
    const to = {
      ArrowLeft: column > 0 ? at - 1 : undefined,
      ArrowRight: column < nColumns - 1 ? at + 1 : undefined,
      ArrowUp: at - nColumns,
      ArrowDown: at + nColumns,
      Home: at - column,
      End: at - column + nColumns - 1,
    }[key];
    return to >= 0 && to < n ? to : undefined;
  };
}

/** A button for a token: mouse and focus point at it, a click keeps it; `side` is what it is then, or a function of that. */
function tokenButton(attention, choice, token, side) {
  const now = typeof side === "function" ? side : () => side;
  const button = page.element(
    "button",
    {
      type: "button",
      class: "token",
      "data-token": token,
      title: tokenText(attention, token),
      // A tap also sends these; its click is enough.
      pointerenter: (event) => event.pointerType === "mouse" && choice.point(token, now()),
      pointerleave: (event) => event.pointerType === "mouse" && choice.leave(),
      focus: () => button.matches(":focus-visible") && choice.point(token, now()),
      blur: () => choice.leave(),
      click: () => choice.keep(token, now()),
    },
    attention.tokens[token],
  );
  return button;
}

/** The prompt as buttons that choose the query. */
function tokenStrip(attention, choice) {
  const buttons = attention.tokens.map((_, token) => tokenButton(attention, choice, token, "query"));
  const node = page.element("div", { class: "strip", role: "group", "aria-label": "Tokens of the prompt" }, ...buttons);
  roam(node, buttons, gridMove(buttons.length, buttons.length));
  return {
    node,
    update() {
      buttons.forEach((button, token) => {
        button.classList.toggle("present", token === choice.query);
        page.set(button, { "aria-pressed": String(token === choice.kept?.token) });
      });
    },
  };
}

/** The scale of weights. */
function legend() {
  const swatches = [0, 0.01, 0.05, 0.2, 0.5, 1].map((weight) => {
    const at = strength(weight) * 9;
    const [below, share] = [Math.min(Math.floor(at), 8), at - Math.min(Math.floor(at), 8)];
    const color = `color-mix(in srgb, var(--heat-${below + 1}) ${100 * share}%, var(--heat-${below}))`;
    return page.element("span", { class: "step" }, swatch(color), String(weight));
  });
  return page.element("p", { class: "legend" }, "weight", ...swatches);
}

/** A map of one head on a canvas: a pixel for each pair of tokens, at most `most` pixels a side. */
function drawMap(canvas, attention, layer, head, most = Infinity) {
  const n = attention.nTokens;
  const side = Math.min(n, most);
  const weights = attention.triangle(layer, head);
  const pixels = new Float32Array(side * side).fill(-1); // of pairs that are masked
  const pixelOf = Uint32Array.from({ length: n }, (_, token) => Math.ceil(((token + 1) * side) / n) - 1);
  for (let query = 0, at = 0; query < n; query += 1) {
    const row = pixelOf[query] * side;
    const first = attention.firstSeen(layer, query);
    for (let key = 0; key <= query; key += 1, at += 1) {
      if (key >= first) {
        const pixel = row + pixelOf[key];
        pixels[pixel] = Math.max(pixels[pixel], weights[at]); // no strong weight is lost
      }
    }
  }
  canvas.width = side;
  canvas.height = side;
  const image = new ImageData(side, side);
  const { bytes } = Heat.now;
  for (let at = 0; at < pixels.length; at += 1) {
    if (pixels[at] >= 0) {
      const step = 3 * Heat.step(pixels[at]);
      image.data.set(bytes.subarray(step, step + 3), 4 * at);
      image.data[4 * at + 3] = 255;
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
