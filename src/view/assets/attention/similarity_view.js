/** The cosines of a token's vector with the others', layer by layer. */
class SimilarityView {
  static key = "similarity";
  static title = "Similarity";
  static about =
    "How alike the vector of a token is to the others', as embeddings and after each layer: the cosine of their angle, " +
    "a · b / (|a| |b|). 1 is the same direction, 0 unrelated, −1 opposite. A token that stands twice begins with one " +
    "vector (but for learned positions) and takes on its context layer by layer.";

  constructor(attention, choice) {
    this.attention = attention;
    this.choice = choice;
    this.strip = tokenStrip(attention, choice);
    const names = Array.from({ length: attention.nStages }, (_, stage) =>
      page.element("th", { scope: "col" }, stage === 0 ? "embedding" : `layer ${stage - 1}`),
    );
    this.caption = page.element("caption");
    this.rows = attention.tokens.map((_, token) =>
      page.element("tr", {}, page.element("th", { scope: "row" }, tokenName(attention, token))),
    );
    const body = page.element("tbody", {}, ...this.rows);
    const empty = (other) => this.rows[other].replaceChildren(this.rows[other].firstChild);
    this.lazy = new LazyRows(body, attention.nTokens, (other) => this.fill(other), empty);
    const head = page.element(
      "thead",
      {},
      page.element("tr", {}, page.element("th", { scope: "col" }, "token"), ...names),
    );
    const table = page.element("table", { class: "cosines" }, this.caption, head, body);
    this.node = page.element(
      "div",
      { class: "similarity-view" },
      this.strip.node,
      page.element("div", { class: "scrolls", tabindex: 0, role: "group", "aria-label": "Similarities" }, table),
    );
  }

  update() {
    const { attention, choice } = this;
    this.strip.update();
    const token = choice.query;
    this.caption.replaceChildren("Cosines between ", tokenName(attention, token), " and …");
    this.rows.forEach((row, other) => row.classList.toggle("present", other === token));
    this.lazy.refill();
  }

  fill(other) {
    const { attention, choice } = this;
    const cells = Array.from({ length: attention.nStages }, (_, stage) =>
      this.cell(attention.cosine(stage, choice.query, other)),
    );
    this.rows[other].replaceChildren(this.rows[other].firstChild, ...cells);
  }

  cell(cosine) {
    const cell = page.element("td", { class: cosine < 0 ? "negative" : "positive" }, fixed(cosine, 2));
    cell.style.setProperty("--share", `${(45 * Math.min(Math.abs(cosine), 1)).toFixed(1)}%`);
    return cell;
  }
}
