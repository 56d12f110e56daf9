// One key of the neuron view enlarged: each dimension of q, k and q × k, and which of them make q·k; and all keys as a table.
import {canvasFor} from "./canvas.js";
import {element, replace} from "./dom.js";
import {moreButton} from "./fields.js";
import {
  NEURON_PRODUCT_FULL, NEURON_VECTOR_FULL, neuronPiece, neuronQuoted, neuronShade, neuronTiny, neuronWeight,
} from "./neuron_picture.js";
import {CanvasSurface} from "./surface.js";
import {numberCell, tableNode, tableRow} from "./tables.js";
import {themeColours} from "./theme.js";
import {largestFirst, plainNumber} from "./wording.js";

const NEURON_DIMENSIONS_NAMED = 3;
const NEURON_DIMENSIONS_LISTED = 8;
const NEURON_TABLE_ROWS = 20;
const NEURON_TRACK = {height: 72, gap: 10, label: 42, below: 20};

/** The dimensions of a key whose products are largest, the largest first. */
function neuronTopDimensions(view, key, count) {
  return largestFirst(view.product.subarray(key * view.width, (key + 1) * view.width)).slice(0, count);
}

/** What makes q·k of a key, in words; their share is given only where their sum has its sign and is not more. */
function neuronMakes(view, key) {
  const top = neuronTopDimensions(view, key, NEURON_DIMENSIONS_NAMED);
  const values = top.map((dimension) => view.product[key * view.width + dimension]);
  const sum = values.reduce((total, value) => total + value, 0);
  const dot = view.dot[key];
  const named = top.map((dimension, place) => `${dimension} (${plainNumber(values[place])})`);
  const listed = named.length > 1 ? `${named.slice(0, -1).join(", ")} and ${named.at(-1)}` : named[0];
  const share = sum / dot;
  const made = share > 0 && share <= 1 ? `, ${Math.round(share * 100)} % of it` : "";
  return `q·k is ${plainNumber(dot)}. Its largest parts are dimensions ${listed}: ${plainNumber(sum)} together${made}.`;
}

/** A panel that shows one key. */
export class NeuronDetail {
  constructor() {
    this.heading = element("h2", {class: "neuron-detail-heading"});
    this.sentence = element("p", {class: "neuron-detail-sentence"});
    this.canvas = element("canvas", {class: "neuron-detail-canvas", role: "img"});
    this.space = element("div", {}, this.canvas);
    this.dimensions = element("div");
    this.element = element("section", {class: "neuron-detail panel", aria: {label: "The chosen key"}},
      this.heading, this.sentence, this.space, this.dimensions);
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  /** Show one key of a view. */
  show(facts, key, pinned) {
    this.facts = facts;
    this.key = key;
    const {view} = facts;
    const token = view.keyStart + key;
    this.heading.textContent = `Key ${neuronQuoted(facts, token)}, token ${token}${pinned ? " (held; click the row to let go)" : ""}`;
    this.sentence.textContent = `${neuronMakes(view, key)} ${neuronPath(facts, key)}`;
    this.canvas.setAttribute("aria-label", `Each dimension of q, k and q × k. ${neuronMakes(view, key)}`);
    const rows = neuronTopDimensions(view, key, NEURON_DIMENSIONS_LISTED).map((dimension) => {
      const place = key * view.width + dimension;
      return tableRow(String(dimension), [view.query[dimension], view.key[place], view.product[place]].map((value) => plainNumber(value)));
    });
    const caption = `The ${NEURON_DIMENSIONS_LISTED} largest products`;
    const form = {class: "neuron-table", caption, heads: ["dimension", "q", "k", "q × k"]};
    replace(this.dimensions, tableNode(form, rows));
    this.paint();
  }

  /** Draw again, in the theme's colours and the width there is. */
  paint() {
    const width = this.space.clientWidth;
    if (!this.facts || !width) return;
    const {height, gap, below} = NEURON_TRACK;
    const context = canvasFor(this.canvas, width, 3 * (height + gap) + below);
    drawNeuronDimensions(new CanvasSurface(context), this.facts, this.key, width, themeColours());
  }
}

/** All keys as a table, the largest weights first: the first 20, and the others when asked. */
export class NeuronTable {
  constructor() {
    this.place = element("div", {class: "neuron-table-place scroll", tabIndex: 0, role: "region", aria: {label: "Keys as a table"}});
    this.more = moreButton(
      NEURON_TABLE_ROWS, `Show the first ${NEURON_TABLE_ROWS}`, (count) => `Show all ${count} keys`, () => this.show(this.facts),
    );
    this.element = element("div", {class: "neuron-as-table"}, this.place, this.more.element);
  }

  show(facts) {
    this.facts = facts;
    const {view, biased} = facts;
    const order = largestFirst(view.softmax);
    const shown = order.slice(0, this.more.of(order.length));
    const names = ["q·k", "scaled", ...(biased ? ["bias"] : []), "score", "softmax"];
    const rows = shown.map((key) => {
      const values = [view.dot, view.scaled, ...(biased ? [view.bias] : []), view.score].map((numbers) => plainNumber(numbers[key]));
      const row = tableRow(neuronPiece(facts, view.keyStart + key), [...values, neuronWeight(view.softmax[key])]);
      row.prepend(numberCell(view.keyStart + key));
      return row;
    });
    const whole = shown.length === order.length;
    const said = whole ? `All ${order.length} keys by softmax` : `The ${shown.length} of ${order.length} keys with the largest softmax`;
    replace(this.place, tableNode({class: "neuron-table", caption: said, heads: ["token", "key token", ...names]}, rows));
  }
}

function neuronPath({view, biased, biasLargest}, key) {
  const scaled = `Times ${view.scale.toFixed(4)} it is ${plainNumber(view.scaled[key])}`;
  const bias = biased ? `; with the bias ${plainNumber(view.bias[key])} the score is ${plainNumber(view.score[key])}`
    : `, which is the score: nothing is added but rounding (at most ${neuronTiny(biasLargest)})`;
  return `${scaled}${bias}; softmax makes ${neuronWeight(view.softmax[key])} of it.`;
}

function drawNeuronDimensions(surface, {view}, key, width, colours) {
  const {height, gap, label} = NEURON_TRACK;
  const cell = (width - label) / view.width;
  const [from, to] = [key * view.width, (key + 1) * view.width];
  const tracks = [
    ["q", view.query, NEURON_VECTOR_FULL],
    ["k", view.key.subarray(from, to), NEURON_VECTOR_FULL],
    ["q × k", view.product.subarray(from, to), NEURON_PRODUCT_FULL],
  ];
  tracks.forEach(([name, values, full], track) => {
    const top = track * (height + gap);
    const middle = top + height / 2;
    surface.text(name, 0, middle + 4, {size: 12, colour: colours.text, maxWidth: label - 2});
    surface.rect(label, top, width - label, height, {fill: colours.line, alpha: 0.2});
    values.forEach((value, dimension) => {
      const tall = (Math.min(1, Math.abs(value) / full) * height) / 2;
      const fill = neuronShade(value, full, colours) && (value > 0 ? colours.fourth : colours.fifth);
      if (fill) surface.rect(label + dimension * cell + 0.5, value > 0 ? middle - tall : middle, Math.max(1, cell - 1), tall, {fill});
    });
    surface.line(label, middle, width, middle, {colour: colours.muted, alpha: 0.6});
  });
  const mark = {size: 11, anchor: "middle", colour: colours.muted};
  for (let dimension = 0; dimension < view.width; dimension += 8) {
    surface.text(String(dimension), label + (dimension + 0.5) * cell, 3 * (height + gap) + 8, mark);
  }
}
