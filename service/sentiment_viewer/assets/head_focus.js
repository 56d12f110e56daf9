// The links of one token: all of them, with their weights in boxes beside the other column.
import {blendedColour} from "./canvas.js";
import {drawLinks, LINK_ROW, linkLane, unitWeights} from "./head_links.js";

// Weaker lines are invisible.
const FOCUS_LINE_MIN = 0.004;
const FOCUS_BOX = {most: 38, numbered: 25, headed: 14, least: 4, height: 18};
const FOCUS_SHARE = 0.6;

/**
 * Where the boxes of a token's links are: {x (of the first), width (of each), x1, x2 (the ends of the lines)}, in pixels.
 *
 * @param {string} side the column of the token.
 * @param {{x1: number, x2: number}} geometry the edges of the columns.
 */
export function focusBoxes(side, {x1, x2}, count) {
  const width = Math.min(FOCUS_BOX.most, Math.max(FOCUS_BOX.least, Math.floor(((x2 - x1) * FOCUS_SHARE) / count)));
  const taken = width * count;
  return side === "left" ? {x: x2 - taken, width, x1, x2: x2 - taken} : {x: x1, width, x1: x1 + taken, x2};
}

/** The number above each head's boxes; "" where there is no room. */
export function focusNumbers(heads, width) {
  return heads.map((head) => (width >= FOCUS_BOX.headed ? String(head) : ""));
}

/**
 * Draw the links of a token, row 0 at y = 0, and the numbers of the heads above it.
 *
 * @param {object} scene as in head_view.js.
 * @param {{side: string, row: number}} focus the token, by its column and row.
 * @param {{x1: number, x2: number}} geometry the edges of the columns in pixels.
 * @param {{top: number, bottom: number}} band the pixels that can be seen.
 */
export function drawFocus(surface, scene, focus, geometry, band) {
  const {heads, colours} = scene;
  if (!heads.length) return;
  const other = focus.side === "left" ? scene.right : scene.left;
  const found = heads.map((head) => unitWeights(scene.table(head), scene[focus.side][focus.row], focus.side));
  const boxes = focusBoxes(focus.side, geometry, heads.length);
  for (const [place, weights] of found.entries()) {
    for (const [row, unit] of other.entries()) {
      const weight = weights[unit];
      if (weight < FOCUS_LINE_MIN) continue;
      const pair = focus.side === "left" ? [focus.row, row] : [row, focus.row];
      const style = {colour: colours[heads[place]], alpha: weight, width: 1 + 2 * weight};
      drawLinks(surface, pair, {...boxes, top: 0, lane: linkLane(place, heads.length)}, style);
    }
  }
  for (const [place, number] of focusNumbers(heads, boxes.width).entries()) {
    surface.text(number, boxes.x + (place + 0.5) * boxes.width, -8, {size: 11, anchor: "middle", colour: scene.theme.muted});
  }
  const first = Math.max(0, Math.floor(band.top / LINK_ROW));
  const last = Math.min(other.length - 1, Math.floor(band.bottom / LINK_ROW));
  for (let row = first; row <= last; row += 1) {
    for (const [place, weights] of found.entries()) {
      const corner = {x: boxes.x + place * boxes.width, y: row * LINK_ROW + (LINK_ROW - FOCUS_BOX.height) / 2};
      focusBox(surface, corner, boxes.width, weights[other[row]], colours[heads[place]], scene.theme);
    }
  }
}

function focusBox(surface, {x, y}, width, weight, colour, theme) {
  surface.rect(x + 1, y, width - 2, FOCUS_BOX.height, {fill: theme.panel});
  surface.rect(x + 1, y, width - 2, FOCUS_BOX.height, {fill: colour, alpha: weight});
  surface.rect(x + 1, y + FOCUS_BOX.height - 2, width - 2, 2, {fill: colour, alpha: 0.25 + 0.75 * weight});
  if (width < FOCUS_BOX.numbered || weight < 0.005) return;
  const said = weight.toFixed(2);
  const text = width < 32 ? said.replace(/^0/, "") : said;
  surface.text(text, x + width / 2, y + FOCUS_BOX.height - 5, {size: 11, anchor: "middle", colour: textOn(colour, theme.panel, weight)});
}

/** Black or white, whichever is readable on a colour over a background with some opacity. */
function textOn(colour, below, alpha) {
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = blendedColour(below, colour, alpha).map((part) => linear(part / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}
