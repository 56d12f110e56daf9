// The evidence of an attribution on this text, and its words by size.
import {element, section} from "./dom.js";
import {moreButton} from "./fields.js";
import {METHODS} from "./methods.js";
import {redrawn} from "./redrawn.js";
import {directionHues} from "./label_hues.js";
import {absentNote} from "./status_note.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {VALUE_FULL, isDark, valueColour} from "./theme.js";
import {
  WORDS_FIRST, attributionTotals, directionNames, evidenceNumbers, evidenceSentence, evidenceWords, largestFirst, methodSentence,
  quotedWords, signedNumber, wholeNumber, wordOfText,
} from "./wording.js";

const EVIDENCE_LIMITS = "This tests whether the words ranked first matter more than chance, not whether each value is right.";

/**
 * A section on the attribution that is shown: {element, update()}. Hidden while there is none.
 *
 * @param {function} shownOf (header, attribution) what it shows beside the attribution, as in redrawn; null: nothing, so it is hidden.
 * @param {function} make (header, attribution) its nodes.
 */
export function attributionSection(session, title, shownOf, make) {
  const body = element("div");
  const draw = redrawn(body);
  const box = section(title, body);
  const update = () => {
    const header = session.explanation?.header;
    const attribution = session.shownAttribution();
    const shown = header && attribution ? shownOf(header, attribution) : null;
    box.hidden = shown === null;
    if (shown) draw([attribution, isDark(), ...shown], () => make(header, attribution));
  };
  return {element: box, update};
}

/** The verdict of the method that is shown, in words and numbers: {element, update()}. */
export function textEvidence({session}) {
  const found = () => session.explanation.evidence.get(session.shownMethod()) ?? null;
  const shown = (header) => [header, found(), ...Object.values(session.status("attribution", session.method()))];
  const make = (_, attribution) => evidenceNodes(session, attribution, found());
  return attributionSection(session, "Can these values be trusted?", shown, make);
}

function evidenceNodes(session, attribution, evidence) {
  if (!evidence) return [absentNote(session, "attribution", session.method(), "Evidence")];
  const {header} = session.explanation;
  const ranked = evidenceWords(header, attribution, evidence);
  const rows = evidenceNumbers(header, evidence).map(({title, value, remark}) => (
    tableRow(title, [value, element("td", {class: "note", text: remark})])
  ));
  const caption = `${evidence.method}, measured on the graph that serves`;
  return [
    element(
      "p",
      {class: "text-verdict"},
      element("strong", {class: `verdict-${evidence.verdict.toLowerCase()}`, text: evidence.verdict}),
      `: ${evidenceSentence(evidence, header.words.length)}`,
    ),
    element("p", {text: `Ranked first: ${quotedWords(header, ranked)}. The table below goes by size, whichever way a word points.`}),
    element("p", {class: "note", text: EVIDENCE_LIMITS}),
    scrolling("the evidence in numbers", tableNode({caption}, rows)),
  ];
}

/** The words of the method that is shown, the largest values first: {element, update()}. */
export function textTable({session}) {
  const more = moreButton(
    WORDS_FIRST, `the ${WORDS_FIRST} largest only`, (count) => `all ${wholeNumber(count)} words`, () => table.update(),
  );
  const rows = (header) => more.of(header.words.length);
  const table = attributionSection(session, "Words by size", (header) => [rows(header)], (header, attribution) => [
    scrolling("words by size", wordTable(header, attribution, rows(header))),
    more.element,
    element("p", {class: "note", text: METHODS[attribution.method]?.sumNote ?? ""}),
  ]);
  return table;
}

function wordTable(header, attribution, shown) {
  const sampled = attribution.errors.some((error) => error > 0);
  const order = largestFirst(attribution.words);
  const {towards, against} = directionNames(header);
  const [hues, dark] = [directionHues(header), isDark()];
  const row = ({title, value, error, remark, bar}) => tableRow(element("bdi", {class: "text-table-word", text: title}), [
    signedNumber(value, 3),
    sampled ? error : null,
    element("td", {class: "note"}, bar ? valueBar(value, hues, dark) : remark),
  ]);
  const words = order.slice(0, shown).map((index) => row({
    title: wordOfText(header, index),
    value: attribution.words[index],
    error: errorText(attribution.errors[index]),
    bar: true,
  }));
  const totals = attributionTotals(header, attribution, order, shown).map((total) => row({...total, error: "", bar: false}));
  const heads = ["word", "logits", ...(sampled ? ["standard error"] : []), `${against} | ${towards}`];
  const caption = `${methodSentence(attribution)}; bars end at ${VALUE_FULL}, for every text alike`;
  return tableNode({class: "text-table", caption, heads, numeric: sampled ? [1, 2] : [1]}, words, totals);
}

function errorText(error) {
  if (Number.isNaN(error)) return "unknown";
  return error > 0 ? `\u00b1${error.toFixed(3)}` : "";
}

/** A bar from the middle to the right, or to the left where the value is negative; its end is VALUE_FULL. `hues`: of directionHues. */
export function valueBar(value, hues, dark = isDark()) {
  const share = Math.min(1, Math.abs(value) / VALUE_FULL);
  const colour = valueColour(value, hues, dark);
  const inner = element("span", {
    class: value < 0 ? "text-bar-against" : "text-bar-towards",
    data: {hue: colour?.hue ?? ""},
    style: {width: `${50 * share}%`, backgroundColor: colour?.background ?? "var(--line)"},
  });
  return element("span", {class: Math.abs(value) > VALUE_FULL ? "text-bar beyond" : "text-bar", aria: {hidden: "true"}}, inner);
}
