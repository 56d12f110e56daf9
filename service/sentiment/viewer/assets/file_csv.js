// Answers to the rows of a file as CSV, with the names of columns that `sentiment classify` gives them. Pure: does not use the page.
import {visibleText} from "./wording.js";

// Spreadsheets run cells that begin so as formulas (OWASP, CSV injection).
const FORMULA = /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/;
const SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const ANSWER = ["label", "score", "abstain", "mixed"];
const LAST = ["tokens", "truncated", "language_suspect", "model", "model_digest", "error"];
// Names of parts of the answer in any format; see cli/answers.py.
const TAKEN = ["text", "scores", ...ANSWER, ...LAST];

/** A value as the text of a cell: JSON if it is none, empty if there is none. A lone surrogate, which has no UTF-8, is an escape. */
export function cellText(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value ?? undefined) ?? "";
  return text.replace(SURROGATE, (half) => `\\u${half.charCodeAt(0).toString(16)}`);
}

/** Under which names the columns of a file are kept beside the answer: a Map. `text`: the column of the texts, which the answer has. */
function keptNames(columns, text, labels) {
  const taken = new Set([...TAKEN, ...labels.map(scoreName)]);
  const kept = new Map();
  for (const name of columns.filter((one) => one !== "text" || text !== "text")) {
    let free = name;
    while (taken.has(free) || (free !== name && columns.includes(free))) free = `input_${free}`;
    kept.set(name, free);
  }
  return kept;
}

/**
 * The answers to rows as the parts of a CSV file, and how many cells got an apostrophe: {parts, escaped}.
 *
 * @param {object[]} rows of a FileRun.
 * @param {object} how {columns: all of the file's, text: that of the texts, labels, escapes: whether a cell that a spreadsheet would run
 *   as a formula gets an apostrophe before it}.
 */
export function csvOf(rows, {columns, text, labels, escapes}) {
  let escaped = 0;
  const cell = (value) => {
    const formula = escapes && typeof value === "string" && FORMULA.test(value);
    escaped += formula ? 1 : 0;
    const safe = `${formula ? "'" : ""}${cellText(value)}`;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const line = (cells) => `${cells.map(cell).join(",")}\r\n`;
  const kept = keptNames(columns, text, labels);
  const names = [...kept.values(), "text", ...ANSWER, ...labels.map(scoreName), ...LAST];
  const answer = (row) => {
    const model = row.model ? [`${row.model.name}/${row.model.version}`, row.model.digest] : [null, null];
    const scores = labels.map((label) => row.scores?.get(label));
    const said = [row.tokens, row.truncated, row.languageSuspect];
    return [row.text, row.label, row.score, row.abstain, row.mixed, ...scores, ...said, ...model, row.error];
  };
  const input = ({values}) => [...kept.keys()].map((name) => values.get(name));
  const parts = [line(names.map(visibleText)), ...rows.map((row) => line([...input(row), ...answer(row)]))];
  return {parts, escaped};
}

function scoreName(label) {
  return `score_${label}`;
}
