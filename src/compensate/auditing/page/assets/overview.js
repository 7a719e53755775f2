// How wrong is the data, where, and how sure are we. Every picture is followed by what to conclude from it.

const name = (number) => label(labelOf(number), 48);

function overview(open) {
  const page = byId("view-overview");
  fill(page, hero(open), data.notes.length > 0 && notes(), el("div", { class: "cards" }, cards(open)), size > 0 && data.command !== "" && whatNext());
}

function hero(open) {
  const [value, low, high] = data.noise;
  const what = regression ? "of values look wrong" : "of labels look wrong";
  const known = value !== null;
  return el(
    "div",
    { class: "hero" },
    el(
      "div",
      { class: "hero-number" },
      el("h1", null, el("span", { class: "big" }, known ? percent(value) : "?"), " ", el("span", { class: "big-what" }, what)),
      known && low !== null && high !== null && [
        el("p", { class: "between" }, "between ", el("b", null, percent(low)), " and ", el("b", null, percent(high)), `, out of ${count(data.rows, "row")}`),
        intervalPicture([value, low, high]),
      ],
    ),
    el("div", { class: "hero-next" }, size === 0 ? nothingAtAll() : data.flagged === 0 ? nothingFlagged(open) : somethingFlagged(open)),
  );
}

function somethingFlagged(open) {
  const wrong = data.precision === null ? null : Math.round(data.precision * 100);
  return [
    el("p", { class: "fact" }, el("b", null, count(data.flagged)), data.flagged === 1 ? " row is flagged" : " rows are flagged"),
    wrong !== null && el("p", { class: "muted" }, wrong >= 100 ? "and nearly every one of them is expected to be wrong." : `About ${wrong} in 100 of them are expected to be really wrong, the others right after all.`),
    el("button", { type: "button", class: "primary", onclick: () => open(null, null) }, "Review them"),
    el("p", { class: "hint" }, "One at a time; a decision moves on by itself."),
  ];
}

function nothingFlagged(open) {
  return [
    el("p", { class: "fact" }, "No label stands out"),
    el("p", { class: "muted" }, `Nothing is suspect enough to be flagged. The ${count(size)} least certain rows are here, if you want to look.`),
    el("button", { type: "button", onclick: () => open(null, null) }, "Look at them"),
  ];
}

function nothingAtAll() {
  return [el("p", { class: "fact" }, "Nothing to review"), el("p", { class: "muted" }, "No label stands out, and there is no row to look at.")];
}

function whatNext() {
  return el("div", { class: "what-next" }, el("p", { class: "muted" }, "When you have decided, export corrections.csv and type:"), commandLine());
}

function notes() {
  return el("ul", { class: "notes" }, data.notes.map((note) => el("li", null, prose(clip(note, 600)))));
}

function card(title, picture, conclusion, wide) {
  return el("article", { class: "card" + (wide ? " wide" : "") }, el("h2", null, title), el("div", { class: "figure" }, picture), el("p", { class: "conclusion" }, conclusion));
}

function cards(open) {
  const found = [];
  if (data.pairs.length > 0 && !regression) {
    found.push(card("Which labels are mistaken for which", confusionPicture(data.pairs, open), concludePairs()));
  }
  const shares = data.perClass.filter(([, rows]) => rows > 0).sort((a, b) => b[2] / b[1] - a[2] / a[1]);
  if (shares.length > 0) found.push(card("Flagged share of each class", classBars(shares), concludeClasses(shares)));
  if (data.scores) {
    const conclusion = concludeScores(data.scores);
    found.push(card("How suspect each row is", histogramPicture(data.scores, "probability of being wrong", "Histogram of probabilities. " + said(conclusion)), conclusion));
  }
  if (data.compensations) {
    const conclusion = concludeCompensations(data.compensations);
    found.push(card("How much each row was compensated", histogramPicture(data.compensations, "size of the compensation", "Histogram of compensation sizes. " + said(conclusion)), conclusion));
  }
  for (const measure of ["accuracy", "loss"]) {
    const curves = data.curves.filter((c) => c.measure === measure && c.values.some((v) => v !== null));
    if (curves.length === 0) continue;
    const conclusion = concludeCurves(measure, curves);
    found.push(card(measure === "accuracy" ? "Accuracy over the epochs" : "Loss over the epochs", curvePicture(curves, said(conclusion)), conclusion));
  }
  return found;
}

function said(parts) {
  return parts.map((part) => (part instanceof Node ? part.textContent : part)).join("");
}

function concludePairs() {
  const [given, suggested, n] = data.pairs[0];
  const all = data.pairs.reduce((sum, pair) => sum + pair[2], 0);
  const hint = data.pairs.length > TOP_PAIRS && new Set(data.pairs.flatMap((p) => [p[0], p[1]])).size > GRID ? ` The ${TOP_PAIRS} most frequent of ${count(data.pairs.length)} pairs are shown.` : "";
  if (data.pairs.length === 1) return ["Every flagged row is labelled ", name(given), " and looks like ", name(suggested), ": one rule of labelling explains them all."];
  const share = n / all;
  if (data.pairs.length === 2 && share < 0.6 && data.pairs[1][0] === suggested) return ["Both mistakes are about as frequent: ", name(given), " and ", name(suggested), " are mixed up either way. Choose a pair to review it."];
  if (share >= 0.25) return ["Begin with ", name(given), " that looks like ", name(suggested), `: ${percent(share)} of all flags. Choose a pair to review it.`, hint];
  return ["The errors are spread over many pairs; the most frequent, ", name(given), " that looks like ", name(suggested), `, has ${count(n)} of ${count(all)}. Choose a pair to review it.`, hint];
}

function concludeClasses(shares) {
  const [c, rows, flagged] = shares[0];
  const [last, lastRows, lastFlagged] = shares[shares.length - 1];
  const worst = flagged / rows;
  const best = lastFlagged / lastRows;
  if (flagged === 0) return ["No class has a flagged row."];
  if (shares.length === 1) return [`${percent(worst)} of `, name(c), " are flagged."];
  if (worst < best * 1.5) return ["All classes are about equally reliable: no single class is to blame."];
  return [name(c), ` is the least reliable: ${percent(worst)} of its ${count(rows, "row")} are flagged, against ${percent(best)} of `, name(last), "."];
}

function concludeScores({ edges, counts, threshold }) {
  if (threshold === null) return ["Rows far to the right are the ones to look at first."];
  const all = counts.reduce((a, b) => a + b, 0) || 1;
  const reach = (edges[edges.length - 1] - edges[0]) * 0.05;
  const near = counts.reduce((sum, n, k) => sum + (edges[k + 1] > threshold - reach && edges[k] < threshold + reach ? n : 0), 0);
  const share = near / all;
  if (near === 0) return ["No row lies near the threshold: the flags would be the same with another one."];
  if (share < 0.02) return [`Few rows lie near the threshold (${percent(share)}): the flags would be much the same with another one.`];
  return [`${percent(share)} of the rows lie near the threshold: another one would flag more or fewer, so review from the most certain down.`];
}

function concludeCompensations({ edges, counts, flagged }) {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const hot = sum(flagged);
  const rest = sum(counts) - hot;
  if (hot === 0 || rest <= 0) return [`${percent(1 - counts[0] / (sum(counts) || 1))} of the rows took a compensation of ${number(edges[1])} or more.`];
  // The largest edge that at least half of the flagged rows reach.
  const reach = (values, from) => sum(values.slice(from));
  let from = flagged.length - 1;
  while (from > 0 && reach(flagged, from) < hot / 2) from -= 1;
  const others = (reach(counts, from) - reach(flagged, from)) / rest;
  const both = `${percent(reach(flagged, from) / hot)} of the flagged rows took a compensation of ${number(edges[from])} or more, and ${percent(others)} of the others: `;
  return [both + (others < 0.1 ? "the training itself singled them out." : "by its size alone, compensation does not tell them apart.")];
}

function concludeCurves(measure, curves) {
  const of = (method) => curves.find((c) => c.method === method);
  const robust = of("robust");
  const plain = of("plain");
  const ends = (c) => number(lastOf(c.values));
  if (!robust || !plain) {
    const only = robust || plain;
    if (measure === "loss") return [`The run ends at ${ends(only)}. It may rise: a robust run does not learn doubtful labels by heart.`];
    return [`The model ends by agreeing with ${percent(lastOf(only.values))} of the labels it was trained on, some of which the audit had made wrong itself, to measure how it finds them.`];
  }
  if (measure === "loss") return [`Plain training ends at ${ends(plain)} and robust training at ${ends(robust)}: a loss near zero on doubtful labels means that they were learned by heart.`];
  const gain = lastOf(robust.values) - lastOf(plain.values);
  const best = Math.max(...plain.values.filter((v) => v !== null));
  const epoch = plain.values.indexOf(best) + 1;
  if (gain > 0.005) {
    const fell = best - lastOf(plain.values) > 0.01 ? `, below its best of ${number(best)} in epoch ${epoch}: it learned the wrong labels` : "";
    return [`Robust training ends at ${ends(robust)}, plain training at ${ends(plain)}${fell}.`];
  }
  return [`Both end alike (robust ${ends(robust)}, plain ${ends(plain)}): the wrong labels hardly hurt this model.`];
}
