/** The three largest weights of each token, in one head. */
class TopView {
  static key = "top";
  static title = "Top three";
  static about =
    "The three tokens that each one looks at most in one head, with their weights = softmax(q · k / √d). All weights of a " +
    "token, not only these three, sum to 1.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.place = placeChoosers(attention, choice);
    this.rows = attention.tokens.map((_, token) =>
      page.element("tr", {}, page.element("th", { scope: "row" }, tokenName(attention, token))),
    );
    const body = page.element("tbody", {}, ...this.rows);
    const empty = (query) => this.rows[query].replaceChildren(this.rows[query].firstChild);
    this.lazy = new LazyRows(body, attention.nTokens, (query) => this.fill(query), empty);
    const names = ["token", "looks most at", "then at", "and at"].map((name) =>
      page.element("th", { scope: "col" }, name),
    );
    const table = page.element(
      "table",
      { class: "top" },
      page.element("thead", {}, page.element("tr", {}, ...names)),
      body,
    );
    this.node = page.element(
      "div",
      { class: "top-view" },
      page.element("div", { class: "controls" }, ...this.place.nodes),
      page.element("div", { class: "scrolls", tabindex: 0, role: "group", "aria-label": "The strongest weights" }, table),
    );
  }

  update() {
    this.place.update();
    this.rows.forEach((row, query) => row.classList.toggle("present", query === this.choice.kept?.token));
    this.lazy.refill();
  }

  fill(query) {
    const { attention, choice } = this;
    const cells = attention
      .strongest(choice.layer, choice.head, query, 3)
      .map(([key, weight]) => page.element("td", {}, tokenName(attention, key), bar(weight, 3)));
    this.rows[query].replaceChildren(this.rows[query].firstChild, ...cells);
  }
}
