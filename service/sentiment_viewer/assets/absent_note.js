// The note in place of a part that the server left out.
import {element} from "./dom.js";
import {quietButton} from "./fields.js";
import {statusNote} from "./status_note.js";

/** The sentence for such a part. */
export const LEFT_OUT = "The server left it out; its notes say why.";

/** The status of a missing part, as in statusNote. If the server answered without it: that it was left out, with a button to try again. */
export function absentNote(session, part, detail, what) {
  if (session.status(part, detail).state !== "here") return statusNote(session, part, detail, what);
  const again = session.live ? quietButton("Try again", () => session.ask(part, detail, {again: true})) : null;
  return element("div", {class: "note"}, element("p", {text: `${what}: ${LEFT_OUT}`}), again);
}
