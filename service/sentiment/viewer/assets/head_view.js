// The head view: lines from the tokens that look to those looked at, for some heads of one layer.
import {element} from "./dom.js";
import {
  attentionFilter, attentionLevel, attentionNotes, attentionSpecial, Changes, filterField, layerField, levelField, specialField,
} from "./head_controls.js";
import {headDrawing} from "./head_drawing.js";
import {LINK_FLOOR, LINKS_MAX} from "./head_links.js";
import {chosenHeads, headChips, headRanking} from "./head_list.js";
import {HeadStage} from "./head_stage.js";
import {linksSentence, linksTable} from "./head_table.js";
import {tokenColumn} from "./head_tokens.js";
import {ATTENTION_CLAIM, effectSentence, uniformSentence} from "./head_words.js";
import {headColour} from "./palette.js";
import {isDark, themeColours} from "./theme.js";
import {wholeNumber} from "./wording.js";

const HEADS_HINT = "Hover a token for all of its links and their weights; click it, or press Enter, to lock it; Escape unlocks. "
  + "Arrow keys move.";

/** The head view. State: layer, heads (numbers, or none), level, special, filter, lock (a token's index; with r after it: looked at). */
export function headView(context) {
  return new HeadView(context);
}

class HeadView {
  constructor({session, state, announce}) {
    Object.assign(this, {session, state, announce, byEffect: true, scene: null, changes: new Changes(), drawn: null});
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
    this.fields = {layer: layerField(state), level: levelField(state), special: specialField(state), filter: filterField(state)};
    this.element = this.#build();
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.#unlock());
  }

  /** Ask for what is missing and redraw what has changed. */
  update() {
    const {session} = this;
    const explanation = session.explanation;
    this.notes.update();
    const header = explanation?.header;
    const count = explanation?.heads?.heads ?? explanation?.maps?.heads ?? 0;
    const shown = Boolean(header && count);
    this.shown.hidden = !shown;
    if (!shown) {
      this.scene = null;
      this.changes.forget();
      return;
    }
    const view = this.#view(header, explanation, count);
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

  #build() {
    const open = () => this.state.set({view: null}, {remember: true});
    const toText = element("button", {type: "button", class: "button quiet", text: "What moved the answer", on: {click: open}});
    this.sort = element("input", {type: "checkbox", checked: true, on: {change: () => {
      this.byEffect = this.sort.checked;
      this.update();
    }}});
    this.progress = element("p", {class: "note heads-progress"});
    this.effects = element("p", {class: "note"});
    this.legend = element("p", {class: "note"});
    const {layer, level, special, filter} = this.fields;
    const controls = element("div", {class: "row heads-controls"}, layer.element, level.element, filter.element, special.element);
    const hint = element("p", {class: "note", text: HEADS_HINT});
    this.picture = element("div", {}, this.stage.element, this.progress, this.legend, hint);
    this.aside = element(
      "div", {class: "heads-aside"}, element("h2", {text: "Heads of all layers"}),
      element("label", {class: "attention-check"}, this.sort, " largest effect first"), this.effects, this.ranking.element,
    );
    this.tableBox = element("div", {}, this.table.element);
    const columns = element("div", {class: "heads-columns"}, this.picture, this.aside);
    this.shown = element("div", {}, controls, this.chips.element, columns, this.tableBox);
    const claim = element("p", {class: "row heads-claim"}, element("span", {text: ATTENTION_CLAIM}), toText);
    return element("section", {class: "heads", aria: {label: "Heads"}}, claim, this.notes.element, this.shown);
  }

  #view(header, explanation, count) {
    const {state} = this;
    const {heads: report, maps} = explanation;
    const layers = report?.layers ?? maps.layers;
    const isPair = header.words.some((word) => word.pair);
    const layer = Math.min(state.number("layer", 0), layers - 1);
    return {
      header, report, maps, count, layers, layer, isPair, chosen: chosenHeads(state, count), dark: isDark(), byEffect: this.byEffect,
      level: attentionLevel(state), special: attentionSpecial(state), filter: attentionFilter(state, isPair),
    };
  }

  #updateControls({layers, layer, isPair, maps, report}) {
    this.fields.layer.update(layers, layer);
    this.fields.level.update();
    this.fields.special.update();
    this.fields.filter.update(isPair);
    const total = report ? report.layers * report.heads : 0;
    const count = maps?.count ?? 0;
    const whole = this.session.status("attention").state === "here" || (total && count >= total);
    this.arrived = whole ? "" : `${count}${total ? ` of ${total}` : ""} maps are here. `;
    this.#tellDrawn();
  }

  #updateHeads(view) {
    const {report, header, layer, count, chosen, byEffect, dark} = view;
    if (!this.changes.in("heads", [layer, count, chosen, byEffect, dark].join(), report)) return;
    this.chips.show(view);
    this.aside.hidden = !report;
    if (!report) return;
    this.ranking.show(view);
    this.effects.textContent = `${effectSentence(report, header)} ${uniformSentence(report)}`.trim();
  }

  #updateStage(view) {
    const {maps, layer, chosen, level, special, filter, dark} = view;
    const heads = chosen.filter((head) => maps.has(layer, head));
    const tokensChanged = this.changes.in("tokens", [level, special, filter].join(), maps);
    const linksChanged = this.changes.in("links", [layer, heads, level, special, filter, dark].join(), maps);
    const sized = this.changes.in("size", [this.element.clientWidth, devicePixelRatio].join());
    const redrawn = tokensChanged || linksChanged;
    if (redrawn) {
      this.scene = this.#scene(view, heads);
      this.stage.show(this.scene, tokensChanged);
      this.#updateLegend(heads.length);
    } else if (sized) this.stage.resize();
    else this.stage.follow();
    const locked = this.changes.in("lock", this.state.get("lock"));
    if (locked || redrawn) this.#showLock(locked || tokensChanged);
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
    const links = `Links of ${floor.toFixed(2)} and more are drawn${limit}: ${wholeNumber(count)} near what is visible.`;
    const said = `${this.arrived ?? ""}${links}`;
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
