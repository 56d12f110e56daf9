// Bytes of a file as text: compression, byte order marks, encodings and lines, in bounded memory. Does not use the page or the server.

/** Bytes of a line, and characters of a record. A longer one is that of a quote that is not closed, or of no text file. */
export const RECORD_MAX = 4 * 2 ** 20;
/** Stands for bytes that are not of the encoding. Decoded text has no lone surrogate. */
export const NOT_DECODED = "\udc80";
// Longer ones first: UTF-32 begins as UTF-16 does.
const MARKS = [["utf-32", [0xff, 0xfe, 0, 0]], ["utf-8", [0xef, 0xbb, 0xbf]], ["utf-16le", [0xff, 0xfe]], ["utf-16be", [0xfe, 0xff]]];
const LINE_FEED = 10;
// As many characters that are right UTF-8 do not stand in another encoding by chance.
const UTF8_CHARACTERS_MIN = 3;

/** The file cannot be read on as what it is said to be; the message is for the page. */
export class BadFile extends Error {}

/**
 * A file's bytes, unpacked if its name ends in .gz, in chunks.
 *
 * @param {function} reads called with how many bytes of the file have been read.
 */
export async function* bytesOf(file, reads) {
  let read = 0;
  const counted = new TransformStream({
    transform(chunk, to) {
      read += chunk.length;
      reads(read);
      to.enqueue(chunk);
    },
  });
  const packed = /\.gz$/i.test(file.name);
  const stream = file.stream().pipeThrough(counted);
  const reader = (packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream).getReader();
  let held = null;
  try {
    for (;;) {
      const {done, value} = await reader.read().catch((error) => {
        throw new BadFile(packed ? "It cannot be decompressed: damaged, incomplete or of several parts. Unpack it first." : `${error.message}.`);
      });
      // That a packed piece is damaged may show in the next one.
      if (held) yield held;
      if (done) return;
      held = value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Lines with their line ends. Only a line feed ends a line. One with bytes that are not of the encoding has NOT_DECODED in it.
 *
 * @param {string} named the encoding; "": by the byte order mark, else UTF-8.
 * @throws {BadFile} it is UTF-16 without a byte order mark, or a line is too long.
 */
export async function* linesOf(chunks, named) {
  let number = 0;
  let decode = null;
  let held = new Uint8Array();
  for await (const chunk of withHead(chunks, named)) {
    decode ??= lineDecoder(encodingOf(chunk, named));
    held = joinedBytes(held, chunk);
    let from = 0;
    for (let end = decode.end(held, from); end; end = decode.end(held, from)) {
      number += 1;
      yield decode.line(held.subarray(from, end), number === 1);
      from = end;
    }
    held = held.slice(from);
    if (held.length > RECORD_MAX) throw new BadFile(`Line ${number + 1} has more than ${RECORD_MAX.toLocaleString("en-US")} bytes.`);
  }
  if (!held.length) return;
  const last = decode.line(held, number === 0);
  // As an old Macintosh writes lines.
  if (!number && /\r[^\r]/.test(last)) throw new BadFile("It has carriage returns but no line feeds: convert its line ends to LF.");
  yield last;
}

/** The text in pieces; as `linesOf`, but bytes that are not of the encoding end it. */
export async function* piecesOf(chunks, named) {
  let decoder = null;
  const decode = (...given) => {
    try {
      return decoder.decode(...given);
    } catch {
      throw new BadFile(`It has bytes that are not of the encoding ${decoder.encoding}: choose another.`);
    }
  };
  for await (const chunk of withHead(chunks, named)) {
    decoder ??= new TextDecoder(encodingOf(chunk, named), {fatal: true});
    yield decode(chunk, {stream: true});
  }
  if (decoder) yield decode();
}

/** The chunks; the first has at least four bytes if the file has. None that shows that the file is UTF-8 and named as another. */
async function* withHead(chunks, named) {
  let held = new Uint8Array();
  const isUtf8 = isOfOneByte(named) ? utf8Finder() : () => false;
  for await (const chunk of chunks) {
    if (isUtf8(chunk)) throw new BadFile(`It is UTF-8, not ${named}: choose that.`);
    held = joinedBytes(held, chunk);
    if (held.length < 4) continue;
    yield held;
    held = new Uint8Array();
  }
  if (held.length) yield held;
}

/** Whether a byte is a character of an encoding, so that UTF-8 can be read by it too, as other characters. */
function isOfOneByte(named) {
  try {
    return Boolean(named) && new TextDecoder(named, {fatal: true}).decode(new Uint8Array([0xe9])).length === 1;
  } catch {
    return false;
  }
}

/** Takes the next chunk; gives whether all so far are UTF-8 with characters beyond ASCII, which text of another encoding is not. */
function utf8Finder() {
  let decoder = new TextDecoder("utf-8", {fatal: true});
  let beyond = 0;
  return (chunk) => {
    try {
      beyond += decoder?.decode(chunk, {stream: true}).match(/[^\0-\x7f]/gu)?.length ?? 0;
    } catch {
      decoder = null;
    }
    return Boolean(decoder) && beyond >= UTF8_CHARACTERS_MIN;
  };
}

function joinedBytes(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

function encodingOf(head, named) {
  if (named) return named;
  if (head[0] === 0x1f && head[1] === 0x8b) throw new BadFile("It is compressed; rename it to .gz.");
  const [found] = MARKS.find(([, mark]) => mark.every((byte, place) => head[place] === byte)) ?? [""];
  if (found === "utf-32") throw new BadFile("It is UTF-32, which browsers do not read: save it as UTF-8.");
  // Text of other encodings has none.
  if (!found && head.subarray(0, 4).includes(0)) throw new BadFile("It has NUL characters at its beginning; if it is UTF-16, choose that.");
  return found || "utf-8";
}

/** Finds where a line of bytes ends (0: not yet) and decodes it, by an encoding. */
function lineDecoder(name) {
  const strict = new TextDecoder(name, {fatal: true, ignoreBOM: true});
  const lax = new TextDecoder(name, {ignoreBOM: true});
  const {encoding} = strict;
  const [low, high] = {"utf-16le": [0, 1], "utf-16be": [1, 0]}[encoding] ?? [0, 0];
  const isUnit = (bytes, from, place) => low === high || ((place - from) % 2 === low && bytes[place + high - low] === 0);
  const end = (bytes, from) => {
    let place = bytes.indexOf(LINE_FEED, from);
    while (place >= 0 && !isUnit(bytes, from, place)) place = bytes.indexOf(LINE_FEED, place + 1);
    return place < 0 ? 0 : place + high + 1;
  };
  const decoded = (bytes) => {
    try {
      return strict.decode(bytes);
    } catch {
      // A true U+FFFD beside them is of the same line, which is an error anyway.
      return lax.decode(bytes).replaceAll("\ufffd", NOT_DECODED);
    }
  };
  return {end, line: (bytes, first) => (first ? decoded(bytes).replace(/^\ufeff/, "") : decoded(bytes))};
}
