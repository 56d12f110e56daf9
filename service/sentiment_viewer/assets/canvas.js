// Canvases at the screen's resolution, and colours between two others.

// More pixels take more memory and time, and hardly look sharper.
const CANVAS_SCALE_MAX = 2;

/**
 * Make a canvas `width` by `height` CSS pixels large, and clear it.
 *
 * @param {number} scale pixels of the canvas in one of CSS: the screen's, at most 2.
 * @returns {CanvasRenderingContext2D} its context, which measures in CSS pixels from the upper left corner.
 */
export function canvasFor(canvas, width, height, scale = Math.min(CANVAS_SCALE_MAX, devicePixelRatio || 1)) {
  const [wide, high] = [width, height].map((side) => Math.max(1, Math.ceil(side * scale)));
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, {width: wide, height: high});
  Object.assign(canvas.style, {width: `${width}px`, height: `${height}px`});
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, wide, high);
  context.scale(scale, scale);
  return context;
}

/** The colour that is some share of the way from one "#rrggbb" to another: red, green and blue, 0 to 255, not rounded. */
export function blendedColour(from, to, share) {
  const [start, end] = [from, to].map((hex) => [1, 3, 5].map((place) => Number.parseInt(hex.slice(place, place + 2), 16)));
  return start.map((value, part) => value + share * (end[part] - value));
}
