// The lines between two columns of tokens, on canvases as large as what is visible.
import {canvasFor} from "./canvas.js";
import {element, replace} from "./dom.js";
import {crossingLinks, drawLinks, LINK_ROW, linkLane, linkPieces, linkStyle, sortedLinks} from "./head_links.js";
import {drawFocus, focusBoxes, focusNumbers} from "./head_focus.js";
import {CanvasSurface} from "./surface.js";

// How many heads' sorted links are cached: a few layers of 16 heads, at most 100 KB each.
const STAGE_KEPT = 48;
// How many pixels above and below the visible part are drawn too, so that scrolling rarely redraws.
const STAGE_MARGIN = 300;
// Lines drawn per frame; the number that keeps a frame under SLOW_MS is found while drawing.
const STAGE_LINES = {least: 200, first: 1000, most: 3000};
const STAGE_SLOW_MS = 24;
const STAGE_PREPARE_MS = 8;
// During scrolling only the strongest lines are drawn; the rest follows when scrolling has stopped for this long.
const STAGE_REST_MS = 120;

/** The lines and their columns. `scene` is what head_view.js makes: tokens, maps and the heads that are shown. */
export class HeadStage {
  constructor(left, right, told) {
    this.columns = {left, right};
    this.told = told;
    this.lines = element("canvas", {class: "heads-canvas", aria: {hidden: "true"}});
    this.focused = element("canvas", {class: "heads-canvas", aria: {hidden: "true"}});
    this.body = element("div", {class: "heads-body"}, this.lines, this.focused, left.element, right.element);
    this.scroller = element(
      "div", {class: "scroll heads-scroll", role: "region", tabIndex: 0, aria: {label: "Tokens and the links between them"}}, this.body,
    );
    this.numbers = element("span", {class: "number"});
    const sides = element(
      "div", {class: "heads-sides", aria: {hidden: "true"}},
      element("span", {text: "looks"}), this.numbers, element("span", {text: "is looked at"}),
    );
    this.element = element("div", {}, sides, this.scroller);
    this.scroller.addEventListener("scroll", () => {
      this.scrolledAt = performance.now();
      this.follow();
    }, {passive: true});
    this.scrolledAt = -Infinity;
    this.kept = new Map();
    this.maps = null;
    this.scene = null;
    this.focus = null;
    this.band = {top: 0, height: 0};
    this.pieces = [];
    this.frame = 0;
    this.budget = STAGE_LINES.first;
  }

  /** Show other tokens or heads; clears the drawing. */
  show(scene, tokensChanged) {
    if (this.maps !== scene.maps) this.kept.clear();
    this.maps = scene.maps;
    this.scene = scene;
    if (tokensChanged) {
      for (const side of ["left", "right"]) {
        this.columns[side].show(scene[side].map((unit) => ({...scene.units[unit], place: unit})));
      }
      this.focus = null;
    }
    this.body.style.height = `${this.#height()}px`;
    this.resize();
  }

  /** Fit the columns and canvases to the page's width. */
  resize() {
    const width = this.body.clientWidth;
    if (!this.scene || !width) return;
    const widest = Math.max(this.columns.left.width(), this.columns.right.width());
    const column = Math.round(Math.min(width * 0.3, 220, Math.max(64, widest + 24)));
    this.geometry = {width, x1: column, x2: width - column};
    this.body.style.setProperty("--heads-column", `${column}px`);
    this.#place();
    this.#restart();
    this.focusOn(this.focus);
  }

  /** Show one token's links alone, all of them: {side, row}; null: the links of all tokens. */
  focusOn(focus) {
    this.focus = focus;
    this.lines.style.visibility = focus ? "hidden" : "visible";
    this.focused.style.visibility = focus ? "visible" : "hidden";
    this.#numberBoxes();
    if (focus && this.scene) this.#drawFocus();
  }

  /** Bring a row into view. */
  reveal(row) {
    const top = row * LINK_ROW;
    const {scrollTop, clientHeight} = this.scroller;
    if (top < scrollTop || top + LINK_ROW > scrollTop + clientHeight) this.scroller.scrollTop = top - clientHeight / 2;
  }

  /** The sorted links of the shown heads; computed if not cached. */
  linksOf(head) {
    const {maps, layer, level, special, filter, leftRows, rightRows} = this.scene;
    const key = [layer, head, level, special, filter].join();
    let links = this.kept.get(key);
    if (!links) {
      links = sortedLinks(maps.table(layer, head, level, special), leftRows, rightRows);
      if (this.kept.size >= STAGE_KEPT) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, links);
    }
    return links;
  }

  #height() {
    return Math.max(this.scene.left.length, this.scene.right.length, 1) * LINK_ROW;
  }

  /** Place the drawing around the visible part. */
  #place() {
    const {scrollTop, clientHeight} = this.scroller;
    const top = Math.max(0, Math.floor(scrollTop - STAGE_MARGIN));
    const height = Math.min(this.#height() - top, clientHeight + scrollTop - top + STAGE_MARGIN);
    this.band = {top, height: Math.max(1, Math.ceil(height))};
  }

  /** Draw what has become visible, by scrolling or otherwise. */
  follow() {
    if (!this.geometry || !this.scroller.clientWidth) return;
    const {scrollTop, clientHeight} = this.scroller;
    const {top, height} = this.band;
    const bottom = Math.min(this.#height(), scrollTop + clientHeight);
    if (scrollTop >= top && bottom <= top + height) return;
    this.#place();
    this.#restart();
    if (this.focus) this.#drawFocus();
  }

  /** A canvas, moved to its place and cleared. */
  #surface(canvas) {
    const {top, height} = this.band;
    const context = canvasFor(canvas, this.geometry.width, height);
    canvas.style.transform = `translateY(${top}px)`;
    context.translate(0, -top);
    return new CanvasSurface(context);
  }

  /** Redraw: sort unsorted links, some heads per frame; then draw the lines, the strongest first, some per frame. */
  #restart() {
    cancelAnimationFrame(this.frame);
    this.pieces = [];
    this.waiting = [...this.scene.heads];
    this.ready = [];
    this.#prepare();
  }

  #prepare() {
    const until = performance.now() + STAGE_PREPARE_MS;
    while (this.waiting.length && performance.now() < until) {
      const head = this.waiting.shift();
      this.ready.push({head, links: this.linksOf(head)});
    }
    if (this.waiting.length) {
      this.frame = requestAnimationFrame(() => this.#prepare());
      return;
    }
    const {top, height} = this.band;
    const {batches, count, floor} = crossingLinks(this.ready, top / LINK_ROW - 1, (top + height) / LINK_ROW);
    this.pieces = linkPieces(batches);
    this.told({count, floor});
    this.surface = this.#surface(this.lines);
    this.lastFrame = 0;
    this.budget = Math.min(this.budget, this.#scrolling() ? STAGE_LINES.least : STAGE_LINES.first);
    this.#drawSome(performance.now());
  }

  #drawSome(now) {
    const took = this.lastFrame ? now - this.lastFrame : 0;
    this.lastFrame = now;
    if (took > STAGE_SLOW_MS) this.budget = Math.max(STAGE_LINES.least, this.budget * 0.6);
    else if (took) this.budget = Math.min(STAGE_LINES.most, this.budget * 1.2);
    const {heads, colours} = this.scene;
    for (let drawn = 0; this.pieces.length && drawn < this.budget; ) {
      const {head, weight, rows} = this.pieces.shift();
      const lane = linkLane(heads.indexOf(head), heads.length);
      drawLinks(this.surface, rows, {...this.geometry, top: 0, lane}, {colour: colours[head], ...linkStyle(weight, heads.length)});
      drawn += rows.length / 2;
    }
    this.#drawMore();
  }

  #drawMore() {
    if (!this.pieces.length) return;
    this.frame = requestAnimationFrame((now) => {
      if (!this.#scrolling()) this.#drawSome(now);
      else {
        this.lastFrame = 0;
        this.#drawMore();
      }
    });
  }

  #scrolling() {
    return performance.now() - this.scrolledAt < STAGE_REST_MS;
  }

  /** The heads' numbers above their boxes, where these are. */
  #numberBoxes() {
    if (!this.focus || !this.scene?.heads.length || !this.geometry) {
      replace(this.numbers);
      return;
    }
    const {heads} = this.scene;
    const {x, width} = focusBoxes(this.focus.side, this.geometry, heads.length);
    replace(this.numbers, ...focusNumbers(heads, width).map((text, place) => element("span", {
      text, class: "heads-number", style: {left: `${x + place * width}px`, width: `${width}px`},
    })));
  }

  #drawFocus() {
    const {top, height} = this.band;
    drawFocus(this.#surface(this.focused), this.scene, this.focus, this.geometry, {top, bottom: top + height});
  }
}
