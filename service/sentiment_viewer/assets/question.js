// The form: what to explain.
import {namesIn} from "./answer_parts.js";
import {element, replace} from "./dom.js";
import {checkField, labelled, quietButton} from "./fields.js";
import {ADDRESS_TEXT_MAX} from "./state.js";

/** What the page explains before a text is typed: a contrast, so that words speak for both labels. */
export const EXAMPLE = "The acting was not good at all, but I loved the soundtrack.";
// Of what sentiment models find hard; `pair`: only for a model that reads pairs.
const EXAMPLES = [
  {kind: "Negation", text: "I can't say a single bad thing about it."},
  {kind: "Contrast", text: EXAMPLE},
  {kind: "Irony", text: "Oh great, another two hours of my life I will never get back."},
  {kind: "Dry irony", text: "Just what the world needed: one more sequel."},
  {kind: "No opinion", text: "The hotel is ten minutes from the station."},
  {
    kind: "Long review",
    text: "We booked four nights for my mother's birthday, and the first impression was not promising: the lift was out of order, nobody "
      + "at the desk could say until when, and our bags went up five floors by hand. The room smelled of paint. I was ready to ask for "
      + "our money back. Then the manager came up himself, moved us to the garden side, and sent tea. From that evening on we hardly "
      + "noticed the lift. The breakfast is plain but fresh, the bread is baked in the house, and the woman who serves it remembered "
      + "after one morning how each of us takes the coffee. The pool is smaller than in the pictures and was closed on two of our four "
      + "days. The walls are thin. And yet my mother, who finds fault with every hotel, has already asked when we are going back. It is "
      + "not a place for people who want everything to work; it is a place for people who want to be looked after.",
  },
  {kind: "Pair", text: "The film was not good at all.", pair: "But I liked the end."},
];
const IS_EXAMPLE = "An example. Type a text of your own, or take another example:";
// Views that ask for no explanation of the text.
const NOT_EXPLAINED = ["file", "card"];
const OTHER_TEXT = "Not explained yet: what is shown belongs to the text before.";
const OTHER_TARGETS = "Not asked for these targets yet.";
const NO_TARGETS = "This model answers no targets, so they are not asked for.";
const OF_NO_PAIR = "A text with a second text has no answers to sentences and targets.";
const TRUNCATIONS = {"": "as the model does", head: "read its beginning", head_tail: "read its beginning and end", refuse: "refuse it"};

/** The form over `session` and `state`: {element, update()}. */
export function questionForm({session, state, tell}) {
  const text = element("textarea", {id: "text", rows: 3, dir: "auto", spellcheck: false, placeholder: "A text, such as a review"});
  const pair = element("textarea", {id: "pair", rows: 2, dir: "auto", spellcheck: false});
  const model = element("select", {id: "model"});
  const truncation = element("select", {id: "truncation"});
  replace(truncation, ...Object.entries(TRUNCATIONS).map(([value, said]) => element("option", {value, text: said})));
  const send = element("button", {type: "submit", class: "button"});
  const second = labelled("Second text, for a model that reads pairs", pair);
  const sentences = checkField("Answer each sentence", () => {
    // What is asked for is the text that is shown, so this can take effect at once.
    if (session.text && text.value === session.text) form.requestSubmit();
  });
  const targets = element("input", {id: "targets", type: "text", dir: "auto", spellcheck: false, placeholder: "battery, service"});
  const named = labelled("Targets, with commas between them", targets);
  named.classList.add("targets");
  const partsNotice = element("p", {class: "note", hidden: true});
  const partFields = element("div", {class: "row fields part-fields"}, sentences.element, named);
  const models = labelled("Model", model);
  const notice = element("p", {class: "note", hidden: true});
  const examples = element("ul", {class: "row examples", aria: {label: "Examples"}});
  const isExample = element("p", {class: "note", text: IS_EXAMPLE});
  const ofPair = [];
  for (const example of EXAMPLES) {
    const click = () => {
      pair.value = example.pair ?? "";
      ask(example.text);
    };
    const button = quietButton(example.kind, click);
    button.title = `${example.text}${example.pair ? ` | ${example.pair}` : ""}`;
    const item = element("li", {}, button);
    if (example.pair) ofPair.push(item);
    examples.append(item);
  }
  const otherNames = () => !named.hidden && String(namesIn(targets.value)) !== String(namesIn(state.get("targets")));
  const ask = (said) => {
    text.value = said;
    if (!said.trim()) {
      text.focus();
      tell("Type a text first.");
      return;
    }
    const next = {text: said, pair: second.hidden ? null : pair.value, model: model.value || null, truncation: truncation.value};
    const parts = {
      sentences: sentences.box.checked ? "1" : null,
      targets: otherNames() ? namesIn(targets.value).join(", ") : state.get("targets"),
    };
    const differs = (wanted) => Object.entries(wanted).some(([key, value]) => (value ?? "") !== state.get(key));
    const asked = differs(next);
    const unchanged = !asked && !differs(parts);
    // This changes the numbers of tokens and words.
    const numbered = asked ? {lock: null, without: null, token: null, about: null} : {};
    // A link without a text may choose the labels for the first one.
    const label = said === state.get("text") || !state.get("text") ? {} : {label: null, against: null};
    targets.value = parts.targets;
    state.set({...next, ...numbered, ...label, ...parts}, {remember: true});
    if (unchanged) session.submit();
  };
  const submitted = (event) => {
    event.preventDefault();
    ask(text.value);
  };
  const fields = [models, labelled("Long text", truncation)];
  // On a phone the answer would be below the options.
  const more = quietButton("Options", () => showOptions(!form.classList.contains("with-options")));
  more.classList.add("question-more");
  const showOptions = (all) => more.setAttribute("aria-expanded", String(form.classList.toggle("with-options", all)));
  const choices = element("div", {class: "row choices"}, ...fields, element("span", {class: "grow"}), more, send);
  const form = element("form", {on: {submit: submitted}}, labelled("Text", text), second, isExample, examples, partFields, partsNotice, notice, choices);
  // The answer below is then that of another text.
  const edited = element("p", {class: "failed", hidden: true, role: "status"});
  form.insertBefore(edited, choices);
  const compare = () => {
    const other = Boolean(session.text) && (text.value !== session.text || (!second.hidden && pair.value !== (session.pair ?? "")));
    const names = Boolean(session.text) && otherNames();
    edited.hidden = !other && !names;
    edited.textContent = other ? OTHER_TEXT : names ? OTHER_TARGETS : "";
    const paired = !second.hidden && Boolean(pair.value);
    sentences.box.disabled = targets.disabled = paired;
    const unanswered = named.hidden && Boolean(listed?.length) && Boolean(state.get("targets"));
    partsNotice.hidden = !paired && !unanswered;
    partsNotice.textContent = paired ? OF_NO_PAIR : unanswered ? NO_TARGETS : "";
  };
  text.addEventListener("input", compare);
  pair.addEventListener("input", compare);
  targets.addEventListener("input", compare);
  // What is typed replaces the example.
  const choose = () => !state.get("text") && text.value === session.example && text.select();
  text.addEventListener("focus", choose);
  text.addEventListener("click", choose);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  let shown = null;
  let listed = null;
  const update = () => {
    const asked = ["text", "pair", "model", "truncation", "sentences", "targets"].map((key) => state.get(key)).join("\n\0");
    if (listed !== session.models) {
      listed = session.models;
      const options = listed.map(({id}, place) => {
        const name = `${id.name}/${id.version}`;
        return element("option", place ? {value: name, text: name} : {value: "", text: `${name} (default)`});
      });
      const chosen = model.value;
      replace(model, ...options);
      model.value = shown === null ? modelOption(listed, state.get("model")) : chosen;
    }
    if (shown !== asked) {
      shown = asked;
      text.value = state.get("text") || session.example;
      pair.value = state.get("pair");
      model.value = modelOption(listed, state.get("model"));
      truncation.value = state.get("truncation");
      sentences.box.checked = state.get("sentences") === "1";
      targets.value = state.get("targets");
      showOptions(["model", "truncation", "sentences", "targets"].some((key) => state.get(key)));
    }
    const reads = listed.find(({id}) => model.value === `${id.name}/${id.version}`) ?? listed[0];
    models.hidden = listed.length < 2;
    second.hidden = !reads?.pairs;
    named.hidden = !reads?.targets;
    for (const item of ofPair) item.hidden = second.hidden;
    const length = Math.max(state.get("text").length, state.get("pair").length);
    notice.hidden = length <= ADDRESS_TEXT_MAX;
    notice.textContent = `The text has ${length} characters and is left out of the address, which holds ${ADDRESS_TEXT_MAX}.`;
    isExample.hidden = examples.hidden = Boolean(state.get("text"));
    const explains = !NOT_EXPLAINED.includes(state.get("view")) && reads?.explanation_methods?.length !== 0;
    send.textContent = explains ? "Explain" : "Classify";
    compare();
  };
  model.addEventListener("change", update);
  // Now, not with the first frame, which would overwrite what was typed before it.
  update();
  return {element: form, update};
}

/** The option of a model that is named with or without its version; "" for the default. */
function modelOption(models, name) {
  const place = models.findIndex(({id}) => name === id.name || name === `${id.name}/${id.version}`);
  return place > 0 ? `${models[place].id.name}/${models[place].id.version}` : "";
}
