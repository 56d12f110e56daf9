// An explanation, read from the messages of the server's stream (proto JSON with proto field names).
import {AttentionMaps} from "./attention.js";
import {marked, told} from "./wording.js";

// By key, so that the parts of a view from several messages are joined.
const NEURON_ARRAYS = ["key", "product", "dot", "scaled", "bias", "score", "softmax", "attention"];
const NOT_FINITE = ["NaN", "Infinity", "-Infinity"];

/** The answers come from another model than before. */
export class ModelChanged extends Error {}

/** What is known about an answer so far. Attention is kept encoded, a byte per weight; see the fields in the constructor. */
export class Explanation {
  constructor(text, pair) {
    this.texts = [text, pair ?? ""];
    this.header = null;
    this.attributions = new Map();
    // The method that the server chose if none was requested: for a long text it may differ from the model's default.
    this.byDefault = "";
    this.evidence = new Map();
    // The sentence that says an attribution, by its method.
    this.reasons = new Map();
    // The words that a search found to decide the answer, by the method that it began with.
    this.deciding = new Map();
    // The method of the latest evidence, by stream.
    this.testedLast = new Map();
    this.counterfactuals = null;
    this.without = new Map();
    this.heads = null;
    this.maps = null;
    this.neurons = new Map();
    this.geometry = null;
    this.noted = new Map();
  }

  /** What was left out or shortened, and why: a sentence each. */
  get notes() {
    return [...new Set([...this.noted.values()].flat())];
  }

  /** A stream of a part begins: forget notes and incomplete maps of an earlier stream of it. */
  begin(part) {
    this.noted.delete(part);
    if (part.startsWith("attention")) this.maps = null;
  }

  /**
   * Take the next message of a stream, in order; several streams may describe one text at a time.
   *
   * @param {string} source which stream, as in `begin`.
   * @throws {ModelChanged} it comes from another model than earlier messages.
   * @throws {Error} it contradicts earlier messages.
   */
  take(message, source = "") {
    if (message.header) this.#takeHeader(message.header);
    else if (!this.header) throw new Error("an explanation came without its header");
    else if (message.tile) this.#takeTile(message.tile, source);
    else if (message.attribution) this.#takeAttribution(message.attribution, source);
    else if (message.evidence) this.#takeEvidence(message.evidence, source);
    else if (message.reason) this.reasons.set(message.reason.method, message.reason.text);
    else if (message.deciding) this.deciding.set(this.testedLast.get(source), this.#tested(message.deciding));
    else if (message.counterfactual) this.#takeCounterfactual(message.counterfactual);
    else if (message.heads) this.heads = {allUniform: null, ...readFields(message.heads), gated: Float32Array.from(message.heads.gated)};
    else if (message.neuron) this.#takeNeuron(message.neuron);
    else if (message.geometry) this.#takeGeometry(message.geometry);
    else if (message.summary) this.#note(source, message.summary.notes ?? []);
  }

  /** The key of words in `without`. */
  static keyOf(words) {
    return [...words].sort((one, other) => one - other).join(",");
  }

  #takeHeader(part) {
    if (this.header) {
      if (this.header.model.digest !== part.model.digest) throw new ModelChanged("The model of the server has changed.");
      return;
    }
    const placed = (unit) => {
      const [start, end] = [unit.span?.utf16_start ?? 0, unit.span?.utf16_end ?? 0];
      return {...unit, start, end, pair: Boolean(unit.pair), text: this.texts[unit.pair ? 1 : 0].slice(start, end)};
    };
    this.header = {
      prediction: {...part.prediction, scores: part.prediction.scores ?? []},
      model: part.model,
      label: part.label,
      // null: the logit of the label alone is explained.
      against: part.against || null,
      logit: Number(part.logit),
      logitError: part.logit_error === undefined ? null : Number(part.logit_error),
      labelsAgree: part.labels_agree,
      // null: as prediction, or effort adaptive reads this text in full.
      adaptive: part.adaptive ?? null,
      // Where the text names the target that is explained; null: the answer is to the whole text.
      mention: part.mention ? placed({span: part.mention}) : null,
      truncated: part.truncated,
      tokens: part.tokens.map(placed),
      words: part.words.map(placed),
      unseen: (part.unseen ?? []).map(placed),
    };
  }

  #takeTile(part, source) {
    if (part.aggregation !== "ATTENTION_AGGREGATION_UNSPECIFIED") {
      this.#note(source, ["Its attention maps are combined ones; this page shows maps of each layer and head."]);
      return;
    }
    this.maps ??= new AttentionMaps(this.header.tokens, this.header.words);
    this.maps.take(part);
  }

  #takeAttribution(part, source) {
    if (source === "attribution") this.byDefault = part.method;
    const before = this.attributions.get(part.method);
    const [token, segment, position] = ["token", "segment", "position"].map((name) => Float32Array.from(part[`${name}_embedding`] ?? []));
    if (before && source === "attribution_split") {
      // Requested only for its split: the shown values stay, with their evidence.
      before.byEmbedding = {token, segment, position};
      return;
    }
    const words = Float32Array.from(part.words, ({value}) => value);
    // NaN: not known.
    const errors = Float32Array.from(part.words, ({standard_error: error}) => error);
    const estimate = part.estimate ?? null;
    const sentences = (part.sentences ?? []).map((one) => this.#sentence(one));
    this.attributions.set(part.method, {
      completenessResidual: null,
      ...readFields(part),
      // Not null: a better attribution by this method follows, and all has come in about left_s seconds.
      estimate,
      words,
      errors,
      sentences,
      ...marked(words, errors, estimate ? sentences.map((one) => ({...one, wordsValued: false})) : sentences),
      byEmbedding: token.length ? {token, segment, position} : (before?.byEmbedding ?? null),
    });
  }

  /** A sentence with its words by index. `told`: 0 if its value cannot be told from zero. */
  #sentence({span, pair = false, value, standard_error: error = NaN, words_valued: wordsValued = false}) {
    const [first, end] = [span.utf16_start ?? 0, span.utf16_end];
    const own = (word) => word.pair === pair && word.start >= first && word.end <= end;
    const words = [...this.header.words.keys()].filter((index) => own(this.header.words[index]));
    return {text: this.texts[pair ? 1 : 0].slice(first, end), value, error, told: told(value, error), wordsValued, words};
  }

  #takeEvidence(part, source) {
    this.testedLast.set(source, part.method);
    this.evidence.set(part.method, {agreement: null, ...this.#tested(part)});
  }

  #tested(part) {
    return {...readFields(part), label: part.label, verdict: part.verdict.replace("VERDICT_", "")};
  }

  #takeCounterfactual(part) {
    // A label may be called NaN.
    const found = {...readFields(part), label: part.label, kind: part.kind.replace("COUNTERFACTUAL_KIND_", "").toLowerCase()};
    if (found.kind === "asked") this.without.set(Explanation.keyOf(found.words), found);
    else this.counterfactuals = {flip: null, keep: null, ...this.counterfactuals, [found.kind]: found};
  }

  #takeNeuron(part) {
    const key = [part.layer, part.head, part.token].join(",");
    const before = part.key_start ? this.neurons.get(key) : null;
    const taken = {
      ...readFields(part),
      query: Float32Array.from(part.query),
      width: part.query.length,
      keyStart: before?.keyStart ?? part.key_start,
      keys: (before?.keys ?? 0) + part.keys,
    };
    for (const name of NEURON_ARRAYS) taken[name] = Float32Array.from([...(before?.[name] ?? []), ...part[name]]);
    this.neurons.set(key, taken);
  }

  #takeGeometry(part) {
    this.geometry ??= [];
    this.geometry[part.layer] = {
      ...readFields(part),
      points: Float32Array.from(part.points),
      goldenPoints: Float32Array.from(part.golden_points),
      variance: Float32Array.from(part.variance),
      cosines: Float32Array.from(part.cosines),
    };
  }

  #note(source, notes) {
    this.noted.set(source, [...(this.noted.get(source) ?? []), ...notes]);
  }
}

/** The fields of a message by the names that they have here. Proto JSON writes the numbers that JSON lacks as texts. */
function readFields(part) {
  const name = (field) => field.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
  const value = (given) => (NOT_FINITE.includes(given) ? Number(given) : given);
  return Object.fromEntries(Object.entries(part).map(([field, given]) => [name(field), value(given)]));
}
