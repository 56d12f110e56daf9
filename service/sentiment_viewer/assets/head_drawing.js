// The head view as a picture to save: all of its rows, with the heads shown and what the lines mean.
import {drawFocus} from "./head_focus.js";
import {crossingLinks, drawLinks, LINK_ROW, linkLane, linkStyle, sortedLinks} from "./head_links.js";
import {headEffect, headPattern} from "./head_words.js";
import {drawLines} from "./surface.js";
import {signedNumber, visibleText} from "./wording.js";

const PICTURE = {margin: 16, line: 20, column: 170, middle: 400, head: 54};

/**
 * The drawing of a scene: {width, height, title, draw(surface)}.
 *
 * @param {object} scene as head_view.js makes it.
 * @param {{side: string, row: number} | null} lock the token whose links alone are drawn.
 * @param {string} claim the sentence that says what attention does not show.
 */
export function headDrawing(scene, lock, claim) {
  const {heads, layer, left, right} = scene;
  const top = PICTURE.margin + PICTURE.line * (heads.length + 3);
  const rows = Math.max(left.length, right.length);
  const bottom = top + rows * LINK_ROW;
  const columns = pictureColumns(heads.length);
  const sorted = heads.map((head) => ({head, links: sortedLinks(scene.table(head), scene.leftRows, scene.rightRows)}));
  const found = crossingLinks(sorted, 0, rows);
  const draw = (surface) => {
    const {text, muted} = scene.theme;
    surface.text(`Attention of layer ${layer}`, PICTURE.margin, PICTURE.margin + 14, {size: 16, weight: "bold", colour: text});
    for (const [place, head] of heads.entries()) drawHeadLine(surface, scene, head, PICTURE.margin + PICTURE.line * (place + 1.6));
    drawPictureTokens(surface, scene, columns, top, lock);
    if (lock) drawFocus(movedDown(surface, top), scene, lock, columns, {top: 0, bottom: bottom - top});
    else drawPictureLinks(surface, scene, columns, found.batches, top);
    const opacity = heads.length > 1 ? `weight / √${heads.length}` : "weight";
    const said = lock ? "Numbers: the weights of the marked token." : `Links of ${found.floor.toFixed(2)} and more; opacity: ${opacity}.`;
    drawLines(surface, [said, claim], PICTURE.margin, bottom + PICTURE.line, PICTURE.line, {size: 12, colour: muted});
  };
  const title = `Attention of layer ${layer}, heads ${heads.join(", ") || "none"}`;
  return {width: columns.x2 + PICTURE.column + PICTURE.margin, height: bottom + 3 * PICTURE.line, title, draw};
}

/** The inner edges of the columns, with room between them for a locked token's numbers. */
function pictureColumns(heads) {
  const x1 = PICTURE.margin + PICTURE.column;
  return {x1, x2: x1 + Math.max(PICTURE.middle, heads * PICTURE.head)};
}

function drawHeadLine(surface, {report, layer, colours, theme}, head, y) {
  const effect = headEffect(report, layer, head);
  const off = effect === null ? "" : `, switching it off: ${signedNumber(effect)} logits`;
  surface.rect(PICTURE.margin, y, 12, 12, {fill: colours[head]});
  surface.text(`head ${head}  ${headPattern(report, layer, head).long}${off}`, PICTURE.margin + 20, y + 11, {size: 13, colour: theme.text});
}

function drawPictureTokens(surface, {units, left, right, theme}, {x1, x2}, top, lock) {
  const said = {size: 13, colour: theme.text, maxWidth: PICTURE.column - 14};
  surface.text("looks", x1 - 6, top - 8, {size: 12, colour: theme.muted, anchor: "end"});
  surface.text("is looked at", x2 + 6, top - 8, {size: 12, colour: theme.muted});
  for (const [side, column] of [["left", left], ["right", right]]) {
    for (const [row, unit] of column.entries()) {
      const weight = lock?.side === side && lock.row === row ? "bold" : "normal";
      const y = top + row * LINK_ROW + LINK_ROW / 2 + 4;
      const [x, anchor] = side === "left" ? [x1 - 6, "end"] : [x2 + 6, "start"];
      surface.text(visibleText(units[unit].text), x, y, {...said, weight, anchor});
    }
  }
}

function drawPictureLinks(surface, {heads, colours}, columns, batches, top) {
  for (const {head, weight, rows} of batches) {
    const lane = linkLane(heads.indexOf(head), heads.length);
    drawLinks(surface, rows, {...columns, top, lane}, {colour: colours[head], ...linkStyle(weight, heads.length)});
  }
}

/** The same surface with its origin further down. */
function movedDown(surface, by) {
  return {
    lines: (ends, style) => surface.lines(ends.map((value, place) => (place % 2 ? value + by : value)), style),
    rect: (x, y, width, height, style) => surface.rect(x, y + by, width, height, style),
    text: (string, x, y, options) => surface.text(string, x, y + by, options),
  };
}
