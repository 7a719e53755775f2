// Served by `compensate review`, each decision is sent as it is made, and those of other tabs arrive. Opened from disk, none of
// this happens: decisions then live in the browser, and corrections.csv is exported.

const served = location.protocol === "http:";
const POLL = 1000; // milliseconds between two looks at what other tabs did
const AT_ONCE = 500; // decisions in one request

const sync = {
  tab: Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join(""),
  place: "compensate.unsent." + data.key,
  rows: new Map(items.index.map((row, i) => [row, i])),
  waiting: [], // [row, decision, label, time, whether it is one of many at once], not yet confirmed
  version: 0,
  sending: false,
  problem: "", // why decisions do not reach the server
  run: "",
  looks: null, // the estimate so far
  audit: { state: "none" },
  listeners: [],

  push(changes) {
    const time = Date.now();
    for (const [i, made] of changes) this.waiting.push([items.index[i], made ? made.decision : "", made && made.decision === "other" ? made.label : null, time, changes.length > 1]);
    this.keep();
    this.flush();
  },

  keep() {
    try {
      if (this.waiting.length > 0) localStorage.setItem(this.place, JSON.stringify(this.waiting));
      else localStorage.removeItem(this.place);
    } catch (error) {
      // A browser that keeps nothing: they are still sent, and the page says what is not.
    }
  },

  recall() {
    // What a tab could not send before it was closed.
    try {
      const found = JSON.parse(localStorage.getItem(this.place) || "[]");
      this.waiting = found.filter((one) => Array.isArray(one) && this.rows.has(one[0]));
    } catch (error) {
      this.waiting = [];
    }
  },

  async flush() {
    if (this.sending || this.waiting.length === 0) return;
    this.sending = true;
    const part = this.waiting.slice(0, AT_ONCE);
    const answer = await this.ask("decisions", { tab: this.tab, made: part });
    this.sending = false;
    if (answer !== null) {
      this.waiting.splice(0, part.length);
      this.keep();
    }
    this.tell();
    if (answer !== null) this.flush();
  },

  async poll() {
    const answer = await this.ask("decisions?after=" + this.version);
    if (answer !== null) {
      this.version = answer.version;
      this.run = answer.run;
      this.looks = answer.looks;
      this.audit = answer.audit;
      this.receive(answer.made);
      this.flush(); // what could not be sent before
    }
    this.tell();
    setTimeout(() => this.poll(), document.hidden ? 5 * POLL : POLL);
  },

  receive(made) {
    const ours = new Set(this.waiting.map(([row]) => row)); // newer than what the server knows
    const changed = [];
    for (const [row, decision, chosen] of made) {
      const i = this.rows.get(row);
      if (i !== undefined && !ours.has(row) && store.take(i, decision ? { decision, label: chosen } : null)) changed.push(i);
    }
    if (changed.length > 0) for (const listener of this.listeners) listener(changed);
  },

  async ask(what, body) {
    const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    try {
      const answer = await fetch(what, options);
      if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
      this.problem = "";
      return await answer.json();
    } catch (error) {
      this.problem = error instanceof TypeError ? "the server has ended" : error.message;
      return null;
    }
  },

  tell() {
    for (const listener of store.listeners) listener();
  },

  words() {
    if (this.problem !== "") return this.waiting.length > 0 ? "not saved" : "server has ended";
    return this.waiting.length > 0 ? "saving" : "saved";
  },

  async again() {
    const answer = await this.ask("again", {});
    if (answer !== null) this.audit = answer.audit;
    this.tell();
  },
};
