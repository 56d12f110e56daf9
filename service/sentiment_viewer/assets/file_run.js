// Asks the server about the texts of a file: some at a time, sent again where it refuses for a while. Does not use the page.

// What a page keeps: each row with its columns, and what was answered.
const ROWS_MAX = 20_000;
const CHARS_MAX = 32 * 2 ** 20;
// An answer to a sentence or a target takes about as much memory as this many characters.
const PART_CHARS = 200;
const TRIES_MAX = 8;
const AGAIN_S = 0.5;
const AGAIN_S_MAX = 8;
const RETRY_AFTER_S_MAX = 60;
// Another text would be refused in the same way. "": no answer came.
const OF_ALL = ["", "NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "ABORTED"];
// Of a row that was read: without it, rows would be missing between others.
const ENDED = {error: "CANCELLED: the run ended before there was an answer"};
const FOR_A_WHILE = ["", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"];

/**
 * A run over texts. Fires "change". `state`: running, done, stopped (by the user), failed; `message` says why it ended early.
 * `limited`: why not all of the file was read. `rows`, as they are answered: what `texts` gives with what `ask` gives, or with {error:
 * "CODE: message"}. `models`: those that answered, by digest; more than one if the server's has changed.
 */
export class FileRun extends EventTarget {
  /**
   * @param {AsyncIterator} texts objects with `text`; see fileTexts.
   * @param {function} ask (one of texts, signal) gives {model, parts: how many sentences and targets are answered, and what the row gets};
   *   throws a ServerError.
   * @param {number} inFlight how many are asked at a time.
   */
  constructor(texts, ask, inFlight) {
    super();
    Object.assign(this, {texts, ask, inFlight, rows: [], state: "running", message: "", limited: ""});
    Object.assign(this, {models: new Map(), resent: 0, failures: 0, chars: 0, parts: 0, begun: 0, resumeAt: 0});
    this.stopping = new AbortController();
  }

  /** Ask about all texts. Never throws. */
  async run() {
    await Promise.all(Array.from({length: this.inFlight}, () => this.#work()));
    // Ends the reading of the file.
    await this.texts.return?.().catch(() => {});
    if (this.state === "running") this.state = this.message ? "failed" : "done";
    this.#changed();
  }

  /** End the run for the user; what is answered stays. */
  stop() {
    this.#end("stopped");
    this.stopping.abort();
  }

  /** Send no more texts. Those that are being answered are still taken. */
  #end(state, message = "") {
    if (this.state !== "running") return;
    Object.assign(this, {state, message});
    this.#changed();
  }

  async #work() {
    while (this.state === "running") {
      const {done, value} = await this.#next();
      if (done || this.state !== "running" || this.#full(value)) return;
      const answer = value.error ? value : await this.#answer(value) ?? ENDED;
      this.failures += answer.error ? 1 : 0;
      this.rows.push({...value, ...answer});
      this.#changed();
    }
  }

  /** The next row of the file. Where it cannot be read on, the rows before are still answered. */
  async #next() {
    try {
      return await this.texts.next();
    } catch (error) {
      this.message = error.message;
      return {done: true};
    }
  }

  #full({chars = 0}) {
    this.begun += 1;
    this.chars += chars;
    const full = this.begun > ROWS_MAX || this.chars > CHARS_MAX;
    const parts = this.parts ? ` (an answer to a sentence or target counts as ${PART_CHARS})` : "";
    const limits = `${ROWS_MAX.toLocaleString("en-US")} rows and ${(CHARS_MAX / 2 ** 20)} million characters${parts}`;
    if (full) this.limited = `This page takes ${limits} of a file; the rest was not read. sentiment classify --input reads any size.`;
    return full;
  }

  /** The answer, or null if the run ended before there was one. */
  async #answer(given) {
    const {signal} = this.stopping;
    for (let tries = 1; ; tries += 1) {
      // All wait where one was refused.
      await pause(this.resumeAt - performance.now(), signal);
      if (this.state !== "running") return null;
      try {
        const {model, parts, ...answer} = await this.ask(given, signal);
        this.parts += parts;
        this.chars += PART_CHARS * parts;
        if (!this.models.has(model.digest)) this.models.set(model.digest, model);
        return {...answer, model: this.models.get(model.digest)};
      } catch (error) {
        if (this.state !== "running") return null;
        const {status = ""} = error;
        if (!FOR_A_WHILE.includes(status) || tries === TRIES_MAX) {
          if (OF_ALL.includes(status)) {
            this.#end("failed", error.message);
            return null;
          }
          return {error: `${status}: ${error.said}`};
        }
        this.resent += 1;
        const againS = error.retryAfterS ?? Math.min(AGAIN_S_MAX, AGAIN_S * 2 ** (tries - 1));
        this.resumeAt = Math.max(this.resumeAt, performance.now() + 1000 * Math.min(RETRY_AFTER_S_MAX, againS));
        this.#changed();
      }
    }
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

/** What a row gets of a ClassifyResponse: {label, score, scores: Map, abstain, mixed, answer: the rest of it, model, parts}. */
export function answeredRow({prediction, model, timing: _, ...answer}) {
  const scores = new Map(prediction.scores.map((one) => [one.label, one.score]));
  const parts = (answer.sentences?.length ?? 0) + (answer.targets?.length ?? 0);
  return {...prediction, scores, answer, model, parts};
}

function pause(milliseconds, signal) {
  if (milliseconds <= 0 || signal.aborted) return Promise.resolve();
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done();
    }, {once: true});
  });
}
