// The pictures of the overview, drawn to the width they have. Each says by shape what it says by colour.

function responsive(make) {
  const box = el("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(box.clientWidth);
    if (now === width || now === 0) return;
    width = now;
    fill(box, make(width));
  }).observe(box);
  return box;
}

function ticks(low, high, about) {
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.8);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// Given against suggested. A grid while it can be read; the largest pairs otherwise.

const GRID = 20;
const TOP_PAIRS = 20;

function pairNames(given, suggested) {
  return `${spoken(labelOf(given))} looks like ${spoken(labelOf(suggested))}`;
}

function pairList(pairs, open) {
  const most = pairs[0][2];
  const list = el(
    "ol",
    { class: "pairs" },
    pairs.slice(0, TOP_PAIRS).map(([given, suggested, n]) =>
      el(
        "li",
        null,
        el(
          "button",
          { type: "button", class: "pair", onclick: () => open(given, suggested), "aria-label": `${pairNames(given, suggested)}: ${count(n, "row")}. Review.` },
          el("span", { class: "pair-names" }, label(labelOf(given), 60), el("span", { class: "arrow", "aria-hidden": "true" }, "→"), label(labelOf(suggested), 60)),
          el("span", { class: "pair-count" }, count(n)),
          el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: (100 * n) / most + "%" } })),
        ),
      ),
    ),
  );
  return pairs.length > TOP_PAIRS ? [list, el("p", { class: "hint" }, `The ${TOP_PAIRS} most frequent of ${count(pairs.length)} pairs.`)] : list;
}

function heatMap(pairs, open) {
  const used = new Set(pairs.flatMap(([given, suggested]) => [given, suggested]));
  const order = [...classes.filter((c) => used.has(c)), ...[...used].filter((c) => !classes.includes(c))];
  const counts = new Map(pairs.map(([given, suggested, n]) => [given + ">" + suggested, n]));
  const most = pairs[0][2];
  const longest = Math.max(...order.map((c) => labelOf(c).length));
  const long = longest > 3;
  const cellOf = (given, suggested) => {
    const n = counts.get(given + ">" + suggested) || 0;
    if (given === suggested) return el("td", { class: "same" }, el("span", { class: "hidden-text" }, "same class"));
    if (n === 0) return el("td", { class: "none" }, el("span", { class: "hidden-text" }, "0"));
    return el(
      "td",
      null,
      el("button", { type: "button", style: { "--heat": Math.sqrt(n / most).toFixed(3) }, onclick: () => open(given, suggested), title: `${pairNames(given, suggested)}: ${count(n, "row")}`, "aria-label": `${pairNames(given, suggested)}: ${count(n, "row")}. Review.` }, count(n)),
    );
  };
  return el(
    "div",
    { class: "scroll-x" },
    el(
      "table",
      { class: "heat" + (long ? " long" : ""), style: { "--columns": order.length, "--longest": Math.min(longest, 24) } },
      el("caption", { class: "hidden-text" }, "Flagged rows by given label (rows) and suggested label (columns)"),
      el(
        "thead",
        null,
        el("tr", null, el("td", { class: "corner" }, el("span", null, "given ↓"), el("span", null, "suggested →")), order.map((c) => el("th", { scope: "col" }, el("span", null, label(labelOf(c), 40))))),
      ),
      el("tbody", null, order.map((given) => el("tr", null, el("th", { scope: "row" }, el("span", null, label(labelOf(given), 40))), order.map((suggested) => cellOf(given, suggested))))),
    ),
  );
}

const CELL = 24; // pixels that a cell of the grid needs, and the names of its rows
const NAMES = 84;

const classesOf = (pairs) => new Set(pairs.flatMap(([given, suggested]) => [given, suggested])).size;

function confusionPicture(pairs, open) {
  const used = classesOf(pairs);
  if (used <= 2 || used > GRID) return pairList(pairs, open);
  return responsive((width) => (width < used * CELL + NAMES ? pairList(pairs, open) : heatMap(pairs, open)));
}

// The share of each class that is flagged.

function classBars(rows) {
  const FIRST = 10;
  const most = Math.max(...rows.map(([, n, flagged]) => (n ? flagged / n : 0)), 1e-9);
  const list = el("ul", { class: "bars" });
  const bar = ([c, n, flagged]) =>
    el(
      "li",
      null,
      el("span", { class: "bar-name" }, label(labelOf(c), 60)),
      el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: flagged ? `max(3px, ${(100 * flagged) / n / most}%)` : "0" } })),
      el("span", { class: "bar-value" }, el("b", null, n ? percent(flagged / n) : "–"), el("span", { class: "muted" }, ` ${count(flagged)} of ${count(n)}`)),
    );
  append(list, rows.slice(0, FIRST).map(bar));
  if (rows.length <= FIRST) return list;
  const more = el("button", { type: "button", class: "link" }, `Show all ${count(rows.length)} classes`);
  more.addEventListener("click", () => {
    append(list, rows.slice(FIRST).map(bar));
    more.remove();
  });
  return [list, more];
}

// Counts of a value over all samples; the flagged part is hatched as well as coloured.

function histogramPicture(histogram, axis, about) {
  return responsive((width) => {
    const height = 210;
    const [left, right, top, bottom] = [44, 12, 26, 40];
    const { edges, counts, flagged, threshold } = histogram;
    const low = edges[0];
    const high = edges[edges.length - 1];
    const most = Math.max(...counts, 1);
    const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - right);
    const y = (n) => height - bottom - Math.sqrt(n / most) * (height - top - bottom);
    const base = height - bottom;
    const id = "hatch-" + axis.replace(/\W+/g, "-");
    const levels = roundCounts(most, (n) => base - y(n));
    const bars = counts.map((n, k) => {
      const from = x(edges[k]) + 0.5;
      const wide = Math.max(x(edges[k + 1]) - x(edges[k]) - 1, 0.5);
      const hot = flagged[k] || 0;
      const title = `${number(edges[k])} to ${number(edges[k + 1])}: ${count(n, "row")}` + (flagged.length ? `, ${count(hot)} flagged` : "");
      return draw(
        "g",
        null,
        draw("title", null, title),
        n > 0 && draw("rect", { class: "bar-rest", x: from, width: wide, y: y(n), height: base - y(n) }),
        hot > 0 && draw("rect", { class: "bar-hot", x: from, width: wide, y: y(hot), height: base - y(hot) }),
        hot > 0 && draw("rect", { fill: `url(#${id})`, x: from, width: wide, y: y(hot), height: base - y(hot) }),
      );
    });
    const mark = threshold === null ? null : x(threshold);
    const late = mark !== null && mark > width * 0.6;
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
      draw("defs", null, draw("pattern", { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, draw("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 5 }))),
      levels.map((n) => [draw("line", { class: "grid", x1: left, x2: width - right, y1: y(n), y2: y(n) }), draw("text", { class: "tick", x: left - 8, y: y(n) + 4, "text-anchor": "end" }, short(n))]),
      bars,
      ticks(low, high, width / 90).map((v) => draw("text", { class: "tick", x: x(v), y: base + 17, "text-anchor": "middle" }, number(v))),
      draw("text", { class: "axis", x: width - right, y: height - 4, "text-anchor": "end" }, axis),
      draw("text", { class: "axis", x: left - 8, y: 12, "text-anchor": "start" }, "rows, square-root scale"),
      mark !== null && [
        draw("line", { class: "threshold", x1: mark, x2: mark, y1: top - 6, y2: base }),
        draw("text", { class: "threshold-name", x: mark + (late ? -7 : 7), y: top + 6, "text-anchor": late ? "end" : "start" }, `flagged from ${number(threshold)}`),
      ],
    );
  });
}

function roundCounts(most, rise) {
  // Round numbers, far enough apart on the bent scale.
  const found = [0];
  for (let power = 1; power <= most; power *= 10) {
    for (const n of [1, 2, 5].map((m) => m * power)) if (n <= most && rise(n) - rise(found[found.length - 1]) >= 30) found.push(n);
  }
  return found;
}

function short(n) {
  return n >= 10000 ? number(Math.round(n / 100) / 10) + "k" : count(n);
}

// Given against predicted values: a flagged one is a diamond as well as coloured.

function valuesPicture({ given, predicted, flagged }, about) {
  return responsive((width) => {
    const height = Math.min(360, Math.max(260, width * 0.6));
    const [left, right, top, bottom] = [56, 12, 24, 40];
    const all = [...given, ...predicted].filter((v) => v !== null);
    const spread = Math.max(...all) - Math.min(...all) || 1;
    const low = Math.min(...all) - spread * 0.03;
    const high = Math.max(...all) + spread * 0.03;
    const x = (v) => left + ((v - low) / (high - low)) * (width - left - right);
    const y = (v) => height - bottom - ((v - low) / (high - low)) * (height - top - bottom);
    const dots = given.map((v, k) => {
      const [cx, cy] = [x(predicted[k]), y(v)];
      if (flagged[k]) return draw("path", { class: "dot-hot", d: `M${cx} ${cy - 5}l5 5l-5 5l-5-5z` }, draw("title", null, `given ${number(v)}, predicted ${number(predicted[k])}, flagged`));
      return draw("circle", { class: "dot", cx, cy, r: 2.5 });
    });
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
      ticks(low, high, 5).map((v) => [draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }), draw("text", { class: "tick", x: left - 8, y: y(v) + 4, "text-anchor": "end" }, brief(v))]),
      ticks(low, high, width / 90).map((v) => draw("text", { class: "tick", x: x(v), y: height - bottom + 17, "text-anchor": "middle" }, brief(v))),
      draw("line", { class: "threshold", x1: x(low), y1: y(low), x2: x(high), y2: y(high) }),
      dots,
      draw("text", { class: "axis", x: width - right, y: height - 4, "text-anchor": "end" }, "predicted value"),
      draw("text", { class: "axis", x: 4, y: 12, "text-anchor": "start" }, "given value"),
    );
  });
}

const compact = new Intl.NumberFormat("en", { notation: "compact" });

function brief(v) {
  if (Math.abs(v) >= 1e5 && Math.abs(v) < 1e15) return compact.format(v);
  return Math.abs(v) >= 1e15 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(0) : number(v);
}

// A measure over the epochs; plain training is dashed.

function curvePicture(curves, about) {
  return responsive((width) => {
    const height = 210;
    const [left, right, top, bottom] = [44, 66, 14, 40];
    const values = curves.flatMap((c) => c.values).filter((v) => v !== null);
    const spread = Math.max(...values) - Math.min(...values) || 0.1;
    const low = Math.min(...values) - spread * 0.08;
    const high = Math.max(...values) + spread * 0.08;
    const epochs = Math.max(...curves.map((c) => c.values.length));
    const x = (e) => left + (epochs > 1 ? (e / (epochs - 1)) * (width - left - right) : 0);
    const y = (v) => height - bottom - ((v - low) / (high - low)) * (height - top - bottom);
    const ends = curves.map((c) => ({ curve: c, value: lastOf(c.values) }));
    const places = apart(ends.map((e) => y(e.value)), 32, top + 8, height - bottom);
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
      ticks(low, high, 5).map((v) => [draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }), draw("text", { class: "tick", x: left - 8, y: y(v) + 4, "text-anchor": "end" }, number(v))]),
      ticks(1, Math.max(epochs, 2), Math.max(2, width / 110)).filter((e) => Number.isInteger(e) && e <= epochs).map((e) => draw("text", { class: "tick", x: x(e - 1), y: height - bottom + 17, "text-anchor": "middle" }, e)),
      draw("text", { class: "axis", x: width - right, y: height - 4, "text-anchor": "end" }, "epoch"),
      curves.map((c) => draw("path", { class: "curve " + c.method, d: pathOf(c.values, x, y) })),
      ends.map((e, k) => [
        draw("circle", { class: "end " + e.curve.method, cx: x(e.curve.values.length - 1), cy: y(e.value), r: 3.5 }),
        draw("text", { class: "curve-name " + e.curve.method, x: x(epochs - 1) + 12, y: places[k] - 2 }, e.curve.method),
        draw("text", { class: "tick", x: x(epochs - 1) + 12, y: places[k] + 12 }, number(e.value)),
      ]),
    );
  });
}

function lastOf(values) {
  return [...values].reverse().find((v) => v !== null) ?? 0;
}

function pathOf(values, x, y) {
  let pen = "M";
  return values
    .map((v, e) => {
      if (v === null) {
        pen = "M";
        return "";
      }
      const step = `${pen}${x(e).toFixed(1)} ${y(v).toFixed(1)}`;
      pen = "L";
      return step;
    })
    .join("");
}

function apart(places, gap, low, high) {
  // Two labels at the ends of two lines must not cover each other.
  const found = places.map((p) => Math.min(Math.max(p, low), high));
  if (found.length === 2 && Math.abs(found[0] - found[1]) < gap) {
    const middle = Math.min(Math.max((found[0] + found[1]) / 2, low + gap / 2), high - gap / 2);
    const up = found[0] <= found[1] ? 0 : 1;
    found[up] = middle - gap / 2;
    found[1 - up] = middle + gap / 2;
  }
  return found;
}

// The estimate as a point with its interval on a scale that begins at zero.

function intervalPicture([value, low, high]) {
  return responsive((width) => {
    const end = niceEnd(Math.max(high * 1.25, 0.02));
    const x = (v) => 2 + (v / end) * (width - 4);
    return draw(
      "svg",
      { width, height: 44, viewBox: `0 0 ${width} 44`, "aria-hidden": "true" },
      draw("line", { class: "scale", x1: 2, x2: width - 2, y1: 14, y2: 14 }),
      draw("rect", { class: "interval", x: x(low), width: Math.max(x(high) - x(low), 2), y: 8, height: 12, rx: 6 }),
      draw("circle", { class: "estimate", cx: x(value), cy: 14, r: 6 }),
      [0, end / 2, end].map((v, k) => draw("text", { class: "tick", x: x(v), y: 40, "text-anchor": ["start", "middle", "end"][k] }, percent(v))),
    );
  });
}

function niceEnd(value) {
  return Math.min([0.02, 0.04, 0.06, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1].find((v) => v >= value) || 1, 1);
}
