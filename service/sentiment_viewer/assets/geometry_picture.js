// The geometry view's picture: where points and labels stand, and how they are drawn, on a canvas or into an SVG document.
import {directionHues, drawMark, huesSaid} from "./label_hues.js";
import {fittedText, textWidth} from "./surface.js";
import {valueColour} from "./theme.js";
import {secondText, shownWord, visibleText} from "./wording.js";

const GEOMETRY_MARGIN = 0.04;
const GEOMETRY_LABEL_WIDE = 140;
// How much farther from its point a label may stand that must be there.
const GEOMETRY_AWAY = [0, 14, 30, 50];
const GEOMETRY_RADIUS = {word: 5, ofMany: 3.5, golden: 2, near: 3.5};
const GEOMETRY_MANY = 100;
const GEOMETRY_STYLE = {word: {size: 13}, golden: {size: 11}, axis: {size: 11}};

/**
 * What is shown of one layer.
 *
 * @param {object} header the explanation's.
 * @param {object[]} layers Explanation.geometry.
 * @param {Float32Array | null} values the words' attributions in logits, if there are any.
 * @returns {object} hues: of values above and below zero; total: the model's layers; words: how many the text has; count: how many
 *   golden words are named for each.
 */
export function geometryFacts(header, layers, layer, values) {
  const view = layers[layer];
  const words = header.words.length;
  const total = geometryTotal(layers);
  return {header, hues: directionHues(header), layers, layer, total, view, values, words, count: words ? view.nearest.length / words : 0};
}

/** How many layers the model has, or came if the messages do not say. A whole geometry has one entry more, for the embeddings. */
export function geometryTotal(layers) {
  return Math.max(layers.at(-1).layers, layers.length - 1);
}

/** Which layer it is: what has passed, because other views count layers from 0 and the embeddings come before them. */
export function layerSaid({layer, total}) {
  return layer ? `after ${layer} of ${total} layers` : "embeddings, before all layers";
}

/** The closest golden words of a word, the closest first: [{golden (an index), text, cosine}]. */
export function nearestGolden({view, count}, word) {
  return Array.from({length: count}, (_, place) => {
    const golden = view.nearest[word * count + place];
    return {golden, text: view.golden[golden], cosine: view.cosines[word * count + place]};
  });
}

/** What the picture is, a sentence each. */
export function geometrySentences({view, header, values}) {
  const [one, two] = Array.from(view.variance, geometryShare);
  const said = huesSaid(header).map(({name, direction}) => `${name}: ${direction}`).join("; ");
  const colours = `Words have the colours of the text view: ${said}.`;
  return [
    `The axes hold ${one} and ${two} of the golden words' variance: distances here are not the layer's. `
      + "Nearest words are by cosine in all dimensions.",
    `${values ? colours : "Large: words of the text."} Small and grey: golden words.`,
  ];
}

/**
 * Where all points stand in a frame, x and y of each: the words, the golden words, and the mean of the golden words. One scale for both
 * axes; all points are inside.
 *
 * @param {{left: number, top: number, width: number, height: number}} frame in pixels.
 */
export function geometryPlaces({points, goldenPoints}, {left, top, width, height}) {
  const places = new Float32Array(points.length + goldenPoints.length + 2);
  places.set(points);
  places.set(goldenPoints, points.length);
  const range = [0, 1].map((axis) => {
    let [least, most] = [Infinity, -Infinity];
    for (let place = axis; place < places.length; place += 2) {
      least = Math.min(least, places[place]);
      most = Math.max(most, places[place]);
    }
    return {middle: (least + most) / 2, size: most - least || 1};
  });
  const margin = GEOMETRY_MARGIN * width;
  const scale = Math.min((width - 2 * margin) / range[0].size, (height - 2 * margin) / range[1].size);
  for (let place = 0; place < places.length; place += 2) {
    places[place] = left + width / 2 + scale * (places[place] - range[0].middle);
    places[place + 1] = top + height / 2 - scale * (places[place + 1] - range[1].middle);
  }
  return places;
}

/** Labels that do not overlap: of the text's words, the largest values first; then of golden words, those closest to them first. */
export function geometryLabels(facts, places, frame) {
  const {words, values, view, header} = facts;
  const put = labelPlacer(facts, places, frame, [...axisBoxes(frame), ...wordBoxes(facts, places)]);
  const order = Array.from({length: words}, (_, word) => word);
  if (values) order.sort((one, other) => Math.abs(values[other]) - Math.abs(values[one]) || one - other);
  const labels = order.map((word) => put(word, shownWord(header.words[word].text), "word"));
  const said = new Set();
  for (const golden of closestGolden(facts, places)) {
    // Words such as "the" stand many times; one of them is labelled, the others when pointed at.
    if (said.has(view.golden[golden])) continue;
    const label = put(words + golden, view.golden[golden], "golden");
    if (label) said.add(view.golden[golden]);
    labels.push(label);
  }
  return labels.filter(Boolean);
}

/**
 * The labels of a chosen word and its nearest golden words, and of a golden word that is pointed at (-1: none). They are always there;
 * where there is room, they leave those of other words free.
 */
export function geometryMarks(facts, places, frame, labels, chosen, pointed) {
  const {words, view, header} = facts;
  const own = labels.find(({point}) => point === chosen);
  const others = labels.filter((label) => label.kind === "word").map((label) => labelBox(label, places));
  const put = labelPlacer(facts, places, frame, [...others, ...wordBoxes(facts, places)]);
  const marks = words ? [own ?? put(chosen, shownWord(header.words[chosen].text), "word", true)] : [];
  const near = words ? nearestGolden(facts, chosen).map(({golden}) => golden) : [];
  if (pointed >= 0 && !near.includes(pointed)) near.unshift(pointed);
  for (const golden of near) marks.push(put(words + golden, view.golden[golden], "golden", true));
  return marks;
}

/**
 * Draw a scene: {facts, frame, places, labels, marks, chosen}, places and labels as made above.
 *
 * @param {object} colours the theme's.
 * @param {boolean} dark the result of isDark().
 */
export function drawGeometry(surface, scene, colours, dark) {
  const {facts, frame, places, labels, marks, chosen} = scene;
  const {words, view} = facts;
  const at = (point) => [places[2 * point], places[2 * point + 1]];
  drawAxes(surface, view, frame, at(words + view.golden.length), colours);
  surface.dots(places.subarray(2 * words, 2 * (words + view.golden.length)), GEOMETRY_RADIUS.golden, {fill: colours.muted, alpha: 0.55});
  const marked = new Set(marks.map(({point}) => point));
  for (const label of labels) {
    const style = label.kind === "word" ? wordStyle(facts, label.point, colours, dark) : {colour: colours.muted};
    if (!marked.has(label.point)) drawLabel(surface, label, at(label.point), style);
  }
  for (let word = 0; word < words; word += 1) drawWord(surface, facts, word, at(word), wordRadius(facts), colours, dark);
  if (words) for (const {golden} of nearestGolden(facts, chosen)) {
    surface.line(...at(chosen), ...at(words + golden), {colour: colours.accent, width: 1.5, alpha: 0.8});
    surface.dots(at(words + golden), GEOMETRY_RADIUS.near, {fill: colours.accent});
  }
  if (words) drawWord(surface, facts, chosen, at(chosen), wordRadius(facts) + 2, colours, dark);
  for (const mark of marks) {
    const {left, right, top, bottom} = labelBox(mark, places);
    const [x, y] = at(mark.point);
    const [across, down] = [Math.max(left, Math.min(right, x)), Math.max(top, Math.min(bottom, y))];
    surface.line(x, y, across, down, {colour: colours.muted});
  }
  for (const mark of marks) {
    const style = mark.kind === "word" ? wordStyle(facts, mark.point, colours, dark) : {colour: colours.text};
    drawLabel(surface, mark, at(mark.point), {background: colours.panel, ...style, stroke: colours.accent});
  }
}

/** The point at x, y: {word, golden}, -1 for none; golden only where no word is. */
export function geometryPointAt({facts, places, labels}, x, y, reach) {
  const {words, view} = facts;
  const closest = (first, count) => {
    let [found, best] = [-1, reach * reach];
    for (let point = first; point < first + count; point += 1) {
      const away = (places[2 * point] - x) ** 2 + (places[2 * point + 1] - y) ** 2;
      if (away < best) [found, best] = [point - first, away];
    }
    return [found, best];
  };
  const [word, away] = closest(0, words);
  const [golden, farther] = closest(words, view.golden.length);
  if (word >= 0 && (away <= farther || away < wordRadius(facts) ** 2)) return {word, golden: -1};
  if (golden >= 0) return {word: -1, golden};
  const label = labels.find((one) => {
    const {left, right, top, bottom} = labelBox(one, places);
    return x >= left && x <= right && y >= top && y <= bottom;
  });
  if (!label) return {word: -1, golden: -1};
  return label.kind === "word" ? {word: label.point, golden: -1} : {word: -1, golden: label.point - words};
}

/** The golden words, those that stand closest to a word of the text first; or to the one that is given. */
export function closestGolden({words, view}, places, word = null) {
  const [first, end] = word === null ? [0, words] : [word, word + 1];
  const away = view.golden.map((_, golden) => {
    const [x, y] = [places[2 * (words + golden)], places[2 * (words + golden) + 1]];
    let best = Infinity;
    for (let point = first; point < end; point += 1) best = Math.min(best, (places[2 * point] - x) ** 2 + (places[2 * point + 1] - y) ** 2);
    return best;
  });
  return Array.from(away.keys()).sort((one, other) => away[one] - away[other] || one - other);
}

function geometryShare(value) {
  return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}\u202f%`;
}

/**
 * A function (point, text, kind, always) that finds room for a label beside its point, and returns it, or null where there is none.
 * `always`: where there is none, the label overlaps others.
 */
function labelPlacer(facts, places, {left, top, width, height}, taken) {
  return (point, said, kind, always = false) => {
    const style = GEOMETRY_STYLE[kind];
    // Behind the cut, so that a long word has it too.
    const text = `${fittedText(visibleText(said), GEOMETRY_LABEL_WIDE, style)}${secondText(facts.header, point)}`;
    const [wide, tall] = [textWidth(text, style) + 4, style.size + 5];
    const off = (kind === "word" ? wordRadius(facts) : GEOMETRY_RADIUS.near) + 3;
    const [x, y] = [places[2 * point], places[2 * point + 1]];
    const isInside = ([right, down]) => (
      x + right >= left && x + right + wide <= left + width && y + down >= top && y + down + tall <= top + height
    );
    const isFree = ([right, down]) => !taken.some((box) => (
      x + right < box.right && x + right + wide > box.left && y + down < box.bottom && y + down + tall > box.top
    ));
    const away = always ? GEOMETRY_AWAY : GEOMETRY_AWAY.slice(0, 1);
    const spots = away.flatMap((more) => labelSpots(off + more, wide, tall)).filter(isInside);
    const spot = spots.find(isFree) ?? (always ? (spots[0] ?? [off, -tall / 2]) : null);
    if (!spot) return null;
    const label = {point, text, kind, x: spot[0], y: spot[1], width: wide, height: tall};
    taken.push(labelBox(label, places));
    return label;
  };
}

/** Where a label may stand: its upper left corner from its point, the best first. */
function labelSpots(off, wide, tall) {
  const [right, left, up, down] = [off, -off - wide, -off - tall, off];
  const middle = -tall / 2;
  return [[right, middle], [left, middle], [-wide / 2, up], [-wide / 2, down], [right, up], [right, down], [left, up], [left, down]];
}

function labelBox({point, x, y, width, height}, places) {
  const [left, top] = [places[2 * point] + x, places[2 * point + 1] + y];
  return {left, right: left + width, top, bottom: top + height};
}

function wordRadius({words}) {
  return words > GEOMETRY_MANY ? GEOMETRY_RADIUS.ofMany : GEOMETRY_RADIUS.word;
}

function wordBoxes(facts, places) {
  const radius = wordRadius(facts);
  return Array.from({length: facts.words}, (_, word) => {
    const [x, y] = [places[2 * word], places[2 * word + 1]];
    return {left: x - radius, right: x + radius, top: y - radius, bottom: y + radius};
  });
}

function axisSaid(view) {
  const [one, two] = Array.from(view?.variance ?? [], geometryShare);
  return [`1st principal component: ${one} \u2192`, `\u2191 2nd principal component: ${two}`];
}

/** Where the names of the axes stand. */
function axisBoxes({left, top, width, height}) {
  const wide = textWidth(axisSaid().at(-1), GEOMETRY_STYLE.axis);
  return [
    {left: left + width - wide - 12, right: left + width, top: top + height - 24, bottom: top + height},
    {left, right: left + wide + 12, top, bottom: top + 24},
  ];
}

function drawAxes(surface, view, {left, top, width, height}, [x, y], colours) {
  surface.lines([left, y, left + width, y, x, top, x, top + height], {colour: colours.line});
  const [one, two] = axisSaid(view);
  const style = {...GEOMETRY_STYLE.axis, colour: colours.muted};
  surface.text(one, left + width - 8, top + height - 8, {...style, anchor: "end"});
  surface.text(two, left + 8, top + 16, style);
}

function drawWord(surface, {hues, values}, word, centre, radius, colours, dark) {
  const fill = values ? (valueColour(values[word], hues, dark)?.background ?? colours.panel) : colours.accent;
  surface.dots(centre, radius, {fill, stroke: colours.text, width: 1.5});
}

function wordStyle({hues, values}, word, colours, dark) {
  const found = values ? valueColour(values[word], hues, dark) : null;
  return found ? {background: found.background, colour: found.text, hue: found.hue} : {colour: colours.text};
}

function drawLabel(surface, label, [x, y], {background, colour, stroke, hue}) {
  const [left, top] = [x + label.x, y + label.y];
  if (background || stroke) surface.rect(left, top, label.width, label.height, {fill: background, stroke});
  const baseline = top + label.height - 5;
  surface.text(label.text, left + 2, baseline, {...GEOMETRY_STYLE[label.kind], colour});
  drawMark(surface, hue, [left + 2, left + label.width - 2, baseline + 2.5, top + 1.5], colour);
}
