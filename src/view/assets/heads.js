page.view("heads", (section, { names, even, heads }) => {
  const cells = [...section.querySelectorAll(".cell")];
  const detail = section.querySelector(".detail");
  const attention = page.section("attention"); // where a head's maps are, if they are on this page
  let chosen = null;

  function bar(name, value, chance) {
    const percent = (share) => `${(100 * share).toFixed(1)}%`;
    const track = page.element("div", { class: "track" });
    if (value !== null) {
      const filled = page.element("div", { class: "bar" });
      filled.style.width = percent(value);
      track.append(filled);
    }
    if (chance !== null) {
      const tick = page.element("div", { class: "even" });
      tick.style.left = `calc(${percent(chance)} - 1px)`;
      track.append(tick);
    }
    const number = value === null ? "–" : value.toFixed(2);
    return [page.element("div", {}, name), track, page.element("div", { class: "number" }, number)];
  }

  /** The strongest looks of a head: the token that looks is framed, the one that it looks at is marked. */
  function examples(snippets) {
    if (!snippets?.length) {
      return [];
    }
    const shown = (text) => text.replaceAll("\n", "↵");
    const items = snippets.map(({ weight, distance, before, key, between, query, after }) =>
      page.element(
        "li",
        { "data-weight": weight },
        page.element("span", { class: "number" }, weight.toFixed(2)),
        page.element(
          "span",
          { class: "snippet", title: `${distance} before` },
          shown(before),
          page.element("mark", { class: "key" }, shown(key)),
          shown(between),
          page.element("mark", { class: "query" }, shown(query)),
          shown(after),
        ),
      ),
    );
    const legend = page.element("p", {}, "Its strongest looks: from the ", page.element("mark", { class: "query" }, "framed"),
      " token to the ", page.element("mark", { class: "key" }, "marked"), " one.");
    return [legend, page.element("ul", { class: "snippets" }, ...items)];
  }

  /** A link to the maps of a head. */
  function link(name) {
    const [layer, head] = name.split(".");
    const to = { href: `#${attention.id}&view=text&layer=${layer}&head=${head}` };
    return page.element("p", {}, page.element("a", to, "See where it looks"));
  }

  function show(cell) {
    const { kind, meaning, because, tokens, snippets, scores } = heads[cells.indexOf(cell)];
    cells.forEach((other) => page.set(other, { "aria-pressed": String(other === cell) }));
    detail.replaceChildren(
      page.element("h3", {}, `Head ${cell.dataset.head}: ${kind}`),
      page.element("p", {}, `${because} ${meaning}`),
      ...(tokens.length > 0 ? [page.element("p", {}, `Tokens with more than an even share: ${tokens.join(", ")}.`)] : []),
      ...examples(snippets),
      page.element("div", { class: "bars" }, ...names.flatMap((name, i) => bar(name, scores[i], even[i]))),
      page.element("p", {}, page.element("small", {}, "The tick is the score of a head that looks at all tokens equally.")),
      ...(attention ? [link(cell.dataset.head)] : []));
  }

  for (const cell of cells) {
    cell.removeAttribute("title"); // the same is shown beside the map
    page.set(cell, {
      pointerenter: () => show(cell),
      pointerleave: () => show(chosen),
      focus: () => show(cell),
      click: () => show((chosen = cell)),
    });
  }
  // The head that looks back furthest with the largest weight says more than the first one.
  const strength = ({ snippets }) => (snippets?.[0] ? snippets[0].weight ** 2 * (1 + Math.log(snippets[0].distance)) : 0);
  const best = heads.reduce((most, head, at) => (strength(head) > strength(heads[most]) ? at : most), 0);
  chosen = cells[best];
  show(chosen);
});
