// A sample, large or small.

const FOLD = 700; // characters of a text before it is folded
const FOLD_FIELD = 160;
const MORE = 20000; // characters that one press on "more" adds: a megabyte at once would stall the page

function folded(parts, fold, draw = prose) {
  const [text, length = text.length] = parts;
  if (text.length <= fold * 1.2 && length === text.length) return [draw(text)];
  const shown = el("span");
  const more = el("button", { type: "button", class: "link more" });
  let upTo = fold;
  const show = () => {
    const whole = upTo >= text.length;
    fill(shown, draw(whole ? text : text.slice(0, upTo).trimEnd() + " …"));
    if (whole && length > text.length) {
      more.replaceWith(el("span", { class: "muted" }, ` … and ${count(length - text.length)} more characters in the data`));
    } else if (whole) more.remove();
    else more.textContent = `Show more (${count(length)} characters)`;
  };
  more.addEventListener("click", () => {
    upTo = upTo === fold ? Math.min(text.length, MORE) : upTo + MORE;
    show();
  });
  show();
  return [shown, " ", more];
}

function picture(content, name, small) {
  const source = "data:image/" + content.image;
  const image = el("img", { src: source, alt: name, draggable: "false", decoding: "sync" });
  const box = el("div", { class: "picture" }, image);
  image.addEventListener("load", () => {
    image.classList.toggle("smooth", image.naturalWidth > 256 || image.naturalHeight > 256);
    if (small || Math.max(image.naturalWidth, image.naturalHeight) > 128) return;
    box.append(
      el("figure", { class: "natural" }, el("img", { src: source, alt: "" }), el("figcaption", null, "actual size")),
    );
  });
  image.addEventListener("error", () => box.replaceWith(nothing("This image cannot be read.")));
  return box;
}

function nothing(reason) {
  return el("p", { class: "nothing-to-show" }, el("span", { class: "sign", "aria-hidden": "true" }, "∅"), prose(clip(reason, 300)));
}

function fieldList(fields, fold) {
  return el(
    "dl",
    { class: "fields" },
    fields.map(([name, ...parts]) =>
      el(
        "div",
        null,
        el("dt", null, label(data.names[name], 60)),
        el("dd", null, parts[0] === "" ? el("span", { class: "nothing" }, "empty") : folded(parts, fold)),
      ),
    ),
  );
}

// Samples with several labels: all labels of the row, or all words of the sentence with their tags; what is judged is marked.

function chipList(content) {
  const chips = content.chips.map(([name, given], k) => {
    const judged = k === content.marked;
    const hidden = judged && blind;
    const said = hidden ? "judged" : `${given ? "present" : "absent"}${judged ? ", judged" : ""}`;
    const inner = [el("span", { "aria-hidden": "true" }, hidden ? "?" : given ? "✓" : "–"), label(data.names[name], 40), el("span", { class: "hidden-text" }, ` (${said})`)];
    const look = "set-chip" + (given && !hidden ? " on" : "") + (judged ? " judged" : "");
    if (!judged || blind) return el("li", { class: look }, inner);
    return el("li", null, el("button", { type: "button", class: look, title: "Switch this label", onclick: () => choose(suggestedOf(current())) }, inner));
  });
  return el("ul", { class: "set-chips", "aria-label": "Labels of this row" }, chips);
}

// What each annotator said; votes for the suggested label stand out as those for the given one do.

function voteList(content) {
  const i = current();
  const [given, suggested] = i === null ? ["", ""] : [givenOf(i), suggestedOf(i)];
  const votes = content.votes.map(([who, said]) => {
    const vote = data.names[said];
    const look = "set-chip" + (vote === given ? " on" : "") + (vote === suggested ? " judged" : "");
    return el("li", { class: look }, label(data.names[who], 40), el("strong", null, label(vote, 40)));
  });
  return el("ul", { class: "set-chips", "aria-label": "Votes" }, votes);
}

const OUTSIDE = "O";

function tokenText(content) {
  const [from, to] = content.marked;
  const words = [];
  content.tokens.forEach(([word, number], k) => {
    const tag = data.names[number];
    const judged = k >= from && k < to;
    const shown = tag === OUTSIDE && !judged ? prose(word) : el(judged ? "mark" : "span", { class: judged ? "token judged" : "token" }, prose(word), " ", el("small", null, label(judged && blind ? "?" : tag, 24)));
    words.push(shown, " ");
  });
  return el("p", { class: "tokens" }, words);
}

// Two texts side by side; words that the other one lacks are marked.

const WORDS = /[\p{L}\p{N}]+/gu;

function sideBySide(content) {
  const held = content.sides.map(([, text]) => new Set((text.toLowerCase().match(WORDS) || [])));
  const sides = content.sides.map(([name, ...parts], k) => {
    const draw = (text) => {
      const node = el("span");
      let last = 0;
      for (const match of text.matchAll(WORDS)) {
        if (held[1 - k].has(match[0].toLowerCase())) continue;
        append(node, [prose(text.slice(last, match.index)), el("mark", { class: "differs" }, prose(match[0]))]);
        last = match.index + match[0].length;
      }
      return append(node, [prose(text.slice(last))]);
    };
    const shown = parts[0] === "" ? nothing("This response is empty.") : folded(parts, FOLD, draw);
    return el("section", { "aria-label": plainText(data.names[name], 40) }, el("h3", null, ["first: ", "second: "][k], label(data.names[name], 40)), el("div", { class: "side-text" }, shown));
  });
  return el("div", { class: "sides" }, sides);
}

function large(content, name) {
  const parts = [];
  if (content.chips) parts.push(chipList(content));
  if (content.votes && !blind) parts.push(voteList(content));
  if (content.tokens) parts.push(tokenText(content));
  if (content.image) parts.push(picture(content, name, false));
  if (content.text) parts.push(el("div", { class: content.text[0].length <= 180 ? "text short" : "text" }, content.text[0] === "" ? nothing("The text is empty.") : folded(content.text, FOLD)));
  if (content.sides) parts.push(sideBySide(content));
  if (content.fields) parts.push(fieldList(content.fields, FOLD_FIELD));
  if (parts.length === 0) {
    parts.push(
      nothing(content.missing || (data.kind === "embedding" ? "An embedding cannot be shown. Look its row up by the name above." : "There is nothing to show of this sample.")),
    );
  }
  return parts;
}

function firstWords(content, most) {
  if (content.text) return content.text[0].slice(0, most * 3).replace(/\s+/g, " ").trim().slice(0, most);
  if (content.tokens) {
    const at = Math.max(0, content.marked[0] - 4);
    return content.tokens.slice(at, at + 40).map(([word]) => word).join(" ").slice(0, most);
  }
  if (content.fields) {
    return content.fields.slice(0, 6).map(([name, value]) => `${clip(data.names[name], 24)} ${clip(value, 24)}`).join(" · ").slice(0, most);
  }
  return "";
}

function small(content, name, most = 160) {
  if (content.image) return picture(content, name, true);
  const words = firstWords(content, most + 1);
  if (words) return el("p", { class: "snippet" }, prose(clip(words, most)));
  return el("p", { class: "snippet nothing" }, prose(clip(name, 40)));
}

function nameOf(index, id, part = "") {
  // Parts count the labels of all rows: their own names say more than that number.
  const [form, first, ...rest] = part.split(" ");
  if (form === "label" || form === "column") return `row ${count(Number(first))} · ${plainText(rest.join(" "), 80)}`;
  if (form === "tokens") return `token ${count(Number(first))} · ${plainText(id, 80)}`;
  if (form === "pair") return `row ${count(Number(first))}`;
  if (form === "region") return plainText(id, 80);
  return id === "" || id === String(index) ? `row ${count(index)}` : `row ${count(index)} · ${plainText(id, 80)}`;
}
