// What an attribution is worth on this text, and its words by size.
import {element} from "./dom.js";
import {redrawn} from "./redrawn.js";
import {statusNote} from "./status_note.js";
import {VALUE_FULL, isDark, valueColour} from "./theme.js";
import {
  WORDS_FIRST, attributionTotals, directionNames, evidenceNumbers, evidenceSentence, methodSentence, shownWord, signedNumber, wholeNumber,
  wordsBySize,
} from "./wording.js";

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
    box.hidden = !header;
    if (header) draw([header, evidence, status.state, method], () => evidenceNodes(session, evidence, status.state));
  };
  return {element: box, update};
}

function evidenceNodes(session, evidence, state) {
  if (!evidence) {
    const note = state === "here" ? element("p", {class: "note", text: "There is no evidence for this method; the notes say why."}) : null;
    return [note ?? statusNote(session, "attribution", session.method(), "Evidence")];
  }
  const {words} = session.explanation.header;
  const rows = evidenceNumbers(evidence).map(({title, value, remark}) => element(
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
      `: ${evidenceSentence(evidence, words.length)}`,
    ),
    tableIn("the evidence in numbers", element("table", {}, element("caption", {text: of}), element("tbody", {}, ...rows))),
  ];
}

/** The words of the method that is shown, the largest values first: {element, update()}. */
export function textTable({session}) {
  const body = element("div");
  const draw = redrawn(body);
  const box = element("section", {class: "text-section"}, element("h2", {text: "Words by size"}), body);
  let all = false;
  const more = element("button", {type: "button", class: "button quiet", on: {click: () => {
    all = !all;
    update();
  }}});
  const update = () => {
    const header = session.explanation?.header ?? null;
    const attribution = session.explanation?.attributions.get(session.shownMethod()) ?? null;
    box.hidden = !header || !attribution;
    if (box.hidden) return;
    const count = header.words.length;
    more.hidden = count <= WORDS_FIRST;
    more.textContent = all ? `the ${WORDS_FIRST} largest only` : `all ${wholeNumber(count)} words`;
    draw([attribution, all, isDark()], () => [tableIn("words by size", wordTable(header, attribution, all)), more]);
  };
  return {element: box, update};
}

function wordTable(header, attribution, all) {
  const sampled = attribution.errors.some((error) => error !== 0);
  const order = wordsBySize(attribution.words);
  const shown = all ? order.length : WORDS_FIRST;
  const {towards, against} = directionNames(header);
  const dark = isDark();
  const row = ({title, value, error, remark, bar}) => element(
    "tr",
    {},
    element("th", {scope: "row"}, element("bdi", {class: "text-table-word", text: title})),
    element("td", {class: "number", text: signedNumber(value, 3)}),
    sampled ? element("td", {class: "number", text: error}) : null,
    element("td", {class: "note"}, bar ? valueBar(value, dark) : remark),
  );
  const words = order.slice(0, shown).map((index) => row({
    title: `${shownWord(header.words[index].text)}${header.words[index].pair ? " (2nd text)" : ""}`,
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

function valueBar(value, dark) {
  const share = Math.min(1, Math.abs(value) / VALUE_FULL);
  const colour = valueColour(value, dark)?.background ?? "var(--line)";
  const inner = element("span", {
    class: value < 0 ? "text-bar-against" : "text-bar-towards",
    style: {width: `${50 * share}%`, backgroundColor: colour},
  });
  return element("span", {class: Math.abs(value) > VALUE_FULL ? "text-bar beyond" : "text-bar", aria: {hidden: "true"}}, inner);
}

function tableIn(label, table) {
  return element("div", {class: "scroll", tabIndex: 0, role: "region", aria: {label}}, table);
}
