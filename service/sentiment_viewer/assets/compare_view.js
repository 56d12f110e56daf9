// The view that compares the text with another: what differs, the answers, and what moved them.
import {element, section} from "./dom.js";
import {labelled, moreButton} from "./fields.js";
import {directionHues} from "./label_hues.js";
import {differing, redrawn} from "./redrawn.js";
import {Session} from "./session.js";
import {absentNote} from "./status_note.js";
import {numberCell, scrolling, tableNode, tableRow} from "./tables.js";
import {valueBar} from "./text_facts.js";
import {WordsOfText} from "./text_words.js";
import {isDark} from "./theme.js";
import {alignedWords} from "./word_diff.js";
import {
  WORDS_FIRST, answerSentence, directionNames, explainedLogit, largestFirst, methodSentence, plainNumber, quotedWords, shownWord,
  signedNumber, told, visibleText, wholeNumber,
} from "./wording.js";

const COMPARE_HINT = "Change the text, for example one word, and see what that does to the answer. Both are explained for the "
  + "same label, by the same method, in the same colours.";
const COMPARE_NOTE = "A value can change although its word stays: what a word does depends on the others.";

/** The page's state as a session about the other text reads it: explained for the label and by the method of the first. */
class OtherState extends EventTarget {
  constructor(session) {
    super();
    this.session = session;
  }

  get(key) {
    const {session} = this;
    if (key === "label" || key === "against") return session.explanation?.header?.[key] ?? "";
    if (key === "method") return session.shownMethod();
    // The other text is explained towards the same target.
    if (key === "targets") return session.target;
    // This view shows none.
    if (key === "sentences") return "";
    return session.state.get(key === "text" ? "other" : key);
  }
}

/** The view "Compare" over a context: {element, update()}. State: other. */
export function compareView({session, state, announce, tell, redraw}) {
  const other = new Session(new OtherState(session), null);
  const field = element("textarea", {id: "other", rows: 2, dir: "auto", spellcheck: false});
  const submit = (event) => {
    event.preventDefault();
    if (field.value.trim()) state.set({other: field.value}, {remember: true});
    else tell("Type another text first.");
  };
  const send = element("button", {type: "submit", class: "button", text: "Compare"});
  const form = element(
    "form",
    {on: {submit}},
    labelled("Another text", field),
    element("div", {class: "row compare-send"}, element("span", {class: "note", text: COMPARE_HINT}), send),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  const none = element("p", {text: "Type a text above, or take an example; then compare it with another."});
  const note = element("div");
  const body = element("div", {class: "compare-body"});
  const [drawNote, draw] = [redrawn(note), redrawn(body)];
  const [refilled, askedAnew] = [differing(), differing()];
  let announced = null;
  const more = moreButton(
    WORDS_FIRST, `the ${WORDS_FIRST} largest only`, (count) => `all ${wholeNumber(count)} rows`, () => update(),
  );
  const update = () => {
    const wanted = state.get("other");
    form.hidden = !session.text;
    none.hidden = Boolean(session.text);
    if (refilled([session.text, wanted])) field.value = wanted || session.text;
    if (wanted) session.ask("attribution", session.method());
    const first = wanted ? explained(session) : null;
    if (askedAnew([first?.header, wanted, session.shownMethod()]) && first) {
      other.models = session.models;
      other.submit();
    }
    if (first) other.ask("attribution", other.method());
    const second = first && explained(other);
    const asking = [[session, "The first text"], [other, "The other text"]].slice(0, wanted && !second ? (first ? 2 : 1) : 0);
    const statuses = asking.map(([of]) => of.status("attribution", of.method()));
    drawNote([asking.length, ...statuses], () => asking.map(([of, what]) => absentNote(of, "attribution", of.method(), what)));
    body.hidden = !second;
    if (!second) return;
    const numbers = state.get("numbers") === "1";
    const trusted = [first, second].map(({explanation, attribution}) => explanation.evidence.get(attribution.method));
    const shown = [first.attribution, second.attribution, ...trusted, more.all(), numbers, isDark()];
    draw(shown, () => comparedNodes({first, second, more, numbers}));
    if (announced !== second.header) announce(changeSentence(first.header, second.header).join(": "));
    announced = second.header;
  };
  other.addEventListener("change", redraw);
  other.addEventListener("failed", ({detail}) => announce(detail));
  return {element: element("div", {class: "compare-view"}, none, form, note, body), update};
}

/** A session's explanation once there is enough to compare, or null. */
function explained(session) {
  const {explanation} = session;
  const attribution = session.shownAttribution();
  return explanation?.header && attribution && !attribution.estimate ? {explanation, attribution, header: explanation.header} : null;
}

/** [whether the answer changes, the answers]. */
function changeSentence({prediction: was}, {prediction: is}) {
  const said = ({label, score}) => `${visibleText(label)} ${score.toFixed(4)}`;
  return [was.label === is.label ? "The answer stays" : "The answer changes", `${said(was)}, then ${said(is)}`];
}

function comparedNodes({first, second, more, numbers}) {
  const aligned = alignedWords(...[first, second].map(({header}) => header.words.map(({text, pair}) => `${Number(pair)}${text}`)));
  const [verdict, answers] = changeSentence(first.header, second.header);
  const flips = first.header.prediction.label !== second.header.prediction.label;
  return [
    element("p", {}, element("strong", {class: flips ? "text-flips" : "text-stays", text: verdict}), `: ${answers}`),
    element("p", {class: "note", text: changedWords([first, second], aligned)}),
    element("div", {class: "compare-sides"}, ...[first, second].map((of, side) => comparedText(of, aligned, side, numbers))),
    section("Answers", scrolling("the answers beside each other", answersTable(first, second))),
    section("Words beside each other", ...wordNodes(first, second, aligned, more)),
  ];
}

/** The places of the words of one side that the other lacks. */
function wordsAlone(aligned, side) {
  return aligned.filter(({at, same}) => !same && at[side] >= 0).map(({at}) => at[side]);
}

/** What was removed and added, in words. */
function changedWords(sides, aligned) {
  const parts = sides.map(({header}, side) => {
    const alone = wordsAlone(aligned, side);
    return alone.length ? `${["removed", "added"][side]}: ${quotedWords(header, alone)}` : "";
  });
  return parts.filter(Boolean).join("; ") || "No word differs.";
}

/** One text, coloured; words that the other lacks are marked as deleted or inserted. */
function comparedText({explanation, attribution, header}, aligned, side, numbers) {
  const alone = new Set(wordsAlone(aligned, side));
  const words = new WordsOfText(explanation, (word) => (alone.has(word) ? ["del", "ins"][side] : "span"));
  words.mark({attribution, numbers});
  return element("div", {}, element("h2", {text: `${["First", "Second"][side]}: ${answerSentence(header)}`}), words.element);
}

function answersTable(first, second) {
  const [one, two] = [first.header, second.header];
  const numbers = (title, was, is, decimals) => (
    [title, plainNumber(was, decimals), plainNumber(is, decimals), signedNumber(is - was, decimals)]
  );
  const verdict = ({explanation, attribution}) => (
    explanation.evidence.get(attribution.method)?.verdict.toLowerCase().replaceAll("_", " ") ?? "none"
  );
  const decided = ({prediction}) => (prediction.abstain ? "yes" : "no");
  const rows = [
    ...one.prediction.scores.map(({label, score}, place) => (
      numbers(`probability of ${visibleText(label)}`, score, two.prediction.scores[place].score, 4)
    )),
    numbers(explainedLogit(one).replace(/^the /u, ""), one.logit, two.logit, 3),
    numbers("tokens", one.tokens.length, two.tokens.length, 0),
    ["undecided", decided(one), decided(two), ""],
    ["evidence", verdict(first), verdict(second), ""],
  ];
  const form = {heads: ["", "first", "second", "difference"], numeric: [1, 2, 3]};
  return tableNode(form, rows.map(([title, ...cells]) => tableRow(title, cells)));
}

/** The words of both texts in a table, the largest change of a value first. */
function wordNodes(first, second, aligned, more) {
  const value = ({attribution}, place) => (place < 0 ? 0 : attribution.words[place]);
  const changes = aligned.map(({at}) => value(second, at[1]) - value(first, at[0]));
  const error = ({attribution}, place) => (place < 0 ? 0 : attribution.errors[place]);
  const errors = aligned.map(({at}) => Math.hypot(error(first, at[0]), error(second, at[1])));
  const order = largestFirst(changes);
  const [hues, dark] = [directionHues(first.header), isDark()];
  const cells = ({header, attribution}, place, tag) => {
    if (place < 0) return [element("td"), element("td")];
    const word = element("bdi", {class: "text-table-word", text: shownWord(header.words[place].text)});
    return [element("td", {}, element(tag, {}, word)), numberCell(signedNumber(attribution.words[place], 3))];
  };
  const rows = order.slice(0, more.of(order.length)).map((place) => {
    const {at: [one, two], same} = aligned[place];
    return element(
      "tr",
      {},
      ...cells(first, one, same ? "span" : "del"),
      ...cells(second, two, same ? "span" : "ins"),
      numberCell(signedNumber(changes[place], 3)),
      element("td", {}, valueBar(changes[place], hues, {dark, shown: told(changes[place], errors[place])})),
    );
  });
  const {towards, against} = directionNames(first.header);
  const heads = ["first", "logits", "second", "logits", "difference", `${against} | ${towards}`];
  const caption = `${methodSentence(second.attribution)}; largest difference first`;
  const table = tableNode({caption, heads, numeric: [1, 3, 4]}, rows);
  return [scrolling("words beside each other", table), more.element, element("p", {class: "note", text: COMPARE_NOTE})];
}
