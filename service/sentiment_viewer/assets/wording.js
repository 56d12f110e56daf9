// The texts about an explanation, and numbers as text. Pure: does not use the page.
import {METHODS} from "./methods.js";
import {
  EVIDENCE_WORDS_MIN, RANDOM_SETS, SENTENCE_SHARE, SENTENCE_WORD_MIN, SET_SHOWN, TEMPLATES, ZERO_ERRORS,
} from "./sentences.js";

const WORD_SHOWN = 60;
const PLAIN_SIGNS = /[^\p{Cc}\p{Cs}\p{Co}\p{Cn}\p{Cf}]|[\u200c\u200d]/u;

/** The words shown first in the table of words, and the sentences in that of sentences. */
export const WORDS_FIRST = 20;
export const SENTENCES_FIRST = 5;

/** A sentence that the terminal says too, or a part of one, with its fields. */
function say(key, fields = {}) {
  const found = TEMPLATES[key];
  const template = typeof found === "string" ? found : found[fields.count === 1 ? "one" : "other"];
  return template.replace(/\{(\w+)\}/g, (_, name) => fields[name]);
}

/** A number with a true minus and as many digits as its size needs: "1.72", "−106.3"; one that rounds to zero has no minus. */
export function plainNumber(value, decimals = Math.abs(value) < 100 ? 2 : 1) {
  if (!Number.isFinite(value)) return value < 0 ? "\u2212∞" : String(value);
  const size = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(size) !== 0 ? `\u2212${size}` : size;
}

/** A number with its sign, "+1.72" or "−1.06"; one that rounds to zero has none. */
export function signedNumber(value, decimals = 2) {
  const plain = plainNumber(value, decimals);
  return Number(plain) > 0 ? `+${plain}` : plain;
}

/** A whole number with commas: "1,234". */
export function wholeNumber(value) {
  return Math.round(value).toLocaleString("en-US");
}

/** A p-value with two significant digits: "0.05". */
function probabilityOfChance(value) {
  return String(Number(value.toPrecision(2)));
}

/** Text on one line that cannot move other text: white space as spaces, control and direction characters as escapes. */
export function visibleText(text) {
  let shown = "";
  for (const sign of text) {
    const code = sign.codePointAt(0);
    const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    shown += /\s/u.test(sign) ? " " : PLAIN_SIGNS.test(sign) ? sign : `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  }
  return shown;
}

/** A word as sentences and tables show it: visible, and cut after 60 characters. */
export function shownWord(text) {
  const signs = [...text.slice(0, 2 * WORD_SHOWN + 1)];
  return signs.length > WORD_SHOWN ? `${visibleText(signs.slice(0, WORD_SHOWN).join(""))}\u2026` : visibleText(text);
}

/** A word in quotes; isolated, so that one written from right to left leaves the rest of the sentence in its order. */
export function quotedWord(text) {
  return `"\u2068${shownWord(text)}\u2069"`;
}

/** Words in quotes, at most twelve of them and how many more there are. */
export function quotedWords(header, indices) {
  const named = indices.slice(0, SET_SHOWN).map((index) => quotedWord(header.words[index].text));
  const more = indices.length > SET_SHOWN ? say("more_words", {count: indices.length - SET_SHOWN}) : "";
  return named.join(" ") + more;
}

/** The answer: "positive 0.7605 (undecided), english/2". */
export function answerSentence(header) {
  const {label, score, abstain} = header.prediction;
  return `${visibleText(label)} ${score.toFixed(4)}${abstain ? " (undecided)" : ""}, ${header.model.name}/${header.model.version}`;
}

/** The name of what is explained: "the logit of positive", or "the logit of positive minus that of neutral". */
export function explainedLogit({label, against}) {
  return say(against === null ? "logit" : "logit_against", {label: visibleText(label), against: visibleText(against ?? "")});
}

/** What is explained, and by how much at most the graph of explanations differs from the served one, in logits. */
export function explainedSentence(header) {
  const differs = header.logitError === null ? "" : `; logits of the explanation graph differ by at most ${header.logitError.toFixed(3)}`;
  return `${say("explained", {logit: explainedLogit(header), value: signedNumber(header.logit, 3)})}${differs}`;
}

/** What effort adaptive answers from a part of the text, where that differs, or "". */
export function adaptiveSentence({adaptive}) {
  if (!adaptive) return "";
  const {label, score, abstain, mixed} = adaptive;
  const answer = `${visibleText(label)} ${score.toFixed(4)}${abstain ? " (undecided)" : ""}${mixed ? " (mixed)" : ""}`;
  return say("adaptive", {answer});
}

/** Where values above and below zero point: {towards: "towards positive", against: "towards negative"}. */
export function directionNames(header) {
  const label = visibleText(header.label);
  const others = header.prediction.scores.filter(({label}) => label !== header.label);
  const other = others.length === 1 ? others[0].label : header.against;
  return {
    towards: say("towards", {label}),
    against: other === null ? say("against", {label}) : say("towards", {label: visibleText(other)}),
  };
}

/** A value, or 0 if it cannot be told from zero by its standard error. One whose error is not known (NaN) stays. */
export function told(value, error) {
  return Math.abs(value) <= ZERO_ERRORS * error ? 0 : value;
}

/**
 * What is shown of the values of words, by index: {told: 0 for one that cannot be told from zero, shown: what it is coloured by, sentenceOf:
 * its sentence's place, sentences}. Where sentences have values they are coloured, and of their words those that have a value of their own
 * in a sentence that counts, and stand out of it.
 */
export function marked(words, errors, sentences) {
  const ofWord = [...words.keys()].map((index) => told(words[index], errors[index]));
  if (!sentences.length) return {told: ofWord, shown: ofWord, sentenceOf: []};
  const sentenceOf = [];
  sentences.forEach((sentence, place) => sentence.words.forEach((index) => { sentenceOf[index] = place; }));
  const of = (index) => sentences[sentenceOf[index]] ?? {told: 0, wordsValued: false};
  const counted = ofWord.map((value, index) => (of(index).wordsValued && of(index).told ? value : 0));
  const shown = counted.map((value, index) => sentenceColour(of(index)) + (Math.abs(value) > SENTENCE_WORD_MIN ? value : 0));
  return {told: counted, shown, sentenceOf};
}

/** The value of a word that is coloured as a sentence. */
export function sentenceColour({told: value}) {
  return Math.max(-1, Math.min(1, value * SENTENCE_SHARE));
}

/** What is said of what has no colour, and of values whose error is not known: a sentence each. */
export function errorSentences({words, told: shown, errors, sentences, estimate}) {
  const unmarked = sentences.length
    ? sentences.some((one) => one.value !== one.told)
    : words.some((value, index) => value !== shown[index]);
  return [
    sentences.length ? say("sentences_coloured", {least: plainNumber(SENTENCE_WORD_MIN)}) : "",
    unmarked ? say("unmarked", {sign: "uncoloured"}) : "",
    !estimate && errors.some(Number.isNaN) ? say("errors_unknown") : "",
  ].filter(Boolean);
}

/** What follows a word of a pair's second text; "" for all others. */
export function secondText(header, index) {
  return header.words[index]?.pair ? say("second_text") : "";
}

/** A word of the text by its index, and whether it is of a pair's second text. */
export function wordOfText(header, index) {
  return `${shownWord(header.words[index].text)}${secondText(header, index)}`;
}

/** The name of a word's button: "loved, +1.72 ±0.15 logits towards positive". An attribution of null: not known. */
export function wordName(header, index, attribution) {
  const text = wordOfText(header, index);
  if (attribution === null) return text;
  const {towards, against} = directionNames(header);
  const [value, error] = [attribution.words[index], attribution.errors[index]];
  const number = `${signedNumber(value)}${error > 0 ? ` \u00b1${error.toFixed(2)}` : ""} logits`;
  const sentence = attribution.sentences[attribution.sentenceOf[index]];
  if (sentence && !sentence.wordsValued) return `${text}, ${number}, an equal part of its sentence`;
  if (value !== 0 && attribution.told[index] === 0) return `${text}, ${number}, within two standard errors of zero`;
  return `${text}, ${number}${Number(value.toFixed(2)) === 0 ? "" : ` ${value > 0 ? towards : against}`}`;
}

/** A method's name and what it took: "integrated_gradients, 8 of 16 steps, in logits". Of exact values no steps were asked. */
export function methodSentence(attribution) {
  const {method, steps, stepsAsked: asked} = attribution;
  const unit = METHODS[method]?.unit;
  const took = asked ? steps < asked ? "method_fewer_steps" : "method_steps" : "method_exact";
  return say(unit ? took : "method", {method, steps, asked, unit});
}

/** The places of all values, the largest sizes first; equal ones in their order. */
export function largestFirst(values) {
  return Array.from(values.keys()).sort((one, other) => Math.abs(values[other]) - Math.abs(values[one]) || one - other);
}

/** The name of the sentences that a table leaves out. */
export function otherSentences(count) {
  return say("other_sentences", {count});
}

/** What is not one word's: [{title, value in logits, remark}], with the words beyond the `shown` first of `order` in one row. */
export function attributionTotals(header, attribution, order, shown) {
  const rest = order.slice(shown);
  const totals = rest.length
    ? [{title: say("other_words", {count: rest.length}), value: rest.reduce((sum, index) => sum + attribution.words[index], 0), remark: ""}]
    : [];
  const add = (key, value) => totals.push({title: say(key), value, remark: say(`${key}_remark`)});
  add("special", attribution.specialTotal);
  if (header.tokens.some((token) => token.unknown)) add("unknown", attribution.unknownTotal);
  if (header.unseen.length) add("unread", attribution.unseenTotal);
  if (attribution.completenessResidual !== null) add("residual", attribution.completenessResidual);
  return totals;
}

/** What the evidence says of a method on this text, in plain words and without its verdict; `words`: how many the text has. */
export function evidenceSentence(evidence, words) {
  const {verdict, randomSets} = evidence;
  if (verdict === "INCONCLUSIVE" && randomSets < RANDOM_SETS) {
    return words < EVIDENCE_WORDS_MIN
      ? say("too_short", {least: EVIDENCE_WORDS_MIN})
      : say("too_few_sets", {least: RANDOM_SETS, count: randomSets});
  }
  return verdict in TEMPLATES
    ? say(verdict, {
      count: evidence.rank - 1,
      first: say("ranked_first", {count: evidence.words}),
      sets: say("random_sets", {count: randomSets}),
      chance: say("chance", {p: probabilityOfChance(evidence.pValue)}),
    })
    : "";
}

/** What the test says of the words that a search found to decide the answer. */
export function decidingSentence(header, {words, verdict, rank, randomSets, pValue}) {
  const count = words.length;
  const found = say("searched", {count, words: quotedWords(header, words)});
  if (verdict === "INCONCLUSIVE" && randomSets < RANDOM_SETS) return `${found}; ${say("too_few_sets", {least: RANDOM_SETS, count: randomSets})}.`;
  const key = `replaced_${verdict}`;
  if (!(key in TEMPLATES)) return `${found}.`;
  const sets = say("random_sets", {count: randomSets});
  const chance = say("chance", {p: probabilityOfChance(pValue)});
  return `${found}; ${say("replaced", {count})} ${say(key, {count: rank - 1, sets, chance})}.`;
}

/** The fewest words found without which the answer is another, or "". */
export function changingSentence(header, {changingWords, label, score}) {
  const count = changingWords.length;
  const answer = `${visibleText(label)} ${score.toFixed(2)}`;
  return count ? say("changing", {count, total: header.words.length, words: quotedWords(header, changingWords), answer}) : "";
}

/** How far an estimate is, and when all has come. */
export function estimateSentence({method, steps, stepsAsked, estimate}) {
  const after = steps ? `Estimate after ${steps} of ${stepsAsked} ${METHODS[method]?.unit ?? "steps"}` : "First estimate";
  return `${after}; better values in about ${Math.max(1, Math.round(estimate.left_s))} s`;
}

/** The answer while the sentence that explains it is on its way. */
export function explainingSentence({label, abstain}) {
  const said = visibleText(label);
  const answer = `${said.slice(0, 1).toUpperCase()}${said.slice(1)}`;
  return `${abstain ? `Undecided, most likely ${said}` : answer}; explaining …`;
}

/** The numbers of the evidence: [{title, value, remark}], value as text. */
export function evidenceNumbers(header, evidence) {
  // The words ranked first speak against a label that does not win: without them its probability rises.
  const key = `${wins(header) ? "lost" : "gained"}${header.against === null ? "" : "_against"}`;
  const moved = say(key, {label: visibleText(header.label), against: visibleText(header.against ?? "")});
  const title = say("probability_without", {moved});
  const rows = [{title, value: signedNumber(evidence.comprehensiveness, 3), remark: "higher is better"}];
  if (evidence.randomSets) {
    rows.push(
      {title: "random sets: median", value: signedNumber(evidence.randomMedian, 3), remark: ""},
      {title: "random sets: largest", value: signedNumber(evidence.randomMax, 3), remark: ""},
    );
  }
  rows.push({title: `probability${moved} with them alone`, value: signedNumber(evidence.sufficiency, 3), remark: "lower is better"});
  if (evidence.randomSets) {
    const least = `${evidence.randomSets} sets cannot show less than ${probabilityOfChance(1 / (evidence.randomSets + 1))}`;
    const remark = `rank ${evidence.rank} of ${evidence.randomSets + 1}; ${least}`;
    rows.push({title: "p", value: probabilityOfChance(evidence.pValue), remark});
  }
  if (evidence.agreement !== null) {
    const title = `agreement with ${METHODS[evidence.method]?.unrelated ?? "an unrelated method"}`;
    const remark = "Kendall's tau-b of the words' order: 1 the same, 0 unrelated, \u22121 reversed";
    rows.push({title, value: signedNumber(evidence.agreement), remark});
  }
  return rows;
}

/** Whether the explained label is the answer; against another, whether it is the likelier of the two. */
function wins(header) {
  return header.against === null ? header.label === header.prediction.label : header.logit > 0;
}

/** The words that the evidence is about, by index: those that speak most for the explained label if it wins, or against it. */
export function evidenceWords(header, attribution, evidence) {
  const side = wins(header) ? -1 : 1;
  const values = attribution.words;
  const order = Array.from(values.keys()).sort((one, other) => side * (values[one] - values[other]) || one - other);
  return order.slice(0, evidence.words).sort((one, other) => one - other);
}

/** What removing words is to do: a label that is explained and is not the answer is to become it. */
export function flipGoal({label, prediction}) {
  return say(label === prediction.label ? "changes_answer" : "makes_answer", {label: visibleText(label)});
}

/** A set of words found by search, of kind flip or keep, in words. */
export function counterfactualSentence(header, found) {
  const limits = found.stopped ? say("out_of_time") : "";
  const flips = found.kind === "flip";
  if (!found.found) {
    return say(flips ? "none_flips" : "none_keeps", {goal: flipGoal(header), label: visibleText(header.label), limits});
  }
  const answer = `${visibleText(found.label)} ${found.score.toFixed(2)}`;
  if (!found.words.length) return say(flips ? "flips_empty" : "keeps_empty", {answer});
  const smallest = found.exhaustiveBelow >= found.words.length ? "no_smaller" : found.minimal ? "all_needed" : "";
  const remark = smallest ? say(smallest, {limits}) : "";
  return say(flips ? "flips" : "keeps", {words: quotedWords(header, found.words), answer, remark});
}

/** What the model answers without the words asked for: 'without "loved": negative 0.86 (was positive 0.76)'. */
export function withoutSentence(header, found) {
  const {label, score} = header.prediction;
  const was = `was ${visibleText(label)} ${score.toFixed(2)}`;
  return `without ${quotedWords(header, found.words)}: ${visibleText(found.label)} ${found.score.toFixed(2)} (${was})`;
}

/** What leaving one word out does to the explained logit, by occlusion. */
export function occlusionSentence(header, index, value) {
  const moves = Math.abs(value) < 0.005 ? "hardly moves" : `${value > 0 ? "lowers" : "raises"}`;
  const by = Math.abs(value) < 0.005 ? "" : ` by ${Math.abs(value).toFixed(2)} logits`;
  return `leaving ${quotedWord(header.words[index].text)} out ${moves} ${explainedLogit(header)}${by} (occlusion)`;
}

/** What to say of a part of the text that was not read: "not read, 1,234 characters". Characters are code points. */
export function unseenSentence(text) {
  return `not read, ${wholeNumber([...text].length)} characters`;
}
