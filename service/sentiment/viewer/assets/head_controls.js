// Fields that the views of attention share: layer, words or pieces, special tokens, and the parts of a pair.
import {element, replace} from "./dom.js";
import {statusNote} from "./status_note.js";

const FILTER_NAMES = {all: "all tokens", aa: "first text → first", bb: "second → second", ab: "first → second", ba: "second → first"};

/** A labelled list of choices: {element, select, set(value)}; `changed` is told of the value. */
export function choiceField(label, options, changed) {
  const select = element("select", {on: {change: () => changed(select.value)}});
  const fill = (entries) => replace(select, ...Object.entries(entries).map(([value, text]) => element("option", {value, text})));
  fill(options);
  const set = (value) => {
    if (select.value !== value) select.value = value;
  };
  return {element: element("label", {class: "field"}, element("span", {class: "note", text: label}), select), select, set, fill};
}

/** Words or pieces: {element, update()}. */
export function levelField(state) {
  const changed = (value) => state.set({level: value === "words" ? null : value});
  const field = choiceField("Tokens as", {words: "words", pieces: "pieces"}, changed);
  return {element: field.element, update: () => field.set(attentionLevel(state))};
}

/** Special tokens on or off: {element, update()}. */
export function specialField(state) {
  const box = element("input", {type: "checkbox", on: {change: () => state.set({special: box.checked ? null : "0"})}});
  const update = () => { box.checked = attentionSpecial(state); };
  return {element: element("label", {class: "attention-check"}, box, " special tokens"), update};
}

/** Which parts of a pair look at which: {element, update(isPair)}. */
export function filterField(state) {
  const field = choiceField("Links", FILTER_NAMES, (value) => state.set({filter: value === "all" ? null : value}));
  const update = (isPair) => {
    field.element.hidden = !isPair;
    field.set(attentionFilter(state, isPair));
  };
  return {element: field.element, update};
}

/** A layer, with buttons for the one below and above: {element, update(layers, layer)}. */
export function layerField(state) {
  const choose = (value) => state.set({layer: value});
  const field = choiceField("Layer", {}, choose);
  const step = (by, text, label) => element("button", {
    type: "button", class: "button quiet", text, aria: {label}, on: {click: () => choose(Number(field.select.value) + by)},
  });
  const [down, up] = [step(-1, "‹", "previous layer"), step(1, "›", "next layer")];
  const update = (layers, layer) => {
    const numbers = Array.from({length: layers}, (_, place) => [place, String(place)]);
    if (field.select.options.length !== layers) field.fill(Object.fromEntries(numbers));
    field.set(String(layer));
    down.disabled = layer <= 0;
    up.disabled = layer >= layers - 1;
  };
  return {element: element("div", {class: "attention-layer"}, field.element, down, up), update};
}

/** Asks for attention and for what heads do, and says how both stand: {element, update()}. */
export function attentionNotes(session) {
  const parts = [["attention", "Attention"], ["heads", "What each head does"]];
  const changes = new Changes();
  const box = element("div");
  const update = () => {
    if (session.text) for (const [part] of parts) session.ask(part);
    if (!changes.in("notes", JSON.stringify([session.text === "", parts.map(([part]) => session.status(part))]))) return;
    const missing = session.text ? null : element("p", {class: "note", text: "There is no text yet."});
    replace(box, missing, ...parts.map(([part, what]) => statusNote(session, part, "", what)));
  };
  return {element: box, update};
}

/** What parts of a view have shown, to redraw only what differs. */
export class Changes {
  constructor() {
    this.last = new Map();
  }

  /** Whether a part is to show something else than when last asked: another key, or another object. */
  in(part, key, object = null) {
    const last = this.last.get(part);
    if (last && last.key === key && last.object === object) return false;
    this.last.set(part, {key, object});
    return true;
  }

  /** All is to be shown anew. */
  forget() {
    this.last.clear();
  }
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
  return isPair && filter in FILTER_NAMES ? filter : "all";
}
