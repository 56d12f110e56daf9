// What a view says in place of a part that the server answered without.
import {element} from "./dom.js";
import {quietButton} from "./fields.js";
import {statusNote} from "./status_note.js";

/** Said of such a part. */
export const LEFT_OUT = "The server left it out; its notes say why.";

/** How a part stands that is not there, as statusNote says it; once it is answered, that it was left out, with a button to try again. */
export function absentNote(session, part, detail, what) {
  if (session.status(part, detail).state !== "here") return statusNote(session, part, detail, what);
  const again = session.live ? quietButton("Try again", () => session.ask(part, detail, {again: true})) : null;
  return element("div", {class: "note"}, element("p", {text: `${what}: ${LEFT_OUT}`}), again);
}
