// The neuron view: how one token's attention in one head comes about, from query and key to softmax.
import {afterwards, element} from "./dom.js";
import {quietButton, stepField} from "./fields.js";
import {headCounts} from "./head_controls.js";
import {NeuronDetail, NeuronTable} from "./neuron_detail.js";
import {
  NEURON_HEADINGS, NEURON_LEGEND, NEURON_ROW, neuronColumns, neuronFacts, neuronLegend, neuronQuoted,
  neuronTiny, neuronWeight,
} from "./neuron_picture.js";
import {NeuronRows} from "./neuron_rows.js";
import {NeuronSplit} from "./neuron_split.js";
import {differing, redrawn} from "./redrawn.js";
import {absentNote, statusNote} from "./status_note.js";
import {drawLines} from "./surface.js";
import {isDark, themeColours} from "./theme.js";
import {largestFirst, quotedWord, visibleText} from "./wording.js";

// Larger differences are more than rounding: the picture then does not show what the model did.
const NEURON_ERROR_MAX = 1e-5;
const NEURON_ASK_AFTER_MS = 150;
// How many are offered until the server has said how many there are; it refuses others.
const NEURON_PLACES_UNKNOWN = 12;
// Limit of the lists: an address may name any number.
const NEURON_PLACES_MAX = 100;
const NEURON_EXPORT = {rows: 64, width: 900, title: 34};

/** The view "Neuron": pickers, picture, detail, table and the input's split. State: neuron_layer, neuron_head, token, neuron_sort (softmax). */
export class NeuronView {
  constructor(context) {
    Object.assign(this, context);
    this.rows = new NeuronRows();
    this.detail = new NeuronDetail();
    this.table = new NeuronTable();
    this.split = new NeuronSplit(context);
    this.layer = stepField("Layer", (value) => this.state.set({neuron_layer: value}));
    this.head = stepField("Head", (value) => this.state.set({neuron_head: value}));
    this.token = stepField("Token", (value) => this.state.set({token: value}));
    this.sort = quietButton("By softmax", () => this.state.set({neuron_sort: this.#bySoftmax() ? null : "softmax"}));
    this.asTable = quietButton("As a table", () => {
      this.tableShown = !this.tableShown;
      this.update();
    });
    this.tableShown = false;
    this.note = element("div", {class: "neuron-note"});
    this.drawNote = redrawn(this.note);
    this.viewDiffers = differing();
    this.choiceDiffers = differing();
    this.summary = element("p", {class: "neuron-summary"});
    this.check = element("p", {class: "note"});
    this.legend = element("p", {class: "note neuron-legend"});
    const hint = "Rows: arrow keys, Page Up and Down, Home and End; Enter looks from that row's token. Or click a token on the left. "
      + "Click a row to hold it.";
    this.hint = element("p", {class: "note", text: hint});
    this.picture = element("div", {class: "neuron-picture"}, this.summary, this.rows.element, this.table.element, this.legend, this.check,
      this.detail.element, this.hint);
    const controls = element("div", {class: "row fields"},
      this.layer.element, this.head.element, this.token.element, element("div", {class: "row"}, this.sort, this.asTable));
    this.element = element("div", {class: "neuron"}, controls, this.note, this.picture, this.split.element);
    this.rows.addEventListener("row", () => this.detail.show(this.facts, this.rows.key, this.rows.pinned));
    this.rows.addEventListener("look", ({detail}) => this.#look(detail));
    this.askLater = afterwards(NEURON_ASK_AFTER_MS, () => this.#ask());
  }

  /** Redraw what has changed. */
  update() {
    const {session} = this;
    const header = session.explanation?.header;
    this.picture.hidden = this.split.element.hidden = !header;
    if (!header) {
      this.#waitForTokens();
      return;
    }
    const place = this.#place();
    this.#updatePickers(place);
    this.#updateView(place);
    this.#updateNote(place);
    this.split.update(place.token);
  }

  /** The picture with the first rows that are seen, at most 64, or null while there is none. */
  drawing() {
    if (!this.facts || this.picture.hidden) return null;
    const {facts} = this;
    const columns = neuronColumns(facts, NEURON_EXPORT.width);
    const {first, count, rows} = this.rows.seen(NEURON_EXPORT.rows);
    const {layer, head, token} = facts.view;
    const part = count < rows ? `, rows ${first + 1} to ${first + count} of ${rows}` : "";
    const order = facts.bySoftmax ? "keys by softmax" : "keys by position";
    const title = `Layer ${layer}, head ${head}, token ${token} ${neuronQuoted(facts, token)}; ${order}${part}`;
    const legendTop = NEURON_EXPORT.title + NEURON_HEADINGS + count * NEURON_ROW;
    const draw = (surface) => {
      const colours = themeColours();
      const {x} = columns.looks;
      surface.text(title, x, 22, {size: 14, weight: "bold", colour: colours.text, maxWidth: columns.total - 2 * x});
      this.rows.drawRows(surface, columns, colours, {
        // Sorted by softmax, the looking token and the key in a row are unrelated.
        first, count, top: NEURON_EXPORT.title, marked: false, lookers: !facts.bySoftmax,
      });
      const style = {size: 12, colour: colours.muted, maxWidth: columns.total - 2 * x};
      drawLines(surface, neuronLegend(facts), x, legendTop + 24, 18, style);
    };
    return {width: columns.total, height: legendTop + NEURON_LEGEND, title: `Neuron view: ${title}`, draw};
  }

  #waitForTokens() {
    const {session} = this;
    this.facts = null;
    if (!session.explanation) {
      this.drawNote([], () => [element("p", {class: "note", text: "There is no text yet."})]);
      return;
    }
    const place = this.#place();
    this.#askOnce(place);
    const {state, message} = session.status("neuron", place);
    this.drawNote([...Object.values(place), state, message], () => [statusNote(session, "neuron", place, "Neuron view")]);
  }

  /** The choice in the state; without one, that of a saved page, or the first token of the text. */
  #place() {
    const {session, state} = this;
    const {header, neurons} = session.explanation;
    const held = session.live ? null : neurons.values().next().value;
    const first = header ? Math.max(0, header.tokens.findIndex((token) => !token.special)) : 1;
    // The head view's choice, if nothing was chosen here.
    const locked = Number.parseInt(state.get("lock"), 10) || first;
    const shown = {layer: state.number("layer", 0), head: state.list("heads")[0] ?? 0, token: locked};
    const {layer, head, token} = held ?? shown;
    const counts = headCounts(session);
    return {
      layer: Math.min(state.number("neuron_layer", layer), (counts?.layers ?? NEURON_PLACES_MAX) - 1),
      head: Math.min(state.number("neuron_head", head), (counts?.heads ?? NEURON_PLACES_MAX) - 1),
      token: Math.min(state.number("token", token), (header?.tokens.length ?? Infinity) - 1),
    };
  }

  #bySoftmax() {
    return this.state.get("neuron_sort") === "softmax";
  }

  /** Request the chosen view with a delay, so that stepping through heads does not request each. */
  #askOnce(place) {
    const {session} = this;
    const chosen = this.choiceDiffers([session.explanation, ...Object.values(place)]);
    if (chosen && session.live && session.status("neuron", place).state === "none") this.askLater();
  }

  #ask() {
    const {session} = this;
    if (session.explanation) session.ask("neuron", this.#place());
  }

  #look(token) {
    this.state.set({token});
    this.announce(`Looking from token ${token}, ${quotedWord(this.session.explanation.header.tokens[token].piece)}`);
  }

  #updatePickers({layer, head, token}) {
    const {session} = this;
    const {header, heads} = session.explanation;
    const least = session.live ? NEURON_PLACES_UNKNOWN : 1;
    const counts = headCounts(session) ?? {layers: Math.max(least, layer + 1), heads: Math.max(least, head + 1)};
    const pattern = (index) => heads?.labels[layer * heads.heads + index];
    const said = (index) => (pattern(index) ? `${index} · ${pattern(index)}` : String(index));
    const piece = (index) => `${index}  ${visibleText(header.tokens[index].piece)}`;
    this.layer.show([counts.layers], counts.layers, layer);
    this.head.show([counts.heads, layer, heads], counts.heads, head, said);
    this.token.show([header], header.tokens.length, token, piece);
    this.sort.setAttribute("aria-pressed", String(this.#bySoftmax()));
    this.asTable.setAttribute("aria-pressed", String(this.tableShown));
  }

  #updateView(place) {
    const {session} = this;
    const {header, neurons} = session.explanation;
    const view = neurons.get([place.layer, place.head, place.token].join(","));
    const waiting = !view;
    this.picture.classList.toggle("waiting", waiting);
    this.picture.setAttribute("aria-busy", String(waiting && session.status("neuron", place).state === "asking"));
    this.#askOnce(place);
    // For another text, nothing stays. For this text, the old picture stays, dimmed, until the new one arrives.
    const sameText = this.of === session.explanation;
    if (!sameText) this.facts = null;
    this.of = session.explanation;
    this.picture.hidden = !view && !this.facts;
    if (!view) return;
    const differs = this.viewDiffers([view, this.#bySoftmax(), isDark(), this.tableShown]);
    if (this.facts && !differs) return;
    this.facts = neuronFacts(view, header.tokens, this.#bySoftmax());
    this.#draw(sameText);
  }

  #draw(sameText) {
    const {facts} = this;
    for (const part of [this.rows, this.detail]) part.element.hidden = this.tableShown;
    this.legend.hidden = this.hint.hidden = this.tableShown;
    this.table.element.hidden = !this.tableShown;
    this.rows.show(facts, sameText);
    if (this.tableShown) this.table.show(facts);
    this.detail.show(facts, this.rows.key, this.rows.pinned);
    this.summary.textContent = neuronSummary(facts);
    this.legend.textContent = neuronLegend(facts).join(" ");
    const {maxAbsError} = facts.view;
    const compared = `Softmax of these scores against the attention that the model used: largest difference ${neuronTiny(maxAbsError)}`;
    const beyond = maxAbsError > NEURON_ERROR_MAX;
    this.check.textContent = `${compared}${beyond ? `, above ${neuronTiny(NEURON_ERROR_MAX)}: this is not what the model did.` : "."}`;
    this.check.classList.toggle("failed", beyond);
  }

  #updateNote(place) {
    const {session} = this;
    const {neurons} = session.explanation;
    const held = session.live ? [] : [...neurons.values()];
    const {state, message} = session.status("neuron", place);
    const here = neurons.has(Object.values(place).join(","));
    this.drawNote([session.explanation, ...Object.values(place), state, message, here], () => {
      const buttons = held.map((view) => quietButton(neuronPlace(view), () => {
        this.state.set({neuron_layer: view.layer, neuron_head: view.head, token: view.token});
      }));
      const holds = held.length ? element("div", {class: "row note"}, element("span", {text: "This saved page holds:"}), ...buttons) : null;
      return [holds, here ? null : absentNote(session, "neuron", place, neuronPlace(place))];
    });
  }
}

function neuronPlace({layer, head, token}) {
  return `Layer ${layer}, head ${head}, token ${token}`;
}

function neuronSummary(facts) {
  const {view} = facts;
  const {layer, head, token} = view;
  const named = largestFirst(view.softmax).slice(0, 3).map((key) => {
    const piece = neuronQuoted(facts, view.keyStart + key);
    return `${piece} ${neuronWeight(view.softmax[key])}`;
  });
  return `In layer ${layer}, head ${head}, token ${token} ${neuronQuoted(facts, token)} looks most at ${named.join(", ")}.`;
}
