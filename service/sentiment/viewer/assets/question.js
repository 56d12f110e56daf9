// The form: what to explain.
import {element, replace} from "./dom.js";
import {ADDRESS_TEXT_MAX} from "./state.js";

// Of what sentiment models find hard; `pair`: only for a model that reads pairs.
const EXAMPLES = [
  {kind: "Negation", text: "I can't say a single bad thing about it."},
  {kind: "Contrast", text: "The acting was not good at all, but I loved the soundtrack."},
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
const TRUNCATIONS = {"": "as the model does", head: "read its beginning", head_tail: "read its beginning and end", refuse: "refuse it"};

/** The form over `session` and `state`: {element, update()}. */
export function questionForm({session, state, tell}) {
  const text = element("textarea", {id: "text", rows: 2, dir: "auto", spellcheck: false, placeholder: "A text, such as a review"});
  const pair = element("textarea", {id: "pair", rows: 2, dir: "auto", spellcheck: false});
  const model = element("select", {id: "model"});
  const truncation = element("select", {id: "truncation"});
  replace(truncation, ...Object.entries(TRUNCATIONS).map(([value, said]) => element("option", {value, text: said})));
  const send = element("button", {type: "submit", class: "button", text: "Explain"});
  const second = questionField("Second text, for a model that reads pairs", pair);
  const models = questionField("Model", model);
  const notice = element("p", {class: "note", hidden: true});
  const examples = element("ul", {class: "examples", aria: {label: "Examples"}});
  const ofPair = [];
  for (const example of EXAMPLES) {
    const click = () => {
      pair.value = example.pair ?? "";
      ask(example.text);
    };
    const kind = element("span", {class: "note", text: example.kind});
    const cut = element("span", {class: "example-text", text: ` ${example.text}${example.pair ? ` | ${example.pair}` : ""}`});
    const item = element("li", {}, element("button", {type: "button", class: "button quiet", on: {click}}, kind, cut));
    if (example.pair) ofPair.push(item);
    examples.append(item);
  }
  const ask = (said) => {
    text.value = said;
    if (!said.trim()) {
      text.focus();
      tell("Type a text first.");
      return;
    }
    const next = {text: said, pair: second.hidden ? null : pair.value, model: model.value || null, truncation: truncation.value};
    const asked = ["text", "pair", "model", "truncation"].some((key) => (next[key] ?? "") !== state.get(key));
    // This changes the numbers of tokens and words.
    const numbered = asked ? {lock: null, without: null, token: null} : {};
    // A link without a text may choose the labels for the first one.
    const label = said === state.get("text") || !state.get("text") ? {} : {label: null, against: null};
    state.set({...next, ...numbered, ...label}, {remember: true});
    if (!asked) session.submit();
  };
  const submitted = (event) => {
    event.preventDefault();
    ask(text.value);
  };
  const fields = [models, questionField("Long text", truncation)];
  const choices = element("div", {class: "row choices"}, ...fields, element("span", {class: "grow"}), send);
  const form = element("form", {on: {submit: submitted}}, questionField("Text", text), second, examples, notice, choices);
  // The answer below is then that of another text.
  const edited = element("p", {class: "failed", hidden: true, role: "status"});
  form.insertBefore(edited, choices);
  const compare = () => {
    const other = Boolean(session.text) && (text.value !== state.get("text") || (!second.hidden && pair.value !== state.get("pair")));
    edited.hidden = !other;
    edited.textContent = other ? "Not explained yet: what is shown belongs to the text before." : "";
  };
  text.addEventListener("input", compare);
  pair.addEventListener("input", compare);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  let shown = null;
  let listed = null;
  const update = () => {
    const asked = [state.get("text"), state.get("pair"), state.get("model"), state.get("truncation")].join("\n\0");
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
      text.value = state.get("text");
      pair.value = state.get("pair");
      model.value = modelOption(listed, state.get("model"));
      truncation.value = state.get("truncation");
    }
    const reads = listed.find(({id}) => model.value === `${id.name}/${id.version}`) ?? listed[0];
    models.hidden = listed.length < 2;
    second.hidden = !reads?.pairs;
    for (const item of ofPair) item.hidden = second.hidden;
    const length = Math.max(state.get("text").length, state.get("pair").length);
    notice.hidden = length <= ADDRESS_TEXT_MAX;
    notice.textContent = `The text has ${length} characters and is left out of the address, which holds ${ADDRESS_TEXT_MAX}.`;
    examples.hidden = Boolean(state.get("text"));
    compare();
  };
  model.addEventListener("change", update);
  // Now, not with the first frame, which would overwrite what was typed before it.
  update();
  return {element: form, update};
}

function questionField(said, control) {
  return element("div", {class: "field"}, element("label", {htmlFor: control.id, text: said}), control);
}

/** The option of a model that is named with or without its version; "" for the default. */
function modelOption(models, name) {
  const place = models.findIndex(({id}) => name === id.name || name === `${id.name}/${id.version}`);
  return place > 0 ? `${models[place].id.name}/${models[place].id.version}` : "";
}
