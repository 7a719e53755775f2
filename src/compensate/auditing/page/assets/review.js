// One item at a time. The frame is made once; a move only fills it.

const review = {};

function makeReview() {
  const r = review;
  r.filters = makeFilters();
  r.place = el("p", { class: "place" });
  r.verdict = el("p", { class: "verdict" });
  r.stage = el("div", { class: "stage", role: "group", "aria-label": "Sample", tabindex: "0" });
  r.keep = choice("keep", "K", () => choose(givenOf(current())));
  r.accept = choice("accept", "A", () => choose(suggestedOf(current())));
  r.givenLike = el("div", { class: "like" });
  r.suggestedLike = el("div", { class: "like" });
  r.others = el("div", { class: "others" });
  r.back = el("button", { type: "button", class: "tool", onclick: () => move(queue.at - 1), "aria-label": "Previous item" }, "←");
  r.next = el("button", { type: "button", class: "tool", onclick: () => move(queue.at + 1), "aria-label": "Next item" }, "→");
  r.skip = el("button", { type: "button", class: "tool", onclick: skip }, "Skip ", key("S"));
  r.unclear = el("button", { type: "button", class: "tool", onclick: () => setAside("unclear"), title: "Nobody can tell; the label stays as it is" }, "Unclear ", key("N"));
  r.drop = el("button", { type: "button", class: "tool", onclick: () => setAside("drop"), title: "Leave the row out of the corrected data" }, "Drop row ", key("X"));
  r.undo = el("button", { type: "button", class: "tool", onclick: undo }, "Undo ", key("U"));
  r.more = el("button", { type: "button", class: "tool", onclick: other }, "Other value ", key("O"));
  r.help = el("button", { type: "button", class: "tool", onclick: helpDialog, "aria-label": "Help and keys" }, "Help ", key("?"));
  r.strip = strip.make((at) => move(at));
  r.position = el("p", { class: "position" });
  r.desk = el(
    "div",
    { class: "desk" },
    el("div", { class: "side given" }, r.keep, el("div", { class: "examples", role: "group", "aria-label": "Examples of the given label", tabindex: "0" }, r.givenLike)),
    el("div", { class: "middle" }, el("div", { class: "about" }, r.verdict, r.place), r.stage),
    el("div", { class: "side suggested" }, r.accept, el("div", { class: "examples", role: "group", "aria-label": "Examples of the suggested label", tabindex: "0" }, r.suggestedLike)),
    el("div", { class: "below" }, r.others, el("div", { class: "tools" }, r.back, r.next, r.unclear, !pairs && r.drop, r.skip, r.undo, regression && r.more, r.help)),
  );
  r.end = el("div", { class: "end-state", hidden: true });
  fill(byId("view-review"), el("h1", { class: "hidden-text" }, "Review"), r.filters, r.desk, r.end, el("div", { class: "strip-box" }, r.position, r.strip));
  if (classes.length > 2) makeOthers();
  if (regression) review.chips = fill(review.others, el("span", { class: "others-name" }, "wrong unit?"), el("span", { class: "chips" })).lastChild;
}

function choice(kind, letter, act) {
  const names = { keep: ["given", "Keep"], accept: ["suggested", "Accept"] }[kind];
  const text = el("span", { class: "choice-label" });
  const note = el("span", { class: "choice-note" });
  const noted = regression || (size > 0 && setLabel(0) !== "");
  const node = el("button", { type: "button", class: "choice " + kind, onclick: act, "aria-keyshortcuts": letter }, el("span", { class: "choice-role" }, el("span", null, el("b", null, names[1]), " ", names[0]), el("span", { class: "chosen", hidden: true }, "✓ chosen"), key(letter)), text, noted && note);
  node.set = (value, chosen, about) => {
    fill(text, label(value, 90));
    fill(note, about);
    text.classList.toggle("long", value.length > 22);
    node.setAttribute("aria-label", `${names[1]} ${names[0]} ${noun}: ${spoken(value)}${chosen ? " (chosen)" : ""}`);
    node.classList.toggle("is-chosen", chosen);
    node.querySelector(".chosen").hidden = !chosen;
  };
  return node;
}

function makeOthers() {
  review.chips = el("span", { class: "chips" + (fixedKeys ? "" : " likely"), role: "group", "aria-labelledby": "others-name" });
  review.find = el("button", { type: "button", class: "find", onclick: other, "aria-keyshortcuts": "O" }, key("O"), `all ${count(classes.length)} …`);
  fill(review.others, el("span", { class: "others-name", id: "others-name" }, fixedKeys ? "or another" : "or likely"), review.chips);
}

// Factors of a wrong unit or decimal point.
const FACTORS = [["÷ 1,000", 1e-3], ["÷ 100", 1e-2], ["÷ 10", 0.1], ["× 10", 10], ["× 100", 100], ["× 1,000", 1e3]];
const scaled = (value, factor) => String(Number((Number(value) * factor).toPrecision(12)));

function showOthers(i, made) {
  if (!review.chips) return;
  if (regression) {
    fill(review.chips, FACTORS.map(([text, factor]) => {
      const value = scaled(givenOf(i), factor);
      const isChosen = made !== null && made.label === value;
      return el("button", { type: "button", class: "chip" + (isChosen ? " is-chosen" : ""), onclick: () => choose(value), title: value, "aria-pressed": String(isChosen), "aria-label": `Set to ${value}` }, text);
    }));
    return;
  }
  const chips = keysOf(i).map(([digit, c]) => {
    const isChosen = made !== null && made.decision === "other" && made.label === labelOf(c);
    const taken = c === items.given[i] || c === items.suggested[i];
    return el("button", { type: "button", class: "chip" + (taken ? " taken" : "") + (isChosen ? " is-chosen" : ""), onclick: () => choose(labelOf(c)), "aria-keyshortcuts": digit, "aria-pressed": String(isChosen), "aria-label": `Other class: ${spoken(labelOf(c))}` }, digitClasses ? null : key(digit), label(labelOf(c), 30));
  });
  fill(review.chips, chips, !everyClassHasAKey && review.find);
}

// Filters

function makeFilters() {
  const pairs = new Map();
  for (let i = 0; i < size; i++) pairs.set(pairOf(i), (pairs.get(pairOf(i)) || 0) + 1);
  const listed = [...pairs].sort((a, b) => b[1] - a[1]);
  const pairName = (pair) => pair.split(">").map((c) => plainText(labelOf(Number(c)) || NO_LABEL, 28)).join(" → ");
  const select = (value, options, onchange, name) => {
    const node = el("select", { onchange: () => onchange(node.value), "aria-label": name }, options.map(([v, text]) => el("option", { value: v, selected: v === value }, text)));
    return node;
  };
  const change = (changed) => {
    Object.assign(filters, changed);
    makeQueue(current());
    showFilters();
    strip.reset();
    showItem();
  };
  const f = (review.fields = {});
  f.pair = select("", [["", "all pairs"], ...listed.slice(0, 500).map(([pair, n]) => [pair, `${pairName(pair)} (${count(n)})`])], (pair) => change({ pair }), "Class pair");
  f.low = el("input", { type: "number", min: 0, max: 1, step: 0.05, value: "0", "aria-label": "Least probability of error" });
  f.high = el("input", { type: "number", min: 0, max: 1, step: 0.05, value: "1", "aria-label": "Greatest probability of error" });
  for (const [name, fallback] of [["low", 0], ["high", 1]]) {
    f[name].addEventListener("change", () => {
      const value = f[name].value === "" ? fallback : Math.min(1, Math.max(0, Number(f[name].value)));
      f[name].value = String(value);
      change({ [name]: value });
    });
  }
  f.show = select("all", [["all", "all"], ["undecided", "undecided"], ["decided", "decided"], ["skipped", "skipped"], ...(data.since === null ? [] : [["new", "new"]])], (show) => change({ show }), "Show");
  f.order = select("certain", [["certain", "most suspect first"], ["useful", "hardest to judge first"]], (order) => change({ order }), "Order");
  f.flagged = el("input", { type: "checkbox", checked: filters.flagged });
  f.flagged.addEventListener("change", () => change({ flagged: f.flagged.checked }));
  f.clear = el("button", { type: "button", class: "link", onclick: () => resetFilters(change) }, "Clear filters");
  f.bulk = el("button", { type: "button", onclick: bulk }, "Accept many ", key("B"));
  f.summary = el("summary", null, "Filters");
  const fields = el(
    "div",
    { class: "filters" },
    !regression && el("label", null, el("span", null, "Pair"), f.pair),
    el("span", { class: "range", role: "group", "aria-label": "Probability of error" }, el("span", null, "Probability of error"), f.low, " to ", f.high),
    el("label", null, el("span", null, "Show"), f.show),
    el("label", null, el("span", null, "Order"), f.order),
    mixed && el("label", { class: "check" }, f.flagged, " flagged only"),
    f.clear,
    data.predictable && el("span", { class: "push" }, f.bulk),
  );
  const box = el("details", { class: "filter-box" }, f.summary, fields);
  // A wide window has room for them; a phone folds them away.
  const wide = matchMedia("(min-width: 821px)");
  const follow = () => (box.open = wide.matches);
  wide.addEventListener("change", follow);
  follow();
  return box;
}

function resetFilters(change) {
  const f = review.fields;
  [f.pair.value, f.low.value, f.high.value, f.show.value] = ["", "0", "1", "all"];
  f.flagged.checked = mixed;
  change({ pair: "", low: 0, high: 1, show: "all", flagged: mixed });
}

function showFilters() {
  const active = filters.pair !== "" || filters.low > 0 || filters.high < 1 || filters.show !== "all";
  review.fields.clear.hidden = !active;
  review.fields.summary.textContent = active ? `Filters · ${count(queue.list.length, "row")} shown` : "Filters";
}

function reviewPair(given, suggested, show = "all") {
  const pair = given === null ? "" : given + ">" + suggested;
  const f = review.fields;
  [f.pair.value, f.low.value, f.high.value, f.show.value] = [pair, "0", "1", show];
  Object.assign(filters, { pair, low: 0, high: 1, show });
  makeQueue();
  showFilters();
  strip.reset();
  showItem();
}

// Deciding and moving

function choose(chosen) {
  const i = current();
  if (i === null) return;
  const made = decision(i, chosen);
  store.decide([[i, made]]);
  const done = { accept: "Accepted", reject: "Kept", other: "Set to" }[made.decision];
  advance(`${done} ${spoken(chosen)}. `);
}

function swap() {
  const i = current();
  if (i !== null) choose(givenOf(i) === "first" ? "second" : "first");
}

function setAside(how) {
  const i = current();
  if (i === null) return;
  store.decide([[i, { decision: how, label: "" }]]);
  advance(how === "drop" ? "Dropped. " : "Marked as unclear. ");
}

function skip() {
  const i = current();
  if (i === null) return;
  store.decide([[i, { decision: "skip", label: "" }]]);
  advance("Skipped. ");
}

function advance(said) {
  queue.at = nextOpen(queue.at);
  strip.show();
  showItem(said);
}

function move(at) {
  if (queue.list.length === 0) return;
  queue.at = Math.min(Math.max(at, 0), queue.list.length);
  strip.show();
  showItem();
}

function undo() {
  const undone = store.undo();
  if (undone === null) {
    announce("There is nothing to undo.");
    return;
  }
  hideToast();
  if (undone.every((i) => i >= size)) return;
  if (undone.length === 1 && !queue.list.includes(undone[0])) makeQueueFor(undone[0]);
  if (undone.length === 1) queue.at = queue.list.indexOf(undone[0]);
  else if (current() === null) queue.at = nextOpen(-1);
  strip.show();
  showItem(undone.length === 1 ? "Undone. " : `${count(undone.length, "decision")} undone. `);
}

function makeQueueFor(i) {
  // The last decision was made under other filters: widen them, so that it is seen what was undone.
  const f = review.fields;
  [f.pair.value, f.low.value, f.high.value, f.show.value] = ["", "0", "1", "all"];
  Object.assign(filters, { pair: "", low: 0, high: 1, show: "all", flagged: filters.flagged && items.flagged[i] === 1 });
  f.flagged.checked = filters.flagged;
  makeQueue(i);
  showFilters();
  strip.reset();
}

function other() {
  const i = current();
  if (i !== null) classDialog(i, choose);
}

function bulk() {
  if (!data.predictable) return; // nothing is certain
  bulkDialog((n) => {
    queue.at = nextOpen(-1);
    strip.show();
    showItem();
    toast(`${count(n, "suggestion")} accepted.`, true);
  });
}

// Showing

function showItem(said = "") {
  if (blind) return showLook();
  const r = review;
  const i = current();
  r.desk.hidden = i === null;
  r.end.hidden = i !== null;
  r.undo.disabled = store.steps.length === 0;
  r.position.textContent = queue.list.length === 0 ? "" : `${noun} ${count(Math.min(queue.at + 1, queue.list.length))} of ${count(queue.list.length)}`;
  if (i === null) {
    showEnd();
    return;
  }
  const made = store.made[i];
  const name = nameOf(items.index[i], items.id[i], items.part[i]);
  fill(r.place, prose(name), items.new[i] === 1 && el("span", { class: "fresh" }, " · new"), made && el("span", { class: "made" }, " · " + describe(made)));
  showVerdict(i);
  fill(r.stage, reasons(i), large(items.content[i], "The item, " + name));
  r.stage.scrollTop = 0;
  r.keep.set(givenOf(i), made !== null && made.decision === "reject", distance(i) || setLabel(i));
  r.accept.set(suggestedOf(i), made !== null && made.decision === "accept", usualError(i) || setLabel(i));
  showLike(r.givenLike, items.likeGiven[i], givenOf(i));
  showLike(r.suggestedLike, items.likeSuggested[i], suggestedOf(i));
  showOthers(i, made);
  r.back.disabled = queue.at === 0;
  announce(`${said}${queue.at + 1} of ${queue.list.length}. ${name}. Given ${spoken(givenOf(i))}, suggested ${spoken(suggestedOf(i))}. ${judgement(i)}${data.predictable ? ", " + probability(items.p[i]) : ""}.`);
}

// The words or columns that speak against the given label, and their contributions to the difference of the logits.

function reasons(i) {
  const parts = items.why[i];
  if (parts.length === 0) return null;
  return el("p", { class: "why" }, "for ", label(suggestedOf(i), 30), ", against ", label(givenOf(i), 30), ": ", parts.map(([name, value], k) => [k > 0 && " · ", el("b", null, prose(clip(name, 40))), ` ${value.toFixed(2)}`]));
}

function showVerdict(i) {
  const p = items.p[i];
  const judged = data.predictable && givenOf(i) !== "";
  const words = el("span", { class: "verdict-words" }, judgement(i));
  fill(review.verdict, words, judged && [el("span", { class: "verdict-number" }, `probability ${probability(p)}`), el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: p * 100 + "%" } }))]);
}

function judgement(i) {
  if (givenOf(i) === "") return `has no ${noun}`;
  return data.predictable ? certainty(items.p[i]) : "cannot be judged";
}

function describe(made) {
  return { accept: "✓ accepted", reject: "= kept", other: "≠ " + plainText(made.label, 30), skip: "↷ skipped", drop: "✕ dropped", unclear: "~ unclear", wrong: "✗ wrong" }[made.decision];
}

// Of a value: how far it is from the suggested one, in units of the usual error.

function usualError(i) {
  const usual = items.usual[i];
  return usual === null ? "" : `usual error ± ${number(usual)}`;
}

function distance(i) {
  const usual = items.usual[i];
  const off = Math.abs(Number(givenOf(i)) - Number(suggestedOf(i)));
  if (!(usual > 0) || !Number.isFinite(off)) return "";
  const times = off / usual;
  return `off by ${number(off)}, ${times < 9.95 ? times.toFixed(1) : count(Math.round(times))} × the usual error`;
}

// Of a sample with a set of labels: the label that is present or absent.

function setLabel(i) {
  const [form, , ...rest] = items.part[i].split(" ");
  return form === "label" || form === "column" ? plainText(rest.join(" "), 80) : "";
}

const CERTAIN = 0.02; // an example with a greater probability of error is likely, not certain

function likeName(places, of) {
  if (regression) return ["similar rows with values near ", label(of, 24)]; // a small error would not be seen
  const p = Math.max(...places.map((e) => data.examples.p[e]));
  return ["examples of ", label(of, 24), p < CERTAIN ? " that look right" : ` (wrong with a probability of up to ${probability(p)})`];
}

function showLike(box, places, of) {
  if (places.length === 0) {
    fill(box);
    return;
  }
  const name = el("p", { class: "like-name" }, likeName(places, of));
  if (places.every((e) => isRow(data.examples.content[e]))) {
    fill(box, name, likeTable(places));
    return;
  }
  const shown = places.map((e) => el("li", null, regression && el("b", null, label(labelOf(data.examples.label[e]), 24)), small(data.examples.content[e], nameOf(data.examples.index[e], data.examples.id[e]), 150)));
  fill(box, name, el("ul", { class: "like-items" }, shown));
}

const isRow = (content) => content.fields && !content.image && !content.text;

function likeTable(places) {
  // The examples side by side, a line for each column of the data: values are compared across, not card by card.
  const contents = places.map((e) => data.examples.content[e]);
  const value = (content, name) => (content.fields.find(([other]) => other === name) || [name, ""])[1];
  return el(
    "table",
    { class: "like-table" },
    el("colgroup", null, el("col"), places.map(() => el("col", { class: "like-value" }))),
    regression && el("thead", null, el("tr", null, el("th", { scope: "row" }, "value"), places.map((e) => el("td", null, el("b", null, label(labelOf(data.examples.label[e]), 24)))))),
    !regression && el("thead", { class: "hidden-text" }, el("tr", null, el("th", { scope: "col" }, "column"), places.map((e) => el("th", { scope: "col" }, nameOf(data.examples.index[e], data.examples.id[e]))))),
    el("tbody", null, contents[0].fields.slice(0, 100).map(([name]) => el("tr", null, el("th", { scope: "row" }, label(data.names[name], 40)), contents.map((content) => el("td", null, label(value(content, name) || "–", 24)))))),
  );
}

function showEnd() {
  const tally = store.tally();
  const none = queue.list.length === 0;
  const skipped = queue.list.filter((i) => SHOWN.skipped(i)).length;
  const left = queue.list.filter((i) => store.made[i] === null).length;
  const again = (show) => {
    review.fields.show.value = show;
    filters.show = show;
    makeQueue();
    if (show === "skipped") queue.at = 0;
    showFilters();
    strip.reset();
    showItem();
  };
  fill(
    review.end,
    el("h2", null, size === 0 ? "Nothing to review" : none ? "No row fits these filters" : left > 0 ? "The end of the list" : "This list is done"),
    el("p", { class: "muted" }, size === 0 ? `No ${noun} is flagged.` : none ? "Widen the range or clear the filters." : `${count(tally.decided)} of ${count(goal, noun)} decided` + (skipped ? `, ${count(skipped)} of this list skipped.` : ".")),
    el(
      "div",
      { class: "actions" },
      none && size > 0 && el("button", { type: "button", onclick: () => review.fields.clear.click() }, "Clear filters"),
      !none && left > 0 && el("button", { type: "button", onclick: () => move(nextOpen(-1)) }, `Back to the ${count(left)} undecided`),
      !none && skipped > 0 && filters.show !== "skipped" && el("button", { type: "button", onclick: () => again("skipped") }, `Look at the ${count(skipped)} skipped`),
      !none && queue.at > 0 && el("button", { type: "button", onclick: () => move(queue.list.length - 1) }, "Back to the last"),
      tally.all > 0 && el("button", { type: "button", class: "primary", onclick: exportDialog }, served ? "Finish" : "Export corrections.csv"),
    ),
    data.command && tally.all > 0 && !served && [el("p", { class: "muted" }, "and then:"), commandLine()],
  );
  announce(review.end.firstChild.textContent);
}
