// What the input's token, segment and position embeddings moved: the attribution of the first layer's input, split.
import {element} from "./dom.js";
import {METHODS} from "./methods.js";
import {redrawn} from "./redrawn.js";
import {directionHues} from "./label_hues.js";
import {absentNote} from "./status_note.js";
import {numberCell, scrolling, tableNode, tableRow} from "./tables.js";
import {valueBar} from "./text_facts.js";
import {VALUE_FULL} from "./theme.js";
import {quotedWord, signedNumber} from "./wording.js";

const SPLIT_PARTS = ["token", "segment", "position"];

/** A section that shows the split of every method that has one; update() with the token that looks. */
export class NeuronSplit {
  constructor({session, announce}) {
    this.session = session;
    this.announce = announce;
    this.place = element("div", {class: "neuron-split-place"});
    this.draw = redrawn(this.place);
    const said = "Before the first layer, what the model reads of a token is the sum of three embeddings: of the token, of its segment "
      + "(first or second text) and of its position. This is what each of them moved the explained logit by.";
    this.element = element("section", {class: "neuron-split", aria: {label: "Token, segment and position embeddings"}},
      element("h2", {text: "The input: token, segment and position embeddings"}), element("p", {text: said}), this.place);
  }

  /** Show what is known; `token` is an index of the header's tokens. */
  update(token) {
    const {session} = this;
    const {header, attributions} = session.explanation;
    const found = [...attributions.values()].filter((attribution) => attribution.byEmbedding);
    const {state, message} = session.status("attribution_split");
    this.draw([header, token, state, message, ...found], () => [
      ...found.map((attribution) => this.#table(attribution, header, token)),
      session.live && state === "none" ? this.#button() : null,
      found.length ? null : absentNote(session, "attribution_split", "", "The split"),
    ]);
  }

  #button() {
    const click = () => {
      this.session.ask("attribution_split");
      this.announce("Asking for the split by embedding");
    };
    return element("button", {class: "button", type: "button", text: "Ask for the split", on: {click}});
  }

  #table({method, byEmbedding}, header, token) {
    const piece = header.tokens[token]?.piece ?? "";
    const total = (values) => values.reduce((sum, value) => sum + value, 0);
    const rows = SPLIT_PARTS.map((part) => [`${part} embedding`, byEmbedding[part][token], total(byEmbedding[part])]);
    rows.push(["together", total(rows.map((row) => row[1])), total(rows.map((row) => row[2]))]);
    const names = ["of", `${quotedWord(piece)}, token ${token}`, `all ${header.tokens.length} tokens`];
    const hues = directionHues(header);
    const cell = (value) => numberCell(valueBar(value, hues), signedNumber(value));
    const lines = rows.map(([name, ...values]) => tableRow(name, values.map(cell)));
    const less = header.against === null ? "" : ` minus those of ${quotedWord(header.against)}`;
    const caption = `${method}: logits of ${quotedWord(header.label)}${less}; a full bar is ${VALUE_FULL}`;
    const table = tableNode({class: "neuron-table", caption, heads: names}, lines);
    return element("div", {class: "neuron-split-method"}, scrolling(`Split of ${method}`, table),
      element("p", {class: "neuron-split-said", text: METHODS[method]?.splitNote ?? ""}));
  }
}
