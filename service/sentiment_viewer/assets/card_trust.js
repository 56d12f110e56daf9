// The scorecard's section on trust: what the bundle's maker measured of each way of ranking words, as a picture, a table and in words.
import {ForestPlot} from "./card_forest.js";
import {element} from "./dom.js";
import {redrawn} from "./redrawn.js";
import {numberCell, scrolling, tableNode, tableRow} from "./tables.js";
import {signedNumber, visibleText, wholeNumber} from "./wording.js";

const TRUST_KINDS = [
  ["METHOD_KIND_ATTRIBUTION", "attribution", "Attributions"],
  ["METHOD_KIND_ATTENTION", "attention", "Attention as a ranking"],
  ["METHOD_KIND_BASELINE", "baseline", "Baselines"],
];
const TRUST_ERASED = {
  attention_mask: "words taken out of the attention mask",
  mask_token: "words replaced by [MASK]",
  deletion: "words deleted",
};
const TRUST_SHORT = {attention_mask: "attention mask", mask_token: "[MASK]", deletion: "deletion"};
const TRUST_MEANS = {
  attention_last_cls: "last layer, from the token that is classified",
  attention_mean_cls: "all layers, from the token that is classified",
  rollout: "attention multiplied through all layers",
  rollout_value_norms: "the same, weighed by norms of values",
  rollout_gradient: "the same, weighed by gradients",
  uniform: "all words alike",
  position_first: "first words first",
  position_last: "last words first",
  inverse_frequency: "rare words first",
  lexicon: "words that go with the label elsewhere",
};

/** Methods by kind, the best of each first: [{kind, title, methods}]. Kinds without one are left out. */
export function trustGroups(trust) {
  const best = (method) => method.over_random[0]?.mean ?? 0;
  const groups = TRUST_KINDS.map(([name, kind, title]) => (
    {kind, title, methods: trust.filter((method) => method.kind === name).sort((one, other) => best(other) - best(one))}
  ));
  return groups.filter(({methods}) => methods.length);
}

/** What was measured, in three sentences or four; `shown` is the method that the text view shows. */
function trustSentences({explanation_trust: trust, explanation_study: study}, shown) {
  const ways = study.operators.map((operator) => TRUST_ERASED[operator] ?? visibleText(operator));
  const texts = `${wholeNumber(study.texts)} texts of ${visibleText(study.dataset)}, of up to ${wholeNumber(study.words_max)} words`;
  const where = `Measured by the bundle's maker on ${texts}`;
  const measured = `${where}: how much more of the answer's probability is lost without the words that a method ranks first than without `
    + `as many words in random order (${ways.join("; ")}). A method is better than random only where its whole interval of 95 % is above 0 `
    + "in every way.";
  return [measured, ...(shown ? trustOfShown(trust.find(({method}) => method === shown), shown) : [])];
}

/** In a sentence, whether the words that a method ranks first move the answer. */
export function trustShort({method, better_than_random: better}) {
  const found = better ? "move the answer more than random words, in the mean" : "were not shown to move the answer more than random words";
  return `Over the texts that its maker studied, the words that ${visibleText(method)} ranks first ${found}.`;
}

function trustOfShown(found, shown) {
  const name = `The text view shows ${visibleText(shown)}.`;
  if (!found) return [`${name} It was not measured; its evidence on each text is all that is known.`];
  const general = found.better_than_random
    ? "In the mean over these texts, the words it ranks first did move the answer more than random words."
    : "Over these texts it was not shown that the words it ranks first move the answer more than random words: do not rely on it.";
  if (!found.tested) return [`${name} ${general}`];
  const share = trustShare(found);
  const alone = `Of ${wholeNumber(found.tested)} texts that could tell, its evidence called it better than random on ${share}; on the `
    + "others the reason that it gives may be chance. The text view says of each text which it is.";
  return [`${name} ${general}`, alone];
}

/** The section's content over a model that has a study: {nodes, update(shown), drawing(shown)}. */
export function trustSection(model) {
  const groups = trustGroups(model.explanation_trust);
  const operators = model.explanation_study.operators;
  const plot = new ForestPlot(groups, operators.map((name) => ({name, said: TRUST_ERASED[name] ?? visibleText(name)})));
  const words = element("div", {class: "card-trust-words"});
  const table = scrolling("measured trust");
  const [drawWords, drawTable] = [redrawn(words), redrawn(table)];
  const update = (shown) => {
    drawWords([shown], () => trustSentences(model, shown).map((text) => element("p", {text})));
    drawTable([shown], () => [trustTable(groups, operators, shown)]);
    plot.update(shown);
  };
  return {nodes: [words, plot.element, table], update, drawing: (shown) => plot.drawing(shown)};
}

function trustTable(groups, operators, shown) {
  const ways = operators.map((name) => `over random, ${TRUST_SHORT[name] ?? visibleText(name)}`);
  const heads = ["method", "kind", ...ways, "better than random", "texts where its evidence says so", "cost of a text"];
  const caption = "Over random: in probability, with its interval of 95 %. Rows are forward passes; times are the maker's, on one core.";
  const rows = groups.flatMap(({kind, methods}) => methods.map((method) => trustRow(method, kind, shown)));
  return tableNode({class: "card-trust", caption, heads, numeric: heads.map((_, column) => column).slice(2)}, rows);
}

function trustRow(found, kind, shown) {
  const means = TRUST_MEANS[found.method];
  const isShown = found.method === shown;
  const noted = means || isShown ? trustNote(isShown ? "shown in the text view" : means) : "";
  const over = found.over_random.map(({mean, low, high}) => {
    const interval = trustNote(`${signedNumber(low, 3)} to ${signedNumber(high, 3)}`);
    return numberCell(element("span", {text: signedNumber(mean, 3)}), interval);
  });
  const cost = numberCell(element("span", {text: `${wholeNumber(found.rows)} rows`}), trustNote(trustTime(found)));
  const evidence = found.tested ? `${trustShare(found)} of ${wholeNumber(found.tested)}` : "";
  const cells = [element("td", {text: kind}), ...over, found.better_than_random ? "yes" : "no", evidence, cost];
  const row = tableRow([element("span", {text: visibleText(found.method)}), noted], cells);
  row.classList.toggle("card-shown", isShown);
  return row;
}

function trustShare({better_of_tested: share}) {
  return `${(100 * share).toFixed(1)} %`;
}

function trustTime({milliseconds}) {
  return `${milliseconds < 10 ? milliseconds.toFixed(1) : wholeNumber(milliseconds)} ms`;
}

function trustNote(text) {
  return element("span", {class: "note", text});
}
