// The scorecard: what the model is, what was measured of it, and its card.
import {trustSection, trustShort} from "./card_trust.js";
import {element} from "./dom.js";
import {markdownNodes} from "./markdown.js";
import {redrawn} from "./redrawn.js";
import {statusNote} from "./status_note.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {visibleText, wholeNumber} from "./wording.js";

/** The view "Scorecard" over a context: {element, update(), drawing()}; what it draws is the measured trust. */
export function cardView({session, redraw}) {
  const box = element("div", {class: "card-view"});
  const draw = redrawn(box);
  // The headings of the parts that are open: they stay so when the card comes.
  const opened = new Set();
  let trust = null;
  const update = () => {
    const {model} = session;
    if (session.live && model) session.ask("card");
    const status = session.status("card");
    draw([model, status.state, status.message], () => {
      trust = model?.explanation_study ? trustSection(model) : null;
      return cardNodes(session, trust, {opened, redraw});
    });
    trust?.update(session.shownMethod());
  };
  return {element: box, update, drawing: () => trust?.drawing(session.shownMethod()) ?? null};
}

function cardNodes(session, trust, {opened, redraw}) {
  const {model} = session;
  const wait = statusNote(session, "card", "", "Model card");
  if (!model) return [wait ?? statusNote(session, "models", "", "Models") ?? element("p", {class: "note", text: "No model is known yet."})];
  const cardSection = (title, ...children) => {
    const toggle = ({target}) => {
      if (target.open) opened.add(title);
      else opened.delete(title);
      // What is folded has no width to draw in.
      redraw();
    };
    const part = foldedPart(element("h2", {text: title}), children);
    part.open = opened.has(title);
    part.addEventListener("toggle", toggle);
    return part;
  };
  const unmeasured = "This bundle has no such measurement. The text view measures each method on the text that is shown.";
  return [
    element("section", {class: "card-summary"}, ...cardSummary(model).map((text) => element("p", {text}))),
    cardSection("Model", cardFacts(model)),
    cardSection("Accuracy", accuracyTable(model.accuracy ?? [])),
    cardSection("Measured trust in each attribution method", ...(trust?.nodes ?? [element("p", {text: unmeasured})])),
    cardSection("Model card", wait, model.card ? element("div", {class: "card-text"}, ...cardText(model.card)) : null),
  ];
}

/** A part under its heading, folded. */
function foldedPart(heading, children) {
  return element("details", {class: "card-part"}, element("summary", {}, heading), ...children);
}

/** What the model is and how good, a sentence each. */
function cardSummary(model) {
  const {accuracy = [], calibration, explanation_trust: trust = [], explanation_methods: methods = []} = model;
  const pair = model.pairs ? "texts and pairs of texts" : "texts";
  const name = `${model.id.name}/${model.id.version}`;
  const said = [`${name} labels ${pair} of up to ${wholeNumber(model.max_tokens)} tokens as ${alternatives(model.labels ?? [])}.`];
  if (accuracy.length) {
    const shares = accuracy.map(({accuracy: share}) => share);
    const [least, most] = [Math.min(...shares), Math.max(...shares)].map((share) => `${(100 * share).toFixed(1)} %`);
    const range = shares.length === 1 ? `${most} of its answers are right on the one data set` : (
      `Between ${least} and ${most} of its answers are right on each of ${shares.length} data sets`
    );
    said.push(`${range}, as its maker reported.`);
  }
  if (calibration?.uncalibrated) said.push("It is not calibrated: its probabilities are often too sure, and no answer is called undecided.");
  if (calibration?.abstain_below) said.push(`An answer below ${cardNumber(calibration.abstain_below)} is called undecided.`);
  const best = trust.find(({method}) => method === methods[0]);
  if (best) said.push(trustShort(best));
  return said;
}

/** Names as in a sentence: "negative, positive or neutral". */
function alternatives(names) {
  const shown = names.map(visibleText);
  return shown.length < 2 ? shown.join("") : `${shown.slice(0, -1).join(", ")} or ${shown.at(-1)}`;
}

/** The nodes of a card: its parts folded under their headings, what stands before the first open. */
function cardText(card) {
  const nodes = markdownNodes(card, 3);
  const top = nodes.findIndex((node, place) => place > 0 && /^H[3-6]$/.test(node.tagName));
  if (top < 0) return nodes;
  const parts = [];
  for (const node of nodes.slice(top)) {
    if (/^H[3-6]$/.test(node.tagName) && node.tagName <= nodes[top].tagName) parts.push(foldedPart(node, []));
    else parts.at(-1).append(node);
  }
  return [...nodes.slice(0, top), ...parts];
}

function cardFacts(model) {
  const {limits, calibration, classify_graph: graph} = model;
  const facts = [
    ["Name", `${model.id.name}/${model.id.version}${model.is_default ? ", the server's default" : ""}`],
    ["Digest", model.id.digest],
    ["Labels", model.labels?.join(", ")],
    ["Architecture", model.architecture],
    ["Reads", `${wholeNumber(model.max_tokens)} tokens at most${model.pairs ? "; pairs of texts too" : "; no pairs of texts"}`],
    ["Longer texts", truncationText(model.default_truncation)],
    ["Graph", graph && `${graph.file}, ${graph.precision}, by ${graph.provider}`],
    ["Beside other texts", graph && `a probability differs by at most ${cardNumber(graph.invariance)}`],
    ["Calibration", calibration && calibrationText(calibration)],
    ["Explains by", model.explanation_methods?.join(", ") || "nothing: the server does not explain"],
    ["A text", limits && `at most ${wholeNumber(limits.text_bytes)} bytes`],
    ["An explanation", limits?.explanation_bytes && `at most ${wholeNumber(limits.explanation_bytes)} bytes`],
  ];
  const rows = facts.filter(([, fact]) => fact).flatMap(([title, fact]) => [element("dt", {text: title}), element("dd", {text: fact})]);
  return element("dl", {class: "card-facts"}, ...rows);
}

function truncationText(truncation) {
  return {
    TRUNCATION_REFUSE: "are refused",
    TRUNCATION_HEAD: "are read from their beginning as far as fits",
    TRUNCATION_HEAD_TAIL: "are read at their beginning and end",
    TRUNCATION_WINDOWS: "are read whole, in windows",
  }[truncation];
}

function calibrationText({temperature, abstain_below: abstain, uncalibrated}) {
  if (uncalibrated) return "not calibrated: probabilities are often too sure, and no answer is undecided";
  const undecided = abstain ? `an answer below ${cardNumber(abstain)} is undecided` : "no answer is undecided";
  return `logits are divided by ${cardNumber(temperature)}; ${undecided}`;
}

function accuracyTable(rows) {
  if (!rows.length) return element("p", {text: "This bundle names no measurement."});
  const heads = ["data set", "texts", "accuracy", "macro F1", "expected calibration error"];
  const row = (found) => {
    const shares = [found.accuracy, found.macro_f1, found.expected_calibration_error].map((value) => Number(value).toFixed(4));
    const among = found.labels?.length ? ` (among ${found.labels.join(", ")})` : "";
    return tableRow(`${found.dataset}${among}`, [wholeNumber(found.rows), ...shares]);
  };
  const form = {caption: "as the bundle's maker reported it", heads, numeric: [1, 2, 3, 4]};
  return scrolling("accuracy by data set", tableNode(form, rows.map(row)));
}

function cardNumber(value) {
  return String(Number(Number(value).toPrecision(3)));
}
