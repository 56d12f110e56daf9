// Heads to choose from: those of the layer as chips, and those of all layers as a list. Each with its number, pattern and effect.
import {element, replace} from "./dom.js";
import {headEffect, headName, headPattern, headsByEffect} from "./head_words.js";
import {headColour} from "./palette.js";
import {signedNumber} from "./wording.js";

/** The heads of a layer that the state shows, in ascending order. */
export function chosenHeads(state, count) {
  if (state.get("heads") === "none") return [];
  const listed = [...new Set(state.list("heads"))].filter((head) => head < count).sort((one, other) => one - other);
  return listed.length ? listed : Array.from({length: count}, (_, head) => head);
}

/** The state's value for some heads of a layer: unset for all of them. */
export function headsValue(heads, count) {
  if (!heads.length) return "none";
  return heads.length === count ? null : [...heads].sort((one, other) => one - other).join(",");
}

/** The heads of a layer by the size of their effect, or by number. */
function orderedHeads(report, layer, count, byEffect) {
  const heads = Array.from({length: count}, (_, head) => head);
  if (!report || !byEffect) return heads;
  const size = (head) => Math.abs(headEffect(report, layer, head) ?? 0);
  return heads.sort((one, other) => size(other) - size(one) || one - other);
}

/** Chips of a layer's heads, to show or hide: {element, show({report, layer, count, chosen, byEffect, dark})}. */
export function headChips(state) {
  const list = element("ul", {class: "heads-chips", aria: {label: "Heads of this layer"}});
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
    const order = orderedHeads(report, layer, count, byEffect);
    for (const chip of chips) chip.show(report, layer, chosen.includes(chip.head), headColour(chip.head, count, dark));
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    const wanted = order.map((head) => chips[head].element);
    const differs = list.children.length !== wanted.length || wanted.some((chip, place) => list.children[place] !== chip);
    if (differs) replace(list, ...wanted);
    focused?.focus();
  };
  const button = (text, click) => element("button", {type: "button", class: "button quiet", text, on: {click}});
  const all = button("All heads", () => set(chips.map((chip) => chip.head)));
  const none = button("No head", () => set([]));
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
 * @param {function} choose told of the layer and head.
 */
export function headRanking(choose) {
  const list = element("ol", {class: "heads-ranking scroll", role: "list", tabIndex: 0, aria: {label: "Heads of all layers"}});
  let made = [];
  let shown = null;
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
    if (shown?.report !== report || shown.byEffect !== byEffect) {
      shown = {report, byEffect};
      const places = headsByEffect(report);
      if (!byEffect) places.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
      made = places.map(([line, head]) => entry(report, line, head));
      replace(list, ...made.map(({item}) => item));
    }
    for (const {layer: line, head, button} of made) {
      button.setAttribute("aria-current", line === layer && chosen.length === 1 && chosen[0] === head ? "true" : "false");
    }
  };
  return {element: list, show};
}
