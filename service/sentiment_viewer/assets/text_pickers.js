// What the text view shows: the method, the label that is explained and against which, numbers or none; and what the colours mean.
import {element} from "./dom.js";
import {choiceField, keptCheck} from "./fields.js";
import {directionHues, huesSaid} from "./label_hues.js";
import {redrawn} from "./redrawn.js";
import {VALUE_FULL, VALUE_MIN, isDark, valueScale} from "./theme.js";
import {adaptiveSentence, explainedSentence, signedNumber} from "./wording.js";

/** Pickers over `session` and `state`: {element, update()}. */
export function textPickers({session, state}) {
  const method = choiceField("Method", (name) => state.set({method: name === session.explanation?.byDefault ? null : name}));
  const label = choiceField("Label that is explained", (name) => state.set({label: name, against: null}));
  // The explained label too: another text may have another answer.
  const against = choiceField("Against", (name) => state.set({label: session.explanation?.header?.label ?? null, against: name}));
  const numbers = keptCheck(state, "numbers", "numbers under words");
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
    numbers.update();
  };
  return {element: element("div", {class: "row fields"}, method.element, label.element, against.element, numbers.element, reason), update};
}

/** What the colours mean: {element, update()}. */
export function textLegend({session}) {
  const box = element("div", {class: "text-legend"});
  const draw = redrawn(box);
  const update = () => {
    const header = session.explanation?.header ?? null;
    box.hidden = !header;
    if (header) draw([header, isDark()], () => legendNodes(header));
  };
  return {element: box, update};
}

function legendNodes(header) {
  const [least, most] = [signedNumber(-VALUE_FULL, 0), signedNumber(VALUE_FULL, 0)];
  const steps = valueScale(directionHues(header)).map((colour) => element("span", {style: {backgroundColor: colour}}));
  steps.splice(steps.length / 2, 0, element("span", {class: "text-scale-zero"}));
  const number = (text) => element("span", {class: "number", text});
  const scale = element("span", {class: "text-scale", role: "img", aria: {label: `colours from ${least} to ${most} logits`}}, ...steps);
  const swatch = element("span", {class: "text-unseen text-swatch"}, element("span", {text: "hatched"}));
  return [
    element("p", {class: "note", text: explainedSentence(header)}),
    header.adaptive && element("p", {class: "note", text: adaptiveSentence(header)}),
    element(
      "p",
      {class: "row"},
      element("span", {class: "row text-scale-ends"}, number(least), scale, number(most)),
      element("span", {text: `logits, the same for every text; nothing below ${VALUE_MIN} is coloured`}),
    ),
    element(
      "p",
      {class: "row"},
      ...huesSaid(header).map(({hue, name, direction}) => (
        element("span", {}, element("strong", {class: "label-name", data: {hue}, text: name}), `: ${direction}`)
      )),
      header.unseen.length ? element("span", {}, swatch, ": not read") : null,
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
