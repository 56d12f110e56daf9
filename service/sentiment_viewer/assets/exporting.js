// Saves a view's drawing as a file.
import {CanvasSurface, SvgSurface} from "./surface.js";
import {themeColours} from "./theme.js";

// Maximum pixels per side, and in total, that every browser can draw.
const PNG_SIDE_MAX = 16384;
const PNG_PIXELS_MAX = 2 ** 27;

/** Offer the drawing for download as NAME.svg. */
export async function saveSvg(drawing, name) {
  const surface = new SvgSurface(drawing.width, drawing.height);
  drawOn(surface, drawing);
  saveBlob(new Blob([surface.document(drawing.title)], {type: "image/svg+xml"}), `${name}.svg`);
}

/** Offer the drawing for download as NAME.png, two pixels a CSS pixel where that fits. */
export async function savePng(drawing, name) {
  const {width, height} = drawing;
  const scale = Math.min(2, PNG_SIDE_MAX / width, PNG_SIDE_MAX / height, Math.sqrt(PNG_PIXELS_MAX / (width * height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.floor(width * scale);
  canvas.height = Math.floor(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  drawOn(new CanvasSurface(context), drawing);
  const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  if (!blob) throw new Error("the picture is too large for this browser");
  saveBlob(blob, `${name}.png`);
}

function drawOn(surface, drawing) {
  surface.rect(0, 0, drawing.width, drawing.height, {fill: themeColours().panel});
  drawing.draw(surface);
}

/** Offer a blob for download. */
export function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
