// The audit, as it stands in the page.

const data = JSON.parse(byId("data").textContent);
const items = data.items;
const all = items.index.length; // suspects, then other rows of issues
const size = data.listed;
const blind = Boolean(data.blind); // a random sample, shown without its labels
const regression = data.kind === "regression";
const classes = data.classes;
const labelOf = (number) => data.labels[number];

const givenOf = (i) => labelOf(items.given[i]);
const suggestedOf = (i) => labelOf(items.suggested[i]);
const pairOf = (i) => items.given[i] + ">" + items.suggested[i];

// What progress is measured against: the flagged items, or all of them where none is.
const mixed = data.flagged > 0 && data.flagged < size;
const counted = (i) => i < size && (data.flagged === 0 || items.flagged[i] === 1);
const goal = data.flagged || size;

const noun = regression ? "value" : "label";

// Up to nine classes have the same key on every item; digits are their own keys. Of more classes, the keys stand for those that
// the item most probably belongs to besides the given and the suggested one, which have keys already.
const digitClasses = classes.length > 0 && classes.every((c) => /^[0-9]$/.test(labelOf(c)));
const KEYS = 9;
const pairs = data.kind === "pair";
const PAIR_KEYS = { first: "1", second: "2", tie: "T", drop: "D" };
const fixedKeys = pairs ? classes.map((c) => [PAIR_KEYS[labelOf(c)], c]) : digitClasses ? classes.map((c) => [labelOf(c), c]) : classes.length <= KEYS ? classes.map((c, k) => [String(k + 1), c]) : null;
const frequent = fixedKeys ? [] : byFrequency();

function byFrequency() {
  const often = new Map(classes.map((c) => [c, 0]));
  for (const [given, suggested, n] of data.pairs) {
    if (often.has(suggested)) often.set(suggested, often.get(suggested) + n);
    if (often.has(given)) often.set(given, often.get(given) + n / 2);
  }
  return [...classes].sort((a, b) => often.get(b) - often.get(a));
}

function likelyClasses(i) {
  // Where no probabilities were kept, classes that are often flagged stand in.
  const others = new Set([...items.likely[i], ...frequent].filter((c) => c !== items.given[i] && c !== items.suggested[i]));
  return [...others].slice(0, KEYS);
}

const keysOf = (i) => fixedKeys || likelyClasses(i).map((c, k) => [String(k + 1), c]);

// Whether every class can be chosen by a key, so that none has to be looked for by name.
const everyClassHasAKey = !regression && classes.length <= (fixedKeys ? classes.length : KEYS + 2);
