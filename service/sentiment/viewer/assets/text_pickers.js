// What the text view shows: the method, the label that is explained, numbers or none; and what the colours mean.
import {element, replace} from "./dom.js";
import {redrawn} from "./redrawn.js";
import {VALUE_FULL, VALUE_MIN, isDark, valueScale} from "./theme.js";
import {directionNames, explainedSentence, signedNumber} from "./wording.js";

/** Pickers over `session` and `state`: {element, update()}. */
export function textPickers({session, state}) {
  const method = element("select", {id: "text-method"});
  const label = element("select", {id: "text-label", aria: {describedby: "text-label-reason"}});
  const numbers = element("input", {type: "checkbox", id: "text-numbers"});
  const reason = element("p", {class: "note", id: "text-label-reason", text: "A saved page explains one label."});
  method.addEventListener("change", () => state.set({method: method.value === methodNames(session)[0] ? null : method.value}));
  label.addEventListener("change", () => state.set({label: label.value}));
  numbers.addEventListener("change", () => state.set({numbers: numbers.checked ? null : "0"}));
  const fillMethods = optionFiller(method);
  const fillLabels = optionFiller(label);
  const update = () => {
    fillMethods(methodNames(session), session.shownMethod());
    fillLabels(labelNames(session), session.explanation?.header?.label || state.get("label") || session.answer?.prediction.label || "");
    label.disabled = !session.live;
    reason.hidden = session.live;
    numbers.checked = state.get("numbers") !== "0";
  };
  const box = element(
    "div",
    {class: "row text-pickers"},
    element("div", {class: "field"}, element("label", {htmlFor: method.id, text: "Method"}), method),
    element("div", {class: "field"}, element("label", {htmlFor: label.id, text: "Label that is explained"}), label),
    element("label", {class: "text-check"}, numbers, " numbers under words"),
    reason,
  );
  return {element: box, update};
}

/** What the colours mean: {element, update()}. */
export function textLegend({session}) {
  const box = element("div", {class: "text-legend"});
  const draw = redrawn(box);
  const update = () => {
    const header = session.explanation?.header ?? null;
    box.hidden = !header;
    if (header) draw([header.label, header.unseen.length, isDark()], () => legendNodes(header));
  };
  return {element: box, update};
}

function legendNodes(header) {
  const {towards, against} = directionNames(header);
  const [least, most] = [signedNumber(-VALUE_FULL, 0), signedNumber(VALUE_FULL, 0)];
  const steps = valueScale().map((colour) => element("span", {style: {backgroundColor: colour}}));
  steps.splice(steps.length / 2, 0, element("span", {class: "text-scale-zero"}));
  const number = (text) => element("span", {class: "number", text});
  const scale = element("span", {class: "text-scale", role: "img", aria: {label: `colours from ${least} to ${most} logits`}}, ...steps);
  const swatch = element("span", {class: "text-unseen text-swatch"}, element("span", {text: "hatched"}));
  return [
    element("p", {class: "note", text: explainedSentence(header)}),
    element(
      "p",
      {class: "row"},
      element("span", {class: "row text-scale-ends"}, number(least), scale, number(most)),
      element("span", {text: `logits, the same for every text; nothing below ${VALUE_MIN} is coloured`}),
    ),
    element(
      "p",
      {class: "row"},
      element("span", {}, element("strong", {class: "text-towards", text: "orange"}), `: ${towards}`),
      element("span", {}, element("strong", {class: "text-against", text: "blue and underlined"}), `: ${against}`),
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

/** Fills a select only when its options change: else it would close under the reader's hand. */
function optionFiller(select) {
  let listed = null;
  return (names, chosen) => {
    const key = JSON.stringify(names);
    if (key !== listed) {
      listed = key;
      replace(select, ...names.map((name) => element("option", {value: name, text: name})));
    }
    if (select.value !== chosen) select.value = chosen;
    select.disabled = !names.length;
  };
}
