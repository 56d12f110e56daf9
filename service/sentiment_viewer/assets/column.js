// What the explained texts of a column say together. Pure. The definition, and what the numbers are: explain/methods/column.py.
import {ZERO_ERRORS} from "./sentences.js";
import {quantile} from "./student.js";

export const ROWS_MIN = 3;
const PHRASE_WORDS_MAX = 4;
const MISSED = 0.05;
const LISTED_MAX = 8;
const LISTED_SHARE = 0.1;
const EXAMPLES_MAX = 3;
const GROUPS_MAX = 20;
const NOT_COUNTED = ["NOT_FAITHFUL", "FLAT"];
// The normal quantile of a two-sided interval of 95 %.
const NORMAL = 1.959964;
const PUNCTUATION = /^\p{P}*$/u;

/** Wilson's interval of a share, 95 %: [low, high]. `whole` is at least 1. */
function wilson(part, whole) {
  const [share, square] = [part / whole, NORMAL ** 2 / whole];
  const [middle, half] = [share + square / 2, Math.sqrt(square * (share * (1 - share) + square / 4))];
  return [Math.max(0, (middle - half) / (1 + square)), Math.min(1, (middle + half) / (1 + square))];
}

/** What is the same of texts that count as one. */
export function foldedText(text) {
  return text.trim().split(/\s+/u).join(" ").toLowerCase();
}

/**
 * Sum up the rows: {whole: Part, groups: [Part], lumped}, as column.py has them, in camel case.
 *
 * @param {object[]} rows as Explained there: {text, label, abstain, towards, against, verdict, words, values, errors, sentences, group};
 *   `towards` null: it is answered and not explained. Without a label: it failed.
 * @param {string[]} labels in the order in which they are to be shown. Others that the rows name follow.
 * @param {boolean} grouped whether to sum up the rows of each group too.
 */
export function columnOf(rows, labels, grouped) {
  const standings = standingsOf(rows);
  const counts = rows.map((row, place) => (standings[place] === "" ? valuesOf(row) : null));
  const candidates = candidatesOf(rows, counts);
  const sizes = new Map();
  for (const {group} of rows) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const names = grouped ? [...sizes].sort(([, one], [, other]) => other - one).slice(0, GROUPS_MAX).map(([name]) => name) : [];
  const [whole, others] = [new Sums(), new Sums()];
  const groups = new Map(names.map((name) => [name, new Sums()]));
  rows.forEach((row, place) => {
    const terms = counts[place] ? termsOf(row, counts[place], candidates) : new Map();
    for (const sums of grouped ? [whole, groups.get(row.group) ?? others] : [whole]) sums.add(place + 1, row, standings[place], terms);
  });
  const lumped = grouped ? sizes.size - names.length : 0;
  const parts = [...groups].map(([name, sums]) => sums.part(name, labels));
  return {whole: whole.part("", labels), groups: lumped ? [...parts, others.part("", labels)] : parts, lumped};
}

/** How each row stands to the words: "", or the count of Part that has it. */
function standingsOf(rows) {
  const seen = new Set();
  return rows.map(({label, verdict, text}) => {
    if (label === undefined) return "failed";
    const folded = foldedText(text);
    if (seen.has(folded)) return "repeated";
    seen.add(folded);
    if (NOT_COUNTED.includes(verdict)) return verdict === "FLAT" ? "flat" : "notFaithful";
    return "";
  });
}

function valuesOf({values, errors}) {
  return Array.from(values, (value, place) => (Math.abs(value) > ZERO_ERRORS * errors[place] ? value : 0));
}

/** The words and phrases that enough rows have. */
function candidatesOf(rows, counts) {
  const found = new Map();
  rows.forEach((row, place) => {
    const values = counts[place];
    if (!values) return;
    const own = spansOf(row).filter(([, first, last]) => first === last || values[first] * values[last] > 0);
    for (const term of new Set(own.map(([name]) => name))) found.set(term, (found.get(term) ?? 0) + 1);
  });
  return new Set([...found].filter(([, count]) => count >= ROWS_MIN).map(([term]) => term));
}

/** The values of the candidates that a row has: a Map. */
function termsOf(row, values, candidates) {
  const found = new Map();
  for (const [term, first, last] of spansOf(row)) {
    if (!candidates.has(term)) continue;
    found.set(term, values.slice(first, last + 1).reduce((sum, value) => sum + value, found.get(term) ?? 0));
  }
  return found;
}

/** The words and phrases of a row, each with the places of its first and its last word. */
function spansOf({words, sentences}) {
  const lower = words.map((word) => word.toLowerCase());
  const marks = lower.map((word, place) => PUNCTUATION.test(word) || word.startsWith("@") || lower[place - 1] === "@");
  const found = [];
  for (let first = 0; first < lower.length; first += 1) {
    for (let last = first; last < Math.min(first + PHRASE_WORDS_MAX, lower.length); last += 1) {
      if (marks[last] || sentences[last] !== sentences[first]) break;
      found.push([lower.slice(first, last + 1).join(" "), first, last]);
    }
  }
  return found;
}

/** Sums up the rows of a part. */
class Sums {
  constructor() {
    Object.assign(this, {standing: {failed: 0, notFaithful: 0, flat: 0, repeated: 0}, labels: new Map(), answered: 0});
    // By label: how many rows have values for it, and the sums of words and phrases.
    Object.assign(this, {rows: new Map(), terms: new Map()});
  }

  add(number, {label, abstain, towards, against}, standing, terms) {
    if (standing) this.standing[standing] += 1;
    if (label === undefined) return;
    this.answered += 1;
    this.labels.set(label, (this.labels.get(label) ?? 0) + (abstain ? 0 : 1));
    if (standing) return;
    for (const [own, sign] of [[towards, 1], [against, -1]]) {
      if (own === null) continue;
      this.rows.set(own, (this.rows.get(own) ?? 0) + 1);
      if (!this.terms.has(own)) this.terms.set(own, new Map());
      const sums = this.terms.get(own);
      for (const [term, value] of terms) {
        if (!sums.has(term)) sums.set(term, {rows: 0, total: 0, squares: 0, most: []});
        addValue(sums.get(term), number, sign * value);
      }
    }
  }

  part(name, given) {
    const labels = [...new Set([...given, ...this.labels.keys(), ...this.rows.keys()])];
    const {answered} = this;
    const undecided = answered - [...this.labels.values()].reduce((sum, rows) => sum + rows, 0);
    const shares = labels.map((label) => {
      const rows = this.labels.get(label) ?? 0;
      const [low, high] = answered ? wilson(rows, answered) : [0, 1];
      return {label, rows, share: answered ? rows / answered : 0, low, high};
    });
    return {name, answered, undecided, ...this.standing, shares, reasons: labels.map((label) => this.#reasons(label))};
  }

  #reasons(label) {
    const enough = [...this.terms.get(label) ?? []].filter(([, {rows}]) => rows >= ROWS_MIN);
    const [words, phrases] = [false, true].map((several) => enough.filter(([term]) => term.includes(" ") === several));
    const rows = this.rows.get(label) ?? 0;
    return {label, rows, words: listed(words), wordsOf: words.length, phrases: listed(phrases), phrasesOf: phrases.length};
  }
}

function addValue(sum, number, value) {
  sum.rows += 1;
  sum.total += value;
  sum.squares += value * value;
  if (sum.most.length === EXAMPLES_MAX && value <= sum.most.at(-1)[0]) return;
  // Of equal values the first row.
  sum.most = [...sum.most, [value, number]].sort((one, other) => other[0] - one[0] || one[1] - other[1]).slice(0, EXAMPLES_MAX);
}

/** Those with the largest sums, and none within another. */
function listed(terms) {
  const least = LISTED_SHARE * terms.reduce((most, [, {total}]) => Math.max(most, total), 0);
  const sorted = [...terms].sort(([one, {total}], [other, {total: otherTotal}]) => otherTotal - total || (one < other ? -1 : 1));
  const chosen = [];
  for (const [term, sum] of sorted) {
    if (sum.total <= 0 || sum.total < least || chosen.length === LISTED_MAX) break;
    const within = ([other]) => ` ${other} `.includes(` ${term} `) || ` ${term} `.includes(` ${other} `);
    if (!chosen.some(within)) chosen.push([term, sum]);
  }
  const outside = MISSED * chosen.length / terms.length;
  return chosen.map(([term, sum]) => termOf(term, sum, outside));
}

/** A word or phrase: {text, rows, total, mean, low, high, examples}. `low` and `high` are null if the values are all equal. */
function termOf(text, {rows, total, squares, most}, outside) {
  const mean = total / rows;
  const spread = squares - total * mean;
  const error = spread > 1e-9 * squares ? Math.sqrt(spread / (rows - 1) / rows) : 0;
  const half = error && error * quantile(outside, rows - 1);
  const examples = most.filter(([value]) => value > 0).map(([, number]) => number);
  return {text, rows, total, mean, low: half ? mean - half : null, high: half ? mean + half : null, examples};
}
