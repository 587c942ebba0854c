/** The reader's choice, which all views of a prompt share: a token kept in one view is shown by the next. */
class Choice {
  constructor(attention) {
    /** Indices among the layers and heads that are shown. */
    this.layer = 0;
    this.head = 0;
    /** The heads whose lines are drawn. */
    this.active = new Set(attention.heads.keys());
    /** Tokens as {token, side}, where `side` is "query" or "key". */
    this.kept = null;
    this.pointed = null;
    this.last = attention.nTokens - 1;
    this.listeners = [];
  }

  /** The token that is pointed at, or else the one that was kept, or `null`. */
  get present() {
    return this.pointed ?? this.kept;
  }

  /** The query, for views that always need one: the last token by default. */
  get query() {
    return this.present?.token ?? this.last;
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
}
