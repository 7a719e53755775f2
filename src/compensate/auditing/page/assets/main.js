// The frame: the top bar, the views, the keyboard, and words for those who listen.

const frame = {};

function makeFrame() {
  frame.tabs = {
    ...(!blind && { overview: el("a", { href: "#overview" }, "Overview") }),
    review: el("a", { href: "#review" }, blind ? "Estimate" : "Review"),
    ...(!blind && data.issues && { issues: el("a", { href: "#issues" }, "Issues") }),
  };
  frame.progress = el("span", { class: "progress-words" + (blind ? " look-words" : "") });
  frame.fill = el("span");
  frame.export = el("button", { type: "button", class: "export", onclick: exportDialog }, served ? "Finish" : ["Export", el("span", { class: "wide-only" }, " corrections")]);
  frame.notice = el("p", { class: "notice", role: "alert", hidden: true });
  fill(
    byId("bar"),
    el("div", { class: "data-name" }, el("b", null, label(data.title, 80)), el("span", { class: "flag-count" }, !blind && data.predictable && `${count(data.allFlagged, noun)} flagged`)),
    el("nav", { "aria-label": "Views" }, Object.values(frame.tabs)),
    el("div", { class: "progress" }, frame.progress, el("span", { class: "meter", "aria-hidden": "true" }, frame.fill)),
    frame.export,
  );
  byId("bar").after(frame.notice);
}

function showProgress() {
  const tally = store.tally();
  const kept = served ? " · " + sync.words() : store.kept ? "" : " · not kept";
  const done = blind ? tally.all + tally.skip + tally.wrong : tally.decided;
  const all = blind ? size : goal;
  frame.progress.textContent = (blind ? [`${count(done)} of ${count(size)} looked at`, lookShare()].filter(Boolean).join("; ") : `${count(done)} of ${count(goal, noun)} decided`) + kept;
  frame.progress.title = store.kept ? "" : "This browser does not let the page keep your decisions. Export before you close it.";
  showNotice();
  if (blind) look.result.textContent = lookResult();
  frame.fill.style.setProperty("width", all ? (100 * done) / all + "%" : "0");
  frame.export.disabled = !served && tally.all + tally.skip === 0; // an earlier audit's decisions may be in the folder
}

function showNotice() {
  // Once for each text: it is read aloud when it changes.
  const text = noticeText();
  if (frame.notice.dataset.text === text) return;
  frame.notice.dataset.text = text;
  frame.notice.hidden = text === "";
  const newer = sync.audit.state === "done" && sync.audit.of === data.key && sync.problem === "";
  fill(frame.notice, text, newer && [" ", el("a", { href: `../${sync.audit.key}/` }, "Open it")]);
}

function noticeText() {
  if (!served) return "";
  const run = sync.run || "the folder of the run";
  if (sync.problem !== "" && sync.waiting.length > 0) return `Not saved yet: ${count(sync.waiting.length, "decision")} (${plainText(sync.problem)}). They are sent once the server is there again: compensate review ${plainText(run)}`;
  if (sync.problem !== "") return `The server has ended; every decision is saved. To go on: compensate review ${plainText(run)}`;
  if (sync.audit.of !== data.key) return "";
  if (sync.audit.state === "running") return `Auditing again with your decisions: ${plainText(sync.audit.said)} …`;
  if (sync.audit.state === "failed") return `The audit failed: ${plainText(sync.audit.said)}`;
  return sync.audit.state === "done" ? "The new audit is done." : "";
}

function announce(text) {
  byId("live").textContent = text;
}

let toastTimer = 0;

function toast(text, undoable) {
  const box = byId("toast");
  fill(box, el("span", null, text), undoable && el("button", { type: "button", class: "link", onclick: undo }, "Undo"));
  box.hidden = false;
  announce(text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hideToast, 12000);
}

function hideToast() {
  byId("toast").hidden = true;
}

let lastView = blind ? "review" : "overview";

function view() {
  // Any other fragment (the link that skips to the content) leaves the view as it is.
  const asked = location.hash.slice(1);
  if (Object.hasOwn(frame.tabs, asked)) lastView = asked;
  return lastView;
}

function showView() {
  const now = view();
  for (const name of Object.keys(frame.tabs)) {
    byId("view-" + name).hidden = name !== now;
    if (name === now) frame.tabs[name].setAttribute("aria-current", "page");
    else frame.tabs[name].removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (now === "review") strip.show();
}

function refreshAll() {
  makeQueue(current());
  strip.reset();
  showItem();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || dialogOpen()) return;
  const typing = event.target.closest("input:not([type=checkbox]):not([type=range]), select, textarea") !== null;
  if (typing) return;
  if (blind) return lookKey(event);
  if (event.key === "?") return act(event, helpDialog);
  if (view() !== "review") return;
  if (/^[0-9]$/.test(event.key) && !regression) {
    const found = current() !== null && keysOf(current()).find(([digit]) => digit === event.key);
    if (found) act(event, () => choose(labelOf(found[1])));
    return;
  }
  const acts = {
    a: () => current() !== null && choose(suggestedOf(current())),
    k: () => current() !== null && choose(givenOf(current())),
    ...(pairs && { t: () => current() !== null && choose("tie"), d: () => current() !== null && choose("drop"), w: swap }),
    s: skip,
    n: () => setAside("unclear"),
    ...(!pairs && { x: () => setAside("drop") }),
    u: undo,
    o: other,
    b: bulk,
    arrowleft: () => move(queue.at - 1),
    arrowright: () => move(queue.at + 1),
    home: () => move(0),
    end: () => move(queue.list.length - 1),
  };
  const found = acts[event.key.toLowerCase()];
  if (found && !(event.repeat && !event.key.startsWith("Arrow"))) act(event, found);
}

function act(event, what) {
  event.preventDefault();
  what();
}

makeFrame();
if (blind) makeLook();
else makeReview();
makeQueue();
if (!blind) {
  overview((given, suggested, show) => {
    reviewPair(given, suggested, show);
    location.hash = "#review";
  });
  if (data.issues) issuesView();
  showFilters();
  strip.reset();
}
showItem();
showProgress();
store.listeners.push(showProgress, () => actButtons.forEach((show) => show()));
if (served) {
  sync.listeners.push((changed) => {
    strip.draw(true);
    actButtons.forEach((show) => show());
    if (current() === null || changed.includes(current())) showItem();
  });
  sync.poll();
}
addEventListener("hashchange", showView);
addEventListener("keydown", onKey);
addEventListener("storage", (event) => {
  if (served || event.key !== store.place) return;
  store.load();
  showProgress();
  strip.draw(true);
  showItem();
});
showView();
byId("live").textContent = "";
