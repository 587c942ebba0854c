/** The views of a prompt behind tabs. They share one choice, which the page's address keeps. */
page.view("attention", (section, data, list) => {
  const attention = new Attention(data, list);
  const choice = (section.choice = new Choice(attention, section.choice)); // a replay leaves it where it is
  const kinds = [TextView, HeadView, ModelView, NeuronView, SimilarityView, TopView].filter(
    (kind) => attention.hasVectors || kind !== NeuronView,
  );
  const made = new Map(); // each view is made when it is first shown
  let present = TextView;

  const panel = page.element("div", { class: "panel", role: "tabpanel", id: page.id() });
  const tabs = kinds.map((kind) =>
    page.element(
      "button",
      { type: "button", class: "tab", role: "tab", id: page.id(), "aria-controls": panel.id, click: () => turnTo(kind) },
      kind.title,
    ),
  );
  const bar = page.element("div", { class: "tabs", role: "tablist", "aria-label": "Ways to look" }, ...tabs);
  roam(bar, tabs, gridMove(tabs.length, tabs.length));
  const without = page.element("input", { type: "checkbox", change: () => leaveOut(without.checked) });
  const tick = page.element("label", { class: "without" }, without, "without the first token");
  attention.isWithoutFirst = without.checked = section.isWithoutFirst ?? false; // it, too, stays in a replay

  /** Shows the weights with or without the first token. */
  function leaveOut(isWithoutFirst) {
    section.isWithoutFirst = attention.isWithoutFirst = without.checked = isWithoutFirst;
    made.clear();
    turnTo(present);
  }

  function show(kind) {
    present = kind;
    if (!made.has(kind)) {
      made.set(kind, new kind(attention, choice));
    }
    const view = made.get(kind);
    tabs.forEach((tab, index) => {
      const isPresent = kinds[index] === kind;
      page.set(tab, { "aria-selected": String(isPresent) });
      tab.tabIndex = isPresent ? 0 : -1;
      if (isPresent) {
        page.set(panel, { "aria-labelledby": tab.id });
      }
    });
    const about = kind.about ? [page.element("p", { class: "about" }, kind.about)] : [];
    panel.replaceChildren(...about, view.node);
    view.update();
  }

  function turnTo(kind) {
    show(kind);
    keep();
  }

  /** Writes the choice into the address. */
  function keep() {
    const { layer, head } = choice.place;
    const state = { view: present.key, layer: attention.layers[layer], head: attention.heads[head] };
    Object.assign(state, attention.isWithoutFirst && { first: 0 });
    page.keep(section, { ...state, ...(choice.kept && { token: choice.kept.token, side: choice.kept.side }) });
  }

  /** Takes a choice from an address; what is not in it, or not on this page, stays. */
  function restore(state) {
    const index = (name, numbers, now) => {
      const found = numbers.indexOf(Number(state.get(name) ?? NaN));
      return found < 0 ? now : found;
    };
    const { layer, head } = choice.place;
    choice.place = { layer: index("layer", attention.layers, layer), head: index("head", attention.heads, head) };
    const token = Number(state.get("token") ?? NaN);
    if (Number.isInteger(token) && token >= 0 && token < attention.nTokens) {
      choice.side = state.get("side") === "key" ? "key" : "query";
      choice.kept = { token, side: choice.side };
    }
    present = kinds.find((kind) => kind.key === state.get("view")) ?? present;
    if ((state.get("first") === "0") !== attention.isWithoutFirst) {
      leaveOut(!attention.isWithoutFirst);
    }
    show(present);
  }

  section.append(page.element("div", { class: "over" }, bar, tick, page.actions(section, () => panel)), panel);
  section.append(...section.querySelectorAll(":scope > .facts")); // a small screen begins with the text
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && choice.kept) {
      choice.set({ kept: null });
    }
  });
  choice.listeners.push(() => {
    made.get(present).update();
    if (!choice.pointed && !choice.previewed) {
      keep();
    }
  });
  page.onTheme(() => made.forEach((view) => view.redraw?.()));
  show(present);
  page.onState(section, restore);
});
