// Which links between tokens are drawn, and how strong. Pure, except for the drawing surface.

/** Weaker links are drawn for one token at a time only. */
export const LINK_FLOOR = 0.02;
/** The most links that are drawn at once; the weakest go first. */
export const LINKS_MAX = 20000;
/** The height of a token's row in pixels. */
export const LINK_ROW = 26;
// A link is drawn with the middle weight of its step, at most 13 % off its own: lines of one step and head are one path.
const LINK_STEPS = 16;
const LINK_STEP_LOG = Math.log(LINK_FLOOR) / LINK_STEPS;
const LINK_LANES = 16;
// Without a graphics card Chromium draws lines of one pixel 5 to 15 times faster than wider ones, and both best in short paths.
const LINK_WIDE = 0.3;
const LINK_PATH = {thin: 100, wide: 8};

/**
 * A head's links of LINK_FLOOR and more, the strongest steps first: {from, to (rows of the columns), starts (of each step)}.
 *
 * @param {{size: number, weights: Float32Array}} table as AttentionMaps gives it.
 * @param {Int32Array} left the row in the left column of each unit, -1 where it has none.
 * @param {Int32Array} right likewise, of the right column.
 */
export function sortedLinks({size, weights}, left, right) {
  const starts = new Uint32Array(LINK_STEPS + 1);
  const steps = new Int8Array(size * size).fill(-1);
  for (let row = 0; row < size; row += 1) {
    if (left[row] < 0) continue;
    for (let column = 0, place = row * size; column < size; column += 1, place += 1) {
      const weight = weights[place];
      if (weight < LINK_FLOOR || right[column] < 0) continue;
      const step = Math.min(LINK_STEPS - 1, Math.max(0, Math.floor(Math.log(weight) / LINK_STEP_LOG)));
      steps[place] = step;
      starts[step + 1] += 1;
    }
  }
  for (let step = 0; step < LINK_STEPS; step += 1) starts[step + 1] += starts[step];
  const next = starts.slice();
  const from = new Uint16Array(starts[LINK_STEPS]);
  const to = new Uint16Array(starts[LINK_STEPS]);
  for (let place = 0; place < steps.length; place += 1) {
    if (steps[place] < 0) continue;
    const at = next[steps[place]]++;
    from[at] = left[Math.floor(place / size)];
    to[at] = right[place % size];
  }
  return {from, to, starts};
}

/**
 * The links of some heads that cross a band of rows: {batches: [{head, weight, rows [from, to, ...]}], count, floor}. The strongest
 * come first; `floor` is the weight down to which all are there.
 *
 * @param {{head: number, links: object}[]} heads with links as sortedLinks gives them.
 * @param {number} top the first row of the band; `bottom`: the last. Fractions are fine.
 */
export function crossingLinks(heads, top, bottom) {
  const batches = [];
  let count = 0;
  for (let step = 0; step < LINK_STEPS; step += 1) {
    const found = [];
    let added = 0;
    for (const {head, links} of heads) {
      const rows = crossingRows(links, step, top, bottom);
      added += rows.length / 2;
      if (rows.length) found.push({head, weight: Math.exp(LINK_STEP_LOG * (step + 0.5)), rows});
    }
    if (count + added > LINKS_MAX) return {batches, count, floor: Math.exp(LINK_STEP_LOG * step)};
    batches.push(...found);
    count += added;
  }
  return {batches, count, floor: LINK_FLOOR};
}

function crossingRows({from, to, starts}, step, top, bottom) {
  const rows = new Uint16Array(2 * (starts[step + 1] - starts[step]));
  let filled = 0;
  for (let place = starts[step]; place < starts[step + 1]; place += 1) {
    const [one, other] = [from[place], to[place]];
    if ((one < top && other < top) || (one > bottom && other > bottom)) continue;
    rows[filled] = one;
    rows[filled + 1] = other;
    filled += 2;
  }
  return rows.subarray(0, filled);
}

/** Batches in pieces that are drawn as one path each, so that a frame draws some of them. */
export function linkPieces(batches) {
  const pieces = [];
  for (const {head, weight, rows} of batches) {
    const most = weight < LINK_WIDE ? LINK_PATH.thin : LINK_PATH.wide;
    for (let start = 0; start < rows.length; start += 2 * most) pieces.push({head, weight, rows: rows.subarray(start, start + 2 * most)});
  }
  return pieces;
}

/** How a link is drawn where all links of `shown` heads are: its opacity is its weight, less where many lie over each other. */
export function linkStyle(weight, shown) {
  return {alpha: Math.min(1, weight / Math.sqrt(shown)), width: weight < LINK_WIDE ? 1 : 1 + 1.5 * weight};
}

/** How far from its row's middle a head's lines end, in pixels: lines of several heads do not hide each other. */
export function linkLane(place, shown) {
  return ((place + 0.5) / shown - 0.5) * Math.min(LINK_LANES, 3 * (shown - 1));
}

/**
 * Draw links from x1 to x2, with row 0 at `top`.
 *
 * @param {object} surface as in surface.js.
 * @param {Uint16Array} rows from, to, ...
 * @param {{x1: number, x2: number, top: number, lane: number}} geometry in pixels.
 * @param {{colour: string, alpha: number, width: number}} style
 */
export function drawLinks(surface, rows, {x1, x2, top, lane}, style) {
  const ends = new Float32Array(2 * rows.length);
  const middle = top + LINK_ROW / 2 + lane;
  for (let place = 0; place < rows.length; place += 2) {
    ends[2 * place] = x1;
    ends[2 * place + 1] = middle + rows[place] * LINK_ROW;
    ends[2 * place + 2] = x2;
    ends[2 * place + 3] = middle + rows[place + 1] * LINK_ROW;
  }
  surface.lines(ends, style);
}

/**
 * The weights between one unit and all units of a table: what it looks at, or by whom it is looked at.
 *
 * @param {string} side "left": the unit looks; "right": it is looked at.
 */
export function unitWeights({size, weights}, unit, side) {
  if (side === "left") return weights.subarray(unit * size, (unit + 1) * size);
  return Float32Array.from({length: size}, (_, row) => weights[row * size + unit]);
}
