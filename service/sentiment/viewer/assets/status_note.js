// What a view says in place of a part that is not there.
import {element} from "./dom.js";

/**
 * A note on how a part stands: that it is asked for, or why it is not there, with a button to try again. Null where it is there.
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
