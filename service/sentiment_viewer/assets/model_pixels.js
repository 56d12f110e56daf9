// Attention maps as pixels: rows look, columns are looked at. One hue on the panel's colour, on one scale for all maps and texts.
import {blendedColour} from "./canvas.js";

const MAP_SHADES = 256;

/** The shades of weights from 0 to 1, red, green, blue of each: from the panel's colour to the accent and on to the text's. */
export function mapShades({panel, accent, text}) {
  const shades = new Uint8ClampedArray(3 * MAP_SHADES);
  for (let shade = 0; shade < MAP_SHADES; shade += 1) {
    // The square root, for most weights are small; the legend says so.
    const strength = Math.sqrt(shade / (MAP_SHADES - 1));
    const [from, to, share] = strength < 0.8 ? [panel, accent, strength / 0.8] : [accent, text, (strength - 0.8) / 0.4];
    shades.set(blendedColour(from, to, share), 3 * shade);
  }
  return shades;
}

/** A map's weights in at most `side` rows and columns: each is the largest of what it stands for, so that thin diagonals stay. */
export function smallerMap({size, weights}, side) {
  if (size <= side) return {size, weights};
  const small = new Float32Array(side * side);
  const places = Uint16Array.from({length: size}, (_, place) => Math.floor((place * side) / size));
  for (let row = 0; row < size; row += 1) {
    const start = places[row] * side;
    for (let column = 0; column < size; column += 1) {
      const at = start + places[column];
      const weight = weights[row * size + column];
      if (weight > small[at]) small[at] = weight;
    }
  }
  return {size: side, weights: small};
}

/** Draw a map into a canvas, a pixel a weight. */
export function drawMapPixels(canvas, {size, weights}, shades) {
  Object.assign(canvas, {width: Math.max(1, size), height: Math.max(1, size)});
  if (!size) return;
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  for (let place = 0; place < weights.length; place += 1) {
    const shade = 3 * Math.min(MAP_SHADES - 1, Math.max(0, Math.round(weights[place] * (MAP_SHADES - 1))));
    image.data[4 * place] = shades[shade];
    image.data[4 * place + 1] = shades[shade + 1];
    image.data[4 * place + 2] = shades[shade + 2];
    image.data[4 * place + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
