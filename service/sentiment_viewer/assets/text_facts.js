// The evidence of an attribution on this text, and its words by size.
import {element, section} from "./dom.js";
import {moreButton} from "./fields.js";
import {METHODS} from "./methods.js";
import {redrawn} from "./redrawn.js";
import {RANDOM_SETS} from "./sentences.js";
import {directionHues} from "./label_hues.js";
import {absentNote} from "./status_note.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {VALUE_FULL, isDark, valueColour} from "./theme.js";
import {
  WORDS_FIRST, attributionTotals, changingSentence, decidingSentence, directionNames, estimateSentence, evidenceNumbers,
  evidenceSentence, evidenceWords, largestFirst, methodSentence, quotedWords, signedNumber, wholeNumber, wordOfText,
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

// Each verdict in plain words; those that warn are marked.
const TRUST = {
  BETTER_THAN_RANDOM: "Tested on this text: the most coloured words move the answer more than random words do.",
  INCONCLUSIVE: "Do not rely on this alone: without as many other words, drawn at random, the answer changes as much.",
  NOT_FAITHFUL: "Do not rely on the colours: most random words move the answer more.",
  FLAT: "The colours tell little: all words together hardly move the answer.",
};
const UNTESTED = "Not tested on this text: it is too short, or time was short.";
const ONLY_ESTIMATED = "Only an estimate: no better values came.";
const WARNINGS = ["NOT_FAITHFUL", "FLAT"];

/** In a line, how far an estimate is, and then whether the colours can be trusted: {element, update()}. */
export function textTrust({session}) {
  const said = element("span");
  const bar = element("progress", {max: 1, aria: {label: "of the estimate"}});
  const line = element("p", {class: "note text-trust"}, said, bar);
  const update = () => {
    const attribution = session.shownAttribution();
    const asking = session.status("attribution", session.method()).state === "asking";
    const evidence = attribution && session.explanation.evidence.get(session.shownMethod());
    // The verdict stands beside the reason that it is about.
    const testing = asking && !session.explanation?.reasons.has(session.shownMethod());
    const text = trustSentence(attribution, evidence, testing);
    line.hidden = !text;
    if (said.textContent !== text) said.textContent = text;
    line.classList.toggle("doubtful", !testing && evidence?.verdict === "INCONCLUSIVE");
    line.classList.toggle("failed", !testing && Boolean(evidence) && WARNINGS.includes(evidence.verdict));
    bar.hidden = !asking || !attribution?.estimate;
    bar.value = attribution?.estimate ? attribution.steps / (attribution.stepsAsked || 1) : 0;
  };
  return {element: line, update};
}

function trustSentence(attribution, evidence, testing) {
  if (attribution?.estimate) return testing ? `${estimateSentence(attribution)}.` : ONLY_ESTIMATED;
  if (testing) return attribution ? "Testing the colours against random words …" : "Estimating …";
  if (!evidence) return "";
  const {verdict, randomSets} = evidence;
  return verdict === "INCONCLUSIVE" && randomSets < RANDOM_SETS ? UNTESTED : TRUST[verdict] ?? "";
}

/** In a line, the fewest words found that change the answer: {element, update()}. */
export function textChanging({session}) {
  const line = element("p", {class: "text-changing"});
  const update = () => {
    const {header} = session.explanation ?? {};
    const deciding = session.explanation?.deciding.get(session.shownMethod());
    const text = deciding ? changingSentence(header, deciding) : "";
    line.hidden = !text;
    if (line.textContent !== text) line.textContent = text;
  };
  return {element: line, update};
}

/** The verdict of the method that is shown, in words and numbers: {element, update()}. */
export function textEvidence({session}) {
  const found = () => session.explanation.evidence.get(session.shownMethod()) ?? null;
  const status = () => Object.values(session.status("attribution", session.method()));
  const shown = (header) => [header, found(), session.explanation.deciding.get(session.shownMethod()), ...status()];
  const make = (_, attribution) => evidenceNodes(session, attribution, found());
  return attributionSection(session, "Can these values be trusted?", shown, make);
}

function evidenceNodes(session, attribution, evidence) {
  if (!evidence) return [absentNote(session, "attribution", session.method(), "Evidence")];
  const {header} = session.explanation;
  const deciding = session.explanation.deciding.get(evidence.method);
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
    deciding && element("p", {class: "text-deciding", text: decidingSentence(header, deciding)}),
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
  const row = ({title, value, told, error, remark}) => tableRow(element("bdi", {class: "text-table-word", text: title}), [
    signedNumber(value, 3),
    sampled ? error : null,
    element("td", {class: "note"}, remark ?? valueBar(value, hues, {dark, shown: told})),
  ]);
  const words = order.slice(0, shown).map((index) => row({
    title: wordOfText(header, index),
    value: attribution.words[index],
    told: attribution.told[index],
    error: errorText(attribution.errors[index]),
  }));
  const totals = attributionTotals(header, attribution, order, shown).map((total) => row({...total, error: ""}));
  const heads = ["word", "logits", ...(sampled ? ["standard error"] : []), `${against} | ${towards}`];
  const caption = `${methodSentence(attribution)}; bars end at ${VALUE_FULL}, for every text alike`;
  return tableNode({class: "text-table", caption, heads, numeric: sampled ? [1, 2] : [1]}, words, totals);
}

/** A standard error as a table shows it. */
export function errorText(error) {
  if (Number.isNaN(error)) return "unknown";
  return error > 0 ? `\u00b1${error.toFixed(3)}` : "";
}

/**
 * A bar from the middle to the right, or to the left where the value is negative.
 *
 * @param {object} hues of directionHues.
 * @param {object} how dark: the result of isDark(); shown: the value that has a colour, 0 if it cannot be told from zero; full: the value at
 *   its end, VALUE_FULL if not given.
 */
export function valueBar(value, hues, {dark = isDark(), shown = value, full = VALUE_FULL} = {}) {
  const share = Math.min(1, Math.abs(value) / full);
  const colour = valueColour(shown, hues, dark);
  const inner = element("span", {
    class: value < 0 ? "text-bar-against" : "text-bar-towards",
    data: {hue: colour?.hue ?? ""},
    style: {width: `${50 * share}%`, backgroundColor: colour?.background ?? "var(--line)"},
  });
  return element("span", {class: Math.abs(value) > full ? "text-bar beyond" : "text-bar", aria: {hidden: "true"}}, inner);
}
