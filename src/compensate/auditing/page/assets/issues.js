// What else is wrong with the data: a section for each kind, the most useful first.

function issuesView() {
  const page = byId("view-issues");
  if (data.issues.length === 0) {
    fill(page, el("div", { class: "issues" }, el("h1", { class: "finding" }, "Nothing else stands out"), el("p", { class: "muted" }, "No duplicates, outliers or odd columns were found.")));
    return;
  }
  fill(page, el("div", { class: "issues" }, el("h1", { class: "finding" }, "More than labels"), el("p", { class: "muted" }, "Every row is in issues.csv."), data.issues.map(issueSection)));
}

function issueSection(group) {
  return el(
    "section",
    { class: "issue-group" },
    el("h2", null, `${count(group.count)} `, group.title.charAt(0).toLowerCase() + group.title.slice(1)),
    el("p", { class: "muted" }, group.advice),
    group.lines.length > 0 && el("table", { class: "issue-lines" }, el("tbody", null, group.lines.map(([name, , detail]) => el("tr", null, el("th", { scope: "row" }, label(name, 60)), el("td", null, prose(clip(detail, 200))))))),
    group.rows.length > 0 && el("ol", { class: "issue-rows" }, group.rows.map((row) => issueRow(row, group))),
    group.cut && el("p", { class: "hint" }, `The first ${count(group.rows.length + group.lines.length)} are shown here.`),
  );
}

function issueRow(row, group) {
  const differ = row.other !== null && row.otherLabel !== row.label;
  return el(
    "li",
    { class: "issue-row" + (row.other ? " with-other" : "") },
    issueSide(row.index, row.id, row.label, row.content, differ),
    row.other && issueSide(row.otherIndex, row.otherId, row.otherLabel, row.other, differ),
    el("p", { class: "issue-detail", title: plainText(group.score) }, prose(clip(row.detail, 200))),
  );
}

function issueSide(index, id, given, content, differ) {
  return el(
    "div",
    { class: "issue-side" },
    el("p", { class: "issue-head" }, el("span", { class: "muted" }, `row ${count(index)}`, id && [" ", prose(clip(id, 80))]), " ", el(differ ? "b" : "span", { class: "issue-label" }, label(labelOf(given), 60))),
    issueContent(content),
  );
}

function issueContent(content) {
  if (content.image) return el("img", { src: "data:image/" + content.image, alt: "", class: "issue-image" });
  if (content.text) return el("p", { class: "issue-text" }, prose(clip(content.text[0], 240)));
  if (content.fields) return el("p", { class: "issue-text" }, prose(clip(content.fields.map(([name, value]) => `${data.names[name]}: ${value}`).join(" · "), 240)));
  return el("p", { class: "hint" }, content.missing ? prose(clip(content.missing, 120)) : "");
}
