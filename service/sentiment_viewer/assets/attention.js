// Attention maps as the server sends them, and as tables for the views.

// How many tables of weights are cached: the heads of one layer, and one more.
const TABLES_MAX = 17;

/**
 * The maps of one text: tokens by tokens, one a layer and head. Kept as they came, a byte a weight and a number a row (other
 * encodings as four bytes a weight).
 */
export class AttentionMaps {
  constructor(tokens, words) {
    this.tokens = tokens;
    this.words = words;
    this.size = tokens.length;
    this.layers = 0;
    this.heads = 0;
    /** Complete maps, and the bytes of all of them. */
    this.count = 0;
    this.bytes = 0;
    this.maps = new Map();
    this.tables = new Map();
  }

  /**
   * Take a tile of a map.
   *
   * @throws {Error} it does not fit the text.
   */
  take(tile) {
    const [top, left] = [tile.row_start ?? 0, tile.column_start ?? 0];
    if (top + tile.rows > this.size || left + tile.columns > this.size) throw new Error("a tile of attention does not fit the text");
    const key = `${tile.layer},${tile.head}`;
    const map = this.maps.get(key) ?? this.#begin(key, tile.layer, tile.head);
    if (tile.encoding === "ATTENTION_ENCODING_U8" && !map.floats && tile.columns === this.size) {
      map.weights.set(attentionBytes(tile.weights), top * this.size);
      map.scales.set(tile.row_values, top);
    } else this.#takeFloats(map, tileWeights(tile), top, left, tile.columns);
    map.missing -= tile.rows * tile.columns;
    if (map.missing === 0) this.count += 1;
  }

  /** Whether a map is complete. */
  has(layer, head) {
    return this.maps.get(`${layer},${head}`)?.missing === 0;
  }

  /**
   * A map as a table: {size, units, weights [size * size]}, row after row; a row is who looks, a column who is looked at.
   *
   * @param {string} level "pieces", or "words": summed over the pieces looked at and averaged over those that look (Clark et al. 2019).
   * @param {boolean} special false: special tokens are left out, and what rows give them is missing from their sums.
   */
  table(layer, head, level, special) {
    const key = [layer, head, level, special].join();
    let table = this.tables.get(key);
    if (!table) {
      table = this.#table(this.maps.get(`${layer},${head}`), this.units(level, special));
      if (this.tables.size >= TABLES_MAX) this.tables.delete(this.tables.keys().next().value);
    } else this.tables.delete(key);
    this.tables.set(key, table);
    return table;
  }

  /** What rows and columns of a table stand for: {text, special, pair, tokens: [start, end), word}. */
  units(level, special) {
    const units = [];
    for (const [place, token] of this.tokens.entries()) {
      const last = units.at(-1);
      if (level === "words" && !token.special && last && last.word === token.word) last.tokens[1] = place + 1;
      else {
        const text = level === "words" && !token.special ? this.words[token.word].text : token.piece;
        units.push({text, special: token.special, pair: token.pair, tokens: [place, place + 1], word: token.word});
      }
    }
    return special ? units : units.filter((unit) => !unit.special);
  }

  #begin(key, layer, head) {
    const map = {weights: new Uint8Array(this.size ** 2), scales: new Float32Array(this.size), missing: this.size ** 2};
    this.maps.set(key, map);
    this.bytes += map.weights.byteLength + map.scales.byteLength;
    this.layers = Math.max(this.layers, layer + 1);
    this.heads = Math.max(this.heads, head + 1);
    return map;
  }

  #takeFloats(map, weights, top, left, columns) {
    if (!map.floats) {
      map.floats = Float32Array.from(map.weights, (byte, place) => byte * map.scales[Math.floor(place / this.size)]);
      this.bytes += map.floats.byteLength - map.weights.byteLength - map.scales.byteLength;
      map.weights = map.scales = null;
    }
    for (let start = 0; start < weights.length; start += columns) {
      map.floats.set(weights.subarray(start, start + columns), (top + start / columns) * this.size + left);
    }
  }

  #table(map, units) {
    const weights = new Float32Array(units.length ** 2);
    const size = this.size;
    const read = map.floats
      ? (row, column) => map.floats[row * size + column]
      : (row, column) => map.weights[row * size + column] * map.scales[row];
    for (const [from, {tokens: [first, last]}] of units.entries()) {
      for (let row = first; row < last; row += 1) {
        for (const [to, {tokens: [start, end]}] of units.entries()) {
          let sum = 0;
          for (let column = start; column < end; column += 1) sum += read(row, column);
          weights[from * units.length + to] += sum / (last - first);
        }
      }
    }
    return {size: units.length, units, weights};
  }
}

/** The weights of a tile of any encoding, row after row; the proto's AttentionTile says how they are written. */
function tileWeights(tile) {
  const {rows, columns} = tile;
  const bytes = attentionBytes(tile.weights);
  const numbers = new DataView(bytes.buffer);
  const weights = new Float32Array(rows * columns);
  if (tile.encoding === "ATTENTION_ENCODING_FP32") return weights.map((_, place) => numbers.getFloat32(4 * place, true));
  if (tile.encoding === "ATTENTION_ENCODING_FP16") return weights.map((_, place) => halfFloat(numbers.getUint16(2 * place, true)));
  const scaled = (_, place) => bytes[place] * tile.row_values[Math.floor(place / columns)];
  if (tile.encoding === "ATTENTION_ENCODING_U8") return weights.map(scaled);
  for (let row = 0, at = 0; row < rows; row += 1) {
    const kept = numbers.getUint16(at, true);
    for (let place = 0; place < kept; place += 1) {
      weights[row * columns + numbers.getUint16(at + 2 + 2 * place, true)] = bytes[at + 2 + 2 * kept + place] * tile.row_values[2 * row];
    }
    at += 2 + 3 * kept;
  }
  return weights;
}

// Browsers read both by themselves since 2025; saved pages are opened in older ones too.

/** A half-precision number of its 16 bits that is not negative, as weights are (IEEE 754 binary16). */
function halfFloat(bits) {
  const [exponent, fraction] = [bits >> 10, bits & 1023];
  return exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
}

function attentionBytes(base64) {
  return Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
}
