// The sentences of a text by size, with the largest words of those that count.
import {element} from "./dom.js";
import {directionHues} from "./label_hues.js";
import {SENTENCE_SHARE} from "./sentences.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {attributionSection, errorText, valueBar} from "./text_facts.js";
import {isDark} from "./theme.js";
import {
  SENTENCES_FIRST, directionNames, largestFirst, methodSentence, otherSentences, sentenceColour, shownWord, signedNumber, told, visibleText,
} from "./wording.js";

const SENTENCE_WORDS = 5;
const SENTENCE_FULL = 1 / SENTENCE_SHARE;

/** The sentences of the attribution that is shown, the largest values first: {element, update()}. Hidden if it has less than two. */
export function textSentences({session}) {
  const valued = (header, attribution) => (
    attribution.sentences.length ? attribution.sentences : summedSentences(session.explanation.texts, header, attribution)
  );
  const shown = (header, attribution) => (valued(header, attribution).length ? [] : null);
  return attributionSection(session, "Sentences by size", shown, (header, attribution) => [
    scrolling("sentences by size", sentenceTable(header, attribution, valued(header, attribution))),
  ]);
}

/** Of a text whose words have values of their own: its sentences with the sums of them, as `attribution.sentences`. */
function summedSentences(texts, {words}, {words: values, errors, completenessResidual, estimate}) {
  const numbers = [...new Set(words.map(({sentence}) => sentence))];
  if (estimate || completenessResidual === null || numbers.length < 2) return [];
  const sum = (all, indices) => indices.reduce((total, index) => total + all[index], 0);
  return numbers.map((number) => {
    const indices = [...words.keys()].filter((index) => words[index].sentence === number);
    const [first, last] = [words[indices[0]], words[indices.at(-1)]];
    const value = sum(values, indices);
    // The sum of the errors is the most that the error of the sum can be.
    const text = texts[first.pair ? 1 : 0].slice(first.start, last.end);
    return {text, value, error: NaN, told: told(value, sum(errors, indices)), words: indices};
  });
}

function sentenceTable(header, attribution, sentences) {
  const {towards, against} = directionNames(header);
  const order = largestFirst(sentences.map(({value}) => value)).map((place) => sentences[place]);
  const rest = order.slice(SENTENCES_FIRST);
  const [hues, dark] = [directionHues(header), isDark()];
  const [own, known] = [attribution.sentences.length > 0, attribution.sentences.some(({error}) => error !== 0)];
  const row = (title, value, error, bar) => (
    tableRow(title, [signedNumber(value), ...(known ? [error] : []), element("td", {}, bar)])
  );
  const largest = order.slice(0, SENTENCES_FIRST).map((found) => {
    const bar = valueBar(found.value, hues, {dark, shown: sentenceColour(found), full: SENTENCE_FULL});
    return row(sentenceTitle(header, attribution, found), found.value, errorText(found.error), bar);
  });
  const sum = rest.reduce((total, {value}) => total + value, 0);
  const others = rest.length ? [row(otherSentences(rest.length), sum, "", "")] : [];
  const form = {
    class: "text-sentences",
    caption: `${methodSentence(attribution)}${own ? "" : ", summed"}; bars end at ${SENTENCE_FULL}, for every text alike`,
    heads: ["sentence", "logits", ...(known ? ["standard error"] : []), `${against} | ${towards}`],
    numeric: known ? [1, 2] : [1],
  };
  return tableNode(form, largest, others);
}

/** A sentence, and the words that stand for its value. */
function sentenceTitle(header, {words, told: toldWords}, found) {
  const largest = largestFirst(found.words.map((index) => toldWords[index])).map((place) => found.words[place]);
  const named = largest.slice(0, SENTENCE_WORDS).filter((index) => toldWords[index]).flatMap((index) => [
    element("bdi", {text: shownWord(header.words[index].text)}),
    ` ${signedNumber(words[index])} `,
  ]);
  return [element("bdi", {class: "text-table-sentence", text: visibleText(found.text)}), element("span", {class: "note"}, ...named)];
}
