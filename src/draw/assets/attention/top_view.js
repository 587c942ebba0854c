/** The three largest weights of each token, in one head. */
class TopView {
  static title = "Top three";
  static about =
    "The three tokens that each one looks at most in one head, with their weights = softmax(q · k / √d). All weights of a " +
    "token, not only these three, sum to 1.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.place = placeChoosers(attention, choice);
    this.body = page.element("tbody");
    const names = ["token", "looks most at", "then at", "and at"].map((name) =>
      page.element("th", { scope: "col" }, name),
    );
    const table = page.element(
      "table",
      { class: "top" },
      page.element("thead", {}, page.element("tr", {}, ...names)),
      this.body,
    );
    this.node = page.element(
      "div",
      { class: "top-view" },
      page.element("div", { class: "controls" }, ...this.place.nodes),
      page.element("div", { class: "scrolls" }, table),
    );
  }

  update() {
    const { attention, choice } = this;
    this.place.update();
    const rows = attention.tokens.map((_, query) => {
      const name = page.element("th", { scope: "row" }, tokenName(attention, query));
      const cells = attention
        .strongest(choice.layer, choice.head, query, 3)
        .map(([key, weight]) => page.element("td", {}, tokenName(attention, key), bar(weight, 3)));
      return page.element("tr", { class: query === choice.kept?.token ? "present" : "" }, name, ...cells);
    });
    this.body.replaceChildren(...rows);
  }
}
