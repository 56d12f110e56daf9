// The colour of each label and the mark that says the same without colours: how it is underlined. One of each in every view.
import {element} from "./dom.js";
import {directionNames, visibleText} from "./wording.js";

// Names of the themes' colours. A label that is called so has that colour in any model; others take what is left, in the model's order.
const LABELS_NAMED = ["negative", "positive", "neutral"];
const LABEL_HUES = [...LABELS_NAMED, "fourth", "fifth"];
const HUES_SAID = {
  negative: "blue, a line below", positive: "orange, a line above", neutral: "grey, dots below", fourth: "green, two lines below",
  fifth: "violet, dashes below",
};
// Of marks in pictures: the lengths of a dash and of the gap after it, how many lines, and whether they stand above the word.
const MARK_LINES = {
  positive: {dash: Infinity, gap: 0, lines: 1, above: true},
  negative: {dash: Infinity, gap: 0, lines: 1}, neutral: {dash: 1.5, gap: 2, lines: 1}, fourth: {dash: Infinity, gap: 0, lines: 2},
  fifth: {dash: 5, gap: 3, lines: 1},
};

/** The hue of each label of a model: a Map. Beyond five labels the hues come again. */
export function labelHues(labels) {
  const named = labels.map((label) => label.toLowerCase()).filter((name) => LABELS_NAMED.includes(name));
  const free = LABEL_HUES.filter((hue) => !named.includes(hue));
  const others = labels.filter((label) => !named.includes(label.toLowerCase()));
  return new Map(labels.map((label) => {
    const place = others.indexOf(label);
    return [label, place < 0 ? label.toLowerCase() : free[place % free.length]];
  }));
}

/** The hues of values above and below zero: {towards, against}. All other labels together have a hue that none of them has. */
export function directionHues({label, against, prediction: {scores}}) {
  const hues = labelHues(scores.map((score) => score.label));
  const others = [...hues.keys()].filter((other) => other !== label);
  const spare = LABEL_HUES.findLast((hue) => ![...hues.values()].includes(hue)) ?? LABEL_HUES.at(-1);
  return {towards: hues.get(label) ?? spare, against: hues.get(others.length === 1 ? others[0] : against) ?? spare};
}

/** What the colours mean: [{hue, name: "orange", direction: "towards positive"}], that of the explained label first. */
export function huesSaid(header) {
  const [hues, names] = [directionHues(header), directionNames(header)];
  return ["towards", "against"].map((side) => ({hue: hues[side], name: HUES_SAID[hues[side]], direction: names[side]}));
}

/** A label's name in its colour and with its mark. `hues`: of labelHues. */
export function labelName(label, hues) {
  return element("span", {class: "label-name", data: {hue: hues.get(label) ?? ""}, text: visibleText(label)});
}

/** A row of a list of class "scores": a label, a bar of this share and what is said of it. `label` may be none of the model's. */
export function labelBar(label, hues, share, said) {
  const filled = element("span", {style: {width: `${100 * share}%`}});
  return element(
    "li",
    {class: "score"},
    element("span", {class: "name"}, labelName(label, hues)),
    element("span", {class: "bar", data: {hue: hues.get(label) ?? ""}, aria: {hidden: "true"}}, filled),
    element("span", {class: "number", text: said}),
  );
}

/** Draw a hue's mark under a word of a picture, or above it. */
export function drawMark(surface, hue, [left, right, below, top], colour) {
  const {dash, gap, lines, above} = MARK_LINES[hue] ?? {lines: 0};
  const y = above ? top : below;
  const ends = [];
  for (let line = 0; line < lines; line += 1) {
    for (let x = left; x < right; x += dash + gap) ends.push(x, y + 2.5 * line, Math.min(right, x + dash), y + 2.5 * line);
  }
  if (ends.length) surface.lines(ends, {colour, width: 1.5});
}
