// The requests about the current text, and what has arrived. Views request data only here.
import {namesIn} from "./answer_parts.js";
import {Explanation, ModelChanged} from "./explanation.js";
import {METHODS} from "./methods.js";
import {askAnswer, askExplanation, askModel, askModels, sendFeedback} from "./server.js";

// A change of these is a new request.
const QUESTION_KEYS = ["text", "pair", "model", "label", "against", "truncation"];
// A change of these is a new request for the answer alone.
const PART_KEYS = ["sentences", "targets"];
const NOT_SAVED = "This saved page does not hold it; a page from a running server can ask for it";
// The Python option that requests a part for a saved page.
const SAVED_BY = {
  attention: "attention=AttentionOptions()",
  heads: "heads=True",
  counterfactuals: "counterfactuals=True",
  neuron: "neuron=NeuronOptions(layer, head, token)",
  geometry: "geometry=True",
  attribution_split: "by_embedding=True",
};
// A server takes seconds to load its model.
const START_TRIES = 40;
const START_AGAIN_MS = 3000;
const SPLIT_METHODS = Object.keys(METHODS).filter((name) => METHODS[name].splitNote);

/** The ExplainOptions that request each part of an explanation. */
const PART_OPTIONS = {
  attribution: (method) => ({methods: method ? [method] : [], estimates: true}),
  attribution_split: () => ({methods: SPLIT_METHODS, attribution: {by_embedding: true}, evidence: false}),
  attention: () => ({attention: {encoding: "ATTENTION_ENCODING_U8"}}),
  heads: () => ({heads: true}),
  counterfactuals: (method) => ({counterfactuals: true, evidence: false, methods: method ? [method] : []}),
  neuron: (place) => ({neuron: place}),
  geometry: () => ({geometry: true}),
  without: (words) => ({without: [{words}]}),
};

/** What is known about the text in `state`. Fires "change", and "failed" with the reason. Sends requests only if `live`. */
export class Session extends EventTarget {
  /** `example`: the text that is answered where the state has none. */
  constructor(state, saved, example = "") {
    super();
    this.state = state;
    this.example = example;
    this.live = saved === null;
    this.models = [];
    this.model = null;
    this.answer = null;
    this.explanation = null;
    this.text = "";
    this.pair = null;
    // What the explained answer is towards; "": the whole text.
    this.target = "";
    this.statuses = new Map();
    this.asking = this.answering = new AbortController();
    this.stale = false;
    state.addEventListener("change", ({detail}) => {
      const changed = (keys) => this.live && detail.some((key) => keys.includes(key));
      // The example waits for a view of a text.
      const waits = changed(["view"]) && this.models.length && !this.text;
      if (changed(QUESTION_KEYS) || waits || (this.live && this.#targetAsked() !== this.target)) {
        this.submit();
        return;
      }
      if (changed(PART_KEYS)) this.#answerAnew();
    });
    if (saved) this.#show(saved);
  }

  /** Request the models, and answer the text in the address, or the example. Retries for a while if the server is not ready. */
  async start(tries = START_TRIES) {
    if (!this.live) return;
    clearTimeout(this.starting);
    this.stale = false;
    await this.#follow("models", async (signal) => {
      this.models = await askModels(signal);
    }, new AbortController().signal);
    if (this.models.length) this.submit();
    else if (tries > 1) this.starting = setTimeout(() => this.start(tries - 1), START_AGAIN_MS);
  }

  /** Answer the state's text; cancels requests about another text. The view that is open asks for what it shows of the explanation. */
  submit() {
    this.asking.abort();
    this.answering.abort();
    this.asking = new AbortController();
    const {state} = this;
    this.text = state.get("text") || (state.get("view") === "file" ? "" : this.example);
    this.pair = (state.get("text") && state.get("pair")) || null;
    this.answer = this.explanation = null;
    const models = this.statuses.get("models");
    this.statuses = new Map(models ? [["models", models]] : []);
    const [name, version] = state.get("model").split("/");
    const known = this.models.find((model) => model.id.name === name && (!version || String(model.id.version) === version));
    const chosen = state.get("model") ? known : this.models[0];
    if (chosen?.id.digest !== this.model?.id.digest) this.model = chosen ?? null;
    this.target = this.#targetAsked();
    if (this.text) {
      this.explanation = new Explanation(this.text, this.pair);
      this.ask("answer");
    }
    this.#changed();
  }

  /** The attribution method that the state chooses; "" is the model's default. */
  method() {
    return this.state.get("method");
  }

  /** The name of the method that is shown, where it is known. */
  shownMethod() {
    const here = [...(this.explanation?.attributions.keys() ?? [])];
    const byDefault = this.live && (this.explanation?.byDefault || this.model?.explanation_methods?.[0]);
    return this.method() || byDefault || here[0] || "";
  }

  /** The attribution by the method that is shown, which may be an estimate, or null. */
  shownAttribution() {
    return this.explanation?.attributions.get(this.shownMethod()) ?? null;
  }

  /**
   * Request a part of the explanation, unless it is there, requested or failed.
   *
   * @param {string} part see PART_OPTIONS, and answer, models, card.
   * @param {*} detail a method, a place or words, as in PART_OPTIONS.
   * @param {{again: boolean}} how again: also request a part that failed or was left out.
   */
  ask(part, detail = "", {again = false} = {}) {
    if (part === "models" || (again && this.stale)) {
      if (again) this.start();
      return;
    }
    const {state} = this.status(part, detail);
    if (!this.live || (!this.text && part !== "card") || state === "asking" || (state !== "none" && !again)) return;
    const work = {
      answer: async (signal) => {
        this.answer = await askAnswer(this.#question({label: undefined, ...this.parts()}), signal);
      },
      card: async (signal) => {
        if (this.model) this.model = await askModel(this.model.id.name, this.model.id.version, signal);
      },
    }[part];
    const {signal} = part === "answer" ? (this.answering = new AbortController()) : this.asking;
    this.#follow(statusKey(part, detail), work ?? ((asked) => this.#explain(part, detail, asked)), signal);
  }

  /** The status of a part: {state: "none" | "asking" | "here" | "failed", message, final}; final: a retry cannot help. */
  status(part, detail = "") {
    const known = this.statuses.get(statusKey(part, detail));
    if (known) return known;
    if (this.live) return {state: "none", message: ""};
    return this.#holds(part, detail) ? {state: "here", message: ""} : {state: "none", message: notSaved(part)};
  }

  /**
   * What is asked for beside the answer to the whole text, as in a request: {sentences, targets}, without what is not asked for. Nothing
   * of a pair, and no targets of a model that answers none.
   */
  parts() {
    const targets = this.model?.targets ? namesIn(this.state.get("targets")) : [];
    if (this.pair) return {};
    return {...(this.state.get("sentences") === "1" && {sentences: true}), ...(targets.length > 0 && {targets})};
  }

  /**
   * What answers the rows of a file, {text, targets}, by the model and truncation that are chosen now, behind the texts that somebody
   * waits for. `sentences`: whether to answer each.
   */
  classifier(sentences) {
    const question = {...this.#question({label: undefined, text_pair: undefined}), priority: "PRIORITY_BULK"};
    return ({text, targets}, signal) => askAnswer({...question, text, sentences, targets}, signal);
  }

  /** What explains the rows of a file, {text}, by the model and truncation that are chosen now and a method: gives an Explanation. */
  explainer(method) {
    const question = this.#question({label: undefined, text_pair: undefined, options: {methods: method ? [method] : []}});
    return async ({text}, signal) => {
      const explanation = new Explanation(text, null);
      for await (const message of askExplanation({...question, text}, signal)) explanation.take(message);
      return explanation;
    };
  }

  /** Whether right labels can be told: the server, which says so in the page, keeps a journal. */
  get takesFeedback() {
    return this.live && document.documentElement.dataset.feedback === "yes";
  }

  /**
   * Tell the right label of the answer that is shown, or null: no label is right. Another text does not cancel it. The journal may not
   * have the answer (setting journal_share): then it gets the text.
   *
   * @throws {ServerError} the label was not taken.
   */
  async feedback(label) {
    const {answer, text, pair} = this;
    const {signal} = new AbortController();
    const {name, version} = answer.model;
    const told = label === null ? {none: true} : {label};
    try {
      return await sendFeedback({request_id: answer.request_id, ...told}, signal);
    } catch (error) {
      if (error.status !== "NOT_FOUND") throw error;
      return sendFeedback({text, text_pair: pair ?? undefined, model: `${name}/${version}`, ...told}, signal);
    }
  }

  async #explain(part, detail, signal) {
    const {explanation} = this;
    const against = this.state.get("against") || undefined;
    const request = this.#question({target: this.target || undefined, options: {...PART_OPTIONS[part](detail), against}});
    const source = statusKey(part, detail);
    explanation.begin(source);
    for await (const message of askExplanation(request, signal)) {
      if (signal.aborted) return;
      explanation.take(message, source);
      this.#changed();
    }
  }

  /** Do something, and record its status by its key. Cancelled actions record nothing. */
  async #follow(key, work, signal = this.asking.signal) {
    this.statuses.set(key, {state: "asking", message: ""});
    this.#changed();
    try {
      await work(signal);
      if (!signal.aborted) this.statuses.set(key, {state: "here", message: ""});
    } catch (error) {
      if (!signal.aborted) {
        this.stale ||= error instanceof ModelChanged;
        this.statuses.set(key, {state: "failed", message: error.message, final: Boolean(error.final)});
        this.dispatchEvent(new CustomEvent("failed", {detail: error.message}));
      }
    }
    if (!signal.aborted) this.#changed();
  }

  #question(more) {
    const {state} = this;
    const truncation = state.get("truncation");
    return {
      text: this.text,
      text_pair: this.pair ?? undefined,
      model: state.get("model") || undefined,
      label: state.get("label") || undefined,
      truncation: truncation ? `TRUNCATION_${truncation.toUpperCase()}` : undefined,
      ...more,
    };
  }

  /** The target that the state names to be explained, if its answer is asked for; else "". */
  #targetAsked() {
    const name = this.state.get("about");
    return this.parts().targets?.includes(name) ? name : "";
  }

  /** Ask for the answer with other parts; the explanation stays. */
  #answerAnew() {
    this.answering.abort();
    this.answer = null;
    this.statuses.delete("answer");
    this.ask("answer");
    this.#changed();
  }

  /** Read a saved page's explanation. */
  #show({page, messages}) {
    this.text = page.text;
    this.pair = page.text_pair ?? null;
    this.target = page.target ?? "";
    this.model = page.model ?? null;
    this.answer = page.answer ?? null;
    this.explanation = new Explanation(this.text, this.pair);
    for (const message of messages) this.explanation.take(message);
  }

  #holds(part, detail) {
    const {explanation, model} = this;
    if (part === "card") return Boolean(model);
    if (part === "answer" || part === "models") return true;
    if (part === "attribution") return detail ? explanation.attributions.has(detail) : explanation.attributions.size > 0;
    if (part === "attribution_split") return [...explanation.attributions.values()].some((found) => found.byEmbedding);
    if (part === "neuron") return explanation.neurons.has([detail.layer, detail.head, detail.token].join(","));
    if (part === "without") return explanation.without.has(Explanation.keyOf(detail));
    return Boolean(part === "attention" ? explanation.maps : explanation[part]);
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

function notSaved(part) {
  return SAVED_BY[part] ? `${NOT_SAVED}, and ExplainOptions(${SAVED_BY[part]}) saves it.` : `${NOT_SAVED}.`;
}

function statusKey(part, detail) {
  return detail === "" ? part : `${part} ${JSON.stringify(detail)}`;
}
