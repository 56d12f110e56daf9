// The note in place of a missing part.
import {element} from "./dom.js";

/**
 * The status of a part: requested, or why it is missing, with a button to try again. Null if the part is there.
 *
 * @param {string} what the part in words, such as "Attention".
 */
export function statusNote(session, part, detail, what) {
  const {state, message, final} = session.status(part, detail);
  if (state === "asking") return element("p", {class: "note asking", text: `${what}: asking the server …`});
  if (state === "none" && message) return element("p", {class: "note", text: `${what}: ${message}`});
  if (state !== "failed") return null;
  if (final) return element("p", {class: "note failed", text: `${what}: ${message}`});
  const ask = () => session.ask(part, detail, {again: true});
  const again = element("button", {class: "button quiet", type: "button", text: "Try again", on: {click: ask}});
  return element("div", {class: "note failed"}, element("p", {text: `${what}: ${message}`}), again);
}
