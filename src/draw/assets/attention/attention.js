/** The views of a prompt behind tabs. They share one choice. */
page.view("attention", (section, data, list) => {
  const attention = new Attention(data, list);
  const choice = new Choice(attention);
  const kinds = [HeadView, ModelView, NeuronView, SimilarityView, TopView];
  const made = new Map(); // each view is made when it is first shown
  let present = HeadView;

  const panel = page.element("div", { class: "panel", role: "tabpanel", id: page.id() });
  const tabs = kinds.map((kind) =>
    page.element(
      "button",
      { type: "button", class: "tab", role: "tab", id: page.id(), "aria-controls": panel.id, click: () => show(kind) },
      kind.title,
    ),
  );
  const bar = page.element("div", { class: "tabs", role: "tablist", "aria-label": "Ways to look" }, ...tabs);
  roam(bar, tabs, gridMove(tabs.length, tabs.length));

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
    panel.replaceChildren(page.element("p", { class: "about" }, kind.about), view.node);
    view.update();
  }

  section.append(bar, panel);
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && choice.kept) {
      choice.set({ kept: null });
    }
  });
  choice.listeners.push(() => made.get(present).update());
  page.onTheme(() => made.forEach((view) => view.redraw?.()));
  show(present);
});
