// The sentences of a long text by size, with the largest words of those that count.
import {element} from "./dom.js";
import {directionHues} from "./label_hues.js";
import {SENTENCE_SHARE} from "./sentences.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {attributionSection, errorText, valueBar} from "./text_facts.js";
import {isDark} from "./theme.js";
import {
  SENTENCES_FIRST, directionNames, largestFirst, methodSentence, otherSentences, sentenceColour, shownWord, signedNumber, visibleText,
} from "./wording.js";

const SENTENCE_WORDS = 5;
const SENTENCE_FULL = 1 / SENTENCE_SHARE;

/** The sentences of the attribution that is shown, the largest values first: {element, update()}. Hidden if it has none. */
export function textSentences({session}) {
  const shown = (_, {sentences}) => (sentences.length ? [] : null);
  return attributionSection(session, "Sentences by size", shown, (header, attribution) => [
    scrolling("sentences by size", sentenceTable(header, attribution)),
  ]);
}

function sentenceTable(header, attribution) {
  const {towards, against} = directionNames(header);
  const order = largestFirst(attribution.sentences.map(({value}) => value)).map((place) => attribution.sentences[place]);
  const rest = order.slice(SENTENCES_FIRST);
  const [hues, dark] = [directionHues(header), isDark()];
  const row = (title, value, error, bar) => tableRow(title, [signedNumber(value), error, element("td", {}, bar)]);
  const largest = order.slice(0, SENTENCES_FIRST).map((found) => {
    const bar = valueBar(found.value, hues, {dark, shown: sentenceColour(found), full: SENTENCE_FULL});
    return row(sentenceTitle(header, attribution, found), found.value, errorText(found.error), bar);
  });
  const sum = rest.reduce((total, {value}) => total + value, 0);
  const others = rest.length ? [row(otherSentences(rest.length), sum, "", "")] : [];
  const form = {
    class: "text-sentences",
    caption: `${methodSentence(attribution)}; bars end at ${SENTENCE_FULL}, for every text alike`,
    heads: ["sentence", "logits", "standard error", `${against} | ${towards}`],
    numeric: [1, 2],
  };
  return tableNode(form, largest, others);
}

/** A sentence, and the words that stand for its value. */
function sentenceTitle(header, {words, told}, found) {
  const largest = largestFirst(found.words.map((index) => told[index])).map((place) => found.words[place]);
  const named = largest.slice(0, SENTENCE_WORDS).filter((index) => told[index]).flatMap((index) => [
    element("bdi", {text: shownWord(header.words[index].text)}),
    ` ${signedNumber(words[index])} `,
  ]);
  return [element("bdi", {class: "text-table-sentence", text: visibleText(found.text)}), element("span", {class: "note"}, ...named)];
}
