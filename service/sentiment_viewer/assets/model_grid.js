// All maps of a model as thumbnails, layers by heads, in a grid that arrow keys move through.
import {element, replace} from "./dom.js";
import {headEffect, headName, headPattern, markedHeads} from "./head_words.js";
import {drawMapPixels, smallerMap} from "./model_pixels.js";
import {signedNumber} from "./wording.js";

/** The side of a thumbnail in pixels. */
const THUMB_SIDE = 72;
const GRID_FRAME_MS = 8;
const GRID_TITLE = "Attention maps, a row a layer and a column a head";

/** The grid. `choose` is called with the layer and head whose map is to be enlarged. */
export class ModelGrid {
  constructor(choose) {
    this.choose = choose;
    this.table = element("table", {class: "model-grid", role: "grid", aria: {label: GRID_TITLE}});
    const region = {class: "scroll model-scroll", role: "region", tabIndex: 0, aria: {label: "Attention maps of all heads"}};
    this.element = element("div", region, this.table);
    this.cells = [];
    this.active = 0;
    this.waiting = [];
    this.frame = 0;
    this.table.addEventListener("keydown", (event) => this.#move(event));
    this.table.addEventListener("focusin", (event) => this.#activate(this.cells.findIndex(({button}) => button === event.target)));
  }

  /** Make the cells for this many layers and heads. */
  shape(layers, heads) {
    [this.layers, this.heads] = [layers, heads];
    this.cells = [];
    this.table.style.setProperty("--heads", heads);
    const numbers = Array.from({length: heads}, (_, head) => element("th", {scope: "col", role: "columnheader", text: `head ${head}`}));
    const rows = Array.from({length: layers}, (_, layer) => element(
      "tr", {role: "row"},
      element("th", {scope: "row", role: "rowheader", text: `layer ${layer}`}),
      ...Array.from({length: heads}, (_, head) => this.#cell(layer, head)),
    ));
    const top = element("tr", {role: "row"}, element("td", {role: "gridcell"}), ...numbers);
    replace(this.table, element("thead", {role: "rowgroup"}, top), element("tbody", {role: "rowgroup"}, ...rows));
    this.#activate(0);
  }

  /** Say what each head does; null while that is not known. */
  describe(report) {
    const marked = markedHeads(report);
    for (const {layer, head, button, pattern, effect} of this.cells) {
      const value = headEffect(report, layer, head);
      const strong = marked.has(`${layer},${head}`);
      button.setAttribute("aria-label", headName(report, layer, head) + (strong ? ", one of the largest effects" : ""));
      button.title = headName(report, layer, head);
      button.classList.toggle("marked", strong);
      pattern.textContent = headPattern(report, layer, head).short;
      effect.textContent = value === null ? "" : signedNumber(value);
    }
  }

  /** Forget what has been drawn: other tokens, or another theme. */
  clear() {
    for (const cell of this.cells) cell.drawn = false;
  }

  /** Draw the maps that have come, some a frame. */
  draw(maps, level, special, shades) {
    this.waiting = this.cells.filter(({drawn, layer, head}) => !drawn && maps.has(layer, head));
    cancelAnimationFrame(this.frame);
    const some = () => {
      const until = performance.now() + GRID_FRAME_MS;
      while (this.waiting.length && performance.now() < until) {
        const cell = this.waiting.shift();
        drawMapPixels(cell.canvas, smallerMap(maps.table(cell.layer, cell.head, level, special), THUMB_SIDE), shades);
        cell.drawn = true;
      }
      if (this.waiting.length) this.frame = requestAnimationFrame(some);
    };
    some();
  }

  /** Focus the cell of a head. */
  focus(layer, head) {
    this.#activate(layer * this.heads + head);
    this.cells[this.active]?.button.focus();
  }

  #cell(layer, head) {
    const canvas = element("canvas", {width: 1, height: 1, class: "model-thumb", aria: {hidden: "true"}});
    const pattern = element("span", {class: "model-pattern"});
    const effect = element("span", {class: "number model-effect"});
    const button = element(
      "button", {type: "button", class: "model-cell", tabIndex: -1, on: {click: () => this.choose(layer, head)}}, canvas, pattern, effect,
    );
    this.cells.push({layer, head, canvas, pattern, effect, button, drawn: false});
    return element("td", {role: "gridcell"}, button);
  }

  #activate(place) {
    if (!(place in this.cells)) return;
    if (this.cells[this.active]) this.cells[this.active].button.tabIndex = -1;
    this.active = place;
    this.cells[place].button.tabIndex = 0;
  }

  #move(event) {
    const [layer, head] = [Math.floor(this.active / this.heads), this.active % this.heads];
    const [down, right] = {
      ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -head], End: [0, this.heads - 1 - head],
      PageUp: [-layer, 0], PageDown: [this.layers - 1 - layer, 0],
    }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    this.focus(clamp(layer + down, this.layers - 1), clamp(head + right, this.heads - 1));
  }
}

/** The grid as a picture to save: {width, height, title, draw(surface)}. */
export function gridDrawing(grid, report, theme) {
  const {layers, heads, cells} = grid;
  const [wide, high, left, top] = [THUMB_SIDE + 12, THUMB_SIDE + 50, 70, 34];
  const marked = markedHeads(report);
  const draw = (surface) => {
    const title = {size: 12, colour: theme.text};
    for (let head = 0; head < heads; head += 1) surface.text(`head ${head}`, left + head * wide, top - 10, title);
    for (let layer = 0; layer < layers; layer += 1) surface.text(`layer ${layer}`, 10, top + layer * high + THUMB_SIDE / 2, title);
    for (const {layer, head, canvas, drawn} of cells) {
      const [x, y] = [left + head * wide, top + layer * high];
      if (drawn) surface.image(canvas, x, y, THUMB_SIDE, THUMB_SIDE);
      const strong = marked.has(`${layer},${head}`);
      surface.rect(x - 1, y - 1, THUMB_SIDE + 2, THUMB_SIDE + 2, {stroke: strong ? theme.text : theme.line});
      if (strong) surface.rect(x - 2, y - 2, THUMB_SIDE + 4, THUMB_SIDE + 4, {stroke: theme.text});
      const effect = headEffect(report, layer, head);
      const style = {size: 11, colour: strong ? theme.text : theme.muted, maxWidth: wide - 4};
      surface.text(headPattern(report, layer, head).short, x, y + THUMB_SIDE + 14, style);
      surface.text(effect === null ? "" : signedNumber(effect), x, y + THUMB_SIDE + 28, style);
    }
  };
  return {width: left + heads * wide + 10, height: top + layers * high + 10, title: GRID_TITLE, draw};
}
