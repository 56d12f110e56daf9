// The geometry view's picture on the page: a canvas whose points move to where the next layer has them, and the choice of a word on it.
import {canvasFor} from "./canvas.js";
import {eachFrame, element} from "./dom.js";
import {
  closestGolden, drawGeometry, geometryLabels, geometryMarks, geometryPlaces, geometryPointAt, nearestGolden,
} from "./geometry_picture.js";
import {CanvasSurface} from "./surface.js";
import {isDark, themeColours} from "./theme.js";
import {largestFirst, plainNumber, shownWord, wordOfText} from "./wording.js";

const GEOMETRY_HEIGHT = {least: 320, most: 600, share: 0.62};
const GEOMETRY_MOVE_MS = 450;
// In pixels; a finger is wider than a pointer.
const GEOMETRY_REACH = {mouse: 12, other: 22};

/** Shows points and lets a word be chosen, by pointer or keys. Fires "word" when the chosen word changes, or whether it is held. */
export class GeometryStage extends EventTarget {
  constructor() {
    super();
    this.facts = this.places = null;
    this.#forget();
    this.canvas = element("canvas", {class: "geometry-canvas", aria: {hidden: "true"}});
    this.option = element("div", {class: "visually-hidden", role: "option", aria: {selected: "true"}});
    this.element = element("div", {
      class: "geometry-stage", role: "listbox", tabIndex: 0, aria: {label: "Words of the text"},
      on: {
        keydown: (event) => this.#press(event),
        pointermove: (event) => this.#hover(event),
        pointerleave: () => this.#point(-1),
        click: (event) => this.#click(event),
      },
    }, this.canvas, this.option);
    this.paint = eachFrame(() => this.#paint());
    new ResizeObserver(() => this.#arrange(false)).observe(this.element);
  }

  /** Show other facts; of the same text the chosen word stays, and points move to their new places. */
  show(facts) {
    const sameText = this.facts?.layers === facts.layers;
    const sameLayer = sameText && this.facts.layer === facts.layer;
    if (!sameText) this.#forget();
    this.facts = facts;
    this.#arrange(sameText && !sameLayer);
    this.#say();
  }

  /** The chosen word: until the reader chooses one, that of the largest attribution. */
  get chosen() {
    return this.picked ?? (this.facts.values ? (largestFirst(this.facts.values)[0] ?? 0) : 0);
  }

  /** What is drawn in a frame other than that on the page. */
  sceneIn(frame) {
    const {facts, chosen} = this;
    const places = geometryPlaces(facts.view, frame);
    const labels = geometryLabels(facts, places, frame);
    return {facts, frame, places, labels, marks: geometryMarks(facts, places, frame, labels, chosen, -1), chosen};
  }

  #forget() {
    Object.assign(this, {picked: null, held: false, pointed: -1, motion: null, around: null});
  }

  /** Find the places of all points, and go there: by moving, unless the reader does not want that. */
  #arrange(moves) {
    const width = this.element.clientWidth;
    if (!this.facts || !width) return;
    const {least, most, share} = GEOMETRY_HEIGHT;
    this.frame = {left: 0, top: 0, width, height: Math.max(least, Math.min(most, Math.round(share * width)))};
    const to = geometryPlaces(this.facts.view, this.frame);
    const still = !moves || this.places?.length !== to.length || matchMedia("(prefers-reduced-motion: reduce)").matches;
    const from = still ? to : this.places;
    this.motion = still ? null : {from, begun: performance.now()};
    this.aim = to;
    this.places = from;
    this.around = null;
    this.labels = geometryLabels(this.facts, to, this.frame);
    this.#mark();
  }

  #mark() {
    this.marks = geometryMarks(this.facts, this.aim, this.frame, this.labels, this.chosen, this.pointed);
    this.paint();
  }

  #paint() {
    if (!this.frame) return;
    if (this.motion) {
      const {from, begun} = this.motion;
      const passed = Math.min(1, (performance.now() - begun) / GEOMETRY_MOVE_MS);
      const share = passed * passed * (3 - 2 * passed);
      this.places = this.aim.map((to, place) => from[place] + share * (to - from[place]));
      if (passed < 1) this.paint();
      else this.motion = null;
    }
    const context = canvasFor(this.canvas, this.frame.width, this.frame.height);
    drawGeometry(new CanvasSurface(context), {...this, chosen: this.chosen}, themeColours(), isDark());
  }

  #choose(word) {
    const next = Math.max(0, Math.min(this.facts.words - 1, word));
    const differs = next !== this.chosen || this.pointed >= 0;
    [this.picked, this.pointed, this.around] = [next, -1, null];
    if (!differs) return;
    this.#say();
    this.#mark();
    this.dispatchEvent(new Event("word"));
  }

  #hold(held) {
    if (held === this.held) return;
    this.held = held;
    this.dispatchEvent(new Event("word"));
  }

  /** Name a golden word; -1: none. */
  #point(golden) {
    if (!this.facts || golden === this.pointed) return;
    this.pointed = golden;
    this.#say();
    this.#mark();
  }

  #say() {
    const {facts, pointed, chosen} = this;
    const {words, view} = facts;
    this.option.id = `geometry-word-${pointed < 0 ? chosen : words + pointed}`;
    this.element.setAttribute("aria-activedescendant", this.option.id);
    for (const [name, value] of [["aria-posinset", chosen + 1], ["aria-setsize", words]]) {
      // Of the words of the text; a golden word is not one of them.
      if (pointed < 0) this.option.setAttribute(name, String(value));
      else this.option.removeAttribute(name);
    }
    const near = words ? nearestGolden(facts, chosen).map(({text, cosine}) => `${shownWord(text)} ${plainNumber(cosine)}`).join(", ") : "";
    const said = words ? `${wordOfText(facts.header, chosen)}, nearest ${near}` : "The text has no words";
    this.option.textContent = pointed < 0 ? said : `golden word ${shownWord(view.golden[pointed])}`;
  }

  #press(event) {
    const {facts} = this;
    if (!facts?.words || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity};
    if (event.key in steps) this.#choose(this.chosen + steps[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      this.around ??= closestGolden(facts, this.aim, this.chosen);
      const place = this.around.indexOf(this.pointed) + (event.key === "ArrowDown" ? 1 : -1);
      this.#point(place < 0 ? -1 : this.around[Math.min(place, this.around.length - 1)]);
    } else if (event.key === "Escape") {
      this.#hold(false);
      this.#point(-1);
    } else return;
    event.preventDefault();
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const reach = GEOMETRY_REACH[event.pointerType === "mouse" ? "mouse" : "other"];
    return geometryPointAt(this, event.clientX - box.left, event.clientY - box.top, reach);
  }

  #hover(event) {
    if (!this.facts || event.pointerType !== "mouse") return;
    const {word, golden} = this.#at(event);
    this.element.classList.toggle("pointing", word >= 0);
    if (word >= 0 && !this.held) this.#choose(word);
    else this.#point(golden);
  }

  /** A click holds a word, until the next on it or beside all points, or Escape. */
  #click(event) {
    if (!this.facts) return;
    const {word, golden} = this.#at(event);
    if (word < 0) {
      if (golden < 0) this.#hold(false);
      this.#point(golden);
      return;
    }
    const held = !(this.held && word === this.chosen);
    this.#choose(word);
    this.#hold(held);
  }
}
