// Help, the choice among many classes, bulk acceptance, and what to do after export.

function dialog(title, ...children) {
  const close = el("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  const box = el("dialog", { "aria-label": title, tabindex: "-1" }, el("header", null, el("h2", null, title), close), children);
  close.addEventListener("click", () => box.close());
  box.addEventListener("click", (event) => event.target === box && box.close());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  box.focus(); // not the button that closes it; a screen reader reads the title
  return box;
}

const dialogOpen = () => document.querySelector("dialog[open]") !== null;

function helpDialog() {
  const rows = [
    [["A"], regression ? "accept the suggested value" : "accept the suggested label"],
    [["K"], regression ? "keep the given value" : "keep the given label"],
    pairs && [["D"], "drop the pair, which is the suggestion"],
    pairs && [["W"], "swap: the other response is better"],
    pairs && [["T"], "tie: neither is better"],
    !regression && !pairs && [digitClasses ? ["0", "–", "9"] : ["1", "–", "9"], "another class, as numbered under the item"],
    [["O"], regression ? "type another value" : "find another class by name"],
    [["N"], `unclear: nobody can tell; the ${noun} stays`],
    !pairs && [["X"], "drop the row from the data"],
    [["S"], "skip: decide later"],
    [["U"], "undo the last step"],
    [["←", "→"], "move without deciding"],
    [["Home", "End"], "first and last of the list"],
    [["B"], "accept many at once"],
    [["?"], "this help"],
  ].filter(Boolean);
  dialog(
    "Keys",
    el("dl", { class: "keys" }, rows.map(([keys, what]) => el("div", null, el("dt", null, keys.map((k) => (k === "–" ? " – " : el("kbd", null, k)))), el("dd", null, what)))),
    el("p", { class: "muted" }, "Each decision opens the next row. ", served ? "Everything is saved in the folder of the run as you decide, and other tabs see it." : "Everything is kept in this browser, for this file, until you clear it."),
    el("div", { class: "actions" }, clearButton()),
  );
}

function clearButton() {
  const all = store.tally();
  const button = el("button", { type: "button", disabled: all.all + all.skip === 0 }, "Clear all decisions");
  button.addEventListener("click", () => {
    store.clear();
    button.closest("dialog").close();
    refreshAll();
    toast("All decisions are cleared.", true);
  });
  return button;
}

function classDialog(i, choose) {
  if (regression) return valueDialog(i, choose);
  const input = el("input", { type: "search", placeholder: "Type a part of the name", "aria-label": "Find a class", "aria-controls": "class-list", autocomplete: "off", spellcheck: "false" });
  const list = el("ul", { class: "class-list", id: "class-list" });
  const note = el("p", { class: "muted", role: "status" });
  const MOST = 500;
  const order = blind ? classes : [...new Set([...items.likely[i], ...classes])]; // the likeliest first
  const take = (c) => {
    box.close();
    choose(labelOf(c));
  };
  const show = () => {
    const wanted = input.value.trim().toLowerCase();
    const found = order.filter((c) => labelOf(c).slice(0, 1000).toLowerCase().includes(wanted));
    fill(list, found.slice(0, MOST).map((c) => el("li", null, el("button", { type: "button", onclick: () => take(c) }, label(labelOf(c), 90), !blind && c === items.given[i] && el("small", null, "given"), !blind && c === items.suggested[i] && el("small", null, "suggested")))));
    note.textContent = found.length === 0 ? "No class has this in its name." : found.length > MOST ? `${count(found.length)} classes; the first ${MOST} are shown.` : "";
    return found;
  };
  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      const found = show();
      if (found.length > 0) take(found[0]);
    }
  });
  const box = dialog(blind ? "Find a class" : "Another class", input, list, note);
  show();
  input.focus();
}

function valueDialog(i, choose) {
  const input = el("input", { type: "text", inputmode: "decimal", "aria-label": "Value", autocomplete: "off", value: givenOf(i) });
  const note = el("p", { class: "problem", role: "alert" });
  const take = (event) => {
    event.preventDefault();
    const value = input.value.trim();
    if (!NUMBER.test(value)) {
      note.textContent = "Write a number, such as 3.5 or -2e6.";
      return;
    }
    box.close();
    choose(value);
  };
  const box = dialog("Another value", el("form", { onsubmit: take }, input, note, el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Set this value"))));
  input.select();
}

// Many at once: what would be accepted is shown before it is, the least certain ones in full sight.

function bulkDialog(done) {
  const open = queue.list.filter((i) => !store.isDecided(i));
  let threshold = Math.max(data.threshold ?? 0.9, 0.9);
  const number = el("input", { type: "number", min: 0, max: 1, step: 0.01, value: threshold.toFixed(2), "aria-label": "Least probability" });
  const slider = el("input", { type: "range", min: 0, max: 1, step: 0.01, value: threshold, "aria-label": "Least probability" });
  const preview = el("div", { class: "preview", "aria-live": "polite" });
  const accept = el("button", { type: "button", class: "primary" });
  let chosen = [];
  const show = () => {
    chosen = open.filter((i) => items.p[i] >= threshold - 1e-9 && suggestedOf(i) !== givenOf(i)).sort((a, b) => items.p[a] - items.p[b] || b - a);
    const right = chosen.reduce((sum, i) => sum + 1 - items.p[i], 0);
    const pairs = new Map();
    for (const i of chosen) pairs.set(pairOf(i), (pairs.get(pairOf(i)) || 0) + 1);
    const top = [...pairs].sort((a, b) => b[1] - a[1]);
    accept.disabled = chosen.length === 0;
    accept.textContent = chosen.length === 0 ? "Nothing to accept" : `Accept ${count(chosen.length, "suggestion")}`;
    if (chosen.length === 0) {
      fill(preview, el("p", { class: "muted" }, "No undecided row of this list is as certain as that. Lower the threshold, or widen the filters."));
      return;
    }
    const doubt = right < 0.5 ? "hardly any of them wrongly" : `about ${count(Math.round(right))} of them wrongly`;
    fill(
      preview,
      el("p", null, el("b", null, count(chosen.length, "row")), " of this list would take the suggested ", noun, ", ", doubt, "."),
      !regression && el("p", { class: "muted pair-line" }, top.slice(0, 4).map(([pair, n], k) => {
        const [given, suggested] = pair.split(">");
        return [k > 0 && ", ", label(labelOf(given), 24), " → ", label(labelOf(suggested), 24), ` (${count(n)})`];
      }), top.length > 4 && ` and ${count(top.length - 4)} more pairs`),
      el("h3", null, "The least certain of them"),
      el("ul", { class: "preview-items" }, chosen.slice(0, 12).map((i) => el("li", null, small(items.content[i], nameOf(items.index[i], items.id[i], items.part[i]), 60), el("span", { class: "preview-label" }, label(givenOf(i), 18), " → ", label(suggestedOf(i), 18)), el("span", { class: "muted" }, probability(items.p[i]))))),
    );
  };
  const set = (source, other) => {
    const value = Number(source.value);
    if (source.value === "" || !(value >= 0 && value <= 1)) return;
    threshold = value;
    other.value = source.value;
    show();
  };
  number.addEventListener("input", () => set(number, slider));
  slider.addEventListener("input", () => set(slider, number));
  accept.addEventListener("click", () => {
    const step = chosen.map((i) => [i, { decision: "accept", label: suggestedOf(i) }]);
    box.close();
    store.decide(step);
    done(step.length);
  });
  const box = dialog("Accept many at once", el("div", { class: "row" }, el("label", null, "wrong with a probability of at least ", number), slider), preview, el("div", { class: "actions" }, accept));
  show();
  number.select();
}

function exportDialog() {
  if (blind) return void dialog("The estimate so far", el("p", null, lookResult()), el("p", { class: "muted" }, LOOK_NEXT));
  const tally = store.tally();
  if (!served) download();
  const parts = [
    [tally.accept, "accepted"],
    [tally.reject, "kept"],
    [tally.other, regression ? "with another value" : "with another class"],
    [tally.drop, "dropped"],
    [tally.unclear, "unclear"],
    [tally.skip, "skipped"],
  ];
  const saved = !served || sync.words() === "saved";
  const again = served && !regression && ["ready", "done", "failed"].includes(sync.audit.state);
  const box = dialog(
    !served ? "corrections.csv is saved" : saved ? "Your decisions are saved" : "Not all decisions are saved yet",
    el("p", null, parts.filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`).join(" · ") || "Nothing is decided on this page yet."),
    data.command && [el("p", null, served ? "They are in the folder of the run. To write the corrected data, type:" : "Move it next to the data and type:"), commandLine(), el("p", { class: "muted" }, "The data itself is not changed: the command writes a corrected copy.")],
    again && el("p", { class: "muted" }, "Or audit again: labels that you corrected or confirmed are taken as right, and the others are judged anew."),
    el(
      "div",
      { class: "actions" },
      served && el("button", { type: "button", onclick: download }, "Download corrections.csv"),
      again && el("button", { type: "button", onclick: () => (box.close(), sync.again()) }, "Audit again with these decisions"),
      el("button", { type: "button", class: "primary", onclick: () => box.close() }, "Done"),
    ),
  );
}

// Served, decisions are in the folder of the run already; from disk they come in the file that was exported.
const nextCommand = () => (served ? `compensate apply ${quoted(sync.run)}` : data.command);
const quoted = (path) => (/^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`);

function commandLine() {
  const copy = el("button", { type: "button", class: "copy" }, "Copy");
  const line = el("code", null, prose(clip(nextCommand(), 500)));
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(nextCommand());
      copy.textContent = "Copied";
    } catch (error) {
      getSelection().selectAllChildren(line);
      copy.textContent = "Selected";
    }
  });
  return el("div", { class: "command" }, line, copy);
}
