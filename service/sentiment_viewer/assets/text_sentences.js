// The sentences of a long text by size, with the largest words of those that count.
import {element} from "./dom.js";
import {directionHues} from "./label_hues.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {attributionSection, valueBar} from "./text_facts.js";
import {isDark} from "./theme.js";
import {SENTENCES_FIRST, directionNames, hasSentences, methodSentence, sentencesBySize, shownWord, signedNumber, visibleText} from "./wording.js";

const SENTENCE_WORDS = 5;
const SHARE = "Share: its size among the sizes of all sentences. A sentence's value is the sum of its words' values.";

/** The sentences of the method that is shown, the largest values first: {element, update()}. Hidden if the text is short. */
export function textSentences({session}) {
  const shown = (header, attribution) => (hasSentences(header, attribution) ? [] : null);
  return attributionSection(session, "Sentences by size", shown, (header, attribution) => [
    scrolling("sentences by size", sentenceTable(header, session.explanation.texts, attribution)),
    element("p", {class: "note", text: SHARE}),
  ]);
}

function sentenceTable(header, texts, attribution) {
  const {towards, against} = directionNames(header);
  const all = sentencesBySize(header, texts, attribution);
  const rest = all.slice(SENTENCES_FIRST);
  const [hues, dark] = [directionHues(header), isDark()];
  const row = (title, {value, told, share}, bar) => tableRow(title, [
    signedNumber(value, 3),
    `${Math.round(100 * share)} %`,
    element("td", {}, bar ? valueBar(value, hues, {dark, shown: told}) : ""),
  ]);
  const total = (name) => rest.reduce((sum, found) => sum + found[name], 0);
  const form = {
    class: "text-sentences",
    caption: methodSentence(attribution),
    heads: ["sentence", "logits", "share", `${against} | ${towards}`],
    numeric: [1, 2],
  };
  const largest = all.slice(0, SENTENCES_FIRST).map((found) => row(sentenceTitle(header, attribution, found), found, true));
  const others = rest.length ? [row(`${rest.length} other sentences`, {value: total("value"), share: total("share")}, false)] : [];
  return tableNode(form, largest, others);
}

function sentenceTitle(header, attribution, found) {
  const words = found.words.slice(0, SENTENCE_WORDS).flatMap((index) => [
    element("bdi", {text: shownWord(header.words[index].text)}),
    ` ${signedNumber(attribution.words[index])} `,
  ]);
  return [element("bdi", {class: "text-table-sentence", text: visibleText(found.text)}), element("span", {class: "note"}, ...words)];
}
