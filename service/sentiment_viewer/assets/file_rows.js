// Texts out of a file, row by row, as `sentiment classify --input` reads them (files/reading.py). Does not use the page or the server.
import {BadFile, bytesOf, linesOf, NOT_DECODED, piecesOf} from "./file_bytes.js";
import {cellText} from "./file_csv.js";
import {bareLine, elementsOf, notWhole, recordsOf} from "./file_records.js";

const DELIMITERS = [",", ";", "\t"];
// Columns that usually hold the text, the likeliest first.
const TEXT_COLUMNS = ["text", "review", "sentence", "comment", "content", "body", "message"];
const KINDS = new Map([["txt", "txt"], ["csv", "csv"], ["tsv", "csv"], ["jsonl", "jsonl"], ["ndjson", "jsonl"], ["json", "json"]]);
// Rows by which the header and the column are guessed.
const SAMPLE_ROWS = 20;
const UNREADABLE = "UNREADABLE";
const BAD_BYTES = "has bytes that are not of the file's encoding; choose it";
// Strings of JSON, and what Python writes for a number that JSON lacks; and the latter as `sentiment classify --input` reads them.
const NO_NUMBER = /"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/g;
const NO_NUMBERS = {"NaN": "null", "Infinity": '"inf"', "-Infinity": '"-inf"'};
const NUMBER = /^(?=.*\d)[\d\s.,:/+\-%$€£]+$/;

/** What a file's name says it is: "txt", "csv" (of any delimiter), "jsonl" or "json"; "" for none that a page reads. */
export function kindOf({name}) {
  return KINDS.get(endingOf(name).toLowerCase()) ?? "";
}

function endingOf(name) {
  return /\.([^.]*?)(?:\.gz)?$/i.exec(name)?.[1] ?? "";
}

/**
 * How a file is read: what `chosen` leaves open is found by its first rows.
 *
 * @param {object} chosen any of {kind: "txt" for a text a line, delimiter, encoding, header: whether the first row names the columns,
 *   quotes: whether fields may be quoted, column: its place, targets: the place of the column with each row's targets}.
 * @returns all of these, `columns` (their names, the second of equal ones with _2; [] where there is but the text), and `first`: the
 *   first row as `fileTexts` gives it, {error} where the reading stops before it, or null.
 * @throws {BadFile} it is of another kind, or stops before its first row.
 */
export async function fileHead(file, chosen = {}) {
  if (!kindOf(file)) throw refused(endingOf(file.name));
  const given = {kind: kindOf(file), delimiter: /\.tsv(\.gz)?$/i.test(file.name) ? "\t" : "", encoding: "", quotes: true, ...chosen};
  const {rows, first, delimiter} = await sampleOf(file, {...given, header: false});
  const header = given.kind === "csv" && (given.header ?? namesColumns(first, rows.slice(1)));
  const keys = first?.map(numberAt) ?? [...new Set(rows.flatMap(({values}) => [...values.keys()]))];
  const columns = given.kind === "txt" ? [] : header ? uniqueNames(first) : keys;
  const known = knownColumn(columns);
  const column = given.column ?? (known >= 0 ? known : wordiest(keys, header ? rows.slice(1) : rows));
  const head = {...given, delimiter, header, columns, column};
  return {...head, first: await firstOf(file, head)};
}

/**
 * The rows of a file in their order: {row: from 1, values: a Map by column, chars: how many they have, text, named: its targets if they
 * have a column}, or with `error` in the place of the text. Reads on only as far as it is asked for.
 *
 * @param {object} head what `fileHead` found.
 * @param {function} reads called with how many bytes have been read.
 * @throws {BadFile} nothing tells where the next rows are, or the file cannot be read on.
 */
export async function* fileTexts(file, head, reads) {
  const {rows} = await openRows(file, head, reads);
  const key = head.kind === "txt" ? "text" : head.columns[head.column] ?? "text";
  const targets = head.columns[head.targets];
  let row = 0;
  for await (const {place, values, error} of rows) {
    row += 1;
    const found = error ? {error} : {...(targets !== undefined && targetsOf(values, targets)), ...textOf(values, key)};
    const told = found.error ? {error: `${UNREADABLE}: ${place}: ${found.error}`} : found;
    const chars = [...values.values()].reduce((sum, value) => sum + cellText(value).length, 0);
    yield {row, values, chars, ...told};
  }
}

function refused(ending) {
  const readable = [...KINDS.keys()].map((one) => `.${one}`).join(", ");
  const others = "sentiment classify --input, which reads .parquet, .xlsx and .zst too";
  return new BadFile(`A page does not read ${ending ? `.${ending}` : "it"}: export it as ${readable} (also with .gz), or use ${others}.`);
}

/** {rows, first, delimiter}: the first rows, and what `openRows` found. A file that stops after a row has those before it. */
async function sampleOf(file, reading) {
  const {rows, ...opened} = await openRows(file, reading);
  const found = [];
  try {
    for await (const row of rows) {
      if (found.push(row) === SAMPLE_ROWS) break;
    }
  } catch (error) {
    if (!(error instanceof BadFile && found.length)) throw error;
  }
  return {...opened, rows: found};
}

async function firstOf(file, head) {
  const texts = fileTexts(file, head, () => {});
  try {
    return (await texts.next()).value ?? null;
  } catch (error) {
    if (!(error instanceof BadFile)) throw error;
    return {error: error.message};
  } finally {
    await texts.return();
  }
}

/**
 * {rows} and, of a table, {delimiter, first: the cells of its first row}. Each row is {place, values: a Map by column}, or has an `error`
 * and no values. The file is closed once the rows have ended, or are returned.
 */
async function openRows(file, reading, reads = () => {}) {
  const {kind, encoding} = reading;
  const chunks = bytesOf(file, reads);
  if (kind === "json") return {rows: arrayRows(elementsOf(piecesOf(chunks, encoding)))};
  const lines = linesOf(chunks, encoding);
  return kind === "csv" ? delimitedRows(lines, reading) : {rows: lineRows(lines, kind === "txt" ? textRow : jsonRow)};
}

async function* lineRows(lines, rowOf) {
  let number = 0;
  for await (const line of lines) {
    number += 1;
    const text = bareLine(line);
    yield {place: `line ${number}`, ...(text.includes(NOT_DECODED) ? errorRow(BAD_BYTES) : rowOf(text))};
  }
}

function errorRow(error) {
  return {values: new Map(), error};
}

function textRow(text) {
  return {values: new Map([["text", text]])};
}

function jsonRow(line) {
  if (!line.trim()) return errorRow("the line is empty");
  try {
    return objectRow(parsedJson(line));
  } catch {
    return errorRow("is no JSON");
  }
}

function objectRow(value) {
  const kind = typeOf(value);
  return kind === "an object" ? {values: new Map(Object.entries(value))} : errorRow(`expected a JSON object, got ${kind}`);
}

async function* arrayRows(elements) {
  let number = 0;
  for await (const element of elements) {
    let value = null;
    try {
      value = parsedJson(element);
    } catch {
      throw notWhole(number);
    }
    number += 1;
    yield {place: `row ${number}`, ...(typeof value === "string" ? textRow(value) : objectRow(value))};
  }
}

/** The value of JSON. A number that would be another one here, such as a long identifier, keeps its digits. */
function parsedJson(text) {
  const kept = (_, value, context) => (
    typeof value === "number" && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value
  );
  try {
    return JSON.parse(text, kept);
  } catch {
    return JSON.parse(text.replace(NO_NUMBER, (found) => NO_NUMBERS[found] ?? found), kept);
  }
}

function typeOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (typeof value === "number" || JSON.isRawJSON?.(value)) return "a number";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

async function delimitedRows(lines, {delimiter, header, quotes}) {
  const next = async () => (await lines.next()).value ?? "";
  let first = await next();
  // A spreadsheet's first line may name the delimiter.
  const named = /^sep=(.)$/.exec(bareLine(first))?.[1];
  if (named) first = await next();
  const found = delimiter || named || await delimiterOf(first, quotes);
  const records = recordsOf(after(first, lines), found, quotes, named ? 2 : 1);
  const {value: head = {lines: 0, fields: []}} = await records.next();
  if (!head.fields?.length) {
    await records.return();
    throw new BadFile(`Its first row ${head.error ?? "is empty"}.`);
  }
  const columns = header ? uniqueNames(head.fields) : head.fields.map(numberAt);
  async function* rows() {
    for await (const record of header ? records : after(head, records)) {
      const row = recordRow(record, columns);
      const {line, lines: covered} = record;
      if (row) yield {place: covered === 1 ? `line ${line}` : `lines ${line} to ${line + covered - 1}`, ...row};
    }
  }
  return {rows: rows(), delimiter: found, first: head.fields};
}

async function* after(first, others) {
  try {
    yield first;
    yield* others;
  } finally {
    await others.return();
  }
}

/** The row of a record; null for an empty line, which is a row only of a table with one column. */
function recordRow({fields, error}, columns) {
  if (error) return errorRow(error);
  if (!fields.length && columns.length !== 1) return null;
  const found = fields.length ? fields : [""];
  if (found.length !== columns.length) return errorRow(misfit(found.length, columns.length));
  if (found.some((field) => field.includes(NOT_DECODED))) return errorRow(BAD_BYTES);
  return {values: new Map(columns.map((name, place) => [name, found[place]]))};
}

function misfit(found, wanted) {
  const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
  const lines = wanted === 1 ? ", or read each line as a text" : "";
  const advice = found > wanted ? `quote fields that contain the delimiter, choose another one${lines}` : "add the others";
  return `has ${count(found, "field")}, but the header has ${count(wanted, "field")}; ${advice}`;
}

/** The delimiter that gives a column with a known name, else the one with most fields, else a comma. */
async function delimiterOf(line, quotes) {
  let best = {delimiter: DELIMITERS[0], known: false, fields: 0};
  for (const delimiter of DELIMITERS) {
    // A header over several lines has no delimiter that can be told from one.
    const {value} = await recordsOf([line].values(), delimiter, quotes).next().catch(() => ({}));
    const fields = value?.fields ?? [];
    const known = fields.length > 1 && knownColumn(fields) >= 0;
    if (known > best.known || (known === best.known && fields.length > best.fields)) best = {delimiter, known, fields: fields.length};
  }
  return best.delimiter;
}

/** Whether the first row names the columns: it has a known name, or no number where those of the rows after it all are. */
function namesColumns(first, rows) {
  const cells = rows.map(({values}) => [...values.values()]);
  const isNumber = (cell) => NUMBER.test(cell.trim());
  const overNumbers = (name, place) => {
    const filled = cells.map((row) => row[place] ?? "").filter((cell) => cell.trim());
    return name.trim() && filled.length && filled.every(isNumber);
  };
  // What is not sure is data, so that no text is lost.
  return knownColumn(first) >= 0 || (!first.some(isNumber) && first.some(overNumbers));
}

function knownColumn(names) {
  const plain = names.map((name) => name.trim().toLowerCase());
  return plain.indexOf(TEXT_COLUMNS.find((name) => plain.includes(name)));
}

/** The place of the column with most text. */
function wordiest(keys, rows) {
  const length = (value) => (typeof value === "string" ? value.length : 0);
  const chars = keys.map((key) => rows.reduce((sum, {values}) => sum + length(values.get(key)), 0));
  return Math.max(0, chars.indexOf(Math.max(...chars)));
}

/** The name of a column that has none. */
function numberAt(_, place) {
  return String(place + 1);
}

function uniqueNames(names) {
  const found = new Set();
  for (const name of names) {
    let unique = name;
    for (let number = 2; found.has(unique); number += 1) unique = `${name}_${number}`;
    found.add(unique);
  }
  return [...found];
}

function textOf(values, key) {
  const value = values.get(key);
  if (typeof value === "string") return {text: value};
  if (!values.has(key)) return {error: `has no '${key}'`};
  return {error: `'${key}' ${value === null ? "is missing" : `must be a string, got ${typeOf(value)}`}`};
}

/** {named}: the names in a column: a list, the same as JSON in a text, or a text with `;` between them. Or {error}. */
function targetsOf(values, key) {
  const value = values.get(key) ?? [];
  const named = typeof value === "string" ? namesOf(value) : value;
  if (Array.isArray(named) && named.every((name) => typeof name === "string")) return {named};
  return {error: `'${key}' must be names between ';', or a list of strings`};
}

function namesOf(text) {
  if (!text.trimStart().startsWith("[")) return text.split(";").map((name) => name.trim()).filter(Boolean);
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
