// Under an answer: "Right", or "Wrong: it is ...". For a server that keeps a journal; hidden otherwise.
import {element, replace} from "./dom.js";
import {choiceField, quietButton} from "./fields.js";
import {visibleText} from "./wording.js";

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
    replace(box, element("p", {class: "note asking", text: `Telling the server that ${visibleText(label)} is right \u2026`}));
    let said;
    try {
      const {right} = await session.feedback(label);
      said = right ? "Noted: the answer is right." : `Noted: the answer is wrong, it is ${visibleText(label)}.`;
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
    replace(box, quietButton("Right", () => tell(label)), ...wrongNodes(others, tell), element("span", {class: "note", text: said}));
  };
  return {element: box, update};
}

/** For two labels one button; for more, a list to choose from. */
function wrongNodes(others, tell) {
  if (others.length === 1) return [quietButton(`Wrong: it is ${visibleText(others[0])}`, () => tell(others[0]))];
  const field = choiceField("It is", () => {});
  field.offer([], () => others.map((label) => [label, visibleText(label)]));
  return [field.element, quietButton("Wrong", () => tell(field.select.value))];
}
