// corrections.csv: index,given,decision,label, the digests of row and source, and which label of a row with several is meant, by which `compensate apply` knows that it
// changes the row that was reviewed. A text that a spreadsheet would evaluate gets a leading apostrophe, and
// so does one that looks as if it had been given one; `compensate apply` takes it off again. Numbers are left alone. The same is
// done after semicolons, tabs and line ends, at which some spreadsheets take lines apart.

const FORMULA = /^'*[ \t\r\n]*[=+\-@\uff1d\uff0b\uff0d\uff20]|^'*[\t\r\n]/;
const WITHIN = /(?<=[;\t\r\n])(?='* *[=+\-@\uff1d\uff0b\uff0d\uff20])/g;
const NUMBER = /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/;

function guard(text) {
  const first = FORMULA.test(text) && !NUMBER.test(text) ? "'" : "";
  return (first + text).replace(WITHIN, "'");
}

function cell(text) {
  const guarded = guard(text);
  return /[",;\t\r\n]|^[ ']| $/.test(guarded) ? '"' + guarded.replaceAll('"', '""') + '"' : guarded;
}

function corrections() {
  const parts = items.part.some((part) => part !== "");
  const lines = ["index,given,decision,label,row,source" + (parts ? ",part" : "")];
  for (let i = 0; i < all; i++) {
    const made = store.made[i];
    if (made) lines.push([items.index[i], cell(givenOf(i)), made.decision, cell(made.label), items.digest[i], data.source, ...(parts ? [cell(items.part[i])] : [])].join(","));
  }
  return lines.join("\n") + "\n";
}

function download() {
  const address = URL.createObjectURL(new Blob([corrections()], { type: "text/csv;charset=utf-8" }));
  const link = el("a", { href: address, download: "corrections.csv" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
