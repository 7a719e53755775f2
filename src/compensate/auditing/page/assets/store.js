// The decisions: kept in the browser under the hash of this audit, or by the server that the page comes from; undone step by step.

const SYMBOLS = { accept: "✓", reject: "=", other: "≠", skip: "↷", drop: "✕", unclear: "~", wrong: "✗" };
const OPEN = ["skip", "wrong"]; // decisions after which the right label is unknown
const STEPS = 100;

const store = {
  place: "compensate.review." + data.key,
  made: new Array(all).fill(null), // { decision, label } by position
  steps: [], // [[position, before], ...] by step, latest last
  kept: true,
  listeners: [],

  isDecided(i) {
    return this.made[i] !== null && !OPEN.includes(this.made[i].decision);
  },

  tally() {
    const tally = { accept: 0, reject: 0, other: 0, skip: 0, drop: 0, unclear: 0, wrong: 0, decided: 0, all: 0 };
    for (let i = 0; i < all; i++) {
      const made = this.made[i];
      if (made === null) continue;
      tally[made.decision]++;
      if (!OPEN.includes(made.decision)) {
        tally.all++;
        if (counted(i)) tally.decided++;
      }
    }
    return tally;
  },

  decide(changes) {
    this.steps.push(changes.map(([i]) => [i, this.made[i]]));
    if (this.steps.length > STEPS) this.steps.shift();
    for (const [i, made] of changes) this.made[i] = made;
    this.save(changes);
  },

  take(i, made) {
    // A decision of another tab; tells whether it is news.
    const before = this.made[i];
    if (before === made || (before && made && before.decision === made.decision && before.label === made.label)) return false;
    this.made[i] = made;
    return true;
  },

  undo() {
    const step = this.steps.pop();
    if (!step) return null;
    for (const [i, before] of step) this.made[i] = before;
    this.save(step);
    return step.map(([i]) => i);
  },

  clear() {
    this.decide(this.made.map((made, i) => [i, made]).filter(([, made]) => made).map(([i]) => [i, null]));
  },

  save(changes) {
    if (served) sync.push(changes);
    else this.keep();
    for (const listener of this.listeners) listener();
  },

  keep() {
    const made = [];
    this.made.forEach((m, i) => m && made.push([i, packed(m)]));
    const steps = this.steps.map((step) => step.map(([i, before]) => [i, packed(before)]));
    try {
      localStorage.setItem(this.place, JSON.stringify({ made, steps }));
      this.kept = true;
    } catch (error) {
      this.kept = false; // private windows and full disks: the page says so, and export still works
    }
  },

  load() {
    this.made.fill(null);
    this.steps = [];
    try {
      const found = JSON.parse(localStorage.getItem(this.place) || "null");
      if (found === null) return;
      const fits = ([i]) => Number.isInteger(i) && i >= 0 && i < all;
      for (const [i, kept] of found.made.filter(fits)) this.made[i] = unpacked(i, kept);
      this.steps = found.steps.filter((step) => step.every(fits)).map((step) => step.map(([i, kept]) => [i, unpacked(i, kept)]));
    } catch (error) {
      this.kept = false;
    }
  },
};

// Most decisions imply their label: only another class is written down, however long the names are.

function packed(made) {
  return made === null ? null : made.decision === "other" ? [made.decision, made.label] : [made.decision];
}

function unpacked(i, kept) {
  if (kept === null || !(kept[0] in SYMBOLS)) return null;
  const implied = { accept: () => suggestedOf(i), reject: () => givenOf(i), other: () => String(kept[1]) };
  return { decision: kept[0], label: (implied[kept[0]] || (() => ""))() };
}

if (served) sync.recall();
else store.load();

function decision(i, chosen) {
  // What choosing a label for an item amounts to.
  if (chosen === suggestedOf(i)) return { decision: "accept", label: chosen };
  if (chosen === givenOf(i)) return { decision: "reject", label: chosen };
  return { decision: "other", label: chosen };
}
