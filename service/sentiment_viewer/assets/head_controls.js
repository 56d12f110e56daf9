// Shared by the attention views: their fields, what the state selects, and how much has arrived.
import {element} from "./dom.js";
import {checkField, choiceField} from "./fields.js";
import {redrawn} from "./redrawn.js";
import {absentNote, statusNote} from "./status_note.js";

const FILTER_NAMES = {all: "all tokens", aa: "first text → first", bb: "second → second", ab: "first → second", ba: "second → first"};
const LEVEL_NAMES = {words: "words", pieces: "pieces"};

/** Words or pieces: {element, update()}. */
export function levelField(state) {
  const field = choiceField("Tokens as", (value) => state.set({level: value === "words" ? null : value}));
  field.offer([], () => Object.entries(LEVEL_NAMES));
  return {element: field.element, update: () => field.choose(attentionLevel(state))};
}

/** Special tokens on or off: {element, update()}. */
export function specialField(state) {
  const {element: field, box} = checkField("special tokens", (shown) => state.set({special: shown ? null : "0"}));
  const update = () => { box.checked = attentionSpecial(state); };
  return {element: field, update};
}

/** Which parts of a pair look at which: {element, update(isPair)}. */
export function filterField(state) {
  const field = choiceField("Links", (value) => state.set({filter: value === "all" ? null : value}));
  field.offer([], () => Object.entries(FILTER_NAMES));
  const update = (isPair) => {
    field.element.hidden = !isPair;
    field.choose(attentionFilter(state, isPair));
  };
  return {element: field.element, update};
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

/** "words", unless the state says "pieces". */
export function attentionLevel(state) {
  return state.get("level") === "pieces" ? "pieces" : "words";
}

/** Whether special tokens are shown. */
export function attentionSpecial(state) {
  return state.get("special") !== "0";
}

/** all, aa, bb, ab or ba; all where there is no pair. */
export function attentionFilter(state, isPair) {
  const filter = state.get("filter");
  return isPair && Object.hasOwn(FILTER_NAMES, filter) ? filter : "all";
}
