// What the text view shows: the method, the label that is explained and against which, numbers or none; what the colours mean, and their
// scale.
import {element} from "./dom.js";
import {checkField, choiceField} from "./fields.js";
import {directionHues, huesSaid} from "./label_hues.js";
import {redrawn} from "./redrawn.js";
import {SENTENCE_SHARE} from "./sentences.js";
import {VALUE_FULL, VALUE_MIN, isDark, valueScale} from "./theme.js";
import {adaptiveSentence, errorSentences, explainedSentence, signedNumber} from "./wording.js";

/** Pickers over `session` and `state`: {element, update()}. */
export function textPickers({session, state}) {
  const method = choiceField("Method", (name) => state.set({method: name === session.explanation?.byDefault ? null : name}));
  const label = choiceField("Label that is explained", (name) => state.set({label: name, against: null}));
  // The explained label too: another text may have another answer.
  const against = choiceField("Against", (name) => state.set({label: session.explanation?.header?.label ?? null, against: name}));
  const numbers = checkField("numbers under words", (checked) => state.set({numbers: checked ? "1" : null}));
  const reason = element("p", {class: "note", id: "text-label-reason", text: "A saved page explains one label."});
  label.select.setAttribute("aria-describedby", reason.id);
  const fill = (field, names, chosen) => {
    field.offer(names, () => names.map((name) => [name, name]));
    field.choose(chosen);
    field.select.disabled = !names.length;
  };
  const update = () => {
    fill(method, methodNames(session), session.shownMethod());
    fill(label, labelNames(session), session.explanation?.header?.label || state.get("label") || session.answer?.prediction.label || "");
    const {header} = session.explanation ?? {};
    // Two labels need none: one is against the other.
    against.element.hidden = (header?.prediction.scores.length ?? 0) < 3;
    fill(against, header ? againstNames(session) : [], header?.against ?? "");
    for (const {select} of [label, against]) select.disabled ||= !session.live;
    reason.hidden = session.live;
    numbers.box.checked = state.get("numbers") === "1";
  };
  return {element: element("div", {class: "row fields"}, method.element, label.element, against.element, numbers.element, reason), update};
}

/** What the colours mean: {element, update()}. */
export function textLegend({session}) {
  const box = element("p", {class: "note row text-legend"});
  const draw = redrawn(box);
  const update = () => {
    const header = session.explanation?.header ?? null;
    const attribution = session.shownAttribution();
    box.hidden = !header;
    if (header) draw([header, attribution, isDark()], () => legendNodes(header, attribution));
  };
  return {element: box, update};
}

function legendNodes(header, attribution) {
  const swatch = element("span", {class: "text-unseen text-swatch"}, element("span", {text: "hatched"}));
  return [
    ...huesSaid(header).map(({hue, name, direction}) => (
      element("span", {}, element("strong", {class: "label-name", data: {hue}, text: name}), `: ${direction}`)
    )),
    ...(attribution ? errorSentences(attribution) : []).map((text) => element("span", {text})),
    header.unseen.length ? element("span", {}, swatch, ": not read") : null,
  ].filter(Boolean);
}

/** The numbers that the colours stand for: {element, update()}. */
export function textScale({session}) {
  const box = element("div", {class: "text-numbers"});
  const draw = redrawn(box);
  const update = () => {
    const header = session.explanation?.header ?? null;
    box.hidden = !header;
    const sentences = Boolean(session.shownAttribution()?.sentences.length);
    if (header) draw([header, sentences, isDark()], () => scaleNodes(header, sentences));
  };
  return {element: box, update};
}

function scaleNodes(header, sentences) {
  const [least, most] = [signedNumber(-VALUE_FULL, 0), signedNumber(VALUE_FULL, 0)];
  const steps = valueScale(directionHues(header)).map((colour) => element("span", {style: {backgroundColor: colour}}));
  steps.splice(steps.length / 2, 0, element("span", {class: "text-scale-zero"}));
  const number = (text) => element("span", {class: "number", text});
  const scale = element("span", {class: "text-scale", role: "img", aria: {label: `colours from ${least} to ${most} logits`}}, ...steps);
  return [
    element("p", {class: "note", text: explainedSentence(header)}),
    header.adaptive && element("p", {class: "note", text: adaptiveSentence(header)}),
    element(
      "p",
      {class: "row"},
      element("span", {class: "row text-scale-ends"}, number(least), scale, number(most)),
      element("span", {text: `logits, the same for every text; nothing below ${VALUE_MIN} is coloured`}),
      sentences ? element("span", {text: `a sentence is coloured as a word of 1/${1 / SENTENCE_SHARE} of its value`}) : null,
    ),
  ];
}

function methodNames({live, model, explanation}) {
  return live ? (model?.explanation_methods ?? []) : [...(explanation?.attributions.keys() ?? [])];
}

function labelNames({live, model, explanation}) {
  const scored = explanation?.header?.prediction.scores.map(({label}) => label) ?? [];
  return live ? (model?.labels ?? scored) : [explanation?.header?.label ?? ""];
}

function againstNames({live, explanation: {header}}) {
  return live ? header.prediction.scores.map(({label}) => label).filter((label) => label !== header.label) : [header.against ?? ""];
}
