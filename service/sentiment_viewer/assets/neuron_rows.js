// The neuron view's rows: one canvas as large as what is seen of them, redrawn when they scroll, so that 512 keys stay smooth.
import {canvasFor} from "./canvas.js";
import {eachFrame, element} from "./dom.js";
import {
  drawNeuronHeadings, drawNeuronRow, NEURON_HEADINGS, NEURON_ROW, neuronColumns, neuronPiece, neuronWeight,
} from "./neuron_picture.js";
import {CanvasSurface} from "./surface.js";
import {themeColours} from "./theme.js";
import {plainNumber} from "./wording.js";

/** Shows rows and lets one be chosen, by pointer or keys. Fires "row" when the chosen row changes and "look" with a token to look from. */
export class NeuronRows extends EventTarget {
  constructor() {
    super();
    this.facts = null;
    this.active = 0;
    this.pinned = false;
    this.canvas = element("canvas", {class: "neuron-canvas", aria: {hidden: "true"}});
    this.space = element("div", {class: "neuron-space", role: "presentation"}, this.canvas);
    this.option = element("div", {class: "visually-hidden", role: "option", aria: {selected: "true"}});
    this.element = element("div", {
      class: "neuron-scroll scroll", role: "listbox", tabIndex: 0, aria: {label: "Keys, a row each"},
      on: {
        keydown: (event) => this.#press(event),
        pointermove: (event) => this.#hover(event),
        click: (event) => this.#click(event),
      },
    }, this.space, this.option);
    this.paint = eachFrame(() => this.#paint());
    this.element.addEventListener("scroll", this.paint, {passive: true});
    new ResizeObserver(this.paint).observe(this.element);
  }

  /** Show other facts; of the same text the chosen row stays on its key. */
  show(facts, sameText) {
    const before = this.facts?.order[this.active];
    this.facts = facts;
    this.active = sameText ? Math.max(0, facts.order.indexOf(before)) : 0;
    if (!sameText) {
      this.pinned = false;
      this.element.scrollTo(0, 0);
    }
    this.#say();
    this.paint();
  }

  /** The chosen key's index in the view. */
  get key() {
    return this.facts.order[this.active];
  }

  /** The first rows and as many as fit in `most`, from the first that is seen. */
  seen(most) {
    const rows = this.#count();
    const first = Math.min(Math.floor(this.element.scrollTop / NEURON_ROW), Math.max(0, rows - most));
    return {first, count: Math.min(most, rows - first), rows};
  }

  /** Draw rows under their headings, from `top`: `marked` with the chosen row, `lookers` with the left column. */
  drawRows(surface, columns, colours, {first, count, top, marked, lookers}) {
    for (let row = first; row < first + count; row++) {
      drawNeuronRow(surface, this.facts, columns, colours, {
        top: top + NEURON_HEADINGS + (row - first) * NEURON_ROW,
        looker: lookers && row < this.facts.tokens.length ? row : -1,
        key: this.facts.order[row] ?? -1,
        active: marked && row === this.active,
      });
    }
    drawNeuronHeadings(surface, this.facts, columns, colours, {top, lookers});
  }

  #count() {
    return Math.max(this.facts.order.length, this.facts.tokens.length);
  }

  #paint() {
    const {clientWidth: width, clientHeight: height, scrollTop, scrollLeft} = this.element;
    if (!this.facts || !width || !height) return;
    const columns = neuronColumns(this.facts, width);
    this.columns = columns;
    const rows = this.#count();
    this.space.style.width = `${Math.max(width, columns.total)}px`;
    this.space.style.height = `${NEURON_HEADINGS + rows * NEURON_ROW}px`;
    const shown = Math.min(height, NEURON_HEADINGS + rows * NEURON_ROW);
    const context = canvasFor(this.canvas, width, shown);
    const colours = themeColours();
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width, shown);
    context.translate(-scrollLeft, -(scrollTop % NEURON_ROW));
    const first = Math.floor(scrollTop / NEURON_ROW);
    const count = Math.min(rows - first, Math.ceil((shown - NEURON_HEADINGS) / NEURON_ROW) + 1);
    this.drawRows(new CanvasSurface(context), columns, colours, {first, count, top: 0, marked: true, lookers: true});
    // Again, where they stay.
    context.translate(0, scrollTop % NEURON_ROW);
    drawNeuronHeadings(new CanvasSurface(context), this.facts, columns, colours, {top: 0, lookers: true});
  }

  #choose(row) {
    const last = this.facts.order.length - 1;
    const next = Math.max(0, Math.min(last, row));
    if (next === this.active) return;
    this.active = next;
    this.#say();
    this.paint();
    this.dispatchEvent(new Event("row"));
  }

  #say() {
    const {view, order} = this.facts;
    const key = this.key;
    this.option.id = `neuron-row-${this.active}`;
    this.option.setAttribute("aria-posinset", String(this.active + 1));
    this.option.setAttribute("aria-setsize", String(order.length));
    const numbers = `q dot k ${plainNumber(view.dot[key])}, scaled ${plainNumber(view.scaled[key])}`;
    this.option.textContent = `${neuronPiece(this.facts, view.keyStart + key)}, softmax ${neuronWeight(view.softmax[key])}, ${numbers}`;
    this.element.setAttribute("aria-activedescendant", this.option.id);
  }

  #press(event) {
    if (!this.facts || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((this.element.clientHeight - NEURON_HEADINGS) / NEURON_ROW) - 1);
    const steps = {ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity};
    if (event.key in steps) {
      this.#choose(this.active + steps[event.key]);
      this.#reveal();
    } else if (event.key === "Enter") {
      this.#look(this.facts.view.keyStart + this.key);
    } else return;
    event.preventDefault();
  }

  #reveal() {
    const top = this.active * NEURON_ROW;
    const seen = this.element.clientHeight - NEURON_HEADINGS - NEURON_ROW;
    const {scrollTop} = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top > scrollTop + seen) this.element.scrollTop = top - seen;
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    if (!this.facts || !this.columns || y < NEURON_HEADINGS || y >= box.height) return null;
    const row = Math.floor((y - NEURON_HEADINGS + this.element.scrollTop) / NEURON_ROW);
    if (row >= this.#count()) return null;
    const x = event.clientX - box.left + this.element.scrollLeft;
    return {row, left: x < this.columns.looks.x + this.columns.looks.width};
  }

  #hover(event) {
    const place = this.#place(event);
    this.element.classList.toggle("looking", Boolean(place?.left));
    if (place && !place.left && !this.pinned && event.pointerType === "mouse") this.#choose(place.row);
  }

  #click(event) {
    const place = this.#place(event);
    if (!place) return;
    if (place.left) {
      this.#look(place.row);
      return;
    }
    this.pinned = !(this.pinned && place.row === this.active);
    this.#choose(place.row);
    this.dispatchEvent(new Event("row"));
  }

  #look(token) {
    if (token < this.facts.tokens.length) this.dispatchEvent(new CustomEvent("look", {detail: token}));
  }
}
