// Fields that views share: lists of choices, numbers with buttons to step through them, boxes to tick, and buttons.
import {element} from "./dom.js";
import {redrawn} from "./redrawn.js";

let fieldsMade = 0;

/** A control under its label. */
export function labelled(label, control) {
  return element("div", {class: "field"}, element("label", {htmlFor: control.id, text: label}), control);
}

/**
 * A labelled list of choices: {element, select, offer(shown, make), choose(value)}. `offer` makes the options of `make()`, [value, text]
 * each, only if `shown` differs (see redrawn): otherwise an open list would close.
 *
 * @param {function} chosen called with the value that the user chooses.
 */
export function choiceField(label, chosen) {
  fieldsMade += 1;
  const select = element("select", {id: `field-${fieldsMade}`, on: {change: () => chosen(select.value)}});
  const draw = redrawn(select);
  const offer = (shown, make) => draw(shown, () => make().map(([value, text]) => element("option", {value, text})));
  const choose = (value) => {
    if (select.value !== value) select.value = value;
  };
  return {element: labelled(label, select), select, offer, choose};
}

/**
 * Numbers from 0, with buttons for the one before and the next: {element, show(shown, count, number, said)}. `said` gives the text of a
 * number; the list is rebuilt only where `shown` differs.
 *
 * @param {function} chosen called with the number that the user chooses.
 */
export function stepField(label, chosen) {
  const field = choiceField(label, (value) => chosen(Number(value)));
  const {select} = field;
  const step = (by, sign, said) => {
    const button = quietButton(sign, () => chosen(Number(select.value) + by));
    button.classList.add("step");
    button.setAttribute("aria-label", `${said} ${label.toLowerCase()}`);
    return button;
  };
  const [before, next] = [step(-1, "‹", "Previous"), step(1, "›", "Next")];
  field.element.append(element("div", {class: "steps"}, before, select, next));
  const show = (shown, count, number, said = String) => {
    field.offer(shown, () => Array.from({length: count}, (_, place) => [String(place), said(place)]));
    field.choose(String(number));
    before.disabled = number <= 0;
    next.disabled = number >= count - 1;
  };
  return {element: field.element, show};
}

/** A check box with its label: {element, box}; `changed` is called with whether it is checked. */
export function checkField(label, changed) {
  const box = element("input", {type: "checkbox", on: {change: () => changed(box.checked)}});
  return {element: element("label", {class: "check"}, box, ` ${label}`), box};
}

/**
 * A list of choices that is kept in the state: {element, value(), update()}.
 *
 * @param {object} names what each value is called; the first is the default.
 */
export function keptChoice(state, key, label, names) {
  const [byDefault] = Object.keys(names);
  const field = choiceField(label, (value) => state.set({[key]: value === byDefault ? null : value}));
  field.offer([], () => Object.entries(names));
  const value = () => (Object.hasOwn(names, state.get(key)) ? state.get(key) : byDefault);
  return {element: field.element, value, update: () => field.choose(value())};
}

/** A check box that is kept in the state, checked unless that says "0": {element, value(), update()}. */
export function keptCheck(state, key, label) {
  const {element: field, box} = checkField(label, (checked) => state.set({[key]: checked ? null : "0"}));
  const value = () => state.get(key) !== "0";
  const update = () => { box.checked = value(); };
  return {element: field, value, update};
}

/** A button that is not the view's main one. */
export function quietButton(text, click) {
  return element("button", {type: "button", class: "button quiet", text, on: {click}});
}

/**
 * A button that shows all rows of a table, or only the first ones again: {element, all(): whether all are shown, of(count): how many of
 * that number of rows to show}.
 *
 * @param {string} fewer what it says while all are shown.
 * @param {function} more (count) what it says before.
 * @param {function} changed called after a click.
 */
export function moreButton(first, fewer, more, changed) {
  let all = false;
  const button = quietButton("", () => {
    all = !all;
    changed();
  });
  const of = (count) => {
    button.hidden = count <= first;
    button.textContent = all ? fewer : more(count);
    return all ? count : Math.min(count, first);
  };
  return {element: button, all: () => all, of};
}

/**
 * Make one stop for the Tab key of what `selector` finds in a list; arrow keys, Home and End go from one to the next. Returns a function
 * to call when the list has changed.
 *
 * @param {object} keys {onward(node): -1 where the list is written from right to left, so that the right arrow key goes back; page: how
 *   many are passed by Page Up and Page Down, 0: these keys are the browser's}; each may be missing.
 */
export function roving(list, selector, {onward = () => 1, page = 0} = {}) {
  let active = null;
  const stop = (node) => {
    if (active) active.tabIndex = -1;
    active = node;
    if (active) active.tabIndex = 0;
  };
  list.addEventListener("focusin", (event) => {
    const node = event.target.closest(selector);
    if (node) stop(node);
  });
  list.addEventListener("keydown", (event) => {
    const nodes = [...list.querySelectorAll(selector)];
    const place = nodes.indexOf(document.activeElement);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const right = onward(nodes[place]);
    const next = {
      ArrowRight: place + right, ArrowDown: place + 1, ArrowLeft: place - right, ArrowUp: place - 1, Home: 0, End: nodes.length - 1,
      ...(page && {PageDown: place + page, PageUp: place - page}),
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    nodes[Math.max(0, Math.min(nodes.length - 1, next))].focus();
  });
  return () => {
    const nodes = [...list.querySelectorAll(selector)];
    for (const node of nodes) if (node !== active) node.tabIndex = -1;
    if (!nodes.includes(active)) stop(nodes[0] ?? null);
  };
}
