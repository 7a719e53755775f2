// Which items are reviewed, and in which order. The queue is made anew when a filter changes, never by a decision:
// an item that is decided stays where it is, so that nothing jumps and undo leads back to it.

const filters = { pair: "", low: 0, high: 1, show: "all", order: "certain", flagged: mixed };
const queue = { list: [], at: 0 };

const SHOWN = {
  all: () => true,
  undecided: (i) => !store.isDecided(i),
  decided: (i) => store.isDecided(i),
  new: (i) => items.new[i] === 1,
  skipped: (i) => store.made[i] !== null && store.made[i].decision === "skip",
};

function matches(i) {
  const p = items.p[i];
  return (
    (filters.pair === "" || filters.pair === pairOf(i)) &&
    p >= filters.low - 1e-9 &&
    p <= filters.high + 1e-9 &&
    (!filters.flagged || items.flagged[i] === 1) &&
    SHOWN[filters.show](i)
  );
}

const ORDERS = {
  certain: (a, b) => items.p[b] - items.p[a] || a - b,
  useful: (a, b) => Math.abs(items.p[a] - 0.5) - Math.abs(items.p[b] - 0.5) || a - b,
};

function makeQueue(keep = null) {
  const list = [];
  for (let i = 0; i < size; i++) if (blind || matches(i)) list.push(i);
  queue.list = blind ? list : list.sort(ORDERS[filters.order]);
  const place = keep === null ? -1 : queue.list.indexOf(keep);
  queue.at = place >= 0 ? place : nextOpen(-1);
}

function nextOpen(from) {
  // The next item without a decision; the end of the list if there is none.
  for (let at = from + 1; at < queue.list.length; at++) if (store.made[queue.list[at]] === null) return at;
  return queue.list.length;
}

const current = () => (queue.at < queue.list.length ? queue.list[queue.at] : null);
