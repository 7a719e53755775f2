// Numbers as people read them.

const grouped = new Intl.NumberFormat("en");

function count(n, one, many) {
  const word = one ? " " + (n === 1 ? one : many || one + "s") : "";
  return grouped.format(n) + word;
}

function percent(share) {
  const value = share * 100;
  if (value > 99 && value < 100) return Math.min(value, 99.9).toFixed(1) + "\u00a0%"; // not all of them
  const digits = value === 0 || value >= 9.95 ? 0 : value >= 0.095 ? 1 : 2;
  return value.toFixed(digits) + "\u00a0%";
}

function number(value) {
  if (value === null) return "unknown";
  if (Number.isInteger(value)) return grouped.format(value);
  return String(Number(value.toPrecision(3)));
}

function probability(p) {
  // Never rounded up to a certainty.
  if (p > 0.995 && p < 1) return "> 0.99";
  if (p < 0.005 && p > 0) return "< 0.01";
  return p.toFixed(2);
}

function certainty(p) {
  if (p >= 0.95) return "very likely wrong";
  if (p >= 0.8) return "likely wrong";
  if (p >= 0.6) return "probably wrong";
  if (p >= 0.4) return "could be either";
  if (p >= 0.2) return "probably right";
  return "likely right";
}
