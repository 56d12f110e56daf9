// The model view: the maps of all layers and heads at a glance, and one of them enlarged.
import {element} from "./dom.js";
import {checkField, quietButton} from "./fields.js";
import {attentionNotes, headCounts, levelField, mapsProgress, specialField} from "./head_controls.js";
import {ATTENTION_CLAIM, effectSentence, headName, HEADS_MARKED} from "./head_words.js";
import {gridDrawing, ModelGrid} from "./model_grid.js";
import {ModelMap} from "./model_map.js";
import {mapShades} from "./model_pixels.js";
import {differing} from "./redrawn.js";
import {isDark, themeColours} from "./theme.js";

const MODEL_LEGEND = "Rows look, columns are looked at. The shade grows with the square root of the weight, on one scale for all maps: "
  + "the panel's colour is 0. In thumbnails a pixel is the largest of the weights it stands for.";
const MODEL_MARKED = `Framed: the ${HEADS_MARKED} heads whose switching off moves the answer most.`;

/** The model view. State: map (layer,head of the enlarged one), level, special. */
export class ModelView {
  constructor({session, state, announce}) {
    Object.assign(this, {session, state, shownMap: null, shapeDiffers: differing()});
    this.#forget();
    this.notes = attentionNotes(session);
    this.grid = new ModelGrid((layer, head) => this.#turn(`${layer},${head}`));
    this.map = new ModelMap(announce);
    this.fields = {level: levelField(state), special: specialField(state)};
    this.element = this.#build();
  }

  /** Request missing parts and redraw what has changed. */
  update() {
    const {session, state} = this;
    this.notes.update();
    const {header, maps, heads: report} = session.explanation ?? {};
    this.shown.hidden = !header || !maps;
    if (this.shown.hidden) {
      this.#forget();
      return;
    }
    const dark = isDark();
    const [layer, head] = state.list("map");
    const enlarged = head !== undefined && maps.has(layer, head) ? {layer, head} : null;
    const tokens = {level: this.fields.level.value(), special: this.fields.special.value()};
    this.view = {header, maps, report, enlarged, dark, ...headCounts(session), ...tokens};
    this.fields.level.update();
    this.fields.special.update();
    this.#updateProgress();
    // Where the focus was in what goes, as when the browser goes back, it would be lost.
    const turned = this.gridPart.hidden !== Boolean(enlarged) && this.shown.contains(document.activeElement);
    this.gridPart.hidden = Boolean(enlarged);
    this.mapPart.hidden = !enlarged;
    if (enlarged) this.#updateMap();
    else this.#updateGrid();
    if (this.toFocus || turned) this.#focus();
    this.toFocus = false;
  }

  /** What is to be saved: the enlarged map, or all. */
  drawing() {
    if (!this.view) return null;
    return this.view.enlarged ? this.map.drawing() : gridDrawing(this.grid, this.view.report, themeColours());
  }

  #forget() {
    this.view = null;
    this.differs = Object.fromEntries(["heads", "tokens", "maps", "map", "size"].map((part) => [part, differing()]));
  }

  /** Enlarge a map, "layer,head", or show all of them: null. The reader who did it goes on there. */
  #turn(map) {
    this.toFocus = true;
    this.state.set({map}, {remember: map !== null});
  }

  #focus() {
    if (this.view.enlarged) this.map.element.focus();
    else if (this.shownMap) this.grid.focus(this.shownMap.layer, this.shownMap.head);
  }

  #build() {
    this.progress = element("p", {class: "note model-progress"});
    this.effects = element("p", {class: "note"});
    const fitting = checkField("all of it at once", (fit) => this.map.resize(fit));
    const actions = element(
      "div", {class: "row"}, quietButton("Back to all maps", () => this.#turn(null)),
      quietButton("In the head view", () => this.#toHeads()), quietButton("In the neuron view", () => this.#toNeuron()), fitting.element,
    );
    this.title = element("h2");
    this.gridPart = element("div", {}, this.grid.element, this.effects);
    this.mapPart = element("div", {hidden: true}, this.title, actions, this.map.readout, this.map.element);
    this.mapPart.addEventListener("keydown", (event) => event.key === "Escape" && this.#turn(null));
    const controls = element("div", {class: "row fields"}, this.fields.level.element, this.fields.special.element);
    const legend = element("p", {class: "note", text: MODEL_LEGEND});
    this.shown = element("div", {}, controls, this.progress, this.gridPart, this.mapPart, legend);
    const claim = element("p", {text: ATTENTION_CLAIM});
    return element("section", {class: "model", aria: {label: "Model"}}, claim, this.notes.element, this.shown);
  }

  #updateProgress() {
    const said = mapsProgress(this.session);
    if (this.progress.textContent !== said) this.progress.textContent = said;
  }

  #updateGrid() {
    const {maps, report, layers, heads, level, special, dark, header} = this.view;
    const {differs} = this;
    if (this.shapeDiffers([layers, heads])) this.grid.shape(layers, heads);
    if (differs.heads([report, layers, heads])) {
      this.grid.describe(report);
      this.effects.textContent = report ? `${effectSentence(report, header)} ${MODEL_MARKED}` : "";
    }
    if (differs.tokens([maps, level, special, dark])) this.grid.clear();
    if (differs.maps([maps, level, special, dark, maps.count, layers, heads])) {
      this.grid.draw(maps, level, special, mapShades(themeColours()));
    }
  }

  #updateMap() {
    const {maps, report, enlarged, level, special, dark} = this.view;
    const {layer, head} = enlarged;
    this.shownMap = enlarged;
    const name = headName(report, layer, head);
    if (this.title.textContent !== name) this.title.textContent = name;
    if (this.differs.map([maps, layer, head, level, special, dark])) {
      const theme = themeColours();
      const table = maps.table(layer, head, level, special);
      this.map.show({maps, table, name: `layer ${layer} head ${head}`, shades: mapShades(theme), theme});
    } else if (this.differs.size([this.map.element.clientWidth, devicePixelRatio])) this.map.resize();
    else this.map.follow();
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
