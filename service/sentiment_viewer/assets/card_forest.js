// The scorecard's picture of measured trust: how far each method is above random orders, with its interval, by erasing operator.
import {canvasFor} from "./canvas.js";
import {element} from "./dom.js";
import {differing} from "./redrawn.js";
import {CanvasSurface} from "./surface.js";
import {isDark, themeColours} from "./theme.js";
import {signedNumber, visibleText} from "./wording.js";

const FOREST_LINE = 13;
const FOREST_GAP = 9;
const FOREST_HEADING = 24;
const FOREST_AXIS = 42;
const FOREST_MARK = 7;
const FOREST_SAVED_WIDTH = 760;
const FOREST_TICKS = 5;
const FOREST_TITLE = "Measured trust: comprehensiveness over random orders";

/** The picture over methods and operators as trustGroups and the study give them: {element, update(shown), drawing(shown)}. */
export class ForestPlot {
  constructor(groups, operators) {
    this.groups = groups;
    this.operators = operators;
    this.height = forestHeight(groups, operators);
    this.differs = differing();
    const label = `${FOREST_TITLE}. The table below has the numbers.`;
    this.canvas = element("canvas", {role: "img", aria: {label}});
    this.element = element("div", {class: "card-forest"}, this.canvas);
  }

  /** Draw it if its size, the theme or the method that is `shown` has changed. */
  update(shown) {
    const width = this.element.clientWidth;
    if (!width || !this.differs([width, devicePixelRatio, isDark(), shown])) return;
    forestDraw(new CanvasSurface(canvasFor(this.canvas, width, this.height)), width, this, shown);
  }

  /** The same to save. */
  drawing(shown) {
    const draw = (surface) => forestDraw(surface, FOREST_SAVED_WIDTH, this, shown);
    return {width: FOREST_SAVED_WIDTH, height: this.height, title: FOREST_TITLE, draw};
  }
}

function forestHeight(groups, operators) {
  const rows = groups.reduce((sum, {methods}) => sum + methods.length, 0);
  const legend = operators.length * 18 + 8;
  return legend + groups.length * FOREST_HEADING + rows * (operators.length * FOREST_LINE + FOREST_GAP) + FOREST_AXIS;
}

function forestDraw(surface, width, {groups, operators, height}, shown) {
  const theme = themeColours();
  const left = Math.min(200, Math.round(width * 0.4));
  const scale = forestScale(groups, left + 10, width - 14);
  const bottom = height - FOREST_AXIS;
  let top = 0;
  operators.forEach(({said}, place) => {
    forestMark(surface, 12, top + 10, place, theme);
    surface.text(said, 26, top + 14, {size: 12, colour: theme.text, maxWidth: width - 30});
    top += 18;
  });
  top += 8;
  for (const tick of scale.ticks) {
    const x = scale.at(tick);
    surface.line(x, top, x, bottom, {colour: tick === 0 ? theme.text : theme.line, width: tick === 0 ? 1.5 : 1});
    surface.text(tick === 0 ? "0" : signedNumber(tick, scale.decimals), x, bottom + 16, {size: 11, colour: theme.muted, anchor: "middle"});
  }
  const axis = {size: 11, colour: theme.muted, anchor: "end", maxWidth: width - 10};
  surface.text("left of 0: worse than random orders; right: better", width - 8, bottom + 34, axis);
  for (const {title, methods} of groups) {
    surface.text(title, 4, top + 16, {size: 12, colour: theme.muted, maxWidth: width - 8});
    top += FOREST_HEADING;
    for (const method of methods) {
      const tall = operators.length * FOREST_LINE + FOREST_GAP;
      if (method.method === shown) surface.rect(0, top, width, tall, {fill: theme.accent, alpha: 0.12});
      const name = {size: 12, colour: theme.text, weight: method.method === shown ? "bold" : "normal", maxWidth: left - 8};
      surface.text(visibleText(method.method), 4, top + tall / 2 + 4, name);
      method.over_random.forEach(({mean, low, high}, place) => {
        const y = top + FOREST_GAP / 2 + (place + 0.5) * FOREST_LINE;
        surface.line(scale.at(low), y, scale.at(high), y, {colour: forestColour(place, theme), width: 2});
        forestMark(surface, scale.at(mean), y, place, theme);
      });
      top += tall;
    }
  }
}

/** The mark of an erasing operator: it differs in shape as well as in colour. */
function forestMark(surface, x, y, place, theme) {
  const colour = forestColour(place, theme);
  const half = FOREST_MARK / 2;
  if (place === 0) surface.rect(x - half, y - half, FOREST_MARK, FOREST_MARK, {fill: colour});
  else if (place === 1) surface.rect(x - half, y - half, FOREST_MARK, FOREST_MARK, {fill: theme.panel, stroke: colour});
  else surface.line(x, y - half - 1, x, y + half + 1, {colour, width: 3});
}

function forestColour(place, theme) {
  return [theme.accent, theme.fifth][place] ?? theme.text;
}

/** Where values stand between two edges: {at(value), ticks, decimals}; 0 is always there. */
function forestScale(groups, from, to) {
  const ends = groups.flatMap(({methods}) => methods.flatMap(({over_random: over}) => over.flatMap(({low, high}) => [low, high])));
  const [least, most] = [Math.min(0, ...ends), Math.max(0.01, ...ends)];
  const rough = (most - least) / FOREST_TICKS;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((times) => times * unit >= rough) * unit;
  const [first, last] = [Math.floor(least / step - 1e-9), Math.ceil(most / step - 1e-9)];
  const ticks = Array.from({length: last - first + 1}, (_, place) => (first + place) * step);
  const at = (value) => from + ((value - first * step) / ((last - first) * step)) * (to - from);
  return {at, ticks, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}
