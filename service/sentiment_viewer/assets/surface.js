// Drawing surfaces: the same calls draw on a canvas or write an SVG document. Lengths in CSS pixels; y of a text is its baseline.

const TEXT_FONT = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const MONO_FONT = "ui-monospace, 'Cascadia Mono', Menlo, 'DejaVu Sans Mono', monospace";

let surfaceMeasure = null;

function surfaceFont({size = 13, weight = "normal", mono = false} = {}) {
  return `${weight} ${size}px ${mono ? MONO_FONT : TEXT_FONT}`;
}

/** The width of a text in pixels. */
export function textWidth(string, options = {}) {
  surfaceMeasure ??= document.createElement("canvas").getContext("2d");
  surfaceMeasure.font = surfaceFont(options);
  return surfaceMeasure.measureText(string).width;
}

/** The text, cut with an ellipsis where it is wider than `maxWidth` pixels. */
export function fittedText(string, maxWidth, options = {}) {
  if (!(maxWidth > 0) || textWidth(string, options) <= maxWidth) return string;
  const signs = [...string];
  let low = 0;
  let high = signs.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(`${signs.slice(0, middle).join("")}…`, options) <= maxWidth) low = middle;
    else high = middle - 1;
  }
  return `${signs.slice(0, low).join("")}…`;
}

/** Draw lines of text below each other, the first at `top`. */
export function drawLines(surface, lines, x, top, step, style) {
  lines.forEach((line, place) => surface.text(line, x, top + place * step, style));
}

/** Draws on a canvas's context, which its owner has scaled and cleared. */
export class CanvasSurface {
  constructor(context) {
    this.context = context;
  }

  line(x1, y1, x2, y2, options) {
    this.lines([x1, y1, x2, y2], options);
  }

  /** Many lines of one style: x1, y1, x2, y2 of each. */
  lines(ends, {colour, alpha = 1, width = 1}) {
    const context = this.context;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    for (let place = 0; place < ends.length; place += 4) {
      context.moveTo(ends[place], ends[place + 1]);
      context.lineTo(ends[place + 2], ends[place + 3]);
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  rect(x, y, width, height, {fill, stroke, alpha = 1}) {
    const context = this.context;
    context.globalAlpha = alpha;
    if (fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, width, height);
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = 1;
      context.strokeRect(x, y, width, height);
    }
    context.globalAlpha = 1;
  }

  /** Dots of one style: x, y of each centre. */
  dots(centres, radius, {fill, stroke, alpha = 1, width = 1}) {
    const context = this.context;
    context.globalAlpha = alpha;
    context.beginPath();
    for (let place = 0; place < centres.length; place += 2) {
      context.moveTo(centres[place] + radius, centres[place + 1]);
      context.arc(centres[place], centres[place + 1], radius, 0, 2 * Math.PI);
    }
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  text(string, x, y, options = {}) {
    const context = this.context;
    context.font = surfaceFont(options);
    context.fillStyle = options.colour;
    context.textAlign = {start: "left", middle: "center", end: "right"}[options.anchor ?? "start"];
    context.textBaseline = "alphabetic";
    context.direction = "ltr";
    context.fillText(fittedText(string, options.maxWidth, options), x, y);
  }

  image(canvas, x, y, width, height) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(canvas, x, y, width, height);
  }
}

/** Writes an SVG document. */
export class SvgSurface {
  constructor(width, height) {
    this.size = [width, height];
    this.parts = [];
  }

  line(x1, y1, x2, y2, options) {
    this.lines([x1, y1, x2, y2], options);
  }

  lines(ends, {colour, alpha = 1, width = 1}) {
    if (!ends.length) return;
    const steps = [];
    for (let place = 0; place < ends.length; place += 4) {
      const [x1, y1, x2, y2] = [0, 1, 2, 3].map((axis) => svgNumber(ends[place + axis]));
      steps.push(`M${x1} ${y1}L${x2} ${y2}`);
    }
    const style = `stroke="${svgText(colour)}" stroke-opacity="${svgNumber(alpha)}" stroke-width="${svgNumber(width)}"`;
    this.parts.push(`<path d="${steps.join("")}" fill="none" ${style}/>`);
  }

  rect(x, y, width, height, {fill, stroke, alpha = 1}) {
    const style = `fill="${svgText(fill ?? "none")}" stroke="${svgText(stroke ?? "none")}" opacity="${svgNumber(alpha)}"`;
    this.parts.push(`<rect ${svgSides(x, y, width, height)} ${style}/>`);
  }

  dots(centres, radius, {fill, stroke, alpha = 1, width = 1}) {
    if (!centres.length) return;
    const [across, around] = [svgNumber(2 * radius), `a${svgNumber(radius)} ${svgNumber(radius)} 0 1 0`];
    const steps = [];
    for (let place = 0; place < centres.length; place += 2) {
      const [x, y] = [svgNumber(centres[place] - radius), svgNumber(centres[place + 1])];
      steps.push(`M${x} ${y}${around} ${across} 0${around} -${across} 0`);
    }
    const style = `fill="${svgText(fill ?? "none")}" stroke="${svgText(stroke ?? "none")}" stroke-width="${svgNumber(width)}"`;
    this.parts.push(`<path d="${steps.join("")}" ${style} opacity="${svgNumber(alpha)}"/>`);
  }

  text(string, x, y, options = {}) {
    const {size = 13, weight = "normal", mono = false, anchor = "start", colour} = options;
    const family = svgText(mono ? MONO_FONT : TEXT_FONT);
    const style = `font-family="${family}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}"`;
    const said = svgText(fittedText(string, options.maxWidth, options));
    const place = `x="${svgNumber(x)}" y="${svgNumber(y)}" fill="${svgText(colour)}"`;
    this.parts.push(`<text ${place} xml:space="preserve" ${style}>${said}</text>`);
  }

  image(canvas, x, y, width, height) {
    const pixels = canvas.toDataURL("image/png");
    this.parts.push(`<image ${svgSides(x, y, width, height)} preserveAspectRatio="none" image-rendering="pixelated" href="${pixels}"/>`);
  }

  /** The document. */
  document(title) {
    const [width, height] = this.size.map((side) => Math.ceil(side));
    const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">`;
    return `${head}<title>${svgText(title)}</title>${this.parts.join("\n")}</svg>\n`;
  }
}

function svgSides(x, y, width, height) {
  return `x="${svgNumber(x)}" y="${svgNumber(y)}" width="${svgNumber(width)}" height="${svgNumber(height)}"`;
}

function svgNumber(value) {
  return String(Math.round(value * 100) / 100);
}

// XML 1.0 forbids the other control characters and lone surrogates.
function svgText(string) {
  const legal = String(string).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").toWellFormed();
  return legal.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
