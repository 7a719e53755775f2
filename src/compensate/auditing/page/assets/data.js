// The audit, as it stands in the page.

const data = JSON.parse(byId("data").textContent);
const items = data.items;
const size = items.index.length;
const regression = data.kind === "regression";
const classes = data.classes;
const labelOf = (number) => data.labels[number];

const givenOf = (i) => labelOf(items.given[i]);
const suggestedOf = (i) => labelOf(items.suggested[i]);
const pairOf = (i) => items.given[i] + ">" + items.suggested[i];

// What progress is measured against: the flagged items, or all of them where none is.
const mixed = data.flagged > 0 && data.flagged < size;
const counted = (i) => data.flagged === 0 || items.flagged[i] === 1;
const goal = data.flagged || size;

// Keys 1-9 stand for the same classes on every item. Where the classes are digits themselves, a key is its digit.
const digitClasses = classes.length > 0 && classes.every((c) => /^[0-9]$/.test(labelOf(c)));
const quickClasses = chooseQuick();

function chooseQuick() {
  if (digitClasses) return classes.map((c) => [labelOf(c), c]);
  let chosen = classes;
  if (classes.length > 9) {
    const often = new Map(classes.map((c) => [c, 0]));
    for (const [given, suggested, n] of data.pairs) {
      if (often.has(suggested)) often.set(suggested, often.get(suggested) + n);
      if (often.has(given)) often.set(given, often.get(given) + n / 2);
    }
    const top = new Set([...classes].sort((a, b) => often.get(b) - often.get(a)).slice(0, 9));
    chosen = classes.filter((c) => top.has(c));
  }
  return chosen.map((c, i) => [String(i + 1), c]);
}
