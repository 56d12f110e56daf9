// Markdown as nodes: headings, paragraphs, lists, tables, code, emphasis and links. Anything else, HTML too, stays text.
import {element} from "./dom.js";
import {scrolling, tableNode} from "./tables.js";

/** How many characters of a text are drawn; longer texts say how much is missing. */
const MARKDOWN_MAX = 200000;

const LISTED = /^( *)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const FENCED = /^ {0,3}(```+|~~~+)/;
const HEADED = /^(#{1,6})\s+(.*)$/;
const TABLE_RULE = /^:?-+:?$/;
// Bounded, so that matching takes linear time on any text.
const INLINE = new RegExp(
  [
    "\\\\([!-/:-@\\[-`{-~])",
    "(`{1,2})(?!`)(.{0,500}?[^`])\\2(?!`)",
    "\\*\\*(\\S[^*]{0,500})\\*\\*",
    "\\*(\\S[^*]{0,500})\\*",
    "(?<![\\p{L}\\p{N}_])_(\\S[^_]{0,500})_(?![\\p{L}\\p{N}_])",
    "\\[([^\\[\\]]{1,500})\\]\\(([^()\\s]{1,2000})\\)",
    "<(https?://[^<>\\s]{1,2000})>",
  ].join("|"),
  "gu",
);
const DEPTH_MAX = 4;

/**
 * The nodes of a Markdown text.
 *
 * @param {string} text at most MARKDOWN_MAX characters are drawn.
 * @param {number} level the level that a heading of the first level gets, 1 to 6.
 */
export function markdownNodes(text, level) {
  const lines = text.slice(0, MARKDOWN_MAX).split(/\r\n|\r|\n/);
  const nodes = [];
  let place = 0;
  while (place < lines.length) {
    const block = markdownBlock(lines, place, level);
    if (block.node) nodes.push(block.node);
    place = block.next;
  }
  numberEqualNames(nodes);
  const rest = text.length - MARKDOWN_MAX;
  if (rest > 0) nodes.push(element("p", {class: "note", text: `The rest, ${rest} characters, is not shown.`}));
  return nodes;
}

/** Regions must have names of their own: of those with one name, the second is numbered 2. */
function numberEqualNames(nodes) {
  const regions = nodes.filter((node) => node.getAttribute("role") === "region");
  for (const [name, group] of Map.groupBy(regions, (node) => node.getAttribute("aria-label"))) {
    group.slice(1).forEach((node, place) => node.setAttribute("aria-label", `${name} (${place + 2})`));
  }
}

/** The block that begins at a line, and the line after it. */
function markdownBlock(lines, place, level) {
  const line = lines[place];
  if (!line.trim()) return {node: null, next: place + 1};
  const heading = HEADED.exec(line);
  if (heading) {
    return {node: element(`h${Math.min(6, level + heading[1].length - 1)}`, {}, ...inlineNodes(heading[2].trim())), next: place + 1};
  }
  if (FENCED.test(line)) return markdownCode(lines, place);
  if (isTable(lines, place)) return markdownTable(lines, place);
  if (LISTED.test(line)) return markdownList(lines, place);
  return markdownParagraph(lines, place);
}

function isTable(lines, place) {
  return lines[place].includes("|") && place + 1 < lines.length && tableCells(lines[place + 1]).every((cell) => TABLE_RULE.test(cell));
}

function markdownCode(lines, place) {
  const fence = FENCED.exec(lines[place])[1];
  let end = place + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  const code = element("code", {text: lines.slice(place + 1, end).join("\n")});
  const node = element("pre", {class: "scroll", tabIndex: 0, role: "region", aria: {label: "code"}}, code);
  return {node, next: end + 1};
}

function markdownParagraph(lines, place) {
  let end = place + 1;
  const ends = (line) => !line.trim() || [HEADED, FENCED, LISTED].some((form) => form.test(line));
  while (end < lines.length && !ends(lines[end]) && !isTable(lines, end)) end += 1;
  const text = lines.slice(place, end).map((line) => line.trim()).join(" ");
  return {node: element("p", {}, ...inlineNodes(text)), next: end};
}

/** A list with those within it, which stand two spaces or more further in. */
function markdownList(lines, place, indent = LISTED.exec(lines[place])[1].length, depth = 1) {
  const first = LISTED.exec(lines[place]);
  const list = first[2] === undefined ? element("ul") : element("ol", {start: Number(first[2])});
  let item = null;
  while (place < lines.length) {
    const found = LISTED.exec(lines[place]);
    if (!lines[place].trim() || (found && found[1].length < indent) || (!found && !/^\s/.test(lines[place]))) break;
    if (found && found[1].length >= indent + 2 && item && depth < DEPTH_MAX) {
      const inner = markdownList(lines, place, found[1].length, depth + 1);
      item.append(inner.node);
      place = inner.next;
      continue;
    }
    if (found) {
      item = element("li", {}, ...inlineNodes(found[3]));
      list.append(item);
    } else {
      item.append(" ", ...inlineNodes(lines[place].trim()));
    }
    place += 1;
  }
  return {node: list, next: place};
}

function markdownTable(lines, place) {
  const heads = tableCells(lines[place]);
  const sides = tableCells(lines[place + 1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : "left"));
  const cell = (tag, text, column) => {
    const look = {class: sides[column] === "right" ? "number" : "", style: {textAlign: sides[column] ?? "left"}};
    return element(tag, tag === "th" ? {...look, scope: "col"} : look, ...inlineNodes(text));
  };
  const body = [];
  let end = place + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) {
    const cells = tableCells(lines[end]);
    body.push(element("tr", {}, ...heads.map((_, column) => cell("td", cells[column] ?? "", column))));
    end += 1;
  }
  const table = tableNode({heads: heads.map((text, column) => cell("th", text, column))}, body);
  const label = `table: ${heads.filter(Boolean).join(", ")}`.slice(0, 200);
  return {node: scrolling(label, table), next: end};
}

function tableCells(line) {
  const cells = line.trim().split(/(?<!\\)\|/);
  if (cells.length > 1 && !cells[0].trim()) cells.shift();
  if (cells.length > 1 && !cells[cells.length - 1].trim()) cells.pop();
  return cells.map((cell) => cell.trim());
}

function inlineNodes(text, depth = 0) {
  const nodes = [];
  let place = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > place) nodes.push(text.slice(place, found.index));
    nodes.push(inlineNode(found, depth));
    place = found.index + found[0].length;
  }
  if (place < text.length) nodes.push(text.slice(place));
  return nodes;
}

function inlineNode([whole, escaped, , code, strong, starred, lined, label, address, bare], depth) {
  const within = (part) => (depth < DEPTH_MAX ? inlineNodes(part, depth + 1) : [part]);
  if (escaped !== undefined) return escaped;
  if (code !== undefined) return element("code", {text: code});
  if (strong !== undefined) return element("strong", {}, ...within(strong));
  if (starred !== undefined || lined !== undefined) return element("em", {}, ...within(starred ?? lined));
  if (bare !== undefined) return markdownLink(bare, [bare]) ?? whole;
  return markdownLink(address, within(label)) ?? whole;
}

/** Only what a browser itself takes for a web address becomes a link; a script's or a file's does not. */
function markdownLink(address, children) {
  const parsed = URL.canParse(address) ? new URL(address) : null;
  if (!parsed || !["http:", "https:"].includes(parsed.protocol)) return null;
  return element("a", {href: parsed.href, rel: "noreferrer", target: "_blank"}, ...children);
}
