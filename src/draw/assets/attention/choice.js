/** What the reader looks at. All views of a prompt share it: a token kept in one is the one that the next shows. */
class Choice {
  constructor(attention) {
    /** Indices among the layers and heads that are shown. */
    this.layer = 0;
    this.head = 0;
    /** The heads whose lines are drawn. */
    this.active = new Set(attention.heads.keys());
    /** Tokens as {token, side}, `side` being "query" for one that looks and "key" for one that is looked at. */
    this.kept = null;
    this.pointed = null;
    this.last = attention.nTokens - 1;
    this.listeners = [];
  }

  /** What is looked at now: what is pointed at, or else what was kept, or nothing. */
  get present() {
    return this.pointed ?? this.kept;
  }

  /** The token that looks, for views that always need one: the last, unless told otherwise. */
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

  /** Keeps a token; the one that is kept already is let go. */
  keep(token, side = "query") {
    const again = this.kept?.token === token && this.kept?.side === side;
    this.set({ kept: again ? null : { token, side }, pointed: again ? null : this.pointed });
  }
}
