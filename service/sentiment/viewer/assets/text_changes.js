// What changes the answer: words that the reader leaves out, and the sets of words that the server finds.
import {afterwards, element} from "./dom.js";
import {Explanation} from "./explanation.js";
import {redrawn} from "./redrawn.js";
import {statusNote} from "./status_note.js";
import {counterfactualSentence, occlusionSentence, quotedWord, quotedWords, signedNumber, withoutSentence} from "./wording.js";

// Between clicks: one request for several words clicked one after the other.
const CLICKS_MS = 250;

/** The words that the state leaves out, ascending, of those that the text has. */
export function wordsLeftOut({session, state}) {
  const count = session.explanation?.header?.words.length ?? 0;
  return [...new Set(state.list("without"))].filter((index) => index < count).sort((one, other) => one - other);
}

/** What the model answers without these words, where that is known already: it was asked for, or found by search. */
export function answerWithout({without, counterfactuals}, words) {
  const key = Explanation.keyOf(words);
  const flip = counterfactuals?.flip;
  return without.get(key) ?? (flip?.found && words.length && Explanation.keyOf(flip.words) === key ? flip : null);
}

/** Whether the words that are clicked are left out; else, in a saved page, only their values are shown. */
export function leavesOut({session, state}) {
  return session.live || answerWithout(session.explanation, wordsLeftOut({session, state})) !== null;
}

/** The answer without the words that are left out: {element, update()}. */
export function textWithout(context) {
  const {session, state, announce} = context;
  const body = element("div", {class: "text-without"});
  const draw = redrawn(body);
  const hint = element("p", {class: "note"});
  const back = element("button", {type: "button", class: "button quiet", on: {click: () => state.set({without: null})}});
  const askSoon = afterwards(CLICKS_MS, () => {
    const words = wordsLeftOut(context);
    if (words.length && !answerWithout(session.explanation, words)) session.ask("without", words);
  });
  let asked = [null, ""];
  let said = "";
  const update = () => {
    const explanation = session.explanation?.header ? session.explanation : null;
    hint.hidden = !explanation;
    hint.textContent = session.live ? "Click a word to ask for the answer without it." : "Click a word to see its values.";
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
    draw([explanation, key, found, status.state, explanation.attributions.size], () => withoutNodes(session, words, found, status.state));
    const sentence = found ? withoutSentence(explanation.header, found) : "";
    if (sentence && sentence !== said) announce(sentence);
    said = sentence || said;
  };
  return {element: element("div", {class: "text-section"}, hint, body, back), update};
}

function leavesOutText(live, count) {
  if (!live) return "Choose no word";
  return count === 1 ? "Take the word back" : `Take all ${count} words back`;
}

function withoutNodes(session, words, found, state) {
  const {header} = session.explanation;
  if (found) {
    const flips = found.label !== header.prediction.label;
    const mark = element("strong", {class: flips ? "text-flips" : "text-stays", text: flips ? "The answer changes" : "The answer stays"});
    return [element("p", {}, mark, `: ${withoutSentence(header, found)}`)];
  }
  if (!session.live) return words.flatMap((index) => savedValues(session.explanation, index));
  if (state === "failed") return [statusNote(session, "without", words, `Without ${quotedWords(header, words)}`)];
  return [element("p", {class: "note asking", text: `without ${quotedWords(header, words)}: asking the server \u2026`})];
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
    session.ask("counterfactuals", "", {again: true});
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
  const button = (kind, text) => element("button", {type: "button", class: "button quiet", text, on: {click: () => ask(kind)}});
  const flip = button("flip", "What is the least that changes the answer?");
  const keep = button("keep", "What alone is enough?");
  const title = element("h2", {text: "What would change the answer?"});
  const box = element("section", {class: "text-section"}, title, element("p", {class: "row"}, flip, keep), body);
  const kept = () => (keeping && keeping.explanation === session.explanation && !wordsLeftOut(context).length ? keeping.words : null);
  const update = () => {
    const {explanation} = session;
    const status = session.status("counterfactuals");
    box.hidden = !explanation?.header;
    if (box.hidden) return;
    if (wordsLeftOut(context).length) keeping = null;
    flip.disabled = keep.disabled = !session.live && status.state === "none";
    keep.setAttribute("aria-pressed", String(kept() !== null));
    draw([explanation, explanation.counterfactuals, status.state], () => counterfactualNodes(session));
    if (status.state === "failed") wanted = "";
    apply();
  };
  return {element: box, update, kept};
}

function counterfactualNodes(session) {
  const {header, counterfactuals} = session.explanation;
  const found = [counterfactuals?.flip, counterfactuals?.keep].filter(Boolean);
  const items = found.map((one) => element("li", {text: counterfactualSentence(header, one)}));
  const status = session.status("counterfactuals");
  const lacking = status.state === "here" && !found.length;
  return [
    items.length ? element("ul", {class: "text-found"}, ...items) : null,
    lacking ? element("p", {class: "note", text: "The server gave none; its notes say why."}) : null,
    statusNote(session, "counterfactuals", "", "Words that change the answer"),
  ];
}
