// The text view: the reason in a sentence, the text coloured by what moved the answer, what would change the answer, and on demand the
// numbers and their evidence.
import {element} from "./dom.js";
import {differing, redrawn} from "./redrawn.js";
import {absentNote, statusNote} from "./status_note.js";
import {answerWithout, leavesOut, textCounterfactuals, textWithout, wordsLeftOut} from "./text_changes.js";
import {textDrawing} from "./text_drawing.js";
import {textChanging, textEvidence, textTable, textTrust} from "./text_facts.js";
import {textLegend, textPickers, textScale} from "./text_pickers.js";
import {textSentences} from "./text_sentences.js";
import {WordsOfText} from "./text_words.js";
import {isDark} from "./theme.js";
import {explainingSentence, visibleText} from "./wording.js";

// The reason of a longer text names sentences, which take more lines.
const SHORT_WORDS_MAX = 47;

/** The view "Text" over a context: {element, update(), drawing()}. State: numbers, how (whether the numbers are open). */
export function textView(context) {
  const {session, state} = context;
  const changes = textCounterfactuals(context);
  const shown = [
    textTrust(context), textLegend(context), textChanging(context), textSentences(context), textWithout(context), changes,
  ];
  const folded = [textPickers(context), textScale(context), textEvidence(context), textTable(context)];
  const [trust, legend, ...rest] = shown.map((part) => part.element);
  const how = element(
    "details",
    {class: "text-how", on: {toggle: () => state.set({how: how.open ? "1" : null})}},
    element("summary", {text: "How do we know?"}),
    ...folded.map((part) => part.element),
  );
  const texts = element("div", {on: {click: ({target}) => toggleWord(context, target.closest("button.text-word"))}});
  const note = element("div");
  const reason = element("p", {class: "text-reason"});
  const drawTexts = redrawn(texts);
  const drawNote = redrawn(note);
  let words = null;
  const marksDiffer = differing();
  const mark = () => {
    const attribution = session.shownAttribution();
    const chosen = wordsLeftOut(context);
    const out = leavesOut(context);
    const numbers = state.get("numbers") === "1";
    if (!marksDiffer([words, attribution, String(chosen), out, changes.kept(), numbers, isDark()])) return;
    words.mark({attribution, struck: new Set(out ? chosen : []), chosen: new Set(out ? [] : chosen), kept: changes.kept(), numbers});
  };
  const update = () => {
    session.ask("attribution", session.method());
    const explanation = session.explanation?.header ? session.explanation : null;
    how.hidden = !session.text;
    how.open = state.get("how") === "1";
    const status = session.status("attribution", session.method());
    const here = session.shownAttribution() !== null;
    const asking = status.state === "asking";
    drawNote([session.text === "", here, status.state, status.message, session.method()], () => [
      session.text
        ? asking ? null : (here ? statusNote : absentNote)(session, "attribution", session.method(), "Attribution")
        : element("p", {text: "Type a text above, or take an example."}),
    ]);
    texts.hidden = !explanation;
    if (explanation && words?.explanation !== explanation) words = new WordsOfText(explanation);
    if (explanation) drawTexts([words], () => [words.element]);
    const said = explanation?.reasons.get(session.shownMethod());
    const prediction = explanation?.header.prediction ?? session.answer?.prediction;
    reason.textContent = said || !asking ? visibleText(said ?? "") : prediction ? explainingSentence(prediction) : "Explaining …";
    reason.classList.toggle("asking", asking);
    reason.classList.toggle("long", Boolean(explanation?.header.words.length > SHORT_WORDS_MAX));
    reason.hidden = !reason.textContent;
    for (const part of [...shown, ...folded]) part.update();
    if (explanation) mark();
  };
  const drawing = () => (session.explanation?.header ? textDrawing(drawnOf(context)) : null);
  return {element: element("div", {class: "text-view"}, reason, trust, note, texts, legend, ...rest, how), update, drawing};
}

function drawnOf(context) {
  const {session, state} = context;
  const method = session.shownMethod();
  return {
    explanation: session.explanation,
    answer: session.answer,
    attribution: session.shownAttribution(),
    evidence: session.explanation.evidence.get(method) ?? null,
    reason: visibleText(session.explanation.reasons.get(method) ?? ""),
    deciding: session.explanation.deciding.get(method) ?? null,
    struck: new Set(leavesOut(context) ? wordsLeftOut(context) : []),
    without: answerWithout(session.explanation, wordsLeftOut(context)),
    numbers: state.get("numbers") === "1",
  };
}

/** In a saved page one word is chosen at a time. */
function toggleWord(context, button) {
  if (!button) return;
  const {session, state} = context;
  const word = Number(button.dataset.word);
  const before = wordsLeftOut(context);
  const others = before.filter((index) => index !== word);
  const added = session.live ? [...before, word].sort((one, other) => one - other) : [word];
  state.set({without: (others.length < before.length ? (session.live ? others : []) : added).join(",") || null});
}
