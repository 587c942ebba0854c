/** The reader's choice, which all views of a prompt share: a token kept in one view is shown by the next. */
class Choice {
  /** `before` is the choice in another model's attention; it stays if the text is the same. */
  constructor(attention, before) {
    const { telling, texts, nTokens } = attention;
    const begun = {
      place: telling?.place ?? { layer: 0, head: 0 },
      side: "query",
      kept: telling && { token: telling.query, side: "query" },
      first: telling?.query ?? nTokens - 1,
    };
    const isSameText = before && before.texts.length === nTokens && texts.every((text, at) => text === before.texts[at]);
    const { place, side, kept, first, active } = isSameText ? before : begun;
    this.texts = texts;
    this.chosen = place;
    this.previewed = null;
    /** The heads whose lines are drawn. */
    this.active = active ?? new Set([place.head]);
    /** Whether the text shows whom a token looks at, "query", or who looks at it, "key". */
    this.side = side;
    /** Tokens as {token, side}. */
    this.kept = kept;
    this.pointed = null;
    /** The token that is shown while none is kept. */
    this.first = first;
    this.listeners = [];
  }

  /** Indices among the layers and heads that are shown; a previewed head is in their place for a while. */
  get place() {
    return this.chosen;
  }

  set place(place) {
    this.chosen = place;
    this.active = this.active.has(place.head) ? this.active : new Set([place.head]);
  }

  get layer() {
    return (this.previewed ?? this.place).layer;
  }

  set layer(layer) {
    this.place = { ...this.place, layer };
  }

  get head() {
    return (this.previewed ?? this.place).head;
  }

  set head(head) {
    this.place = { ...this.place, head };
  }

  /** The token that is pointed at, or else the one that was kept, or `null`. */
  get present() {
    return this.pointed ?? this.kept;
  }

  /** The query, for views that always need one. */
  get query() {
    return this.present?.token ?? this.first;
  }

  set(changes) {
    Object.assign(this, changes);
    this.listeners.forEach((listener) => listener());
  }

  point(token, side = "query") {
    if (this.pointed?.token !== token || this.pointed?.side !== side) {
      this.set({ pointed: { token, side } });
    }
  }

  leave() {
    if (this.pointed) {
      this.set({ pointed: null });
    }
  }

  /** Keeps a token, or releases it if it is kept already. */
  keep(token, side = "query") {
    const again = this.kept?.token === token && this.kept?.side === side;
    this.set({ kept: again ? null : { token, side }, pointed: again ? null : this.pointed });
  }

  /** Shows a head until `null` is previewed. */
  preview(place) {
    this.set({ previewed: place });
  }

  /** Chooses a head. */
  open(place) {
    this.set({ place, previewed: null });
  }

  /** Turns the text to the other side, with its kept token. */
  turn(side) {
    this.set({ side, kept: this.kept && { ...this.kept, side }, pointed: null });
  }
}
