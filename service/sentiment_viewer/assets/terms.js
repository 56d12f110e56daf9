// What the terms of each view mean, a line each, shown on demand.
import {element} from "./dom.js";
import {METHODS} from "./methods.js";
import {redrawn} from "./redrawn.js";

// Those by orders of words first: they are the default of most texts.
const BY_METHOD = Object.values(METHODS).sort((one, other) => (other.unit === "orders") - (one.unit === "orders"));
const TERMS = {
  ...Object.fromEntries(BY_METHOD.map(({term, meaning}) => [term, meaning])),
  "probability": "How often answers with this number are right: the model's score after calibration, measured on texts with known labels.",
  "undecided": "The model abstains: its highest probability is below the bundle's threshold. Also: abstain.",
  "mixed": "The text praises and blames, by the model's own output for it or by its sentences. It is not a label.",
  "answer to a sentence": "The model's answer to the sentence alone; words of other sentences do not count.",
  "target": "What the text speaks of, such as the service. Its answer is the sentiment towards it, by the text around its first mention.",
  "token": "A piece of a word, or a special sign, that the model reads as one number.",
  "truncated": "The text has more tokens than the model reads; a part was not read.",
  "logit": "The model's raw score of a label, before it becomes a probability. One more multiplies the label's odds by about 2.7.",
  "attribution": "How much each word moved the logit of the explained label; of three labels or more, how far that lies above another label's.",
  "residual": "The sum of the values less what they should sum to; 0 is perfect.",
  "evidence": "A test: does leaving out the words ranked first move this answer more than leaving out random words?",
  "p": "The share of random sets of words that do as well as the words ranked first; small is good.",
  "counterfactual": "A small set of words without which the answer is another.",
  "attention": "How a token divides its look among all tokens; the shares sum to 1. It is not an attribution.",
  "layer": "One of the model's steps. Each rewrites all tokens by looking at the others.",
  "head": "One of several attentions that a layer computes side by side, each with weights of its own.",
  "weight": "How strongly one token looks at another, from 0 to 1.",
  "effect of a head": "How far the explained logit moves without this head's choice of where to look.",
  "pattern": "A name for what a head does by position or by sign, such as looking at the token before.",
  "special token": "One that the tokenizer adds, such as [CLS] at the start and [SEP] at the end.",
  "query, key": "Two vectors of each token in a head: what it looks for, and what it offers to those that look.",
  "q \u00b7 k": "The sum of the products of query and key: the larger, the more of the look goes there.",
  "scaled": "q \u00b7 k divided by the square root of the head's width.",
  "softmax": "Turns the scores of a row into shares that sum to 1.",
  "embedding": "The vector that a token starts with: the sum of its word piece's, its segment's and its position's.",
  "principal component": "A direction in which the golden words of a layer differ most; the second is at right angles to the first.",
  "cosine": "How alike two vectors point: 1 the same way, 0 unrelated, \u22121 opposite ways. Their lengths do not count.",
  "golden word": "A word of the golden texts, the reference texts that a bundle must answer rightly before it serves.",
  "accuracy": "The share of right answers on texts with known labels.",
  "macro F1": "The mean over the labels of F1, which is high only where few are missed and few are wrong.",
  "calibration error": "The mean distance of stated probabilities from the share of right answers (ECE).",
  "temperature": "What logits are divided by, so that the probabilities can be relied on.",
  "over random": "Probability lost without a method's first words, less that without random words: above 0 the method finds what matters.",
  "rollout": "Attention multiplied through all layers, as a ranking of words. Measured for comparison; it is not an attribution.",
  "baseline": "A ranking that ignores the model, such as by position: a method should beat it.",
  "digest": "SHA-256 of the bundle's manifest: the same digest, the same answers.",
  "added, removed": "Words that only the second text has, and words that only the first has, by the shortest way from one to the other.",
  "difference": "The second text's number less the first's.",
  "sent again": "The server refused the text because it was busy; the page waited as long as it said and sent it again.",
};
const READ = ["probability", "undecided", "token", "truncated"];
const PARTS = ["mixed", "answer to a sentence", "target"];
const METHOD_TERMS = BY_METHOD.map(({term}) => term);
const LOOKS = ["attention", "layer", "head", "weight", "effect of a head", "pattern", "special token"];
/** The terms of each view. */
const TERMS_OF = {
  text: [...READ, ...PARTS, "logit", "attribution", ...METHOD_TERMS, "residual", "evidence", "p", "counterfactual"],
  heads: LOOKS,
  model: LOOKS,
  neuron: ["layer", "head", "query, key", "q \u00b7 k", "scaled", "softmax", "attention", "embedding", "logit"],
  geometry: ["embedding", "layer", "principal component", "cosine", "golden word", "attribution", "logit"],
  compare: [...READ, "added, removed", "difference", "logit", "attribution", ...METHOD_TERMS, "evidence"],
  file: [...READ, ...PARTS, "sent again", "logit", "attribution", "evidence"],
  card: [
    "accuracy", "macro F1", "calibration error", "temperature", "undecided", "logit", ...METHOD_TERMS, "over random", "evidence", "rollout",
    "baseline", "digest",
  ],
};

/** The button that opens the list of terms of the view that is shown, and the list: {button, list, update(view)}. State: terms. */
export function termsOfView({state}) {
  const list = element("dl", {id: "terms-list", class: "terms note"});
  const set = (open) => state.set({terms: open ? "1" : null});
  const button = element("button", {
    type: "button", class: "button quiet terms-button", text: "Terms", aria: {controls: list.id},
    on: {
      click: () => set(list.hidden),
      keydown: ({key}) => key === "Escape" && set(false),
    },
  });
  const draw = redrawn(list);
  const update = (view) => {
    list.hidden = state.get("terms") !== "1";
    button.setAttribute("aria-expanded", String(!list.hidden));
    if (list.hidden) return;
    draw([view], () => TERMS_OF[view].map((term) => (
      element("div", {}, element("dt", {text: term}), element("dd", {text: TERMS[term]}))
    )));
  };
  return {button, list, update};
}
