// The model view: the maps of all layers and heads at a glance, and one of them enlarged.
import {element} from "./dom.js";
import {attentionLevel, attentionNotes, attentionSpecial, Changes, levelField, specialField} from "./head_controls.js";
import {ATTENTION_CLAIM, effectSentence, headName} from "./head_words.js";
import {gridDrawing, ModelGrid} from "./model_grid.js";
import {ModelMap} from "./model_map.js";
import {mapShades} from "./model_pixels.js";
import {isDark, themeColours} from "./theme.js";

const MODEL_LEGEND = "Rows look, columns are looked at. The shade grows with the square root of the weight, on one scale for all maps: "
  + "the panel's colour is 0. In thumbnails a pixel is the largest of the weights it stands for.";
const MODEL_MARKED = "Framed: the five heads whose switching off moves the answer most.";

/** The model view. State: map (layer,head of the enlarged one), level, special. */
export function modelView(context) {
  return new ModelView(context);
}

class ModelView {
  constructor({session, state, announce}) {
    Object.assign(this, {session, state, changes: new Changes(), view: null});
    this.notes = attentionNotes(session);
    this.grid = new ModelGrid((layer, head) => {
      this.toFocus = true;
      state.set({map: `${layer},${head}`}, {remember: true});
    });
    this.map = new ModelMap(announce);
    this.fields = {level: levelField(state), special: specialField(state)};
    this.element = this.#build();
  }

  /** Ask for what is missing and redraw what has changed. */
  update() {
    const {session, state} = this;
    this.notes.update();
    const {header, maps, heads: report} = session.explanation ?? {};
    this.shown.hidden = !header || !maps;
    if (this.shown.hidden) {
      this.view = null;
      this.changes.forget();
      return;
    }
    const dark = isDark();
    const [layers, heads] = [report?.layers ?? maps.layers, report?.heads ?? maps.heads];
    const [layer, head] = state.list("map");
    const enlarged = head !== undefined && maps.has(layer, head) ? {layer, head} : null;
    this.view = {header, maps, report, layers, heads, enlarged, dark, level: attentionLevel(state), special: attentionSpecial(state)};
    this.fields.level.update();
    this.fields.special.update();
    this.#updateProgress();
    const before = this.gridPart.hidden ? this.shownMap : null;
    this.gridPart.hidden = Boolean(enlarged);
    this.mapPart.hidden = !enlarged;
    if (enlarged) this.#updateMap();
    else this.#updateGrid(before);
  }

  /** What is to be saved: the enlarged map, or all. */
  drawing() {
    if (!this.view) return null;
    return this.view.enlarged ? this.map.drawing() : gridDrawing(this.grid, this.view.report, themeColours());
  }

  #build() {
    this.progress = element("p", {class: "note model-progress"});
    this.effects = element("p", {class: "note"});
    const button = (text, click) => element("button", {type: "button", class: "button quiet", text, on: {click}});
    this.fitting = element("input", {type: "checkbox", on: {change: () => this.map.resize(this.fitting.checked)}});
    const actions = element(
      "div", {class: "row"}, button("Back to all maps", () => this.state.set({map: null})),
      button("In the head view", () => this.#toHeads()), button("In the neuron view", () => this.#toNeuron()),
      element("label", {class: "attention-check"}, this.fitting, " all of it at once"),
    );
    this.title = element("h2");
    this.gridPart = element("div", {}, this.grid.element, this.effects);
    this.mapPart = element("div", {hidden: true}, this.title, actions, this.map.readout, this.map.element);
    this.mapPart.addEventListener("keydown", (event) => event.key === "Escape" && this.state.set({map: null}));
    const controls = element("div", {class: "row heads-controls"}, this.fields.level.element, this.fields.special.element);
    const legend = element("p", {class: "note", text: MODEL_LEGEND});
    this.shown = element("div", {}, controls, this.progress, this.gridPart, this.mapPart, legend);
    const claim = element("p", {text: ATTENTION_CLAIM});
    return element("section", {class: "model", aria: {label: "Model"}}, claim, this.notes.element, this.shown);
  }

  #updateProgress() {
    const {maps, report} = this.view;
    const total = report ? report.layers * report.heads : 0;
    const here = this.session.status("attention").state === "here" || (total && maps.count >= total);
    const said = here ? "" : `${maps.count}${total ? ` of ${total}` : ""} maps are here.`;
    if (this.progress.textContent !== said) this.progress.textContent = said;
  }

  #updateGrid(before) {
    const {maps, report, layers, heads, level, special, dark, header} = this.view;
    const shaped = this.changes.in("shape", [layers, heads].join());
    if (shaped) this.grid.shape(layers, heads);
    if (this.changes.in("heads", "", report) || shaped) {
      this.grid.describe(report);
      this.effects.textContent = report ? `${effectSentence(report, header)} ${MODEL_MARKED}` : "";
    }
    if (this.changes.in("tokens", [level, special, dark].join(), maps)) this.grid.clear();
    if (this.changes.in("maps", [level, special, dark, maps.count, layers, heads].join(), maps)) {
      this.grid.draw(maps, level, special, mapShades(themeColours()));
    }
    if (before) this.grid.focus(before.layer, before.head);
  }

  #updateMap() {
    const {maps, report, enlarged, level, special, dark} = this.view;
    const {layer, head} = enlarged;
    const key = [layer, head, level, special, dark].join();
    this.shownMap = enlarged;
    const name = headName(report, layer, head);
    if (this.title.textContent !== name) this.title.textContent = name;
    if (this.changes.in("map", key, maps)) {
      const theme = themeColours();
      this.map.show({table: maps.table(layer, head, level, special), name: `layer ${layer} head ${head}`, shades: mapShades(theme), theme});
    } else if (this.changes.in("size", [this.map.element.clientWidth, devicePixelRatio].join())) this.map.resize();
    else this.map.follow();
    if (this.toFocus) this.map.element.focus();
    this.toFocus = false;
  }

  #toHeads() {
    const {layer, head} = this.view.enlarged;
    this.state.set({view: "heads", layer, heads: head}, {remember: true});
  }

  #toNeuron() {
    const {layer, head} = this.view.enlarged;
    const row = this.map.cell?.[0];
    const token = row === undefined ? {} : {token: this.map.shown.table.units[row].tokens[0]};
    this.state.set({view: "neuron", neuron_layer: layer, neuron_head: head, ...token}, {remember: true});
  }
}
