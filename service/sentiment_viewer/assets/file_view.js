// The view that classifies a file: progress, what the answers have in common, and the answers sorted, filtered and saved as CSV.
import {namesIn, partsInShort} from "./answer_parts.js";
import {element} from "./dom.js";
import {saveBlob} from "./exporting.js";
import {checkField, choiceField, labelled, quietButton} from "./fields.js";
import {csvOf} from "./file_csv.js";
import {explainButton, FileReasons} from "./file_reasons.js";
import {fileHead, fileTexts, kindOf} from "./file_rows.js";
import {answeredRow, FileRun} from "./file_run.js";
import {labelBar, labelHues, labelName} from "./label_hues.js";
import {redrawn} from "./redrawn.js";
import {numberCell, scrolling, tableNode} from "./tables.js";
import {visibleText, wholeNumber} from "./wording.js";

const ROWS_SHOWN = 25;
const TEXT_SHOWN = 200;
const REDRAW_MS = 250;
// Browsers open six connections to a server; two are left for the rest of the page.
const IN_FLIGHT_MAX = 4;
const FILE_HINT = "Or drop a file anywhere on this page: .txt (a text a line), .csv, .tsv, .jsonl or .json, also with .gz. "
  + "The page reads it and sends its texts to the server, a few at a time.";
const ENDINGS = ".txt,.csv,.tsv,.jsonl,.ndjson,.json,.gz";
const DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"};
// A .csv or .tsv read as a text a line.
const NO_DELIMITER = "none";
const ENCODINGS = {
  "": "automatic", "windows-1252": "Western (windows-1252)", "windows-1250": "Central European (windows-1250)",
  "windows-1251": "Cyrillic (windows-1251)", "windows-1253": "Greek (windows-1253)", "windows-1254": "Turkish (windows-1254)",
  "windows-1255": "Hebrew (windows-1255)", "windows-1256": "Arabic (windows-1256)", "shift_jis": "Japanese (Shift JIS)",
  "euc-kr": "Korean (EUC-KR)", "gb18030": "Chinese (GB 18030)", "big5": "Chinese (Big5)",
  "utf-16le": "UTF-16", "utf-16be": "UTF-16 big-endian",
};
const ORDERS = {
  file: ["order of the file", (one, other) => one.row - other.row],
  low: ["lowest score first", (one, other) => (one.score ?? 0) - (other.score ?? 0)],
  high: ["highest score first", (one, other) => (other.score ?? 0) - (one.score ?? 0)],
  label: ["label", (one, other) => String(one.label ?? "").localeCompare(String(other.label ?? ""))],
};
const OTHER_COLUMNS = {column: undefined, targets: undefined, header: undefined};
const CERTAINTIES = {all: "decided or not", decided: "decided", undecided: "undecided"};
// The targets do not come from a column.
const SAME_TARGETS = "same";
const NOT_ANSWERED = "not answered";

/** Take files that are dropped on the page, and show them in their view. */
export function acceptDrops(context) {
  const mark = (over) => document.body.classList.toggle("file-over", over);
  const holdsFile = (event) => [...event.dataTransfer.types].includes("Files");
  addEventListener("dragover", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    mark(true);
  });
  addEventListener("dragleave", ({relatedTarget}) => relatedTarget || mark(false));
  addEventListener("drop", (event) => {
    mark(false);
    if (!holdsFile(event)) return;
    event.preventDefault();
    [context.dropped] = event.dataTransfer.files;
    context.state.set({view: "file"}, {remember: true});
    context.redraw();
  });
}

/** The view "File". */
export class FileView {
  constructor(context) {
    Object.assign(this, {context, file: null, kind: "", chosen: null, settled: null, head: null, error: ""});
    Object.assign(this, {run: null, asked: null, read: 0});
    Object.assign(this, {page: 0, filter: {label: "", certainty: "all", order: "file"}});
    const input = element("input", {id: "file", type: "file", accept: ENDINGS});
    input.addEventListener("change", () => input.files[0] && this.#take(input.files[0]));
    this.column = choiceField("Column with the text", (place) => this.#choose({column: Number(place)}));
    this.header = choiceField("First row", (said) => this.#choose({header: said === "names"}));
    this.header.offer([], () => [["names", "column names"], ["data", "data"]]);
    this.delimiter = choiceField("Delimiter", (sign) => (
      // Places of columns are others then.
      this.#choose({...(sign === NO_DELIMITER ? {kind: "txt"} : {kind: "csv", delimiter: sign}), ...OTHER_COLUMNS})
    ));
    this.quotes = choiceField("Quotes", (said) => this.#choose({quotes: said === "fields"}));
    this.quotes.offer([], () => [["fields", "around fields"], ["text", "part of texts"]]);
    this.encoding = choiceField("Encoding", (encoding) => this.#choose({encoding}));
    this.encoding.offer([], () => Object.entries(ENCODINGS));
    this.targets = choiceField("Targets of a text", (place) => (
      this.#choose({targets: place === SAME_TARGETS ? undefined : Number(place)})
    ));
    this.choices = [this.column, this.header, this.delimiter, this.quotes, this.encoding, this.targets];
    this.sentences = checkField("Answer each sentence", () => {});
    this.names = element("input", {id: "file-targets", type: "text", dir: "auto", spellcheck: false, placeholder: "battery, service"});
    const named = "Targets of all texts, with commas between them";
    this.named = labelled(named, this.names);
    this.start = element("button", {type: "button", class: "button", text: "Classify the file", on: {click: () => this.#begin()}});
    this.stop = quietButton("Cancel", () => this.run.stop());
    this.said = element("p", {class: "file-named"});
    this.failed = element("p", {class: "failed", role: "alert"});
    this.first = element("p", {class: "note file-first"});
    this.reading = element("div", {class: "row fields"}, ...this.choices.map((choice) => choice.element), this.named, this.sentences.element,
      this.start, this.stop);
    this.bar = element("progress", {max: 1, aria: {label: "Share of the file that is read"}});
    this.told = element("p", {class: "note"});
    this.results = element("div", {class: "file-results"});
    this.element = element(
      "div",
      {class: "file-view"},
      labelled("A file of texts", input),
      element("p", {class: "note", text: FILE_HINT}),
      this.said, this.failed, this.reading, this.first, element("div", {class: "file-progress"}, this.bar, this.told), this.results,
    );
    this.results.append(...this.#resultNodes());
    this.drawTable = redrawn(this.table);
    this.drawFirst = redrawn(this.first);
    this.drawCounts = redrawn(this.counts);
  }

  update() {
    const {context, file, head, run} = this;
    const {dropped} = context;
    if (dropped) {
      context.dropped = null;
      this.#take(dropped);
      return;
    }
    this.said.hidden = !file;
    this.said.textContent = file ? `${visibleText(file.name)}, ${sizeText(file.size)}` : "";
    this.failed.hidden = !this.error;
    if (this.failed.textContent !== this.error) this.failed.textContent = this.error;
    const running = run?.state === "running";
    this.#updateReading();
    this.start.disabled = running || !head || this.settled !== this.chosen;
    for (const {select} of this.choices) select.disabled = running;
    this.sentences.box.disabled = this.names.disabled = running;
    this.stop.hidden = !running;
    this.bar.parentNode.hidden = !run;
    this.results.hidden = !run?.rows.length;
    if (!run) return;
    this.bar.value = run.state === "done" && !run.limited ? 1 : this.read / Math.max(1, file.size);
    this.told.textContent = runSentence(run);
    this.#updateResults();
  }

  /** The fields that say how the file is read, and its first text as a proof. */
  #updateReading() {
    const {kind, head} = this;
    const chosen = this.chosen ?? {};
    const table = (chosen.kind ?? kind) === "csv";
    this.reading.hidden = !kind;
    this.column.element.hidden = !head?.columns.length;
    this.header.element.hidden = !table || !head;
    this.quotes.element.hidden = !table;
    this.delimiter.element.hidden = kind !== "csv";
    this.encoding.choose(chosen.encoding ?? "");
    this.quotes.choose(chosen.quotes === false ? "text" : "fields");
    const delimiter = head?.delimiter || chosen.delimiter || "";
    const other = delimiter && !DELIMITER_NAMES[delimiter] ? {[delimiter]: `"${visibleText(delimiter)}"`} : {};
    this.delimiter.offer([delimiter], () => Object.entries({...DELIMITER_NAMES, ...other, [NO_DELIMITER]: "none, a text a line"}));
    this.delimiter.choose(table ? delimiter : NO_DELIMITER);
    const answersTargets = Boolean(this.context.session.model?.targets);
    this.targets.element.hidden = !answersTargets || !(head?.columns.length > 1);
    this.named.hidden = !answersTargets || head?.targets !== undefined;
    this.first.hidden = !head;
    if (!head) return;
    const {columns, column, header, first} = head;
    const named = (name, place) => (table && !header ? "" : visibleText(name)) || `column ${place + 1}`;
    this.column.offer([header, ...columns], () => columns.map((name, place) => [String(place), named(name, place)]));
    this.column.choose(String(column));
    this.targets.offer([header, ...columns], () => [
      [SAME_TARGETS, "the same for all"], ...columns.map((name, place) => [String(place), `in ${named(name, place)}`]),
    ]);
    this.targets.choose(String(head.targets ?? SAME_TARGETS));
    this.header.choose(header ? "names" : "data");
    const text = () => element("bdi", {text: shortText(first.text) || "(empty)"});
    this.drawFirst([head], () => (first ? first.error ? [visibleText(first.error)] : ["First text: ", text()] : ["It has no rows."]));
  }

  #take(file) {
    this.run?.stop();
    this.reasons.end();
    Object.assign(this, {file, kind: kindOf(file), chosen: {}, head: null, run: null, error: "", page: 0});
    this.update();
    this.#choose({});
  }

  /** Read the first rows of the file as it is now chosen to be read. */
  async #choose(changes) {
    const {file} = this;
    const chosen = {...this.chosen, ...changes};
    this.chosen = chosen;
    this.start.disabled = true;
    let [head, error] = [null, ""];
    try {
      head = await fileHead(file, chosen);
    } catch ({message}) {
      error = `${visibleText(file.name)} cannot be read. ${message}`;
    }
    if (this.chosen !== chosen) return;
    Object.assign(this, {head, error, settled: chosen});
    this.update();
  }

  #begin() {
    const {session, announce} = this.context;
    const {file, head} = this;
    this.read = 0;
    const sentences = this.sentences.box.checked;
    const own = session.model?.targets ? head.targets : undefined;
    const same = session.model?.targets && own === undefined ? namesIn(this.names.value) : [];
    const texts = fileTexts(file, {...head, targets: own}, (read) => { this.read = read; });
    const classify = session.classifier(sentences);
    const ask = async ({text, named = same}, signal) => answeredRow(await classify({text, targets: named}, signal));
    const run = new FileRun(texts, ask, IN_FLIGHT_MAX);
    const targets = own !== undefined || same.length > 0;
    Object.assign(this, {run, page: 0, asked: {head, labels: session.model?.labels ?? [], sentences, targets}});
    this.reasons.take(run, head.columns.filter((_, place) => place !== head.column));
    let timer = 0;
    const redraw = () => {
      timer = 0;
      if (this.run === run) this.update();
    };
    run.addEventListener("change", () => { timer ||= setTimeout(redraw, run.state === "running" ? REDRAW_MS : 0); });
    run.run().then(() => {
      if (this.run === run) announce(runSentence(run));
    });
    this.update();
    this.stop.focus();
  }

  #resultNodes() {
    const filter = (changes) => {
      Object.assign(this.filter, changes);
      this.page = 0;
      this.update();
    };
    const bound = (said, key) => {
      const input = element("input", {id: `file-${key}`, type: "number", min: 0, max: 1, step: 0.05, class: "file-bound"});
      input.addEventListener("input", () => filter({[key]: input.value === "" || !input.validity.valid ? undefined : Number(input.value)}));
      return labelled(said, input);
    };
    this.label = choiceField("Label", (label) => filter({label}));
    const certainty = choiceField("Certainty", (chosen) => filter({certainty: chosen}));
    certainty.offer([], () => Object.entries(CERTAINTIES));
    const order = choiceField("Sort by", (chosen) => filter({order: chosen}));
    order.offer([], () => Object.entries(ORDERS).map(([key, [said]]) => [key, said]));
    const save = element("button", {type: "button", class: "button", text: "Save CSV", on: {click: () => this.#save()}});
    // What others wrote is likely to be opened in a spreadsheet from here.
    this.escapes = checkField("Escape formulas", () => {});
    this.escapes.box.checked = true;
    this.counts = element("ul", {class: "scores file-counts", aria: {label: "Answers by label"}});
    this.reasons = new FileReasons(this.context, (row) => this.#open(row));
    this.counted = element("p", {class: "note", role: "status"});
    this.table = element("div");
    const turn = (by) => () => {
      this.page += by;
      this.update();
    };
    [this.before, this.next] = [quietButton("‹ Previous", turn(-1)), quietButton("Next ›", turn(1))];
    const fields = [this.label.element, certainty.element, bound("Score from", "from"), bound("to", "to"), order.element];
    return [
      this.counts,
      this.reasons.element,
      element("h2", {text: "All answers"}),
      element("div", {class: "row fields"}, ...fields),
      element("div", {class: "row"}, this.counted, element("span", {class: "grow"}), this.escapes.element, save),
      this.table, element("div", {class: "row"}, this.before, this.next),
    ];
  }

  #updateResults() {
    const {rows} = this.run;
    const labels = this.#labels();
    this.label.offer([String(labels), this.run.failures > 0], () => [
      ["", "all"], ...labels.map((label) => [`=${label}`, visibleText(label)]), ...(this.run.failures ? [["!", NOT_ANSWERED]] : []),
    ]);
    this.label.choose(this.filter.label);
    const counts = countsOf(rows, labels);
    this.drawCounts(counts.flat(), () => countNodes(counts, labelHues(labels)));
    this.reasons.update(labels);
    const shown = this.#shown();
    const pages = Math.max(1, Math.ceil(shown.length / ROWS_SHOWN));
    this.page = Math.min(this.page, pages - 1);
    const first = this.page * ROWS_SHOWN;
    const part = shown.slice(first, first + ROWS_SHOWN);
    const range = shown.length ? `; ${wholeNumber(first + 1)} to ${wholeNumber(first + part.length)} are shown` : "";
    const said = `${wholeNumber(shown.length)} of ${wholeNumber(rows.length)} texts${range}.`;
    if (this.counted.textContent !== said) this.counted.textContent = said;
    this.before.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    this.drawTable(part, () => [scrolling("answers to the file", this.#tableNode(part))]);
  }

  #shown() {
    const {label, certainty, order, from = 0, to = 1} = this.filter;
    const fits = (row) => (
      (!label || (label === "!" ? row.error : label === `=${row.label}`))
      && (certainty === "all" || (!row.error && row.abstain === (certainty === "undecided")))
      && (row.error ? from === 0 && to === 1 : row.score >= from && row.score <= to)
    );
    const [, compare] = ORDERS[order];
    return this.run.rows.filter(fits).sort((one, other) => compare(one, other) || one.row - other.row);
  }

  /** Show a row in the text view. */
  #open({text, answer}) {
    const none = {pair: null, label: null, against: null, view: null, without: null, lock: null, token: null};
    const targets = (answer?.targets ?? []).map(({target}) => target).join(", ");
    this.context.state.set({text, ...none, sentences: this.asked.sentences ? "1" : null, targets}, {remember: true});
  }

  #tableNode(part) {
    const hues = labelHues(this.#labels());
    const row = (found) => element(
      "tr",
      {},
      numberCell(found.row),
      element("td", {}, found.error ? element("span", {class: "failed", text: NOT_ANSWERED}) : labelName(found.label, hues), " ",
        found.abstain ? element("span", {class: "undecided", text: "undecided"}) : null, found.mixed ? " mixed" : null),
      numberCell(found.error ? "" : found.score.toFixed(4)),
      element("td", {class: "file-text"}, element("bdi", {text: shortText(found.text ?? "")}),
        ...partsInShort(found.answer).map((said) => element("p", {class: "note", text: said})),
        found.error ? element("p", {class: "failed", text: visibleText(found.error)}) : null),
      element("td", {}, found.text ? explainButton(found, (one) => this.#open(one)) : null),
    );
    return tableNode({heads: ["row", "label", "score", "text", ""], numeric: [0, 2]}, part.map(row));
  }

  #save() {
    const rows = this.#shown();
    const {head, sentences, targets} = this.asked;
    const columns = [...new Set([...head.columns, ...this.run.rows.flatMap(({values}) => [...values.keys()])])];
    const text = head.columns[head.column] ?? "text";
    const explanations = this.reasons.explanations();
    const how = {columns, text, labels: this.#labels(), escapes: this.escapes.box.checked, sentences, targets, explanations};
    const {parts, escaped} = csvOf(rows, how);
    saveBlob(new Blob(parts, {type: "text/csv"}), `${this.file.name.replace(/(\.[^.]*?)(\.gz)?$/i, "")}-answers.csv`);
    const apostrophes = escaped ? ` Cells that have an apostrophe now: ${wholeNumber(escaped)}.` : "";
    this.context.tell(`${wholeNumber(rows.length)} rows are saved.${apostrophes}`);
  }

  /** Those of the model that was asked, and of all that answered. */
  #labels() {
    return [...new Set([...this.asked.labels, ...this.run.rows.flatMap(({scores}) => [...(scores?.keys() ?? [])])])];
  }
}

/** How many answers have each label: [[label, count]]. Undecided ones are counted apart, whatever their label. */
function countsOf(rows, labels) {
  const answered = rows.filter(({error}) => !error);
  const decided = labels.map((label) => [label, answered.filter((row) => !row.abstain && row.label === label).length]);
  return [...decided, ["undecided", answered.filter(({abstain}) => abstain).length]];
}

function countNodes(counts, hues) {
  const all = counts.reduce((sum, [, count]) => sum + count, 0);
  return counts.map(([label, count]) => {
    const share = all ? count / all : 0;
    return labelBar(label, hues, share, `${wholeNumber(count)}, ${(100 * share).toFixed(1)} %`);
  });
}

function shortText(text) {
  return visibleText(text.length > TEXT_SHOWN ? `${text.slice(0, TEXT_SHOWN).toWellFormed()}\u2026` : text);
}

function sizeText(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** How far a run has come, in words. */
function runSentence({state, rows, resent, failures, models, message, limited}) {
  const counts = [
    `${wholeNumber(rows.length - failures)} texts answered`,
    failures ? `${wholeNumber(failures)} not answered` : "",
    resent ? `refusals sent again: ${wholeNumber(resent)}` : "",
  ].filter(Boolean).join(", ");
  const said = {running: "Classifying: ", done: "Done: ", stopped: "Cancelled: ", failed: "Ended early: "}[state];
  const answered = [...models.values()].map(({name, version, digest}) => `${name}/${version} (${digest.slice(0, 12)})`);
  const changed = models.size > 1 ? ` The model changed during the run: the answers are from ${visibleText(answered.join(", "))}.` : "";
  return `${said}${counts}.${changed}${message && ` ${message}`}${limited && ` ${limited}`}`;
}
