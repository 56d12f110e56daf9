// The explanations of a file's rows: which rows are explained, and what is kept of each. Pure: does not use the page.
import {foldedText} from "./column.js";
import {ServerError} from "./server.js";

/** The columns of an explanation in a CSV file, as `sentiment explain --input` names them. */
export const EXPLAINED = ["explained", "against", "reason", "verdict", "method", "words", "notes"];
// Digits of values, which are logits, in a file.
const DIGITS = 4;
const SEED = 1;

/**
 * The answered rows to be explained, each text once, but for those in `done`, by the numbers of their rows. In an order of chance, always
 * the same, so that those before any moment are a sample of all.
 */
export function rowsToExplain(rows, done) {
  const texts = new Map();
  for (const row of [...rows].sort((one, other) => one.row - other.row)) {
    if (!row.error && !texts.has(foldedText(row.text))) texts.set(foldedText(row.text), row);
  }
  return shuffled([...texts.values()]).filter(({row}) => !done.has(row));
}

function shuffled(rows) {
  let state = SEED;
  // A generator of Lehmer's kind (Park and Miller 1988).
  const below = (count) => {
    state = state * 48271 % 2147483647;
    return state % count;
  };
  for (let place = rows.length - 1; place > 0; place -= 1) {
    const other = below(place + 1);
    [rows[place], rows[other]] = [rows[other], rows[place]];
  }
  return rows;
}

/**
 * What is kept of a row's explanation: {towards, against, verdict, words, values, errors, sentences} as in column.js, {method, reason,
 * notes}, and {model, parts} as a FileRun wants them.
 *
 * @throws {ServerError} another model than that of the row's answer explains it.
 */
export function explainedRow(explanation, {model}) {
  const {header, attributions, evidence, reasons, notes} = explanation;
  if (header.model.digest !== model.digest) {
    throw new ServerError("The model is another one than that of the answers: classify the file again.", {status: "ABORTED"});
  }
  const [[method, found] = ["", null]] = attributions;
  const others = header.prediction.scores.map(({label}) => label).filter((label) => label !== header.label);
  return {
    towards: header.label,
    against: header.against ?? (others.length === 1 ? others[0] : null),
    verdict: evidence.get(method)?.verdict ?? "",
    words: found ? header.words.map(({text}) => text) : [],
    values: found?.words ?? [],
    errors: found?.errors ?? [],
    sentences: header.words.map(({sentence}) => sentence),
    reason: reasons.get(method) ?? "",
    method,
    notes: notes.join("; "),
    model: header.model,
    parts: 0,
  };
}

/** The cells of EXPLAINED for a row; null: it is not explained. */
export function explainedCells(found) {
  if (!found) return EXPLAINED.map(() => null);
  const rounded = (values) => Array.from(values, (value) => (Number.isFinite(value) ? Number(value.toFixed(DIGITS)) : null));
  const words = {
    text: found.words, value: rounded(found.values), standard_error: rounded(found.errors), sentence: found.sentences,
  };
  return [found.towards, found.against, found.reason, found.verdict, found.method, words, found.notes];
}
