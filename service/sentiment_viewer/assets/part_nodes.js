// The text with its sentences marked by their answers, and the targets in a table.
import {NOT_NAMED, markedPieces, moreSaid, partsOf} from "./answer_parts.js";
import {element} from "./dom.js";
import {labelName} from "./label_hues.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {quotedWord, visibleText} from "./wording.js";

/**
 * The answers to parts of a text; null if the answer has none.
 *
 * @param {Map} hues of labelHues.
 * @param {string} explained the target whose answer is explained, or "".
 * @param {function|null} explain explains the answer towards a target, or "" the whole; null: it cannot be asked for.
 */
export function partNodes(answer, text, hues, explained, explain) {
  const parts = partsOf(answer);
  if (!parts.sentences.length && !parts.targets.length) return null;
  const more = moreSaid(parts);
  return element(
    "section",
    {class: "parts"},
    element(
      "div", {class: "part-text", dir: "auto", tabIndex: 0, role: "region", aria: {label: "text with its answers"}},
      ...markedNodes(text, parts, hues),
    ),
    more ? element("p", {class: "note", text: more}) : null,
    parts.targets.length ? scrolling("answers to targets", targetTable(text, parts.targets, hues, explained, explain)) : null,
  );
}

/** Sentences in their labels' colours, each followed by its answer, with the mentions in them framed. */
function markedNodes(text, parts, hues) {
  const groups = [];
  for (const piece of markedPieces(text, parts)) {
    if (groups.at(-1)?.sentence !== piece.sentence || !groups.length) groups.push({sentence: piece.sentence, nodes: []});
    groups.at(-1).nodes.push(piece.target ? mention(piece, hues) : piece.text);
  }
  return groups.flatMap(({sentence, nodes}) => {
    // White space between sentences, and those without an answer.
    if (!sentence) return parts.sentences.length ? [element("span", {class: "part-none"}, ...nodes)] : nodes;
    const {prediction} = sentence;
    return [
      element("span", {class: "label-name part-sentence", data: {hue: hues.get(prediction.label) ?? ""}}, ...nodes),
      element("span", {class: "part-answer number", dir: "ltr"}, ...answerNodes(prediction, hues, 2)),
    ];
  });
}

function mention({text, target: {prediction}}, hues) {
  return element(
    "mark",
    {class: "label-name part-mention", data: {hue: hues.get(prediction.label) ?? ""}},
    text,
    element("span", {class: "visually-hidden", text: ` (a target: ${visibleText(prediction.label)})`}),
  );
}

function answerNodes({label, score, abstain}, hues, digits) {
  return [labelName(label, hues), ` ${score.toFixed(digits)}${abstain ? ", undecided" : ""}`];
}

function targetTable(text, targets, hues, explained, explain) {
  const nameOf = (target, named) => {
    const name = element("bdi", {text: visibleText(target)});
    if (!named || !explain) return name;
    const on = target === explained;
    const title = on ? "Explain the whole text again" : "Explain the answer towards this target";
    const click = () => explain(on ? "" : target);
    return element("button", {type: "button", class: "button quiet", title, aria: {pressed: on}, on: {click}}, name);
  };
  const row = ({target, named, start, end, prediction}) => tableRow(nameOf(target, named), [
    element("td", {}, ...answerNodes(prediction, hues, 4)),
    element("td", {class: "note", text: named ? quotedWord(text.slice(start, end)) : NOT_NAMED}),
  ]);
  return tableNode({heads: ["target", "answer", "first mention"]}, targets.map(row));
}
