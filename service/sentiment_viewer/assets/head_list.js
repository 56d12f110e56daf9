// Heads to choose from: those of the layer as chips, and those of all layers as a list. Each with its number, pattern and effect.
import {element, replace} from "./dom.js";
import {quietButton, roving} from "./fields.js";
import {headEffect, headName, headPattern, headsByEffect} from "./head_words.js";
import {headColour} from "./palette.js";
import {differing, redrawn} from "./redrawn.js";
import {largestFirst, signedNumber} from "./wording.js";

/** The heads of a layer that the state shows, in ascending order. */
export function chosenHeads(state, count) {
  if (state.get("heads") === "none") return [];
  const listed = [...new Set(state.list("heads"))].filter((head) => head < count).sort((one, other) => one - other);
  return listed.length ? listed : Array.from({length: count}, (_, head) => head);
}

/** The state's value for some heads of a layer: unset for all of them. */
function headsValue(heads, count) {
  if (!heads.length) return "none";
  return heads.length === count ? null : [...heads].sort((one, other) => one - other).join(",");
}

/** The heads of a layer by the size of their effect, or by number. */
function orderedHeads(report, layer, count, byEffect) {
  if (!report || !byEffect) return Array.from({length: count}, (_, head) => head);
  return largestFirst(report.gated.subarray(layer * count, (layer + 1) * count));
}

/** Chips of a layer's heads, to show or hide: {element, show({report, layer, count, chosen, byEffect, dark})}. */
export function headChips(state) {
  const list = element("ul", {class: "heads-chips", aria: {label: "Heads of this layer"}});
  const draw = redrawn(list);
  const oneStop = roving(list, "button");
  let chips = [];
  let count = 0;
  const set = (heads) => state.set({heads: headsValue(heads, count)});
  const toggle = (head) => {
    const chosen = chosenHeads(state, count);
    set(chosen.includes(head) ? chosen.filter((other) => other !== head) : [...chosen, head]);
  };
  const show = ({report, layer, count: heads, chosen, byEffect, dark}) => {
    if (count !== heads) {
      count = heads;
      chips = Array.from({length: count}, (_, head) => headChip(head, {toggle: () => toggle(head), only: () => set([head])}));
    }
    for (const chip of chips) chip.show(report, layer, chosen.includes(chip.head), headColour(chip.head, count, dark));
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const order = orderedHeads(report, layer, count, byEffect);
    draw([count, ...order], () => order.map((head) => chips[head].element));
    oneStop();
    focused?.focus();
  };
  const all = quietButton("All heads", () => set(chips.map((chip) => chip.head)));
  const none = quietButton("No head", () => set([]));
  return {element: element("div", {class: "heads-choice"}, list, element("div", {class: "row"}, all, none)), show};
}

function headChip(head, {toggle, only}) {
  const swatch = element("span", {class: "heads-swatch", aria: {hidden: "true"}});
  const pattern = element("span", {class: "heads-pattern"});
  const effect = element("span", {class: "number heads-effect"});
  const button = element(
    "button",
    {type: "button", class: "heads-toggle", on: {click: toggle, dblclick: only}},
    swatch, element("strong", {class: "number", text: String(head)}), effect, pattern,
  );
  const label = `head ${head} only`;
  const alone = element("button", {type: "button", class: "heads-only", text: "only", aria: {label}, on: {click: only}});
  const show = (report, layer, chosen, colour) => {
    const value = headEffect(report, layer, head);
    button.setAttribute("aria-pressed", chosen);
    button.setAttribute("aria-label", headName(report, layer, head).replace(/^layer \d+ /, ""));
    button.title = `${headName(report, layer, head)}. Double click: this head only.`;
    swatch.style.backgroundColor = colour;
    pattern.textContent = headPattern(report, layer, head).short;
    effect.textContent = value === null ? "" : signedNumber(value);
  };
  return {head, element: element("li", {class: "heads-chip"}, button, alone), show};
}

/**
 * The heads of all layers as buttons; one that is chosen is shown alone: {element, show({report, layer, chosen, byEffect})}.
 *
 * @param {function} choose called with the layer and head.
 */
export function headRanking(choose) {
  const list = element("ol", {class: "heads-ranking scroll", role: "list", aria: {label: "Heads of all layers"}});
  const oneStop = roving(list, "button");
  const differs = differing();
  let made = [];
  const entry = (report, layer, head) => {
    const button = element(
      "button",
      {type: "button", class: "heads-entry", aria: {label: headName(report, layer, head)}, on: {click: () => choose(layer, head)}},
      element("span", {class: "number", text: `layer ${layer} head ${head}`}),
      element("span", {class: "number heads-effect", text: signedNumber(headEffect(report, layer, head))}),
      element("span", {class: "heads-long", text: headPattern(report, layer, head).long}),
    );
    return {layer, head, button, item: element("li", {}, button)};
  };
  const show = ({report, layer, chosen, byEffect}) => {
    if (differs([report, byEffect])) {
      const places = headsByEffect(report);
      if (!byEffect) places.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
      made = places.map(([line, head]) => entry(report, line, head));
      replace(list, ...made.map(({item}) => item));
      oneStop();
    }
    for (const {layer: line, head, button} of made) {
      button.setAttribute("aria-current", line === layer && chosen.length === 1 && chosen[0] === head ? "true" : "false");
    }
  };
  return {element: list, show};
}
