// Shared by the attention views: their fields, what the state selects, and how much has arrived.
import {element} from "./dom.js";
import {keptCheck, keptChoice} from "./fields.js";
import {redrawn} from "./redrawn.js";
import {absentNote, statusNote} from "./status_note.js";

const FILTER_NAMES = {all: "all tokens", aa: "first text → first", bb: "second → second", ab: "first → second", ba: "second → first"};
const LEVEL_NAMES = {words: "words", pieces: "pieces"};

/** Words or pieces; see keptChoice. */
export function levelField(state) {
  return keptChoice(state, "level", "Tokens as", LEVEL_NAMES);
}

/** Special tokens on or off; see keptCheck. */
export function specialField(state) {
  return keptCheck(state, "special", "special tokens");
}

/** Which parts of a pair look at which: {element, value(isPair), update(isPair)}; all where there is no pair. */
export function filterField(state) {
  const field = keptChoice(state, "filter", "Links", FILTER_NAMES);
  const update = (isPair) => {
    field.element.hidden = !isPair;
    field.update();
  };
  return {element: field.element, value: (isPair) => (isPair ? field.value() : "all"), update};
}

/** How many layers and heads the model has: {layers, heads}, or null where nothing says so. */
export function headCounts({model, explanation}) {
  const known = [model, explanation?.heads, explanation?.maps].find((one) => one?.layers);
  return known ? {layers: known.layers, heads: known.heads} : null;
}

/** How many maps have arrived, in words; "" if all have. */
export function mapsProgress(session) {
  const {layers, heads} = headCounts(session);
  const count = session.explanation.maps?.count ?? 0;
  return count < layers * heads ? `${count} of ${layers * heads} maps are here.` : "";
}

/** Requests attention and the heads' effects, and shows the status of both: {element, update()}. */
export function attentionNotes(session) {
  const box = element("div");
  const draw = redrawn(box);
  const update = () => {
    const {explanation, text} = session;
    const counts = headCounts(session);
    // A saved page has only what was requested, maybe only some maps.
    const most = counts && session.live ? counts.layers * counts.heads : 1;
    const parts = [
      ["attention", "Attention", (explanation?.maps?.count ?? 0) >= most], ["heads", "What each head does", Boolean(explanation?.heads)],
    ];
    if (text) for (const [part] of parts) session.ask(part);
    const shown = parts.flatMap(([part, , whole]) => [...Object.values(session.status(part)), whole]);
    draw([text === "", ...shown], () => (text === ""
      ? [element("p", {class: "note", text: "There is no text yet."})]
      : parts.map(([part, what, whole]) => (whole ? statusNote : absentNote)(session, part, "", what))));
  };
  return {element: box, update};
}
