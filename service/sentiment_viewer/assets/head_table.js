// A token's links as a table and in words, for screen readers and for exact numbers.
import {element, replace} from "./dom.js";
import {quietButton} from "./fields.js";
import {unitWeights} from "./head_links.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {largestFirst, quotedWord, visibleText} from "./wording.js";

const TABLE_ROWS = 10;
const SAID_HEADS = 3;
const SAID_TOKENS = 2;

/** What a token's links are, in words: "head 3 looks most at: film 0.41, I 0.12; ...", of the heads with the strongest. */
export function linksSentence(scene, {side, row}) {
  const unit = scene[side][row];
  const others = new Set(side === "left" ? scene.right : scene.left);
  const found = scene.heads.map((head) => {
    const weights = unitWeights(scene.table(head), unit, side);
    const largest = largestFirst(weights).filter((other) => others.has(other)).slice(0, SAID_TOKENS);
    return {head, weights, largest};
  });
  found.sort((one, other) => (other.weights[other.largest[0]] ?? 0) - (one.weights[one.largest[0]] ?? 0));
  const said = found.slice(0, SAID_HEADS).map(({head, weights, largest}) => {
    const tokens = largest.map((other) => `${visibleText(scene.units[other].text)} ${weights[other].toFixed(2)}`).join(", ");
    return side === "left" ? `head ${head} looks most at: ${tokens}` : `looked at in head ${head} most by: ${tokens}`;
  });
  const more = found.length - SAID_HEADS;
  return `${said.join("; ")}${more > 0 ? `; and ${more} more heads` : ""}`;
}

/** The table of the locked token: {element, show(scene, focus or null)}. */
export function linksTable(unlock) {
  const box = element("div", {class: "heads-locked"});
  const show = (scene, focus) => {
    box.hidden = !focus || !scene.heads.length;
    if (box.hidden) {
      replace(box);
      return;
    }
    const unit = scene[focus.side][focus.row];
    const others = focus.side === "left" ? scene.right : scene.left;
    const columns = scene.heads.map((head) => unitWeights(scene.table(head), unit, focus.side));
    const sums = Float32Array.from(scene.units, () => 0);
    for (const other of others) sums[other] = columns.reduce((sum, weights) => sum + weights[other], 0);
    const rows = largestFirst(sums).filter((other) => others.includes(other)).slice(0, TABLE_ROWS);
    const name = `token ${unit}, ${quotedWord(scene.units[unit].text)}`;
    const title = focus.side === "left" ? `What ${name} looks at` : `What looks at ${name}`;
    const caption = `${title}, layer ${scene.layer}: ${rows.length} of ${others.length} tokens, the largest sums over these heads first.`;
    const titles = scene.heads.map((number) => element("th", {
      scope: "col", class: "number", text: `head ${number}`, style: {borderBottom: `3px solid ${scene.colours[number]}`},
    }));
    const body = rows.map((other) => (
      tableRow(`${other} ${visibleText(scene.units[other].text)}`, columns.map((weights) => weights[other].toFixed(3)))
    ));
    const table = tableNode({caption, heads: ["token", ...titles]}, body);
    replace(box, scrolling(title, table), quietButton("Unlock", unlock));
  };
  return {element: box, show};
}
