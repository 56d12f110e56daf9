// The answer above all views: label, calibrated probability, and whether the model is undecided.
import {partsInShort, wholeSaid} from "./answer_parts.js";
import {element, replace} from "./dom.js";
import {feedbackLine} from "./feedback.js";
import {labelBar, labelHues, labelName} from "./label_hues.js";
import {partNodes} from "./part_nodes.js";
import {differing} from "./redrawn.js";
import {statusNote} from "./status_note.js";
import {quotedWord} from "./wording.js";

// Characters of the text in the title, to tell browser tabs apart.
const TITLE_TEXT_MAX = 60;

/** The answer line over `session`: {element, update()}. */
export function answerLine({session, state, announce}) {
  const box = element("div");
  const feedback = feedbackLine({session, announce});
  const differs = differing();
  let said = null;
  const update = () => {
    feedback.update();
    const prediction = session.answer?.prediction ?? session.explanation?.header?.prediction;
    const status = session.status("answer");
    if (!differs([prediction, status.state, session.answer, session.explanation?.header, session.target])) return;
    if (prediction && prediction !== said) announce([answerSaid(prediction), ...partsInShort(session.answer)].join("; "));
    document.title = prediction ? `${answerSaid(prediction)}: ${session.text.trim().slice(0, TITLE_TEXT_MAX)}` : "Sentiment viewer";
    said = prediction;
    if (prediction) replace(box, ...answerNodesOf(session, state, prediction));
    else replace(box, statusNote(session, "answer", "", "Answer"));
  };
  return {element: element("div", {}, box, feedback.element), update};
}

function answerSaid({label, score, abstain, mixed}) {
  return `${label}, probability ${score.toFixed(3)}${abstain ? ", undecided" : ""}${mixed ? ", mixed" : ""}`;
}

function answerNodesOf(session, state, prediction) {
  const {answer, text, target} = session;
  // Words of the text have other numbers for another target.
  const explain = (about) => state.set({about, lock: null, without: null, token: null});
  return [
    answer || !target ? null : element("p", {text: `Towards ${quotedWord(target)}:`}),
    answerTitle(prediction),
    ...wholeSaid(prediction, answer).map((said) => element("p", {text: said})),
    answerScores(prediction),
    answer ? partNodes(answer, text, huesOf(prediction.scores), target, session.live ? explain : null) : partsStatus(session),
    answerFacts(session),
  ];
}

/** Where the label is here by the explanation alone: why sentences and targets that were asked for are not. */
function partsStatus(session) {
  return Object.keys(session.parts()).length ? statusNote(session, "answer", "", "Sentences and targets") : null;
}

function answerTitle({label, score, scores, abstain}) {
  return element(
    "p",
    {class: "answer"},
    element("strong", {class: "label"}, labelName(label, huesOf(scores))),
    element("span", {class: "number", text: ` ${score.toFixed(4)}`}),
    element("span", {class: "note", text: " probability"}),
    abstain ? element("span", {class: "undecided", text: "undecided: below the model's threshold"}) : null,
  );
}

function huesOf(scores) {
  return labelHues(scores.map(({label}) => label));
}

function answerScores({scores}) {
  const hues = huesOf(scores);
  const rows = scores.map(({label, score}) => labelBar(label, hues, score, score.toFixed(4)));
  return element("ul", {class: "scores", aria: {label: "Calibrated probabilities"}}, ...rows);
}

function answerFacts({answer, explanation}) {
  const model = answer?.model ?? explanation.header.model;
  const facts = [`${model.name}/${model.version}`, `digest ${model.digest.slice(0, 12)}`];
  if (answer) facts.push(answer.early ? `a part sufficed: ${answer.tokens} tokens read` : `${answer.tokens} tokens`);
  if (answer?.timing) facts.push(`${(1000 * Number.parseFloat(answer.timing.total ?? 0)).toFixed(1)} ms`);
  if (!answer) facts.push(`${explanation.header.tokens.length} tokens`);
  if (answer?.truncated ?? explanation?.header?.truncated) facts.push("a part of the text was not read");
  const wrong = explanation?.header && !explanation.header.labelsAgree
    ? "The explanation graph gives another answer to this text; gradients, attention and heads explain that one."
    : null;
  return element(
    "div",
    {class: "note"},
    element("p", {text: facts.join(" · ")}),
    wrong && element("p", {class: "failed", text: wrong}),
  );
}
