// Answers to parts of a text, its sentences and targets: where they stand, and what is said of them. Pure: does not use the page.
import {quotedWord, visibleText, wholeNumber} from "./wording.js";

const MIXED = "The text praises and blames, whatever its label.";
const OTHER_LANGUAGE = "The text seems to be in another language than the model's, so its answer is a guess.";

/** Names with commas between them: [name], each once. */
export function namesIn(text) {
  return [...new Set(text.split(",").map((name) => name.trim()).filter(Boolean))];
}

/**
 * The answers to parts: {sentences: [{start, end, prediction}], more: how many sentences have no answer, targets: [{target, named, start,
 * end, prediction}]}. Places in UTF-16 units; both are 0 for a target that the text does not name.
 *
 * @param {object|null} answer a ClassifyResponse.
 */
export function partsOf(answer) {
  const placed = (span, {prediction}) => ({start: span?.utf16_start ?? 0, end: span?.utf16_end ?? 0, prediction});
  const sentences = (answer?.sentences ?? []).map((one) => placed(one.span, one));
  const targets = (answer?.targets ?? []).map((one) => ({target: one.target, named: one.named, ...placed(one.mention, one)}));
  return {sentences, more: (answer?.sentences_total ?? 0) - sentences.length, targets};
}

/**
 * A text in its order: [{text, sentence, target}], null where a piece is of none. A piece that several targets name is the shortest
 * mention's.
 */
export function markedPieces(text, {sentences, targets}) {
  const mentions = targets.filter(({named}) => named).sort((one, other) => one.end - one.start - (other.end - other.start));
  const cuts = new Set([0, text.length, ...[...sentences, ...mentions].flatMap(({start, end}) => [start, end])]);
  const places = [...cuts].sort((one, other) => one - other);
  const at = (parts, place) => parts.find(({start, end}) => start <= place && place < end) ?? null;
  return places.slice(0, -1).map((place, index) => (
    {text: text.slice(place, places[index + 1]), sentence: at(sentences, place), target: at(mentions, place)}
  ));
}

/** What is said of the whole text beside its label, a sentence each. */
export function wholeSaid(prediction, answer) {
  return [prediction.mixed ? MIXED : "", answer?.language_suspect ? OTHER_LANGUAGE : ""].filter(Boolean);
}

/** That some sentences have no answer, or "". */
export function moreSaid({sentences, more}) {
  if (more <= 0) return "";
  const [answered, all] = [wholeNumber(sentences.length), wholeNumber(sentences.length + more)];
  return `The first ${answered} of ${all} sentences have an answer; the others count in that of the whole.`;
}

/** Why the answer to a target is as it is, for one that the text does not name. */
export const NOT_NAMED = "not named in the text, so neutral by rule";

/** The answers to parts in few words: ["2 sentences: 1 positive, 1 undecided", "food: positive", "price: not named"]. */
export function partsInShort(answer) {
  const {sentences, more, targets} = partsOf(answer);
  const decided = ({label, abstain}) => (abstain ? "undecided" : visibleText(label));
  const groups = Map.groupBy(sentences, ({prediction}) => decided(prediction));
  const counted = [...groups].map(([name, group]) => `${wholeNumber(group.length)} ${name}`).join(", ");
  const all = wholeNumber(sentences.length + more);
  const first = more > 0 ? `, of the first ${wholeNumber(sentences.length)}` : "";
  return [
    ...(sentences.length ? [`${all} sentence${all === "1" ? "" : "s"}${first}: ${counted}`] : []),
    ...targets.map(({target, named, prediction}) => `${visibleText(target)}: ${named ? decided(prediction) : "not named"}`),
  ];
}

/** The answers to parts of a text, a sentence each, for pictures. */
export function partsSaid(answer, text) {
  const parts = partsOf(answer);
  const said = ({label, score, abstain}) => `${visibleText(label)} ${score.toFixed(4)}${abstain ? " (undecided)" : ""}`;
  return [
    ...parts.sentences.map(({start, end, prediction}) => `sentence ${quotedWord(text.slice(start, end))}: ${said(prediction)}`),
    moreSaid(parts),
    ...parts.targets.map(({target, named, prediction}) => `target ${quotedWord(target)}: ${named ? said(prediction) : NOT_NAMED}`),
  ].filter(Boolean);
}
