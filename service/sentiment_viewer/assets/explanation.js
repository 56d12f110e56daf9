// An explanation, read from the messages of the server's stream (proto JSON with proto field names).
import {AttentionMaps} from "./attention.js";

// By key, so that the parts of a view from several messages are joined.
const NEURON_ARRAYS = ["key", "product", "dot", "scaled", "bias", "score", "softmax", "attention"];

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
    else if (message.evidence) this.evidence.set(message.evidence.method, readEvidence(message.evidence));
    else if (message.counterfactual) this.#takeCounterfactual(message.counterfactual);
    else if (message.heads) this.heads = readHeads(message.heads);
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
    const place = (span, pair) => {
      const [start, end] = [span?.utf16_start ?? 0, span?.utf16_end ?? 0];
      return {start, end, pair: Boolean(pair), text: this.texts[pair ? 1 : 0].slice(start, end)};
    };
    this.header = {
      prediction: {...part.prediction, scores: part.prediction.scores ?? []},
      model: part.model,
      label: part.label,
      // null: the logit of the label alone is explained.
      against: part.against || null,
      logit: readNumber(part.logit),
      logitError: part.logit_error === undefined ? null : readNumber(part.logit_error),
      labelsAgree: part.labels_agree,
      truncated: part.truncated,
      tokens: part.tokens.map((token) => ({
        ...place(token.span, token.pair),
        piece: token.piece,
        special: token.special,
        word: token.word,
        unknown: token.unknown,
      })),
      words: part.words.map((word) => ({
        ...place(word.span, word.pair),
        tokenStart: word.token_start ?? 0,
        tokenEnd: word.token_end ?? 0,
        sentence: word.sentence ?? 0,
      })),
      unseen: (part.unseen ?? []).map((unseen) => place(unseen.span, unseen.pair)),
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
    const [token, segment, position] = ["token", "segment", "position"].map((name) => readFloats(part[`${name}_embedding`] ?? []));
    if (before && token.length) {
      // Requested only for its split: the shown values stay, with their evidence.
      before.byEmbedding = {token, segment, position};
      return;
    }
    this.attributions.set(part.method, {
      method: part.method,
      words: Float32Array.from(part.words, (word) => readNumber(word.value)),
      errors: Float32Array.from(part.words, (word) => (word.standard_error === undefined ? NaN : readNumber(word.standard_error))),
      tokens: part.tokens?.length ? readFloats(part.tokens) : null,
      byEmbedding: token.length ? {token, segment, position} : (before?.byEmbedding ?? null),
      residual: part.completeness_residual === undefined ? null : readNumber(part.completeness_residual),
      specialTotal: readNumber(part.special_total),
      unknownTotal: readNumber(part.unknown_total),
      unseenTotal: readNumber(part.unseen_total),
      steps: part.steps,
      stepsAsked: part.steps_asked,
    });
  }

  #takeCounterfactual(part) {
    const found = {
      kind: part.kind.replace("COUNTERFACTUAL_KIND_", "").toLowerCase(),
      found: part.found,
      words: part.words ?? [],
      label: part.label,
      // null: the logit of the label alone is explained.
      against: part.against || null,
      score: readNumber(part.score),
      minimal: part.minimal,
      exhaustiveBelow: part.exhaustive_below,
      stopped: part.stopped,
      rows: part.rows,
    };
    if (found.kind === "asked") this.without.set(Explanation.keyOf(found.words), found);
    else this.counterfactuals = {flip: null, keep: null, ...this.counterfactuals, [found.kind]: found};
  }

  #takeNeuron(part) {
    const key = [part.layer, part.head, part.token].join(",");
    const width = part.query.length;
    const before = part.key_start ? this.neurons.get(key) : null;
    const joined = (name) => Float32Array.from([...(before?.[name] ?? []), ...part[name].map(readNumber)]);
    const taken = {
      layer: part.layer,
      head: part.head,
      token: part.token,
      scale: readNumber(part.scale),
      query: readFloats(part.query),
      width,
      keyStart: before ? before.keyStart : (part.key_start ?? 0),
      keys: (before?.keys ?? 0) + part.keys,
      maxAbsError: readNumber(part.max_abs_error),
    };
    for (const name of NEURON_ARRAYS) taken[name] = joined(name);
    this.neurons.set(key, taken);
  }

  #takeGeometry(part) {
    this.geometry ??= [];
    this.geometry[part.layer] = {
      layer: part.layer,
      modelLayers: part.layers ?? 0,
      points: readFloats(part.points),
      golden: part.golden,
      goldenPoints: readFloats(part.golden_points),
      variance: readFloats(part.variance),
      nearest: part.nearest,
      cosines: readFloats(part.cosines),
    };
  }

  #note(source, notes) {
    this.noted.set(source, [...(this.noted.get(source) ?? []), ...notes]);
  }
}

function readNumber(value) {
  return Number(value ?? 0);
}

function readFloats(values) {
  return Float32Array.from(values, readNumber);
}

function readEvidence(part) {
  return {
    method: part.method,
    verdict: part.verdict.replace("VERDICT_", ""),
    comprehensiveness: readNumber(part.comprehensiveness),
    sufficiency: readNumber(part.sufficiency),
    randomSets: part.random_sets,
    pValue: readNumber(part.p_value),
    emptyTextLogit: readNumber(part.empty_text_logit),
    agreement: part.agreement === undefined ? null : readNumber(part.agreement),
    words: part.words,
    rank: part.rank,
    randomMedian: readNumber(part.random_median),
    randomMean: readNumber(part.random_mean),
    randomMax: readNumber(part.random_max),
    operator: part.operator,
  };
}

function readHeads(part) {
  return {
    layers: part.layers,
    heads: part.heads,
    gated: readFloats(part.gated),
    uniform: part.uniform?.length ? readFloats(part.uniform) : null,
    exact: part.exact,
    allUniform: part.all_uniform === undefined ? null : readNumber(part.all_uniform),
    changesLabel: part.all_uniform_changes_label ?? null,
    labels: part.labels,
    patterns: part.patterns.map((pattern) => ({
      name: pattern.name,
      defined: pattern.defined,
      score: readFloats(pattern.score),
      uniform: readNumber(pattern.uniform),
      lift: readFloats(pattern.lift),
    })),
  };
}
