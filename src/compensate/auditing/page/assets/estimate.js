// Looking at a random sample: the given label and the suggestion stay hidden, and the answers tell how many labels are wrong.

const look = {};
const MOST_SHOWN = 60; // classes that are shown as buttons; more are found by name

function makeLook() {
  const tool = (text, act, name) => el("button", { type: "button", class: "tool", onclick: act, "aria-label": name }, text);
  look.question = el("h1", { class: "look-question" });
  look.place = el("p", { class: "place" });
  look.stage = el("div", { class: "stage", role: "group", "aria-label": "Sample", tabindex: "0" });
  look.answers = el("div", { class: "chips", role: "group", "aria-label": "Answers" });
  look.undo = tool(["Undo ", key("U")], undo);
  look.desk = el("div", { class: "look" }, el("div", { class: "about" }, look.question, look.place), look.stage, look.answers, el("div", { class: "tools" }, tool("←", () => move(queue.at - 1), "Previous item"), tool("→", () => move(queue.at + 1), "Next item"), look.undo));
  look.result = el("p");
  look.end = el("div", { class: "end-state", hidden: true });
  byId("view-overview").hidden = true;
  fill(byId("view-review"), look.desk, look.end);
}

function answersTo(i) {
  // The key, the text, the effect, and whether it is the answer so far.
  const made = store.made[i];
  const settle = (decision) => () => {
    store.decide([[i, { decision, label: "" }]]);
    advance("");
  };
  const is = (decision) => made !== null && made.decision === decision;
  const chosen = made !== null && !OPEN.includes(made.decision) && !is("unclear") ? made.label : null;
  const shown = regression
    ? [["R", "Right", () => choose(givenOf(i)), chosen === givenOf(i)], ["W", "Wrong", settle("wrong"), is("wrong")]]
    : classes.length <= MOST_SHOWN || fixedKeys
      ? (fixedKeys || classes.map((c) => ["", c])).map(([letter, c]) => [letter, labelOf(c), () => choose(labelOf(c)), chosen === labelOf(c)])
      : [];
  if (!regression && !fixedKeys) shown.push(["O", `Find among ${count(classes.length)} …`, other, chosen !== null && classes.length > MOST_SHOWN]);
  return [...shown, ["C", "Cannot tell", settle("unclear"), is("unclear")]];
}

function showLook() {
  const i = current();
  look.desk.hidden = i === null;
  look.end.hidden = i !== null;
  if (i === null) {
    fill(look.end, el("h2", null, "All are looked at"), look.result, el("p", { class: "muted" }, LOOK_NEXT), el("div", { class: "actions" }, el("button", { type: "button", onclick: () => move(size - 1) }, "Back to the last")));
    announce("All are looked at. " + lookResult());
    return;
  }
  const name = nameOf(items.index[i], items.part[i] && items.id[i], items.part[i]); // the folder of an image is its label
  const set = setLabel(i);
  fill(look.question, regression ? ["Is the value ", label(givenOf(i), 40), " right?"] : set ? ["Is “", prose(set), "” present or absent?"] : "Which label is right?");
  fill(look.place, prose(name));
  fill(look.stage, large(items.content[i], "The item, " + name));
  look.stage.scrollTop = 0;
  fill(look.answers, answersTo(i).map(([letter, text, act, pressed]) => el("button", { type: "button", class: "chip" + (pressed ? " is-chosen" : ""), onclick: act, "aria-keyshortcuts": letter || null, "aria-pressed": String(pressed) }, letter && key(letter), label(text, 40))));
  look.undo.disabled = store.steps.length === 0;
  announce(`${queue.at + 1} of ${size}. ${name}. ${look.question.textContent}`);
}

function lookKey(event) {
  const i = current();
  const found = i !== null && answersTo(i).find(([letter]) => letter === event.key.toUpperCase());
  const acts = { u: undo, arrowleft: () => move(queue.at - 1), arrowright: () => move(queue.at + 1) };
  const does = found ? found[2] : acts[event.key.toLowerCase()];
  if (does && !(event.repeat && found)) act(event, does);
}

const LOOK_NEXT = "The share is stated after 60, 100 and 200 answers, because an interval that is read after every answer holds less often. Your answers are kept, so you may pause. Stop the server with Ctrl-C in its terminal: it then writes the share into the audit and adjusts all probabilities of error.";

function lookShare() {
  const found = sync.looks;
  if (!found || !found.wrong) return "";
  const [value, low, high] = found.wrong.map(percent);
  return `${value} (${low} to ${high}) after ${count(found.looks)}`;
}

function lookResult() {
  const unclear = sync.looks && sync.looks.cannot > 0 ? ` You could not tell for ${count(sync.looks.cannot, noun)}; they do not count as wrong.` : "";
  return (lookShare() === "" ? "The share is stated after 60 answers." : `Wrong ${noun}s: ${lookShare()} answers, with 95 % confidence.`) + unclear;
}
