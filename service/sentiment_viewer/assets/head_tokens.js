// The two columns of tokens: who looks, and who is looked at. Each is a list box; the token that is chosen in it is locked.
import {element, replace} from "./dom.js";
import {roving} from "./fields.js";
import {LINK_ROW} from "./head_links.js";
import {textWidth} from "./surface.js";
import {visibleText} from "./wording.js";

const TOKENS_PAGE = 10;

/**
 * A column of tokens: {element, show(tokens), mark(row of the locked token or -1), width(of the widest text in pixels)}.
 *
 * @param {string} side "left" or "right".
 * @param {object} listeners called with rows: enter(row), leave(), choose(row), describe(row) -> string.
 */
export function tokenColumn(side, {enter, leave, choose, describe}) {
  const label = side === "left" ? "Tokens that look" : "Tokens looked at";
  const list = element("ul", {class: `heads-tokens ${side}`, role: "listbox", aria: {label}});
  let items = [];
  const rowOf = (event) => items.indexOf(event.target.closest("li"));
  const oneStop = roving(list, "li", {page: TOKENS_PAGE});
  list.addEventListener("pointerover", (event) => event.pointerType !== "touch" && enter(rowOf(event)));
  list.addEventListener("pointerleave", () => leave());
  list.addEventListener("focusin", (event) => {
    event.target.setAttribute("aria-description", describe(rowOf(event)));
    if (event.target.matches(":focus-visible")) enter(rowOf(event));
  });
  list.addEventListener("focusout", () => leave());
  list.addEventListener("click", (event) => rowOf(event) >= 0 && choose(rowOf(event)));
  list.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    choose(rowOf(event));
    event.preventDefault();
  });
  const show = (tokens) => {
    items = tokens.map(({text, place, special}) => element("li", {
      role: "option", class: special ? "special" : "", text: visibleText(text), dir: "auto", tabIndex: -1, title: visibleText(text),
      aria: {label: `token ${place}, ${visibleText(text)}`, selected: "false"},
    }));
    replace(list, ...items);
    list.style.height = `${items.length * LINK_ROW}px`;
    oneStop();
  };
  const mark = (row) => {
    for (const item of list.querySelectorAll("[aria-selected=true]")) item.setAttribute("aria-selected", "false");
    items[row]?.setAttribute("aria-selected", "true");
  };
  const width = () => Math.max(0, ...items.map((item) => textWidth(item.textContent, {size: 14})));
  return {element: list, show, mark, width};
}
