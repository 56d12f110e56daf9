// What changes the answer: words that the reader leaves out, and the sets of words that the server finds.
import {afterwards, element, section} from "./dom.js";
import {Explanation} from "./explanation.js";
import {quietButton} from "./fields.js";
import {redrawn} from "./redrawn.js";
import {LEFT_OUT, absentNote} from "./status_note.js";
import {counterfactualSentence, flipGoal, occlusionSentence, quotedWord, quotedWords, signedNumber, withoutSentence} from "./wording.js";

// Delay after a click, so that several clicked words make one request.
const CLICKS_MS = 250;
const CLICK_LIVE = "Click a word for the answer without it: the model reads the text and ignores the word. The text with the word deleted "
  + "is another one, which may get another number.";

/** The words that the state leaves out, ascending, of those that the text has. */
export function wordsLeftOut({session, state}) {
  const count = session.explanation?.header?.words.length ?? 0;
  return [...new Set(state.list("without"))].filter((index) => index < count).sort((one, other) => one - other);
}

/** The model's answer without these words, if it is known: requested, or found by search. */
export function answerWithout({without, counterfactuals}, words) {
  const key = Explanation.keyOf(words);
  const flip = counterfactuals?.flip;
  return without.get(key) ?? (flip?.found && words.length && Explanation.keyOf(flip.words) === key ? flip : null);
}

/** Whether a click leaves words out; otherwise, in a saved page, it only shows their values. */
export function leavesOut({session, state}) {
  return session.live || answerWithout(session.explanation, wordsLeftOut({session, state})) !== null;
}

/** The answer without the words that are left out: {element, update()}. */
export function textWithout(context) {
  const {session, state, announce} = context;
  const body = element("div", {class: "text-without"});
  const draw = redrawn(body);
  const hint = element("p", {class: "note"});
  const back = quietButton("", () => state.set({without: null}));
  const askSoon = afterwards(CLICKS_MS, () => {
    const words = wordsLeftOut(context);
    if (words.length && !answerWithout(session.explanation, words)) session.ask("without", words);
  });
  let asked = [null, ""];
  let said = "";
  const update = () => {
    const explanation = session.explanation?.header ? session.explanation : null;
    hint.hidden = !explanation;
    hint.textContent = session.live ? CLICK_LIVE : "Click a word to see its values.";
    const words = wordsLeftOut(context);
    const key = Explanation.keyOf(words);
    body.hidden = back.hidden = !words.length;
    back.textContent = leavesOutText(session.live, words.length);
    if (!words.length) {
      said = "";
      return;
    }
    if (session.live && (asked[0] !== explanation || asked[1] !== key)) {
      asked = [explanation, key];
      askSoon();
    }
    const found = answerWithout(explanation, words);
    const status = session.status("without", words);
    const shown = [explanation, key, found, status.state, status.message, explanation.attributions.size];
    draw(shown, () => withoutNodes(session, words, found));
    const leftOut = status.state === "here" ? LEFT_OUT : "";
    const sentence = found ? `${verdictOn(explanation.header, found)}: ${withoutSentence(explanation.header, found)}` : leftOut;
    if (sentence && sentence !== said) announce(sentence);
    said = sentence || said;
  };
  return {element: element("div", {class: "text-section"}, hint, body, back), update};
}

function leavesOutText(live, count) {
  if (!live) return "Choose no word";
  return count === 1 ? "Take the word back" : `Take all ${count} words back`;
}

function withoutNodes(session, words, found) {
  const {header} = session.explanation;
  if (found) {
    const flips = found.label !== header.prediction.label;
    const mark = element("strong", {class: flips ? "text-flips" : "text-stays", text: verdictOn(header, found)});
    return [element("p", {}, mark, `: ${withoutSentence(header, found)}${undecided(session, found)}`)];
  }
  if (!session.live) return words.flatMap((index) => savedValues(session.explanation, index));
  return [absentNote(session, "without", words, `Without ${quotedWords(header, words)}`)];
}

function verdictOn(header, found) {
  return found.label === header.prediction.label ? "The answer stays" : "The answer changes";
}

/** What to add to an answer that the model would mark as undecided. */
function undecided({model}, found) {
  return found.found && found.score < (model?.calibration?.abstain_below ?? 0) ? ", undecided" : "";
}

/** What a saved page knows of one word. */
function savedValues({header, attributions}, index) {
  const rows = [...attributions.values()].map(({method, words, errors}) => {
    const error = errors[index] > 0 ? ` \u00b1${errors[index].toFixed(3)}` : "";
    return element("li", {text: `${method}: ${signedNumber(words[index], 3)}${error} logits`});
  });
  const occlusion = attributions.get("occlusion");
  const told = occlusion
    ? occlusionSentence(header, index, occlusion.words[index])
    : "What the model answers without it is not in this saved page; a page from a running server can ask.";
  const title = `${quotedWord(header.words[index].text)}, by the methods in this page:`;
  return [element("p", {text: title}), element("ul", {}, ...rows), element("p", {text: told})];
}

/**
 * The least that changes the answer, and what alone is enough: {element, update(), kept()}; kept is the Set of words that alone are
 * enough while they are shown, or null.
 */
export function textCounterfactuals(context) {
  const {session, state, announce} = context;
  const body = element("div");
  const draw = redrawn(body);
  let wanted = "";
  let keeping = null;
  const ask = (kind) => {
    wanted = kind;
    session.ask("counterfactuals", "", {again: !session.explanation.counterfactuals?.[kind]});
    apply();
  };
  const apply = () => {
    const {explanation} = session;
    const found = explanation?.counterfactuals?.[wanted];
    if (!found || !wanted) return;
    const kind = wanted;
    const showing = kept() !== null;
    wanted = "";
    announce(counterfactualSentence(explanation.header, found));
    keeping = kind === "keep" && found.found && !showing ? {explanation, words: new Set(found.words)} : null;
    state.set({without: kind === "flip" && found.found ? found.words.join(",") : null});
    update();
  };
  const flip = quietButton("", () => ask("flip"));
  const keep = quietButton("What alone is enough?", () => ask("keep"));
  const box = section("What would change the answer?", element("p", {class: "row"}, flip, keep), body);
  const kept = () => (keeping && keeping.explanation === session.explanation && !wordsLeftOut(context).length ? keeping.words : null);
  const update = () => {
    const {explanation} = session;
    const status = session.status("counterfactuals");
    box.hidden = !explanation?.header;
    if (box.hidden) return;
    if (wordsLeftOut(context).length) keeping = null;
    const asked = `What is the least that ${flipGoal(explanation.header)}?`;
    if (flip.textContent !== asked) flip.textContent = asked;
    flip.disabled = keep.disabled = !session.live && status.state === "none";
    keep.setAttribute("aria-pressed", String(kept() !== null));
    draw([explanation, explanation.counterfactuals, status.state, status.message], () => counterfactualNodes(session));
    apply();
    if (wanted && status.state === "here") announce(LEFT_OUT);
    if (status.state !== "asking") wanted = "";
  };
  return {element: box, update, kept};
}

function counterfactualNodes(session) {
  const {header, counterfactuals} = session.explanation;
  const found = [counterfactuals?.flip, counterfactuals?.keep].filter(Boolean);
  const items = found.map((one) => element("li", {text: `${counterfactualSentence(header, one)}${undecided(session, one)}`}));
  return [
    items.length ? element("ul", {class: "text-found"}, ...items) : null,
    found.length < 2 ? absentNote(session, "counterfactuals", "", "Words that change the answer") : null,
  ];
}
