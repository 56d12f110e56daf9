// Tables, and boxes that scroll.
import {element} from "./dom.js";

/** A box that scrolls where its content is too large, with a name for screen readers. */
export function scrolling(label, ...children) {
  return element("div", {class: "scroll", tabIndex: 0, role: "region", aria: {label}}, ...children);
}

/**
 * A table.
 *
 * @param {object} form {class, caption, heads: the columns' names, or nodes for them; "": a column without one, numeric: the places of
 *   the columns whose names stand over numbers}; each may be missing.
 * @param {Node[]} totals rows that end the table.
 */
export function tableNode({class: name = "", caption = "", heads = [], numeric = []}, rows, totals = []) {
  const head = (text, place) => {
    if (typeof text !== "string") return text;
    return text ? element("th", {scope: "col", class: numeric.includes(place) ? "number" : "", text}) : element("td");
  };
  return element(
    "table",
    {class: name},
    caption ? element("caption", {text: caption}) : null,
    heads.length ? element("thead", {}, element("tr", {}, ...heads.map(head))) : null,
    element("tbody", {}, ...rows),
    totals.length ? element("tbody", {class: "table-totals"}, ...totals) : null,
  );
}

/** A row: its name, a text or nodes, and its cells. A cell that is a text is a number's; null is left out. */
export function tableRow(name, cells) {
  return element("tr", {}, element("th", {scope: "row"}, ...[name].flat()), ...cells.map((cell) => (
    typeof cell === "string" ? numberCell(cell) : cell
  )));
}

/** A cell with a number. */
export function numberCell(...children) {
  return element("td", {class: "number"}, ...children);
}
