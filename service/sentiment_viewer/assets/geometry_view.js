// The geometry view: where the words of the text lie among the golden words, layer by layer.
import {element, replace} from "./dom.js";
import {moreButton} from "./fields.js";
import {drawGeometry, geometryFacts, geometrySentences, geometryTotal, layerSaid, nearestGolden} from "./geometry_picture.js";
import {GeometryStage} from "./geometry_stage.js";
import {differing, redrawn} from "./redrawn.js";
import {absentNote, againNote, statusNote} from "./status_note.js";
import {drawLines} from "./surface.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {isDark, themeColours} from "./theme.js";
import {
  WORDS_FIRST, plainNumber, quotedWord, secondText, shownWord, visibleText, wholeNumber, wordName, wordOfText,
} from "./wording.js";

const GEOMETRY_EXPORT = {width: 960, height: 600, title: 36, line: 18};
const GEOMETRY_HINT = "Point at a word, or choose one with the left and right arrow keys; up and down name the golden words around it. "
  + "A click holds a word.";

/** The view "Geometry": slider, picture, the chosen word's nearest golden words, and all of them in a table. State: geometry_layer. */
export class GeometryView {
  constructor({session, state}) {
    Object.assign(this, {session, state, facts: null, differs: differing()});
    this.stage = new GeometryStage();
    this.stage.addEventListener("word", () => this.#showNearest());
    this.slider = element("input", {
      type: "range", id: "geometry-layer", min: 0, step: 1, class: "geometry-slider",
      on: {input: () => state.set({geometry_layer: this.slider.value})},
    });
    this.layerSaid = element("span", {class: "geometry-layer", aria: {hidden: "true"}});
    this.note = element("div");
    this.drawNote = redrawn(this.note);
    this.nearest = element("section", {class: "geometry-nearest panel", aria: {label: "The chosen word"}});
    this.sentences = element("div", {class: "note"});
    this.table = element("div");
    this.more = moreButton(
      WORDS_FIRST, `the first ${WORDS_FIRST} only`, (count) => `all ${wholeNumber(count)} words`, () => this.#showTable(),
    );
    const label = element("label", {htmlFor: this.slider.id, text: "Layer"});
    const field = element("div", {class: "row geometry-field"}, label, this.slider, this.layerSaid);
    const picture = element("div", {class: "geometry-picture"}, this.stage.element, this.nearest);
    this.shown = element("div", {class: "geometry-shown"}, field, picture, this.sentences, this.table, this.more.element);
    this.element = element("div", {class: "geometry"}, this.note, this.shown);
  }

  /** Request what is missing, and redraw what has changed. */
  update() {
    const {session} = this;
    const {explanation} = session;
    if (session.text) session.ask("geometry");
    const {state, message} = session.status("geometry");
    const layers = state === "asking" || !explanation?.header ? null : explanation.geometry;
    const whole = Boolean(layers) && layers.length > geometryTotal(layers);
    this.drawNote([session.text === "", layers?.length, whole, state, message], () => [this.#noted(layers, whole)]);
    this.shown.hidden = !whole;
    if (!whole) {
      this.facts = null;
      return;
    }
    const layer = Math.min(this.state.number("geometry_layer", 0), layers.length - 1);
    // Its colours.
    session.ask("attribution", session.method());
    const attribution = session.shownAttribution();
    if (!this.differs([layers, layer, attribution, isDark()]) && this.facts) return;
    this.facts = {...geometryFacts(explanation.header, layers, layer, attribution?.told ?? null), attribution};
    this.#show();
  }

  /** The picture with the chosen word's nearest golden words, or null while there is none. */
  drawing() {
    if (!this.facts) return null;
    const {facts} = this;
    const {width, height, title: top, line} = GEOMETRY_EXPORT;
    const scene = this.stage.sceneIn({left: 0, top, width, height});
    const said = `Words among the golden words: ${layerSaid(facts)}`;
    const lines = [...geometrySentences(facts).flatMap((sentence) => sentence.split(/(?<=\.) /)), this.#nearestSaid(facts)].filter(Boolean);
    const draw = (surface) => {
      const colours = themeColours();
      surface.text(said, 20, 24, {size: 14, weight: "bold", colour: colours.text, maxWidth: width - 40});
      drawGeometry(surface, scene, colours, isDark());
      drawLines(surface, lines, 20, top + height + 14, line, {size: 12, colour: colours.muted, maxWidth: width - 40});
    };
    return {width, height: top + height + 14 + lines.length * line, title: `Geometry: ${said}`, draw};
  }

  /** What stands above the picture or in place of it; null for nothing. */
  #noted(layers, whole) {
    const {session} = this;
    if (session.text === "") return element("p", {class: "note", text: "There is no text yet."});
    if (!layers) return absentNote(session, "geometry", "", "Geometry");
    if (whole || session.status("geometry").state !== "here") return statusNote(session, "geometry", "", "Geometry");
    const came = `${layers.length - 1} of ${geometryTotal(layers)} layers`;
    return againNote(session, "geometry", "", `Geometry: The server cut it short after ${came}; its notes say why.`);
  }

  #show() {
    const {facts, slider} = this;
    const said = layerSaid(facts);
    slider.max = facts.total;
    slider.value = facts.layer;
    slider.setAttribute("aria-valuetext", said);
    this.layerSaid.textContent = said;
    this.stage.show(facts);
    replace(this.sentences, ...[...geometrySentences(facts), GEOMETRY_HINT].map((text) => element("p", {text})));
    this.#showNearest();
    this.#showTable();
  }

  #showNearest() {
    const {facts, stage} = this;
    if (!facts.words) {
      replace(this.nearest, element("p", {text: "The text has no words."}));
      return;
    }
    const {chosen} = stage;
    const name = wordName(facts.header, chosen, facts.attribution);
    const items = nearestGolden(facts, chosen).map(({text, cosine}) => element("li", {},
      element("bdi", {text: shownWord(text)}), element("span", {class: "number", text: plainNumber(cosine)})));
    const said = `Nearest golden words, by cosine, ${layerSaid(facts)}${stage.held ? " (held)" : ""}`;
    replace(this.nearest, element("h2", {text: name}), element("p", {class: "note", text: said}), element("ol", {}, ...items));
  }

  #nearestSaid(facts) {
    if (!facts.words) return "";
    const {chosen} = this.stage;
    const near = nearestGolden(facts, chosen).map(({text, cosine}) => `${visibleText(text)} ${plainNumber(cosine)}`);
    return `Nearest to ${quotedWord(facts.header.words[chosen].text)}${secondText(facts.header, chosen)}: ${near.join(", ")}.`;
  }

  #showTable() {
    const {facts} = this;
    const {header, words, count} = facts;
    const ranks = ["nearest", "2nd", "3rd", "4th", "5th"].slice(0, count);
    const rows = header.words.slice(0, this.more.of(words)).map((_, word) => (
      tableRow(element("bdi", {text: wordOfText(header, word)}), nearestGolden(facts, word).map((near) => element("td", {},
        element("bdi", {text: shownWord(near.text)}), element("span", {class: "number", text: ` ${plainNumber(near.cosine)}`}))))
    ));
    const caption = `Each word's nearest golden words with their cosines, ${layerSaid(facts)}`;
    const form = {class: "geometry-table", caption, heads: ["word", ...ranks]};
    replace(this.table, scrolling("nearest golden words", tableNode(form, rows)));
  }
}
