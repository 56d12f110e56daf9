// The evidence of an attribution on this text, and its words by size.
import {absentNote} from "./absent_note.js";
import {element} from "./dom.js";
import {quietButton} from "./fields.js";
import {METHODS} from "./methods.js";
import {redrawn} from "./redrawn.js";
import {directionHues} from "./label_hues.js";
import {VALUE_FULL, isDark, valueColour} from "./theme.js";
import {
  WORDS_FIRST, attributionTotals, directionNames, evidenceNumbers, evidenceSentence, evidenceWords, largestFirst, methodSentence,
  quotedWords, signedNumber, wholeNumber, wordOfText,
} from "./wording.js";

const EVIDENCE_LIMITS = "This tests whether the words ranked first matter more than chance, not whether each value is right.";

/** The verdict of the method that is shown, in words and numbers: {element, update()}. */
export function textEvidence({session}) {
  const body = element("div");
  const draw = redrawn(body);
  const box = element("section", {class: "text-section"}, element("h2", {text: "Can these values be trusted?"}), body);
  const update = () => {
    const header = session.explanation?.header ?? null;
    const method = session.shownMethod();
    const evidence = session.explanation?.evidence.get(method) ?? null;
    const status = session.status("attribution", session.method());
    // The note on the attribution covers both missing parts.
    box.hidden = !header || !session.explanation.attributions.has(method);
    const attribution = session.explanation?.attributions.get(method);
    const shown = [header, evidence, attribution, status.state, status.message];
    if (!box.hidden) draw(shown, () => evidenceNodes(session, attribution, evidence));
  };
  return {element: box, update};
}

function evidenceNodes(session, attribution, evidence) {
  if (!evidence) return [absentNote(session, "attribution", session.method(), "Evidence")];
  const {header} = session.explanation;
  const ranked = evidenceWords(header, attribution, evidence);
  const rows = evidenceNumbers(header, evidence).map(({title, value, remark}) => element(
    "tr",
    {},
    element("th", {scope: "row", text: title}),
    element("td", {class: "number", text: value}),
    element("td", {class: "note", text: remark}),
  ));
  const of = `${evidence.method}, measured on the graph that serves`;
  return [
    element(
      "p",
      {class: "text-verdict"},
      element("strong", {class: `verdict-${evidence.verdict.toLowerCase()}`, text: evidence.verdict}),
      `: ${evidenceSentence(evidence, header.words.length)}`,
    ),
    element("p", {text: `Ranked first: ${quotedWords(header, ranked)}. The table below goes by size, whichever way a word points.`}),
    element("p", {class: "note", text: EVIDENCE_LIMITS}),
    tableIn("the evidence in numbers", element("table", {}, element("caption", {text: of}), element("tbody", {}, ...rows))),
  ];
}

/** The words of the method that is shown, the largest values first: {element, update()}. */
export function textTable({session}) {
  const body = element("div");
  const draw = redrawn(body);
  const box = element("section", {class: "text-section"}, element("h2", {text: "Words by size"}), body);
  let all = false;
  const more = quietButton("", () => {
    all = !all;
    update();
  });
  const update = () => {
    const header = session.explanation?.header ?? null;
    const attribution = session.explanation?.attributions.get(session.shownMethod()) ?? null;
    box.hidden = !header || !attribution;
    if (box.hidden) return;
    const count = header.words.length;
    more.hidden = count <= WORDS_FIRST;
    more.textContent = all ? `the ${WORDS_FIRST} largest only` : `all ${wholeNumber(count)} words`;
    const sums = () => element("p", {class: "note", text: METHODS[attribution.method]?.sumNote ?? ""});
    draw([attribution, all, isDark()], () => [tableIn("words by size", wordTable(header, attribution, all)), more, sums()]);
  };
  return {element: box, update};
}

function wordTable(header, attribution, all) {
  const sampled = attribution.errors.some((error) => error > 0);
  const order = largestFirst(attribution.words);
  const shown = all ? order.length : WORDS_FIRST;
  const {towards, against} = directionNames(header);
  const [hues, dark] = [directionHues(header), isDark()];
  const row = ({title, value, error, remark, bar}) => element(
    "tr",
    {},
    element("th", {scope: "row"}, element("bdi", {class: "text-table-word", text: title})),
    element("td", {class: "number", text: signedNumber(value, 3)}),
    sampled ? element("td", {class: "number", text: error}) : null,
    element("td", {class: "note"}, bar ? valueBar(value, hues, dark) : remark),
  );
  const words = order.slice(0, shown).map((index) => row({
    title: wordOfText(header, index),
    value: attribution.words[index],
    error: errorText(attribution.errors[index]),
    bar: true,
  }));
  const totals = attributionTotals(header, attribution, order, shown).map((total) => row({...total, error: "", bar: false}));
  const heads = ["word", "logits", ...(sampled ? ["standard error"] : []), `${against} | ${towards}`].map((text, column) => (
    element("th", {scope: "col", class: ["", "number", sampled ? "number" : "", ""][column], text})
  ));
  return element(
    "table",
    {class: "text-table"},
    element("caption", {text: `${methodSentence(attribution)}; bars end at ${VALUE_FULL}, for every text alike`}),
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...words),
    element("tbody", {class: "text-totals"}, ...totals),
  );
}

function errorText(error) {
  if (Number.isNaN(error)) return "unknown";
  return error > 0 ? `\u00b1${error.toFixed(3)}` : "";
}

/** A bar from the middle to the right, or to the left where the value is negative; its end is VALUE_FULL. `hues`: of directionHues. */
export function valueBar(value, hues, dark = isDark()) {
  const share = Math.min(1, Math.abs(value) / VALUE_FULL);
  const colour = valueColour(value, hues, dark);
  const inner = element("span", {
    class: value < 0 ? "text-bar-against" : "text-bar-towards",
    data: {hue: colour?.hue ?? ""},
    style: {width: `${50 * share}%`, backgroundColor: colour?.background ?? "var(--line)"},
  });
  return element("span", {class: Math.abs(value) > VALUE_FULL ? "text-bar beyond" : "text-bar", aria: {hidden: "true"}}, inner);
}

/** A table that scrolls sideways where it is too wide. */
export function tableIn(label, table) {
  return element("div", {class: "scroll", tabIndex: 0, role: "region", aria: {label}}, table);
}
