// The sentences of a long text by size, with the largest words of those that count.
import {element} from "./dom.js";
import {redrawn} from "./redrawn.js";
import {directionHues} from "./label_hues.js";
import {tableIn, valueBar} from "./text_facts.js";
import {isDark} from "./theme.js";
import {SENTENCES_FIRST, directionNames, hasSentences, methodSentence, sentencesBySize, shownWord, signedNumber, visibleText} from "./wording.js";

const SENTENCE_WORDS = 5;
const SHARE = "Share: its size among the sizes of all sentences. A sentence's value is the sum of its words' values.";

/** The sentences of the method that is shown, the largest values first: {element, update()}. Hidden if the text is short. */
export function textSentences({session}) {
  const body = element("div");
  const draw = redrawn(body);
  const box = element("section", {class: "text-section"}, element("h2", {text: "Sentences by size"}), body);
  const update = () => {
    const {header, texts} = session.explanation ?? {header: null};
    const attribution = session.explanation?.attributions.get(session.shownMethod()) ?? null;
    box.hidden = !header || !attribution || !hasSentences(header, attribution);
    if (box.hidden) return;
    draw([attribution, isDark()], () => [
      tableIn("sentences by size", sentenceTable(header, texts, attribution)),
      element("p", {class: "note", text: SHARE}),
    ]);
  };
  return {element: box, update};
}

function sentenceTable(header, texts, attribution) {
  const {towards, against} = directionNames(header);
  const all = sentencesBySize(header, texts, attribution);
  const rest = all.slice(SENTENCES_FIRST);
  const [hues, dark] = [directionHues(header), isDark()];
  const row = (title, found, bar) => element(
    "tr",
    {},
    element("th", {scope: "row"}, ...title),
    element("td", {class: "number", text: signedNumber(found.value, 3)}),
    element("td", {class: "number", text: `${Math.round(100 * found.share)} %`}),
    element("td", {}, bar ? valueBar(found.value, hues, dark) : ""),
  );
  const total = (name) => rest.reduce((sum, found) => sum + found[name], 0);
  const heads = ["sentence", "logits", "share", `${against} | ${towards}`].map((text, column) => (
    element("th", {scope: "col", class: ["", "number", "number", ""][column], text})
  ));
  return element(
    "table",
    {class: "text-sentences"},
    element("caption", {text: methodSentence(attribution)}),
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...all.slice(0, SENTENCES_FIRST).map((found) => row(sentenceTitle(header, attribution, found), found, true))),
    element("tbody", {class: "text-totals"}, ...rest.length
      ? [row([`${rest.length} other sentences`], {value: total("value"), share: total("share")}, false)]
      : []),
  );
}

function sentenceTitle(header, attribution, found) {
  const words = found.words.slice(0, SENTENCE_WORDS).flatMap((index) => [
    element("bdi", {text: shownWord(header.words[index].text)}),
    ` ${signedNumber(attribution.words[index])} `,
  ]);
  return [element("bdi", {class: "text-table-sentence", text: visibleText(found.text)}), element("span", {class: "note"}, ...words)];
}
