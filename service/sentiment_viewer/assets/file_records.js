// Records of delimited text (RFC 4180 with any delimiter), and elements of a JSON array. Pure: takes text, and knows no files.
import {BadFile, RECORD_MAX} from "./file_bytes.js";

const QUOTE = '"';
const AFTER_QUOTE = "a quoted field must end at its closing quote; double the quotes in it, or choose that no field is quoted";
const ARRAY_WANTED = "Expected a JSON array of objects or texts; one object a line is .jsonl.";

/** A line without its line end, which is LF or CR LF. */
export function bareLine(line) {
  return line.replace(/\r?\n?$/, "");
}

/**
 * The records of lines, which have their line ends: {line, lines, fields} or {line, lines, error}. `line`: where it begins, from 1;
 * `lines`: how many it covers; no fields for an empty line. As files/records.py reads them. `first`: the number of the first line.
 *
 * @throws {BadFile} a quote is not closed, so that nothing tells where the next record begins.
 */
export async function* recordsOf(lines, delimiter, quotes, first = 1) {
  const next = async () => (await lines.next()).value ?? "";
  let number = first;
  try {
    for (let line = await next(); line; line = await next()) {
      const text = bareLine(line);
      const record = quotes && line.includes(QUOTE)
        ? await quotedRecord(line, next, delimiter, number)
        : {line: number, lines: 1, fields: text ? text.split(delimiter) : []};
      number += record.lines;
      yield record;
    }
  } finally {
    await lines.return?.();
  }
}

/** The record that begins with a line that has a quote. */
async function quotedRecord(first, next, delimiter, begun) {
  const fields = [];
  let [line, number, place, characters] = [first, begun, 0, 0];
  while (place >= 0) {
    if (!line.startsWith(QUOTE, place)) {
      const text = bareLine(line);
      const end = text.indexOf(delimiter, place);
      fields.push(end < 0 ? text.slice(place) : text.slice(place, end));
      place = end < 0 ? -1 : end + 1;
      continue;
    }
    const opened = number;
    let field = "";
    let end = line.indexOf(QUOTE, ++place);
    // A doubled quote stands for one; without a quote the field goes on in the next line.
    while (end < 0 || line.startsWith(QUOTE, end + 1)) {
      field += line.slice(place, end < 0 ? undefined : end + 1);
      place = end + 2;
      if (end < 0) {
        characters += line.length;
        line = characters > RECORD_MAX ? "" : await next();
        if (!line) throw openQuote(opened, begun);
        [place, number] = [0, number + 1];
      }
      end = line.indexOf(QUOTE, place);
    }
    fields.push(field + line.slice(place, end));
    const rest = bareLine(line).slice(end + 1);
    if (rest && !rest.startsWith(delimiter)) {
      // With an even number of quotes in one line, the next line begins a record however this one was meant.
      if (number > begun || line.split(QUOTE).length % 2 === 0) throw openQuote(opened, begun);
      return {line: begun, lines: 1, error: AFTER_QUOTE};
    }
    place = rest ? end + 2 : -1;
  }
  return {line: begun, lines: number - begun + 1, fields};
}

function openQuote(line, begun) {
  const unsure = `so nothing tells where the rows after line ${begun} begin`;
  return new BadFile(`The quote that opens in line ${line} is not closed, ${unsure}: close it, or choose that no field is quoted.`);
}

/**
 * The elements of a JSON array, as their JSON. They need not be valid.
 *
 * @throws {BadFile} it is not an array, not complete, or has text after it.
 */
export async function* elementsOf(pieces) {
  // Depth 1: between the array's brackets. -1: after it.
  let [depth, quoted, escaped, count, held] = [0, false, false, 0, ""];
  for await (const piece of pieces) {
    for (const sign of piece) {
      const inside = depth > 1 || quoted;
      if (depth < 1) {
        if (sign.trim() && (depth < 0 || sign !== "[")) throw new BadFile(depth < 0 ? "There is more after the JSON array." : ARRAY_WANTED);
        if (sign === "[") depth = 1;
        continue;
      }
      if (!inside && (sign === "," || sign === "]")) {
        if (held.trim()) yield held;
        else if (count || sign === ",") throw notWhole(count);
        [count, held] = [count + 1, ""];
        if (sign === "]") depth = -1;
        continue;
      }
      if (!quoted && "[{".includes(sign)) depth += 1;
      else if (!quoted && "]}".includes(sign)) depth -= 1;
      else if (sign === QUOTE && !escaped) quoted = !quoted;
      escaped = sign === "\\" && !escaped;
      held += sign;
      if (depth < 1) throw notWhole(count);
    }
    if (held.length > RECORD_MAX) throw new BadFile(`Row ${count + 1} has more than ${RECORD_MAX.toLocaleString("en-US")} characters.`);
  }
  if (depth >= 0) throw depth ? notWhole(count) : new BadFile(ARRAY_WANTED);
}

/** After this many rows, reading of a JSON array stops. */
export function notWhole(count) {
  return new BadFile(`The JSON array is not complete or not valid${count ? ` after row ${count}` : ""}.`);
}
