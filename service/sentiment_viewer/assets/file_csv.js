// Answers to the rows of a file as CSV, with the names of columns that `sentiment classify` gives them. Pure: does not use the page.
import {EXPLAINED, explainedCells} from "./file_explained.js";
import {visibleText} from "./wording.js";

// Spreadsheets run cells that begin so as formulas (OWASP, CSV injection).
const FORMULA = /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/;
const SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const ANSWER = ["label", "score", "abstain", "mixed"];
const READ_AS = ["tokens", "truncated", "language_suspect", "early"];
const LAST = ["model", "model_digest", "error"];
const SENTENCES = ["sentences", "sentences_total"];
// Names of parts of the answer in any format; see cli/answers.py.
const TAKEN = ["text", "scores", ...ANSWER, ...READ_AS, ...LAST];

/** A value as the text of a cell: JSON if it is not a text, empty if it is missing. A lone surrogate, which has no UTF-8, is an escape. */
export function cellText(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value ?? undefined) ?? "";
  return text.replace(SURROGATE, (half) => `\\u${half.charCodeAt(0).toString(16)}`);
}

/**
 * Under which names the columns of a file are kept beside the answer: a Map. `text`: the column of the texts, which the answer has;
 * `parts`: the columns of answers to parts, and of explanations.
 */
function keptNames(columns, text, labels, parts) {
  const taken = new Set([...TAKEN, ...parts, ...labels.map(scoreName)]);
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
 *   as a formula gets an apostrophe before it, sentences and targets: whether they were asked for, explanations: of rows, by their
 *   numbers; where there is one, all rows get its columns}.
 */
export function csvOf(rows, {columns, text, labels, escapes, sentences, targets, explanations}) {
  let escaped = 0;
  const cell = (value) => {
    const formula = escapes && typeof value === "string" && FORMULA.test(value);
    escaped += formula ? 1 : 0;
    const safe = `${formula ? "'" : ""}${cellText(value)}`;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const line = (cells) => `${cells.map(cell).join(",")}\r\n`;
  const parts = [...(sentences ? SENTENCES : []), ...(targets ? ["targets"] : [])];
  const explained = explanations.size ? EXPLAINED : [];
  const kept = keptNames(columns, text, labels, [...parts, ...explained]);
  const names = [...kept.values(), "text", ...ANSWER, ...labels.map(scoreName), ...READ_AS, ...parts, ...explained, ...LAST];
  const answer = (row) => {
    const model = row.model ? [`${row.model.name}/${row.model.version}`, row.model.digest] : [null, null];
    const scores = labels.map((label) => row.scores?.get(label));
    const lists = row.answer ? partLists(row.answer, row.text) : {};
    const said = [...READ_AS.map((name) => row.answer?.[name]), ...parts.map((name) => lists[name])];
    if (explanations.size) said.push(...explainedCells(explanations.get(row.row)));
    return [row.text, row.label, row.score, row.abstain, row.mixed, ...scores, ...said, ...model, row.error];
  };
  const input = ({values}) => [...kept.keys()].map((name) => values.get(name));
  const lines = [line(names.map(visibleText)), ...rows.map((row) => line([...input(row), ...answer(row)]))];
  return {parts: lines, escaped};
}

/** The answers to parts of a text as the command line writes them; see client/results.py. */
function partLists(answer, text) {
  const predicted = ({label, score, scores, abstain, mixed}) => (
    {label, score, scores: Object.fromEntries(scores.map((one) => [one.label, one.score])), abstain, mixed}
  );
  const sentence = ({span, prediction, tokens, truncated}) => {
    const own = text.slice(span.utf16_start, span.utf16_end);
    return {text: own, start: span.code_point_start, end: span.code_point_end, ...predicted(prediction), tokens, truncated};
  };
  const target = ({target: name, named, mention, prediction, tokens}) => {
    const [start, end] = [mention?.code_point_start ?? null, mention?.code_point_end ?? null];
    return {target: name, named, start, end, ...predicted(prediction), tokens};
  };
  const targets = answer.targets?.length ? answer.targets.map(target) : null;
  return {sentences: (answer.sentences ?? []).map(sentence), sentences_total: answer.sentences_total, targets};
}

function scoreName(label) {
  return `score_${label}`;
}
