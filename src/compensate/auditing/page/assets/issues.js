// What else is wrong with the data: a section for each kind, the most useful first.

function issuesView() {
  const page = byId("view-issues");
  if (data.issues.length === 0) {
    fill(page, el("div", { class: "issues" }, el("h1", { class: "finding" }, "No other issues"), el("p", { class: "muted" }, "No duplicates, outliers or odd columns were found.")));
    return;
  }
  fill(page, el("div", { class: "issues" }, el("h1", { class: "finding" }, "Other issues"), el("p", { class: "muted" }, "All rows are listed in issues.csv."), data.issues.map(issueSection)));
}

function issueSection(group) {
  return el(
    "section",
    { class: "issue-group" },
    el("h2", null, `${count(group.count)} `, group.title.charAt(0).toLowerCase() + group.title.slice(1)),
    el("p", { class: "muted" }, group.advice),
    group.drop.length > 1 && el("p", null, actButton(group.name === "duplicate" ? `Keep one of each, drop ${count(group.drop.length, "equal row")}` : `Drop all ${count(group.drop.length, "row")}`, group.drop, dropped)),
    group.lines.length > 0 && el("table", { class: "issue-lines" }, el("tbody", null, group.lines.map((line) => el("tr", null, el("th", { scope: "row" }, label(line[0], 60)), el("td", null, prose(clip(line[2], 200)), " ", lineActs(group, line)))))),
    group.rows.length > 0 && el("ol", { class: "issue-rows" }, group.rows.map((row) => issueRow(row, group))),
    group.cut && el("p", { class: "hint" }, `The first ${count(group.rows.length + group.lines.length)} are shown here.`),
  );
}

function issueRow(row, group) {
  const sides = [row.item, row.other].filter((i) => i !== null);
  const differ = sides.length > 1 && items.given[sides[0]] !== items.given[sides[1]];
  return el(
    "li",
    { class: "issue-row" + (sides.length > 1 ? " with-other" : "") },
    sides.map((i) => issueSide(i, differ)),
    differ && !regression && el("p", { class: "issue-acts" }, sides.map((i) => actButton(["Label both ", label(givenOf(i), 30)], sides, (k) => decision(k, givenOf(i))))),
    el("p", { class: "issue-detail", title: plainText(group.score) }, prose(clip(row.detail, 200))),
  );
}

function issueSide(i, differ) {
  return el(
    "div",
    { class: "issue-side" },
    el("p", { class: "issue-head" }, el("span", { class: "muted" }, `row ${count(items.index[i])}`, items.id[i] && [" ", prose(clip(items.id[i], 80))]), " ", el(differ ? "b" : "span", { class: "issue-label" }, label(givenOf(i), 60))),
    issueContent(items.content[i]),
    el("p", { class: "issue-acts" }, actButton("Drop row", [i], dropped), actButton("Unclear", [i], () => ({ decision: "unclear", label: "" }))),
  );
}

// Decisions about one or many rows. A button that is pressed takes its decision back.

const dropped = (i) => (pairs ? decision(i, "drop") : { decision: "drop", label: "" });
const actButtons = [];

function actButton(text, rows, made) {
  const same = (i) => store.made[i] !== null && store.made[i].decision === made(i).decision && store.made[i].label === made(i).label;
  const button = el("button", { type: "button", class: "act" }, text);
  const isDone = () => rows.every(same);
  button.addEventListener("click", () => {
    const done = isDone();
    store.decide(rows.map((i) => [i, done ? null : made(i)]));
    if (rows.length > 1) toast(`${count(rows.length, "row")} ${done ? "undecided again" : "decided"}.`, true);
    if (current() !== null && rows.includes(current())) showItem();
  });
  actButtons.push(() => button.setAttribute("aria-pressed", String(isDone())));
  actButtons.at(-1)();
  return button;
}

function lineActs(group, [name, , , rows, other]) {
  if (group.about === "column") return group.name !== "identifier_column" && data.without && el("code", null, prose(`${data.without} ${quoted(name)}`));
  if (group.about !== "class") return null;
  const merge = (to) => actButton(["Merge into ", label(to, 30)], rows, (i) => decision(i, to));
  const drop = actButton(`Drop its ${count(rows.length, "row")}`, rows, dropped);
  if (rows.length === 0) return el("code", null, prose(`compensate apply ${sync.run || "RUN"} --merge ${quoted(name)}=${quoted(other || "NAME")}`));
  if (group.name === "alike_classes") return merge(other);
  const chosen = el("select", { "aria-label": `Merge ${spoken(name)} into` }, el("option", { value: "" }, "merge into …"), classes.filter((c) => labelOf(c) !== name).map((c) => el("option", { value: c }, plainText(labelOf(c), 60))));
  chosen.addEventListener("change", () => chosen.value !== "" && chosen.replaceWith(merge(labelOf(Number(chosen.value)))));
  return [drop, " ", chosen];
}

function issueContent(content) {
  if (content.image) return el("img", { src: "data:image/" + content.image, alt: "", class: "issue-image" });
  if (content.text) return el("p", { class: "issue-text" }, prose(clip(content.text[0], 240)));
  if (content.fields) return el("p", { class: "issue-text" }, prose(clip(content.fields.map(([name, value]) => `${data.names[name]}: ${value}`).join(" · "), 240)));
  return el("p", { class: "hint" }, content.missing ? prose(clip(content.missing, 120)) : "");
}
