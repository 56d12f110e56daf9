// One attention map enlarged: a heat map with the tokens at both sides, on a canvas as large as what is visible.
import {canvasFor} from "./canvas.js";
import {element} from "./dom.js";
import {drawMapPixels} from "./model_pixels.js";
import {CanvasSurface, fittedText, textWidth} from "./surface.js";
import {quotedWord, visibleText} from "./wording.js";

// Pixels of a cell whose label can be read, and the most that one takes.
const MAP_CELL = {labelled: 15, most: 30};
const MAP_LABEL = {most: 130, size: 12, gap: 6};
const MAP_PAGE = 10;
// Of the window's height, where all of a map is to be seen at once.
const MAP_HEIGHT = 0.72;

/** The map of one head: `show` what it is of, arrow keys and the pointer choose a cell. */
export class ModelMap {
  constructor(announce) {
    this.announce = announce;
    this.canvas = element("canvas", {class: "map-canvas", aria: {hidden: "true"}});
    this.space = element("div", {class: "map-space"}, this.canvas);
    this.element = element("div", {class: "scroll map-scroll", role: "application", tabIndex: 0}, this.space);
    this.readout = element("p", {class: "number map-readout"});
    this.pixels = element("canvas");
    this.fit = false;
    this.cell = null;
    this.element.addEventListener("scroll", () => this.follow(), {passive: true});
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("pointermove", (event) => this.#point(event));
    this.element.addEventListener("pointerdown", (event) => this.#point(event));
  }

  /** Show a table of weights of some maps in some colours: {maps, table, name, shades, theme}. */
  show(shown) {
    // Of one text's maps, tables of a size have the same tokens.
    const sameTokens = this.shown?.maps === shown.maps && this.shown.table.size === shown.table.size;
    this.shown = shown;
    if (!sameTokens) this.cell = null;
    const sides = `${shown.table.size} by ${shown.table.size} tokens`;
    this.element.setAttribute("aria-label", `${shown.name}, ${sides}; arrow keys choose who looks and at what`);
    drawMapPixels(this.pixels, shown.table, shown.shades);
    this.#say();
    this.resize();
  }

  /** Fit the map to the page's width; `fit`: all of it is to be seen at once. */
  resize(fit = this.fit) {
    this.fit = fit;
    if (!this.shown || !this.element.clientWidth) return;
    const {units, size} = this.shown.table;
    const widest = Math.max(20, ...units.map(({text}) => Math.min(MAP_LABEL.most, textWidth(visibleText(text), {size: MAP_LABEL.size}))));
    const room = this.element.clientWidth - widest - 2 * MAP_LABEL.gap - 2;
    const wide = Math.max(1, Math.min(MAP_CELL.most, Math.floor(room / size)));
    const high = Math.max(1, Math.floor((innerHeight * MAP_HEIGHT - widest) / size));
    this.side = fit ? Math.min(wide, high) : Math.max(MAP_CELL.labelled, wide);
    this.margin = this.side >= MAP_CELL.labelled ? Math.ceil(widest) + 2 * MAP_LABEL.gap : 4;
    this.space.style.width = this.space.style.height = `${this.margin + size * this.side}px`;
    this.#draw();
  }

  /** Draw what has become visible, by scrolling or otherwise. */
  follow() {
    const {scrollLeft, scrollTop} = this.element;
    if (this.drawnAt !== `${scrollLeft},${scrollTop}`) this.#draw();
  }

  /** The map as a picture to save. */
  drawing() {
    const {table, name, theme} = this.shown;
    const side = Math.max(MAP_CELL.labelled, this.side);
    const margin = MAP_LABEL.most + 2 * MAP_LABEL.gap;
    const length = margin + table.size * side;
    const draw = (surface) => {
      this.#drawOn(surface, {side, margin, left: 0, top: 0, width: length, height: length});
      surface.text(name, MAP_LABEL.gap, 16, {size: MAP_LABEL.size, weight: "bold", colour: theme.text, maxWidth: margin});
    };
    return {width: length + 10, height: length + 10, title: `Attention of ${name}`, draw};
  }

  #draw() {
    if (!this.shown) return;
    const {clientWidth: width, clientHeight: height, scrollLeft: left, scrollTop: top} = this.element;
    this.drawnAt = `${left},${top}`;
    const {side, margin} = this;
    this.#drawOn(new CanvasSurface(canvasFor(this.canvas, width, height)), {side, margin, left, top, width, height});
  }

  /** Draw what a window of the map shows: from (left, top), of some width and height in pixels. */
  #drawOn(surface, {side, margin, left, top, width, height}) {
    const {table, theme} = this.shown;
    surface.image(this.pixels, margin - left, margin - top, table.size * side, table.size * side);
    surface.rect(0, 0, width, margin, {fill: theme.panel});
    surface.rect(0, 0, margin, height, {fill: theme.panel});
    const ends = margin + table.size * side;
    surface.rect(margin - left - 0.5, margin - top - 0.5, ends - margin + 1, ends - margin + 1, {stroke: theme.line});
    if (side >= MAP_CELL.labelled) this.#labels(surface, {side, margin, left, top, width, height});
    if (!this.cell) return;
    const [row, column] = this.cell;
    const [x, y] = [margin + column * side - left, margin + row * side - top];
    if (x >= margin - side && y >= margin - side) surface.rect(x - 1, y - 1, side + 2, side + 2, {stroke: theme.focus});
  }

  #labels(surface, {side, margin, left, top, width, height}) {
    const {table: {units, size}, theme} = this.shown;
    const visible = (start, length) => [Math.floor(start / side), Math.min(size - 1, Math.floor((start + length - margin) / side))];
    const maxWidth = margin - 2 * MAP_LABEL.gap;
    const [firstRow, lastRow] = visible(top, height);
    surface.rect(0, 0, margin, height, {fill: theme.panel});
    for (let row = firstRow; row <= lastRow; row += 1) {
      const chosen = this.cell?.[0] === row;
      const y = margin + row * side - top + side / 2 + 4;
      surface.text(visibleText(units[row].text), margin - MAP_LABEL.gap, y, {
        size: MAP_LABEL.size, anchor: "end", colour: chosen ? theme.text : theme.muted, weight: chosen ? "bold" : "normal", maxWidth,
      });
    }
    const [firstColumn, lastColumn] = visible(left, width);
    const turned = this.#turnedLabels(firstColumn, lastColumn, side, margin);
    const x = margin + firstColumn * side - left;
    surface.image(turned, x, 0, (lastColumn - firstColumn + 1) * side, margin - MAP_LABEL.gap / 2);
    surface.rect(0, 0, margin, margin, {fill: theme.panel});
    surface.text("looks ↓", margin - MAP_LABEL.gap, margin - 6, {size: 11, anchor: "end", colour: theme.muted});
    surface.text("at →", margin - MAP_LABEL.gap, margin - 20, {size: 11, anchor: "end", colour: theme.muted});
  }

  /** The labels of some columns, turned to run upwards: surfaces have no turned text, but pictures. */
  #turnedLabels(first, last, side, margin) {
    const {table: {units}, theme} = this.shown;
    const high = margin - MAP_LABEL.gap / 2;
    const canvas = element("canvas");
    // Of two pixels each whatever the screen, for they are saved too.
    const context = canvasFor(canvas, (last - first + 1) * side, high, 2);
    context.translate(0, high);
    context.rotate(-Math.PI / 2);
    const surface = new CanvasSurface(context);
    for (let column = first; column <= last; column += 1) {
      const chosen = this.cell?.[1] === column;
      const options = {size: MAP_LABEL.size, weight: chosen ? "bold" : "normal", colour: chosen ? theme.text : theme.muted};
      const said = fittedText(visibleText(units[column].text), margin - 2 * MAP_LABEL.gap, options);
      surface.text(said, 3, (column - first) * side + side / 2 + 4, options);
    }
    return canvas;
  }

  #point(event) {
    if (!this.shown) return;
    const box = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - this.element.clientLeft, event.clientY - box.top - this.element.clientTop];
    if (x < this.margin || y < this.margin) return;
    const place = (at, scrolled) => Math.floor((at + scrolled - this.margin) / this.side);
    this.#choose(place(y, this.element.scrollTop), place(x, this.element.scrollLeft));
  }

  #key(event) {
    const [row, column] = this.cell ?? [0, 0];
    const last = this.shown.table.size - 1;
    const to = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [row, column + 1], ArrowLeft: [row, column - 1],
      PageDown: [row + MAP_PAGE, column], PageUp: [row - MAP_PAGE, column], Home: [row, 0], End: [row, last],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.#choose(...to.map((place) => Math.max(0, Math.min(last, place))));
    this.#reveal();
    this.announce(this.readout.textContent);
  }

  #choose(row, column) {
    const {size} = this.shown.table;
    if (row < 0 || column < 0 || row >= size || column >= size) return;
    if (this.cell && this.cell[0] === row && this.cell[1] === column) return;
    this.cell = [row, column];
    this.#say();
    this.#draw();
  }

  #reveal() {
    const {clientWidth, clientHeight} = this.element;
    const seen = (start, at, length) => {
      const place = this.margin + at * this.side;
      if (place < start + this.margin) return place - this.margin;
      return place + this.side > start + length ? place + this.side - length : start;
    };
    this.element.scrollTop = seen(this.element.scrollTop, this.cell[0], clientHeight);
    this.element.scrollLeft = seen(this.element.scrollLeft, this.cell[1], clientWidth);
  }

  #say() {
    if (!this.cell) {
      this.readout.textContent = "Point at the map, or choose with the arrow keys.";
      return;
    }
    const [row, column] = this.cell;
    const {units, weights, size} = this.shown.table;
    const name = (unit) => `token ${unit} ${quotedWord(units[unit].text)}`;
    this.readout.textContent = `${name(row)} → ${name(column)}: ${weights[row * size + column].toFixed(3)}`;
  }
}
