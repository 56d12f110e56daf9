// The notes in place of a missing part.
import {element} from "./dom.js";
import {quietButton} from "./fields.js";

/** The sentence for a part that the server left out. */
export const LEFT_OUT = "The server left it out; its notes say why.";

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
  return againNote(session, part, detail, `${what}: ${message}`, "note failed");
}

/** The status of a missing part, as in statusNote. If the server answered without it: that it was left out, with a button to try again. */
export function absentNote(session, part, detail, what) {
  const isHere = session.status(part, detail).state === "here";
  return isHere ? againNote(session, part, detail, `${what}: ${LEFT_OUT}`) : statusNote(session, part, detail, what);
}

/** A note on a part with a button to try again, which a saved page does not have. */
export function againNote(session, part, detail, text, name = "note") {
  const again = session.live ? quietButton("Try again", () => session.ask(part, detail, {again: true})) : null;
  return element("div", {class: name}, element("p", {text}), again);
}
