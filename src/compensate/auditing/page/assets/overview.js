// How wrong is the data, where, and how sure are we. Every picture is followed by what to conclude from it.

const name = (number) => label(labelOf(number), 48);

function overview(open) {
  const page = byId("view-overview");
  fill(page, hero(open), data.since !== null && sinceThen(open), data.notes.length > 0 && notes(), el("div", { class: "cards" }, cards(open)), howFound(), size > 0 && data.predictable && data.command !== "" && !served && whatNext());
}

function hero(open) {
  if (!data.predictable) return heroOfChance(open);
  const [value, low, high] = data.noise;
  const known = value !== null && data.summary === "";
  return el(
    "div",
    { class: "hero" },
    el(
      "div",
      { class: "hero-number" },
      !known ? el("h1", { class: "finding" }, data.summary || `The share of wrong ${noun}s is not estimated; the list is in order of suspicion`) : el("h1", null, el("span", { class: "big" }, percent(value)), " ", el("span", { class: "big-what" }, data.looks ? `of ${noun}s are wrong` : `of ${noun}s look wrong`)),
      known && low !== null && high !== null && [
        el("p", { class: "between" }, "between ", el("b", null, percent(low)), " and ", el("b", null, percent(high)), ` of ${count(data.rows, noun)}`, data.looks ? lookedAt() : isOpen(low, high) && `. The range is wide: wrong ${noun}s and unusual rows look alike to the models.`),
        intervalPicture([value, low, high]),
      ],
    ),
    el("div", { class: "hero-next" }, size === 0 ? nothingAtAll() : data.flagged === 0 ? nothingFlagged(open) : somethingFlagged(open), size > 0 && known && data.workload.length > 0 && workload()),
  );
}

// Labels that a person looked at, in a random sample.
const lookedAt = () => `: a person looked at ${count(data.looks.looks)} of them (95 % interval)` + (data.looks.cannot > 0 ? `, and could not tell for ${count(data.looks.cannot)}` : "");

// An interval whose ends say different things about the data.
const isOpen = (low, high) => high - low > 0.02 && high > 3 * Math.max(low, 0.005);

function heroOfChance(open) {
  return el(
    "div",
    { class: "hero" },
    el(
      "div",
      { class: "hero-number" },
      el("h1", { class: "finding" }, `The ${noun}s cannot be predicted from the samples better than by chance`),
      el("p", { class: "between" }, data.looks ? ["Wrong: ", el("b", null, percent(data.noise[0])), ` (${percent(data.noise[1])} to ${percent(data.noise[2])}) of ${count(data.rows, noun)}`, lookedAt()] : `So right and wrong ${noun}s cannot be told apart: ${count(data.rows, "row")} were looked at, and no number of errors is given.`),
    ),
    el(
      "div",
      { class: "hero-next" },
      el("p", { class: "fact" }, "What to check"),
      el(
        "ol",
        { class: "checks" },
        el("li", null, `Is this the right ${noun} column, and are ${noun}s and samples in the same order?`),
        el("li", null, `Do the samples show what the ${noun} is about? If not, give other features.`),
      ),
      size > 0 && el("button", { type: "button", onclick: () => open(null, null) }, "Look at some rows"),
    ),
  );
}

const ALL = 0.9; // from this share on, flags are no list of exceptions

function somethingFlagged(open) {
  const wrong = data.precision === null ? null : Math.round(data.precision * 100);
  const n = data.allFlagged;
  const nearlyAll = n >= ALL * data.rows && n > 1;
  return [
    nearlyAll ? el("p", { class: "fact" }, n >= data.rows ? `Every ${noun} is flagged` : `Nearly every ${noun} is flagged: `, n < data.rows && el("b", null, count(n))) : el("p", { class: "fact" }, el("b", null, count(n)), n === 1 ? ` ${noun} is flagged` : ` ${noun}s are flagged`),
    nearlyAll && el("p", { class: "muted" }, `Before you review them one by one, check that ${noun}s and samples belong together: the right column, the same order.`),
    !nearlyAll && wrong !== null && el("p", { class: "muted" }, expectedWrong(n, wrong)),
    el("button", { type: "button", class: nearlyAll ? null : "primary", onclick: () => open(null, null) }, nearlyAll ? "Look at them" : "Review them"),
    !nearlyAll && el("p", { class: "hint" }, "One at a time; each decision opens the next."),
  ];
}

function expectedWrong(n, wrong) {
  if (n === 1) return `It is wrong with a probability of ${probability(data.precision)}.`;
  if (wrong >= 100) return "Nearly all of them should be wrong.";
  return `About ${count(Math.round(data.precision * n))} of them (${wrong} %) should be wrong, the others right after all.`;
}

// How many errors a reader of the list may expect to find.
function workload() {
  const said = data.workload.map(([first, errors, low, high]) => el("li", null, `the first ${count(first)}: about ${count(Math.round(errors))} errors (${count(Math.round(low))} to ${count(Math.round(high))})`));
  return [el("p", { class: "muted" }, "Look at"), el("ul", { class: "checks" }, said)];
}

function nothingFlagged(open) {
  return [
    el("p", { class: "fact" }, `No ${noun} is flagged`),
    el("p", { class: "muted" }, `No error is probable enough to be flagged. The ${count(size)} least certain rows are listed.`),
    el("button", { type: "button", onclick: () => open(null, null) }, "Look at them"),
  ];
}

function nothingAtAll() {
  return [el("p", { class: "fact" }, "Nothing to review"), el("p", { class: "muted" }, `No ${noun} is flagged, and no row is listed.`)];
}

// Which models the probabilities come from, in a sentence, and what may be done with their encoder.

const LEARNERS = { logcomp: "LogComp", transitions: "class transitions", neighbors: "nearest neighbors", trees: "extra trees", ridge: "ridge regression" };

function howFound() {
  const { views, agreement, encoder, license, hint } = data.evidence;
  const told = views.filter(([, weight]) => weight >= 0.005).sort((a, b) => b[1] - a[1]);
  const says = [];
  if (told.length > 0) says.push([`Each ${noun} was judged by models that had not seen it: `, listed(byView(told)), "."]);
  if (agreement !== null && !regression) says.push([` Their predictions agree with ${percent(agreement)} of the labels.`]);
  if (agreement > 0 && regression) says.push([` Their usual error is ${percent(agreement)} smaller than that of the median of all values.`]);
  if (encoder) says.push([" Encoder: ", prose(clip(encoder, 120)), license && [", license ", prose(clip(license, 120))], "."]);
  if (says.length === 0 && !hint) return null;
  return el("div", { class: "how" }, el("h2", null, `How the ${noun}s were judged`), says.length > 0 && el("p", { class: "muted" }, says), hint && el("p", { class: "hint" }, prose(clip(hint, 300))));
}

function byView(told) {
  const views = new Map();
  for (const [name, weight] of told) {
    const [, view, learner] = name.match(/^(.*?)(?:: ([^:]*))?$/s);
    if (!views.has(view)) views.set(view, []);
    views.get(view).push(learner ? `${LEARNERS[learner] || plainText(learner, 40)} (${percent(weight)})` : `(${percent(weight)})`);
  }
  return [...views].map(([view, learners]) => [prose(clip(view, 60)), learners[0].startsWith("(") ? " " : " with ", listed(learners)]);
}

function listed(parts) {
  return parts.map((part, k) => [k === 0 ? "" : k < parts.length - 1 ? ", " : " and ", part]);
}

function whatNext() {
  return el("div", { class: "what-next" }, el("p", { class: "muted" }, "When you have decided, export corrections.csv and type:"), commandLine());
}

// What became of the suspects of the audit before, on whose page decisions were made.

function sinceThen(open) {
  const { corrected, confirmed, new: fresh, gone, allGone } = data.since;
  const more = allGone > gone.length ? ` and ${count(allGone - gone.length)} more` : "";
  return el(
    "div",
    { class: "since" },
    el("h2", null, "Since the last audit"),
    el(
      "ul",
      { class: "since-facts" },
      el("li", null, el("b", null, count(corrected + confirmed)), ` ${noun}s decided: ${count(corrected)} corrected, ${count(confirmed)} confirmed. They are taken as right.`),
      el("li", null, el("b", null, count(fresh)), fresh === 1 ? " suspect is new." : " suspects are new."),
      el("li", null, el("b", null, count(allGone)), allGone === 1 ? " is suspect no longer" : " are suspect no longer", allGone > 0 && `: ${gone.length === 1 ? "row" : "rows"} ${gone.join(", ")}${more}`, "."),
    ),
    fresh > 0 && el("button", { type: "button", onclick: () => open(null, null, "new") }, "Review the new ones"),
  );
}

function notes() {
  return el("ul", { class: "notes" }, data.notes.map((note) => el("li", null, prose(clip(note, 600)))));
}

function card(title, picture, conclusion, wide) {
  return el("article", { class: "card" + (wide ? " wide" : "") }, el("h2", null, title), el("div", { class: "figure" }, picture), el("p", { class: "conclusion" }, conclusion));
}

function cards(open) {
  if (!data.predictable) return [];
  const found = [];
  const shares = data.perClass.filter(([, rows]) => rows > 0).sort((a, b) => b[2] / b[1] - a[2] / a[1]);
  const several = shares.length !== 1; // with one class, as in chosen and rejected responses, there is nothing to compare
  if (several && data.pairs.length > 0 && !regression) {
    const used = classesOf(data.pairs);
    found.push(card("Which labels are mistaken for which", confusionPicture(data.pairs, open), concludePairs(), Math.min(used, data.pairs.length) > 10));
  }
  if (several && shares.some(([, , flagged]) => flagged > 0)) found.push(card("Flagged share of each class", classBars(shares), concludeClasses(shares)));
  if (data.values && data.values.given.length > 0) {
    const conclusion = concludeValues(data.values);
    found.push(card("Given and predicted values", valuesPicture(data.values, "Given against predicted values. " + said(conclusion)), conclusion));
  }
  if (data.scores) {
    const conclusion = concludeScores(data.scores);
    found.push(card(`How suspect each ${noun} is`, histogramPicture(data.scores, "probability of being wrong", "Histogram of probabilities. " + said(conclusion)), conclusion));
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

// Conclusions. Whether a difference is more than chance was decided when the page was made; here it is put into words.

function concludePairs() {
  const [[given, suggested, n], second] = data.pairs;
  const all = data.pairs.reduce((sum, pair) => sum + pair[2], 0);
  const pair = [name(given), " that looks like ", name(suggested)];
  if (!second) return [all === 1 ? "The flagged row is " : "Every flagged row is ", ...pair, "."];
  const back = second[0] === suggested && second[1] === given;
  if (data.pairs.length === 2 && back && data.oneWay) return [...pair, ` is flagged more often than the other way round: ${count(n)} against ${count(second[2])}. Choose a pair to review it.`];
  if (data.pairs.length === 2 && back) return [name(given), " and ", name(suggested), ` are flagged in both directions, ${count(n)} and ${count(second[2])} times; the difference is not significant. Choose a pair to review it.`];
  const share = n / all;
  if (second[2] === n) return [`The flags are spread over ${count(data.pairs.length)} pairs, of which the most frequent have ${count(n, "row")} each. Choose a pair to review it.`];
  if (share >= 0.25) return ["Begin with ", ...pair, `: ${percent(share)} of all flags. Choose a pair to review it.`];
  return [`The flags are spread over ${count(data.pairs.length)} pairs; the most frequent, `, ...pair, `, has ${count(n)} of ${count(all)}. Choose a pair to review it.`];
}

function concludeClasses(shares) {
  const sum = (rows, k) => rows.reduce((total, row) => total + row[k], 0);
  const rate = (rows) => percent(sum(rows, 2) / (sum(rows, 1) || 1));
  if (shares.length === 1) return [`${rate(shares)} of `, name(shares[0][0]), " are flagged."];
  const { classes: found, worst, wrong } = data.unreliable;
  const more = shares.filter(([c]) => found.includes(c));
  const rest = shares.filter(([c]) => !found.includes(c));
  if (more.length === 0) return [`${rate(shares)} of all rows are flagged. The differences between the classes are not significant.`];
  const most = 4;
  const names = listed([...more.slice(0, most).map(([c]) => name(c)), ...(more.length > most ? [`${count(more.length - most)} more`] : [])]);
  const against = ` ${rate(more)} of ${more.length === 1 ? "its" : "their"} ${count(sum(more, 1), "row")} are flagged` + (rest.length > 0 ? `, against ${rate(rest)} of the others.` : ".");
  if (!wrong) return [names, more.length === 1 ? " stands out:" : " stand out:", against, more.length === 1 ? " This does not show that more of its labels are wrong: it may only be harder to predict." : " This does not show that more of their labels are wrong: they may only be harder to predict."].flat(Infinity);
  const said = more.length > 1 ? " are less reliable than the others:" : worst ? " is the least reliable:" : " is less reliable than the others together:";
  return [names, said, against].flat(Infinity);
}

function concludeValues({ given, predicted, flagged }) {
  const side = (above) => flagged.reduce((n, flag, k) => n + (flag && given[k] > predicted[k] === above ? 1 : 0), 0);
  const usual = items.usual.filter((u) => u !== null).sort((a, b) => a - b);
  const within = usual.length > 0 ? ` The usual error is ${number(usual[usual.length >> 1])}.` : "";
  const line = "On the line, given and predicted value are equal.";
  if (!flagged.some(Boolean)) return [`${line} No value is flagged.${within}`];
  return [`${line} Of the flagged values ${count(side(true))} lie above it and ${count(side(false))} below.${within}`];
}

function concludeScores({ edges, counts, flagged, threshold }) {
  const hot = flagged.reduce((a, b) => a + b, 0);
  if (threshold === null) return ["Rows far to the right are the ones to look at first."];
  if (hot === 0) return [`No row reaches ${number(threshold)}, from which on ${noun}s are flagged.`];
  const reach = (edges[edges.length - 1] - edges[0]) * 0.05;
  const near = counts.reduce((sum, n, k) => sum + (edges[k + 1] > threshold - reach && edges[k] < threshold + reach ? n : 0), 0);
  if (near === 0) return ["No row lies near the threshold: a slightly different one would flag the same rows."];
  if (near < 0.1 * hot) return [`Few rows lie near the threshold (${count(near)}, and ${count(hot)} are flagged): a slightly different one would flag nearly the same.`];
  return [`${count(near, "row")} ${near === 1 ? "lies" : "lie"} near the threshold, and ${count(hot)} ${hot === 1 ? "is" : "are"} flagged: a slightly different one would flag more or fewer, so review from the most certain down.`];
}

function concludeCurves(measure, curves) {
  const of = (method) => curves.find((c) => c.method === method);
  const robust = of("robust");
  const plain = of("plain");
  const ends = (c) => number(lastOf(c.values));
  if (!robust || !plain) {
    const only = robust || plain;
    if (measure === "loss") return [`The run ends at ${ends(only)}. A robust run does not learn doubtful labels by heart, so it need not fall to zero.`];
    return [`The model ends by agreeing with ${percent(lastOf(only.values))} of the labels it was trained on.`];
  }
  if (measure === "loss") return [`Plain training ends at ${ends(plain)} and robust training at ${ends(robust)}.`];
  const gain = lastOf(robust.values) - lastOf(plain.values);
  const best = Math.max(...plain.values.filter((v) => v !== null));
  const epoch = plain.values.indexOf(best) + 1;
  if (gain > 0.005) {
    const fell = best - lastOf(plain.values) > 0.01 ? `, below its best of ${number(best)} in epoch ${epoch}` : "";
    return [`Robust training ends at ${ends(robust)}, plain training at ${ends(plain)}${fell}.`];
  }
  if (gain < -0.005) return [`Plain training ends at ${ends(plain)}, robust training at ${ends(robust)}: it gained nothing here.`];
  return [`Both end alike (robust ${ends(robust)}, plain ${ends(plain)}).`];
}
