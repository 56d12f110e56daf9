// The head view: lines from the tokens that look to those looked at, for some heads of one layer.
import {element} from "./dom.js";
import {checkField, quietButton, stepField} from "./fields.js";
import {attentionNotes, filterField, headCounts, levelField, mapsProgress, specialField} from "./head_controls.js";
import {headDrawing} from "./head_drawing.js";
import {LINK_FLOOR, LINKS_MAX} from "./head_links.js";
import {chosenHeads, headChips, headRanking} from "./head_list.js";
import {HeadStage} from "./head_stage.js";
import {linksSentence, linksTable} from "./head_table.js";
import {tokenColumn} from "./head_tokens.js";
import {ATTENTION_CLAIM, effectSentence, uniformSentence} from "./head_words.js";
import {headColour} from "./palette.js";
import {differing} from "./redrawn.js";
import {isDark, themeColours} from "./theme.js";
import {wholeNumber} from "./wording.js";

const HEADS_HINT = "Hover a token for all of its links and their weights; click it, or press Enter, to lock it; Escape unlocks. "
  + "Arrow keys move.";

/** The head view. State: layer, heads (numbers, or none), level, special, filter, lock (a token's index; with r after it: looked at). */
export class HeadView {
  constructor({session, state, announce}) {
    Object.assign(this, {session, state, announce, byEffect: true, drawn: null});
    this.#forget();
    this.notes = attentionNotes(session);
    const column = (side) => tokenColumn(side, {
      enter: (row) => row >= 0 && !this.lock() && this.stage.focusOn({side, row}),
      leave: () => !this.lock() && this.stage.focusOn(null),
      choose: (row) => this.#choose(side, row),
      describe: (row) => (this.scene?.heads.length ? linksSentence(this.scene, {side, row}) : "no head is shown"),
    });
    this.columns = {left: column("left"), right: column("right")};
    this.stage = new HeadStage(this.columns.left, this.columns.right, (drawn) => {
      this.drawn = drawn;
      this.#tellDrawn();
    });
    this.table = linksTable(() => this.#unlock());
    this.chips = headChips(state);
    this.ranking = headRanking((layer, head) => state.set({layer, heads: head}));
    this.layer = stepField("Layer", (layer) => state.set({layer}));
    this.fields = {level: levelField(state), special: specialField(state), filter: filterField(state)};
    this.element = this.#build();
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.#unlock());
  }

  /** Request missing parts and redraw what has changed. */
  update() {
    const {session} = this;
    const explanation = session.explanation;
    this.notes.update();
    const header = explanation?.header;
    this.shown.hidden = !header || !(explanation.heads || explanation.maps);
    if (this.shown.hidden) {
      this.#forget();
      return;
    }
    const view = this.#view(header, explanation);
    this.#updateControls(view);
    this.#updateHeads(view);
    this.picture.hidden = this.tableBox.hidden = !explanation.maps;
    if (explanation.maps) this.#updateStage(view);
  }

  /** What is to be saved: the lines of all tokens, or of the locked one. */
  drawing() {
    return this.scene ? headDrawing(this.scene, this.lock(), ATTENTION_CLAIM) : null;
  }

  /** The locked token as {side, row}, or null. */
  lock() {
    const [, digits, right] = /^(\d{1,9})(r?)$/.exec(this.state.get("lock")) ?? [];
    if (!digits || !this.scene) return null;
    const token = Number(digits);
    const side = right ? "right" : "left";
    const {units} = this.scene;
    const row = this.scene[side].findIndex((unit) => units[unit].tokens[0] <= token && token < units[unit].tokens[1]);
    return row < 0 ? null : {side, row};
  }

  #forget() {
    this.scene = null;
    this.differs = Object.fromEntries(["heads", "tokens", "links", "size", "lock"].map((part) => [part, differing()]));
  }

  #build() {
    const open = () => this.state.set({view: null}, {remember: true});
    const toText = quietButton("What moved the answer", open);
    const sort = checkField("largest effect first", (sorted) => {
      this.byEffect = sorted;
      this.update();
    });
    sort.box.checked = this.byEffect;
    this.progress = element("p", {class: "note heads-progress"});
    this.effects = element("p", {class: "note"});
    this.legend = element("p", {class: "note"});
    const {level, special, filter} = this.fields;
    const controls = element("div", {class: "row fields"}, this.layer.element, level.element, filter.element, special.element);
    const hint = element("p", {class: "note", text: HEADS_HINT});
    this.picture = element("div", {}, this.stage.element, this.progress, this.legend, hint);
    this.aside = element(
      "div", {class: "heads-aside"}, element("h2", {text: "Heads of all layers"}), sort.element, this.effects, this.ranking.element,
    );
    this.tableBox = element("div", {}, this.table.element);
    const columns = element("div", {class: "heads-columns"}, this.picture, this.aside);
    this.shown = element("div", {}, controls, this.chips.element, columns, this.tableBox);
    const claim = element("p", {class: "row heads-claim"}, element("span", {text: ATTENTION_CLAIM}), toText);
    return element("section", {class: "heads", aria: {label: "Heads"}}, claim, this.notes.element, this.shown);
  }

  #view(header, {heads: report, maps}) {
    const {session, state, fields} = this;
    const {layers, heads: count} = headCounts(session);
    const isPair = header.words.some((word) => word.pair);
    const layer = Math.min(state.number("layer", 0), layers - 1);
    return {
      header, report, maps, count, layers, layer, isPair, chosen: chosenHeads(state, count), dark: isDark(), byEffect: this.byEffect,
      level: fields.level.value(), special: fields.special.value(), filter: fields.filter.value(isPair),
    };
  }

  #updateControls({layers, layer, isPair}) {
    this.layer.show([layers], layers, layer);
    this.fields.level.update();
    this.fields.special.update();
    this.fields.filter.update(isPair);
    this.arrived = mapsProgress(this.session);
    this.#tellDrawn();
  }

  #updateHeads(view) {
    const {report, header, layer, count, chosen, byEffect, dark} = view;
    if (!this.differs.heads([report, layer, count, chosen.join(), byEffect, dark])) return;
    this.chips.show(view);
    this.aside.hidden = !report;
    if (!report) return;
    this.ranking.show(view);
    this.effects.textContent = `${effectSentence(report, header)} ${uniformSentence(report)}`.trim();
  }

  #updateStage(view) {
    const {maps, layer, chosen, level, special, filter, dark} = view;
    const heads = chosen.filter((head) => maps.has(layer, head));
    const tokensChanged = this.differs.tokens([maps, level, special, filter]);
    const linksChanged = this.differs.links([maps, level, special, filter, layer, heads.join(), dark]);
    const sized = this.differs.size([this.element.clientWidth, devicePixelRatio]);
    if (linksChanged) {
      this.scene = this.#scene(view, heads);
      this.stage.show(this.scene, tokensChanged);
      this.#updateLegend(heads.length);
    } else if (sized) this.stage.resize();
    else this.stage.follow();
    const locked = this.differs.lock([this.state.get("lock")]);
    if (locked || linksChanged) this.#showLock(locked || tokensChanged);
  }

  #scene({maps, layer, count, level, special, filter, dark, header, report}, heads) {
    const units = maps.units(level, special);
    const inColumn = (place) => (unit) => filter === "all" || unit.pair === (filter[place] === "b");
    const columnUnits = (place) => Array.from(units.keys()).filter((unit) => inColumn(place)(units[unit]));
    const rowsOf = (column) => {
      const rows = new Int32Array(units.length).fill(-1);
      for (const [row, unit] of column.entries()) rows[unit] = row;
      return rows;
    };
    const [left, right] = [columnUnits(0), columnUnits(1)];
    return {
      maps, layer, level, special, filter, units, left, right, heads, header, report,
      leftRows: rowsOf(left), rightRows: rowsOf(right),
      table: (head) => maps.table(layer, head, level, special),
      colours: Array.from({length: count}, (_, head) => headColour(head, count, dark)),
      theme: themeColours(),
    };
  }

  #updateLegend(shown) {
    const divided = shown > 1
      ? `; divided by ${Math.sqrt(shown).toFixed(1)}, the root of ${shown} heads, while all tokens' links lie over each other`
      : "";
    this.legend.textContent = `A line's opacity is its weight, on one scale for all texts: 0 is not seen, 1 is solid${divided}.`;
  }

  #tellDrawn() {
    const {count = 0, floor = LINK_FLOOR} = this.drawn ?? {};
    const limit = floor > LINK_FLOOR ? ` (at most ${wholeNumber(LINKS_MAX)} at once)` : "";
    const all = `Links of ${floor.toFixed(2)} and more are drawn${limit}: ${wholeNumber(count)} near what is visible.`;
    const links = this.lock() ? "All links of the locked token are drawn, as opaque as they are strong." : all;
    const said = `${this.arrived ?? ""} ${links}`.trim();
    if (this.progress.textContent !== said) this.progress.textContent = said;
  }

  #showLock(reveal) {
    const lock = this.lock();
    for (const side of ["left", "right"]) this.columns[side].mark(lock?.side === side ? lock.row : -1);
    this.stage.focusOn(lock);
    if (lock && reveal) this.stage.reveal(lock.row);
    this.table.show(this.scene, lock);
  }

  #choose(side, row) {
    const lock = this.lock();
    if (lock && lock.side === side && lock.row === row) {
      this.#unlock();
      return;
    }
    const token = this.scene.units[this.scene[side][row]].tokens[0];
    this.state.set({lock: `${token}${side === "right" ? "r" : ""}`});
    this.announce(`Locked. ${linksSentence(this.scene, {side, row})}. A table follows the picture.`);
  }

  #unlock() {
    if (!this.lock()) return;
    this.state.set({lock: null});
    this.announce("Unlocked.");
  }
}
