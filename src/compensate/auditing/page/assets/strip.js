// The next items in a row. Only those in sight exist as elements, however long the queue is.

const strip = {
  wide: data.items.content.some((c) => c.image) ? 84 : 172,
  drawn: new Map(),

  make(choose) {
    this.choose = choose;
    this.track = el("div", { class: "strip-track" });
    this.box = el("div", { class: "strip" + (this.wide > 100 ? " words" : ""), role: "group", "aria-label": "Items of this list", tabindex: "-1" }, this.track);
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.box);
    return this.box;
  },

  reset() {
    if (blind) return;
    this.drawn.clear();
    this.track.replaceChildren();
    this.track.style.setProperty("width", queue.list.length * this.wide + "px");
    this.show();
  },

  show() {
    if (blind) return;
    // The current item second from the left: where it comes from is seen, and more of where it goes.
    this.box.scrollLeft = Math.max(0, (queue.at - 1) * this.wide);
    this.draw(true);
  },

  draw(refresh = false) {
    if (blind) return;
    const first = Math.max(0, Math.floor(this.box.scrollLeft / this.wide) - 2);
    const last = Math.min(queue.list.length, Math.ceil((this.box.scrollLeft + this.box.clientWidth) / this.wide) + 2);
    for (const [at, node] of this.drawn) {
      if (at < first || at >= last) {
        node.remove();
        this.drawn.delete(at);
      }
    }
    for (let at = first; at < last; at++) {
      let node = this.drawn.get(at);
      if (!node) {
        node = this.item(at);
        this.drawn.set(at, node);
        this.track.append(node);
        this.mark(node, at);
      } else if (refresh) this.mark(node, at);
    }
  },

  item(at) {
    const i = queue.list[at];
    return el(
      "button",
      { type: "button", class: "thumb", tabindex: "-1", style: { left: at * this.wide + "px", width: this.wide - 8 + "px" }, onclick: () => this.choose(at) },
      small(items.content[i], "", 70),
      el("span", { class: "thumb-mark", "aria-hidden": "true" }),
    );
  },

  mark(node, at) {
    const i = queue.list[at];
    const made = store.made[i];
    const state = made ? made.decision : "open";
    if (node.dataset.state !== state) {
      node.dataset.state = state;
      node.lastChild.textContent = made ? SYMBOLS[made.decision] : "";
    }
    const now = at === queue.at;
    if (now) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
    node.setAttribute("aria-label", `${at + 1}: ${nameOf(items.index[i], items.id[i], items.part[i])}, ${spoken(givenOf(i))}, ${made ? made.decision : "undecided"}`);
  },
};
