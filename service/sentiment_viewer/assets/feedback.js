// Under an answer: "Right", "Wrong: it is ..." for each other label, and "None of these". For a server that keeps a journal; hidden
// otherwise.
import {element, replace} from "./dom.js";
import {choiceField, quietButton} from "./fields.js";
import {visibleText} from "./wording.js";

// Other labels that have a button each; of more, a list is quicker to read.
const BUTTONS_MAX = 4;

/** The line over `session`: {element, update()}. */
export function feedbackLine({session, announce}) {
  const box = element("div", {class: "row feedback", role: "group", aria: {label: "Is the answer right?"}});
  let answer = null;
  const update = () => {
    box.hidden = !session.takesFeedback || !session.answer;
    if (box.hidden || answer === session.answer) return;
    ({answer} = session);
    offer("Right or wrong goes to the server's journal.");
  };
  const tell = async (label) => {
    const asked = answer;
    const itself = label === null ? "no label" : visibleText(label);
    replace(box, element("p", {class: "note asking", text: `Telling the server that ${itself} is right \u2026`}));
    let said;
    try {
      const {right} = await session.feedback(label);
      const wrong = label === null ? "no label is right" : `it is ${itself}`;
      said = right ? "Noted: the answer is right." : `Noted: the answer is wrong, ${wrong}.`;
    } catch (error) {
      said = `Not noted. ${error.message}`;
    }
    announce(said);
    // Another text may have been asked meanwhile.
    if (asked !== answer) return;
    offer(said);
    // The button that had the focus is gone, unless the user has gone elsewhere.
    if (document.activeElement === document.body) box.querySelector("button").focus();
  };
  const offer = (said) => {
    const {label, scores} = answer.prediction;
    const others = scores.map((score) => score.label).filter((other) => other !== label);
    const none = quietButton("None of these", () => tell(null));
    replace(box, quietButton("Right", () => tell(label)), ...wrongNodes(others, tell), none, element("span", {class: "note", text: said}));
  };
  return {element: box, update};
}

/** A button for each label; for many, a list to choose from. */
function wrongNodes(others, tell) {
  if (others.length <= BUTTONS_MAX) return others.map((label) => quietButton(`Wrong: it is ${visibleText(label)}`, () => tell(label)));
  const field = choiceField("It is", () => {});
  field.offer([], () => others.map((label) => [label, visibleText(label)]));
  return [field.element, quietButton("Wrong", () => tell(field.select.value))];
}
