// Texts out of a file, and answers into a CSV file. Does not use the page or the server.

// A longer record is that of a file with a quote that is not closed, or of no text file.
const RECORD_CHARS_MAX = 4 * 2 ** 20;
// What is read to find the columns of a file.
const HEAD_BYTES = 2 ** 18;
const DELIMITERS = [",", ";", "\t"];
// Columns that usually hold the text, the likeliest first.
const TEXT_COLUMNS = ["text", "review", "sentence", "comment", "content", "body", "message"];
const KINDS = {txt: "txt", csv: "csv", tsv: "tsv", jsonl: "jsonl", ndjson: "jsonl"};
const MODEL = ["model", "model digest"];
// Spreadsheets run cells that begin so as formulas (OWASP, CSV injection).
const FORMULA = /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/;

/** The file cannot be read as what it is said to be; the message is for the page. */
export class BadFile extends Error {}

/**
 * What a file holds: {kind: "txt" | "csv" | "tsv" | "jsonl", delimiter, columns: names, column: the place of the one that likely has the
 * text}.
 *
 * @throws {BadFile} it has another ending, no text, or is not UTF-8.
 */
export async function fileHead(file) {
  const kind = KINDS[/\.([a-z]+)$/i.exec(file.name)?.[1].toLowerCase()];
  if (!kind) throw new BadFile("Its name must end in .txt, .csv, .tsv or .jsonl.");
  const whole = file.size <= HEAD_BYTES;
  // A character may be cut at the end of the slice; `stream` leaves it out.
  const bytes = await file.slice(0, HEAD_BYTES).arrayBuffer();
  const text = decoded(() => new TextDecoder("utf-8", {fatal: true}).decode(bytes, {stream: !whole}));
  if (!text.trim()) throw new BadFile("It has no text.");
  if (kind === "txt") return {kind, delimiter: "", columns: [], column: 0};
  const [line] = text.split("\n", 1);
  if (kind === "jsonl") return {kind, delimiter: "", ...likelyColumn(jsonColumns(line))};
  if (kind === "tsv") return {kind, delimiter: "", ...likelyColumn(tabCells(line))};
  const delimiter = DELIMITERS.toSorted((one, other) => line.split(other).length - line.split(one).length)[0];
  const reader = new DelimitedReader(delimiter);
  const [first] = [...reader.read(text), ...(whole ? reader.end() : [])];
  if (!first) throw new BadFile(`Its first record has more than ${HEAD_BYTES} bytes.`);
  return {kind, delimiter, ...likelyColumn(first)};
}

/**
 * The texts of a file in their order, each {text}, or {error} for a record without one. Reads on only as far as it is asked for.
 *
 * @param {object} head what `fileHead` found, with the chosen `column`.
 * @param {function} reads called with how many bytes have been read.
 * @throws {BadFile} it is not UTF-8, or a record is too long.
 */
export async function* fileTexts(file, {kind, delimiter, columns, column}, reads) {
  const reader = kind === "csv" ? new DelimitedReader(delimiter) : new LineReader();
  const taken = {txt: ofLine, csv: ofCells(column), tsv: ofTabs(column), jsonl: ofJson(columns[column])}[kind];
  let number = 0;
  const texts = function* (records) {
    for (const record of records) {
      number += 1;
      // The first record of a table names the columns.
      const found = number > 1 || !["csv", "tsv"].includes(kind) ? taken(record) : null;
      if (found) yield {row: number, ...found};
    }
  };
  const decoder = new TextDecoder("utf-8", {fatal: true});
  const bytes = file.stream().getReader();
  let read = 0;
  try {
    for (;;) {
      const {done, value} = await bytes.read();
      if (done) break;
      read += value.length;
      reads(read);
      yield* texts(reader.read(decoded(() => decoder.decode(value, {stream: true}))));
    }
    yield* texts(reader.read(decoded(() => decoder.decode())));
    yield* texts(reader.end());
  } finally {
    bytes.cancel().catch(() => {});
  }
}

/** Records and cells of delimited text (RFC 4180), which comes in pieces. */
class DelimitedReader {
  constructor(delimiter) {
    Object.assign(this, {delimiter, cells: [], cell: "", quoted: false, closed: false, chars: 0});
  }

  /** The records that end in this piece, each a list of cells. */
  * read(piece) {
    for (const sign of piece) {
      this.chars += 1;
      if (this.chars > RECORD_CHARS_MAX) throw tooLong();
      if (this.quoted) {
        if (sign === '"') [this.quoted, this.closed] = [false, true];
        else this.cell += sign;
      } else if (sign === '"' && (this.closed || !this.cell)) {
        // The second of two quotes stands for one.
        if (this.closed) this.cell += sign;
        [this.quoted, this.closed] = [true, false];
      } else if (sign === this.delimiter) this.#endCell();
      else if (sign === "\n") yield* this.end();
      else if (sign !== "\r") this.cell += sign;
    }
  }

  /** The record at the end of the file, if it has one. */
  * end() {
    if (!this.cells.length && !this.cell && !this.closed) return;
    this.#endCell();
    const {cells} = this;
    [this.cells, this.quoted, this.chars] = [[], false, 0];
    yield cells;
  }

  #endCell() {
    this.cells.push(this.cell);
    [this.cell, this.closed] = ["", false];
  }
}

/** Lines of text that comes in pieces. */
class LineReader {
  constructor() {
    this.begun = "";
  }

  * read(piece) {
    const lines = (this.begun + piece).split("\n");
    this.begun = lines.pop();
    if (this.begun.length > RECORD_CHARS_MAX) throw tooLong();
    yield* lines;
  }

  * end() {
    if (this.begun) yield this.begun;
  }
}

function tooLong() {
  return new BadFile(`A record has more than ${RECORD_CHARS_MAX.toLocaleString("en-US")} characters. Is a quote not closed?`);
}

function decoded(decode) {
  try {
    return decode();
  } catch (error) {
    throw error instanceof TypeError ? new BadFile("It is not UTF-8.") : error;
  }
}

function likelyColumn(columns) {
  const names = columns.map((name) => name.trim().toLowerCase());
  return {columns, column: Math.max(0, names.indexOf(TEXT_COLUMNS.find((name) => names.includes(name))))};
}

function jsonColumns(line) {
  const found = jsonOf(line);
  const columns = found && typeof found === "object" ? Object.keys(found).filter((name) => typeof found[name] === "string") : [];
  if (!columns.length) throw new BadFile("Its first line is no JSON object with a text.");
  return columns;
}

function jsonOf(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

function ofLine(line) {
  return line.trim() ? {text: line.trim()} : null;
}

function ofCells(column) {
  return (cells) => (cells[column]?.trim() ? {text: cells[column]} : {error: "The column is empty."});
}

/** The cells of a line. Nothing is quoted, as in the .tsv files of `sentiment classify`. */
function tabCells(line) {
  return line.replace(/\r$/, "").split("\t");
}

function ofTabs(column) {
  const taken = ofCells(column);
  return (line) => (line.replace(/\r$/, "") ? taken(tabCells(line)) : null);
}

function ofJson(column) {
  return (line) => {
    if (!line.trim()) return null;
    const text = jsonOf(line)?.[column];
    return typeof text === "string" && text.trim() ? {text} : {error: `The line is no JSON object with a text as "${column}".`};
  };
}

/** A cell of a CSV file; one that a spreadsheet would run as a formula gets an apostrophe before it. */
export function csvCell(value) {
  const text = String(value ?? "");
  const safe = typeof value === "string" && FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Answers as the parts of a CSV file: a row each, with a column for each label's probability. */
export function* csvParts(rows, labels) {
  const line = (cells) => `${cells.map(csvCell).join(",")}\r\n`;
  yield line(["row", "text", "label", "score", ...labels.map((label) => `score ${label}`), "abstain", "tokens", "truncated", ...MODEL, "error"]);
  for (const {row, text, label, score, scores, abstain, tokens, truncated, model, error} of rows) {
    const by = model ? [`${model.name}/${model.version}`, model.digest] : ["", ""];
    yield line([row, text, label, score, ...labels.map((name) => scores?.get(name)), abstain, tokens, truncated, ...by, error]);
  }
}
