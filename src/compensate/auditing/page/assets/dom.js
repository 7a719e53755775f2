// Building elements. Everything that comes from the data goes through `label` or `prose` and ends in a text node.

const byId = (id) => document.getElementById(id);

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function setProperties(node, properties) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

function el(tag, properties, ...children) {
  return append(setProperties(document.createElement(tag), properties), children);
}

function draw(tag, properties, ...children) {
  return append(setProperties(document.createElementNS("http://www.w3.org/2000/svg", tag), properties), children);
}

function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

function key(name) {
  return el("kbd", { "aria-hidden": "true" }, name);
}

// Characters that are not seen but change what is: direction marks and overrides, invisible spaces, control codes.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]/g;

function codePoint(character) {
  return "U+" + character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function plainText(text, most = 200) {
  // For attributes (titles, labels of screen readers), where no element can isolate a direction.
  const shown = text.length > most ? text.slice(0, most) + "…" : text;
  return shown.replace(UNSEEN, (c) => `⟨${codePoint(c)}⟩`);
}

function prose(text) {
  // The text with unseen characters written out, isolated from the direction of what stands around it.
  const node = el("bdi");
  let last = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match[0] === "\r") continue;
    append(node, [text.slice(last, match.index), el("span", { class: "unseen" }, codePoint(match[0]))]);
    last = match.index + 1;
  }
  return append(node, [text.slice(last)]);
}

function clip(text, most) {
  return text.length > most ? text.slice(0, most).trimEnd() + "…" : text;
}

const NO_LABEL = "no label";

function label(text, most = 90) {
  if (text === "") return el("span", { class: "nothing" }, NO_LABEL);
  const node = prose(clip(text, most));
  if (text.length > 24) node.title = plainText(text, 300);
  return node;
}

function spoken(text) {
  return text === "" ? NO_LABEL : plainText(text, 60);
}
