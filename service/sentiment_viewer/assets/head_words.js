// Texts about a head: its pattern, and the effect of switching it off. Pure.
import {explainedLogit, largestFirst, signedNumber, visibleText} from "./wording.js";

/** The sentence beside every picture of attention. */
export const ATTENTION_CLAIM = "Attention says where heads look, not what moved the answer.";

/** How many heads, those with the largest effects, are marked if all are shown. */
export const HEADS_MARKED = 5;

const PATTERN_WORDS = {
  next: ["next", "looks at the next token"],
  previous: ["previous", "looks at the token before"],
  self: ["self", "looks at the token itself"],
  sep: ["separator", "rests on the separators"],
  cls: ["first", "rests on the first special token"],
  punctuation: ["marks", "looks at punctuation"],
  identical_word: ["same word", "looks at the same word elsewhere"],
  sentence_internal: ["sentence", "stays within the sentence"],
  broad: ["broad", "looks everywhere"],
  mixed: ["mixed", "follows no one pattern"],
};

/** A head's pattern: {short, long}, a word or two and a clause; empty until the report of the heads is there. */
export function headPattern(report, layer, head) {
  const name = report?.labels[layer * report.heads + head] ?? "";
  const [short, long] = PATTERN_WORDS[name] ?? [visibleText(name), visibleText(name)];
  return {short, long};
}

/** What switching a head off does to the explained logit, or null until the report is there. */
export function headEffect(report, layer, head) {
  return report?.gated[layer * report.heads + head] ?? null;
}

/** The name of a head in full: "layer 2 head 3, looks at the next token, switching it off: −0.82 logits". */
export function headName(report, layer, head) {
  const {long} = headPattern(report, layer, head);
  const effect = headEffect(report, layer, head);
  return `layer ${layer} head ${head}${long && `, ${long}`}${effect === null ? "" : `, switching it off: ${signedNumber(effect)} logits`}`;
}

/** What the numbers beside heads are, and how they came about. */
export function effectSentence(report, header) {
  const how = report.exact ? "measured" : "estimated from the gradient, because time was short";
  return `Numbers: what switching the head off does to ${explainedLogit(header)}, ${how}.`;
}

/** What all heads together do: how far the answer needs learned attention at all; "" where it was not measured. */
export function uniformSentence(report) {
  if (report.allUniform === null) return "";
  const answer = report.allUniformChangesLabel ? "which changes the answer" : "which keeps the answer";
  return `With every head looking everywhere alike the logit changes by ${signedNumber(report.allUniform)}, ${answer}.`;
}

/** [layer, head] of all heads, those whose switching off moves the logit most first. */
export function headsByEffect(report) {
  return largestFirst(report.gated).map((place) => [Math.floor(place / report.heads), place % report.heads]);
}

/** The heads to mark, a Set of "layer,head"; empty until the report is there. */
export function markedHeads(report) {
  return new Set(report ? headsByEffect(report).slice(0, HEADS_MARKED).map((place) => place.join()) : []);
}
