// What differs between two texts, word by word. Pure.

// Memory: two bytes a cell. Texts of 2,000 words each fit; of longer ones only the same beginning and end are found.
const CELLS_MAX = 4_000_000;

/**
 * The words of two texts beside each other, by a longest common subsequence: [{at: [place in the first, place in the second], same}] in
 * order. A place of -1: the other text has a word there and this one has none. A word that is replaced stands beside the new one.
 *
 * @param {string[]} first
 * @param {string[]} second
 */
export function alignedWords(first, second) {
  let start = 0;
  while (start < first.length && first[start] === second[start]) start += 1;
  let [rows, columns] = [first.length, second.length];
  while (rows > start && columns > start && first[rows - 1] === second[columns - 1]) {
    rows -= 1;
    columns -= 1;
  }
  const pairs = (count, row, column) => Array.from({length: count}, (_, place) => ({at: [row + place, column + place], same: true}));
  const middle = alignedMiddle(first.slice(start, rows), second.slice(start, columns));
  return [
    ...pairs(start, 0, 0),
    ...middle.map(({at, same}) => ({at: at.map((place) => (place < 0 ? -1 : place + start)), same})),
    ...pairs(first.length - rows, rows, columns),
  ];
}

function alignedMiddle(first, second) {
  const [rows, columns] = [first.length, second.length];
  const width = columns + 1;
  const counted = rows * columns <= CELLS_MAX;
  // common[row, column]: how many words the rests from there have in common.
  const common = new Uint16Array(counted ? (rows + 1) * width : 0);
  for (let at = counted ? rows * width - 1 : -1; at >= 0; at -= 1) {
    const [row, column] = [Math.floor(at / width), at % width];
    if (column === columns) continue;
    common[at] = first[row] === second[column] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
  }
  const aligned = [];
  let [removed, added] = [[], []];
  const close = () => {
    for (let place = 0; place < Math.max(removed.length, added.length); place += 1) {
      aligned.push({at: [removed[place] ?? -1, added[place] ?? -1], same: false});
    }
    [removed, added] = [[], []];
  };
  let [row, column] = [0, 0];
  while (row < rows || column < columns) {
    const at = row * width + column;
    if (counted && row < rows && column < columns && first[row] === second[column]) {
      close();
      aligned.push({at: [row, column], same: true});
      row += 1;
      column += 1;
    } else if (column === columns || (row < rows && !(common[at + width] < common[at + 1]))) {
      removed.push(row);
      row += 1;
    } else {
      added.push(column);
      column += 1;
    }
  }
  close();
  return aligned;
}
