// The neuron view's picture: where its columns stand and how its rows are drawn, on a canvas or into an SVG document.
import {blendedColour} from "./canvas.js";
import {largestFirst, plainNumber, quotedWord, visibleText} from "./wording.js";

/** A query's or key's dimension has full colour from here on: one scale for all texts, layers and heads. */
export const NEURON_VECTOR_FULL = 4;
/** The same of a product of the two. */
export const NEURON_PRODUCT_FULL = 8;
/** Heights in pixels: of the headings, which stay while rows scroll, and of a row. */
export const NEURON_HEADINGS = 66;
export const NEURON_ROW = 22;
/** Of the legend under a picture that is saved. */
export const NEURON_LEGEND = 56;

const NEURON_GAP = 14;
// Smaller bias values are rounding of float32.
const NEURON_BIAS_MIN = 1e-4;
const NEURON_BAR_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];
const NEURON_SHADES = 32;
const NEURON_FIGURE = {size: 12, mono: true, anchor: "end"};

/**
 * What a neuron view's picture is made of.
 *
 * @param {object} view one of Explanation.neurons.
 * @param {object[]} tokens the header's.
 * @param {boolean} bySoftmax whether keys stand by softmax, the largest first, instead of by position.
 * @returns {object} order: the keys' indices in the view; biased: whether anything was added to the scaled products; largest values.
 */
export function neuronFacts(view, tokens, bySoftmax) {
  const order = bySoftmax ? largestFirst(view.softmax) : Array.from({length: view.keys}, (_, key) => key);
  const scaledMost = neuronLargest(view.scaled);
  const most = neuronLargest(view.softmax);
  return {
    view,
    tokens,
    bySoftmax,
    order,
    biased: neuronLargest(view.bias) > NEURON_BIAS_MIN * Math.max(1, scaledMost),
    biasLargest: neuronLargest(view.bias),
    vectorLargest: Math.max(neuronLargest(view.query), neuronLargest(view.key)),
    productLargest: neuronLargest(view.product),
    barFull: NEURON_BAR_STEPS.find((step) => step >= most) ?? 1,
  };
}

/** A token as the view names it: the piece as the tokenizer has it. */
export function neuronPiece(facts, index) {
  return visibleText(facts.tokens[index]?.piece ?? `token ${index}`);
}

/** The same in quotes, for a sentence. */
export function neuronQuoted(facts, index) {
  return quotedWord(facts.tokens[index]?.piece ?? `token ${index}`);
}

/** A weight of softmax. */
export function neuronWeight(value) {
  return value > 0 && value < 0.0001 ? "<0.0001" : value.toFixed(4);
}

/** A tiny difference, such as 3e-8. */
export function neuronTiny(value) {
  return value === 0 ? "0" : value.toExponential(0).replace("e-", "e−").replace("e+", "e");
}

/**
 * The positions of the columns, in a picture of about this many pixels; it may be wider. A narrow one leaves out the numbers
 * between the products and their softmax, which the table has.
 */
export function neuronColumns(facts, available) {
  const narrow = available < 640;
  const numbers = narrow ? [] : ["dot", "scaled", ...(facts.biased ? ["bias", "score"] : [])];
  const widths = {looks: narrow ? 56 : 104, softmax: narrow ? 66 : 150, token: narrow ? 54 : 110};
  const gap = narrow ? 6 : NEURON_GAP;
  for (const name of numbers) widths[name] = 54;
  const names = ["looks", "key", "product", ...numbers, "softmax", "token"];
  const fixed = Object.values(widths).reduce((sum, width) => sum + width, 0) + gap * (names.length + 1);
  const cell = Math.max(narrow ? 1 : 2, Math.min(8, Math.floor((available - fixed) / (2 * facts.view.width))));
  widths.key = widths.product = cell * facts.view.width;
  widths.softmax += Math.max(0, Math.min(200, available - fixed - 2 * widths.key));
  const columns = {cell, narrow};
  let x = gap;
  for (const name of names) {
    columns[name] = {x, width: widths[name]};
    x += widths[name] + gap;
  }
  columns.total = x;
  return columns;
}

/** Draw the headings with the query's strip; `top` is where they begin, `lookers` whether the left column is drawn. */
export function drawNeuronHeadings(surface, facts, columns, colours, {top, lookers}) {
  const {view} = facts;
  surface.rect(0, top, columns.total, NEURON_HEADINGS, {fill: colours.panel});
  const heading = (name, said, below = "") => {
    const column = columns[name];
    if (!column) return;
    const right = ["dot", "scaled", "bias", "score"].includes(name);
    const [x, anchor] = right ? [column.x + column.width, "end"] : [column.x, "start"];
    if (below) surface.text(below, x, top + 42, {size: 11, colour: colours.muted, anchor, maxWidth: column.width + NEURON_GAP - 2});
    surface.text(said, x, top + 58, {size: 12, weight: "bold", colour: colours.text, anchor, maxWidth: column.width + NEURON_GAP - 2});
  };
  if (lookers) heading("looks", columns.narrow ? "from" : "look from");
  heading("key", columns.narrow ? "k" : "key k");
  heading("product", "q × k");
  heading("dot", "q·k");
  heading("scaled", "scaled", `× ${view.scale.toFixed(4)}`);
  heading("bias", "+ bias");
  heading("score", "score");
  heading("softmax", "softmax", columns.narrow ? `full: ${facts.barFull}` : `a full bar is ${facts.barFull}`);
  heading("token", columns.narrow ? "token" : "key token");
  surface.text(`query q of ${neuronQuoted(facts, view.token)}`, columns.key.x, top + 16, {
    size: 12, weight: "bold", colour: colours.text, maxWidth: columns.key.width + columns.product.width + NEURON_GAP,
  });
  const strip = {x: columns.key.x, y: top + 22, cell: columns.cell, height: 16, full: NEURON_VECTOR_FULL};
  drawNeuronStrip(surface, view.query, strip, colours);
  surface.line(0, top + NEURON_HEADINGS - 0.5, columns.total, top + NEURON_HEADINGS - 0.5, {colour: colours.line});
}

/**
 * Draw one row: on its left a token that may look, then what the query makes of one key.
 *
 * @param {number} looker index of the left token, -1 for none.
 * @param {number} key index of the key in the view, -1 for none.
 */
export function drawNeuronRow(surface, facts, columns, colours, {top, looker, key, active}) {
  const {view} = facts;
  const baseline = top + 15;
  const parting = columns.key.x - 7.5;
  if (active) surface.rect(parting, top, columns.total - parting, NEURON_ROW, {fill: colours.accent, alpha: 0.14});
  surface.line(parting, top, parting, top + NEURON_ROW, {colour: colours.line});
  if (looker >= 0) {
    const chosen = looker === view.token;
    const {x, width} = columns.looks;
    if (chosen) surface.rect(x - 8, top + 2, 4, NEURON_ROW - 4, {fill: colours.accent});
    const [weight, colour] = chosen ? ["bold", colours.text] : ["normal", colours.muted];
    surface.text(neuronPiece(facts, looker), x, baseline, {size: 12, weight, colour, maxWidth: width});
  }
  if (key < 0) return;
  const [from, to] = [key * view.width, (key + 1) * view.width];
  const strip = {y: top + 4, cell: columns.cell, height: NEURON_ROW - 8};
  drawNeuronStrip(surface, view.key.subarray(from, to), {...strip, x: columns.key.x, full: NEURON_VECTOR_FULL}, colours);
  drawNeuronStrip(surface, view.product.subarray(from, to), {...strip, x: columns.product.x, full: NEURON_PRODUCT_FULL}, colours);
  for (const name of ["dot", "scaled", "bias", "score"]) {
    const column = columns[name];
    if (column) surface.text(plainNumber(view[name][key]), column.x + column.width, baseline, {...NEURON_FIGURE, colour: colours.text});
  }
  drawNeuronBar(surface, view.softmax[key], facts.barFull, columns, top, colours);
  const token = {size: 12, colour: colours.text, maxWidth: columns.token.width};
  surface.text(neuronPiece(facts, view.keyStart + key), columns.token.x, baseline, token);
}

/** What the colours mean, in words: one scale for vectors, one for products, and the largest value that is here. */
export function neuronLegend(facts) {
  const scale = (name, full, most) => {
    const beyond = most > full ? ", beyond the scale" : "";
    return `${name}: full colour at ±${full}, largest here ${plainNumber(most)}${beyond}`;
  };
  return [
    "Green is above 0, violet below; the scales are the same for every text, layer and head.",
    `${scale("q and k", NEURON_VECTOR_FULL, facts.vectorLargest)}. ${scale("q × k", NEURON_PRODUCT_FULL, facts.productLargest)}.`,
  ];
}

/** Draw a vector as cells of colour: green above 0, violet below, the panel's colour at 0. */
function drawNeuronStrip(surface, values, {x, y, cell, height, full}, colours) {
  values.forEach((value, place) => {
    const fill = neuronShade(value, full, colours);
    if (fill) surface.rect(x + place * cell, y, cell, height, {fill});
  });
  surface.rect(x - 0.5, y - 0.5, values.length * cell + 1, height + 1, {stroke: colours.line});
}

/** The colour of a value on a scale of both signs, or null where it is that of 0. */
export function neuronShade(value, full, colours) {
  const step = Math.round(Math.min(1, Math.abs(value) / full) * NEURON_SHADES);
  if (!(step > 0)) return null;
  colours.shades ??= new Map();
  const key = value > 0 ? step : -step;
  const end = value > 0 ? colours.fourth : colours.fifth;
  if (!colours.shades.has(key)) {
    const parts = blendedColour(colours.panel, end, step / NEURON_SHADES).map((part) => Math.round(part).toString(16).padStart(2, "0"));
    colours.shades.set(key, `#${parts.join("")}`);
  }
  return colours.shades.get(key);
}

/** The largest absolute value. */
function neuronLargest(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

function drawNeuronBar(surface, weight, full, {softmax: column, narrow}, top, colours) {
  const length = column.width - (narrow ? 46 : 58);
  const [y, height] = [top + 5, NEURON_ROW - 10];
  surface.rect(column.x, y, length, height, {fill: colours.line, alpha: 0.35});
  // A weight that is not 0 is seen: half a pixel at least.
  if (weight > 0) surface.rect(column.x, y, Math.max(0.5, Math.min(1, weight / full) * length), height, {fill: colours.accent});
  surface.text(neuronWeight(weight), column.x + column.width, top + 15, {...NEURON_FIGURE, colour: colours.text});
}
