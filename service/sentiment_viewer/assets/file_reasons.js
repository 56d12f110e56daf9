// What the answers to a file have in common: the words and phrases that speak for each label, over all rows and by group.
import {columnOf, ROWS_MIN} from "./column.js";
import {element} from "./dom.js";
import {choiceField, quietButton} from "./fields.js";
import {cellText} from "./file_csv.js";
import {explainedRow, rowsToExplain} from "./file_explained.js";
import {FileRun} from "./file_run.js";
import {labelBar, labelHues, labelName} from "./label_hues.js";
import {METHODS} from "./methods.js";
import {differing, redrawn} from "./redrawn.js";
import {scrolling, tableNode, tableRow} from "./tables.js";
import {plainNumber, signedNumber, visibleText, wholeNumber} from "./wording.js";

// Between two pictures while rows are explained.
const REASONS_MS = 1500;
const GROUP_TERMS_SHOWN = 5;
// Characters of a text beside its word, and of a group's name.
const AROUND = 60;
const NAME_SHOWN = 40;
// A server explains on one core.
const IN_FLIGHT = 1;
const WHAT = "Explains rows in an order of chance, so that those explained so far are a sample of all. Words and phrases show once "
  + `${ROWS_MIN} rows have them.`;
const KEY = "A bar shows how much a word says in all of its rows together, the number in how many rows it stands; a hatched bar, and ?, may "
  + "be chance. Names behind @ are left out.";
const HOW = "A bar is the sum of a word's values over the rows that have it, in logits: of the label less the one that its row's "
  + "explanation compares it with; 0 within two standard errors. So a word speaks for a label in rows with another answer, too. The "
  + "interval is that of the mean for rows like these, by Student's t, widened because the largest are chosen: 5 % of a list miss on "
  + "average. What may be chance has an interval that holds 0, or equal values in all rows.";

/** The part of the view "File" about what its answers have in common. */
export class FileReasons {
  /** `open`: shows a row in the text view. */
  constructor(context, open) {
    Object.assign(this, {context, open, answered: null, run: null, found: new Map(), group: null, method: "", shown: ""});
    Object.assign(this, {drawnAt: 0, timer: 0, unfolded: new Set(), left: 0, leftDiffers: differing()});
    Object.assign(this, {summed: null, columnDiffers: differing()});
    this.start = quietButton("Explain the rows", () => this.#begin());
    this.stop = quietButton("Cancel explaining", () => this.end());
    this.methods = choiceField("Method", (name) => { this.method = name; });
    // A column may have any name, so that each stands behind a sign.
    this.groups = choiceField("By group", (chosen) => {
      Object.assign(this, {group: chosen ? chosen.slice(1) : null, drawnAt: 0});
      this.update();
    });
    this.told = element("p", {class: "note"});
    this.bar = element("progress", {max: 1, aria: {label: "Share of the texts that are explained"}});
    this.picture = element("div", {class: "file-reasons"});
    this.draw = redrawn(this.picture);
    this.element = element(
      "section",
      {class: "file-results"},
      element("h2", {text: "What do they have in common?"}),
      element("div", {class: "row fields"}, this.groups.element, this.methods.element, this.start, this.stop),
      element("div", {class: "reasons-progress"}, this.bar, this.told),
      this.picture,
    );
  }

  /** Take the answers of another run over a file. `columns` of the file, but for that of the texts. */
  take(answered, columns) {
    this.end();
    Object.assign(this, {answered, columns, run: null, found: new Map(), group: null, shown: ""});
  }

  /** Explain no further rows. */
  end() {
    this.run?.stop();
  }

  /** Explanations of rows by their numbers: a Map. */
  explanations() {
    for (const row of this.run?.rows ?? []) if (!row.error) this.found.set(row.row, row);
    return this.found;
  }

  /** Draw what is known. `labels`: of the answers. */
  update(labels = this.labels) {
    this.labels = labels;
    const {answered, run, context} = this;
    const methods = context.session.model?.explanation_methods ?? [];
    const found = this.explanations();
    const running = run?.state === "running";
    const waits = running || answered.state === "running";
    this.start.hidden = waits || !methods.length || !this.#left(found);
    this.start.textContent = found.size ? "Explain the others" : "Explain the rows";
    this.stop.hidden = !running;
    this.methods.element.hidden = !methods.length;
    this.methods.offer(methods, () => [
      ["", "the model's default"], ...methods.map((name) => [name, METHODS[name]?.term ?? visibleText(name)]),
    ]);
    this.methods.choose(this.method);
    // Sums are of one choice. By default a long text has another method than a short one.
    this.methods.select.disabled = running || found.size > 0;
    this.groups.element.hidden = !this.columns.length;
    this.groups.offer([...this.columns], () => [["", "none"], ...this.columns.map((name) => [`=${name}`, visibleText(name)])]);
    this.groups.choose(this.group === null ? "" : `=${this.group}`);
    this.bar.hidden = !run;
    if (run) this.bar.value = found.size / Math.max(1, this.asked);
    this.told.textContent = run ? explainingSaid(run, found.size, this.asked, this.secondsEach()) : this.start.hidden ? "" : WHAT;
    const now = performance.now();
    // Each picture reads all rows.
    if (waits && now - this.drawnAt < REASONS_MS) return;
    this.drawnAt = now;
    this.draw([answered, answered.rows.length, found.size, this.group, String(labels), this.shown], () => this.#nodes(found));
  }

  /** How many rows are left to be explained. */
  #left(found) {
    const key = [this.answered, this.answered.rows.length, found.size];
    if (this.leftDiffers(key)) this.left = rowsToExplain(this.answered.rows, found).length;
    return this.left;
  }

  /** About how many seconds a row takes. */
  secondsEach() {
    return (performance.now() - this.begunAt) / 1000 / Math.max(1, this.run.rows.length);
  }

  #begin() {
    const {session, announce} = this.context;
    const left = rowsToExplain(this.answered.rows, this.explanations());
    const explain = session.explainer(this.method);
    async function* texts() {
      yield* left.map(({row, text, model}) => ({row, text, model}));
    }
    const run = new FileRun(texts(), async (row, signal) => explainedRow(await explain(row, signal), row), IN_FLIGHT);
    Object.assign(this, {run, asked: this.found.size + left.length, begunAt: performance.now(), drawnAt: 0});
    const redraw = () => {
      this.timer = 0;
      if (this.run === run) this.update();
    };
    run.addEventListener("change", () => { this.timer ||= setTimeout(redraw, run.state === "running" ? REASONS_MS / 3 : 0); });
    run.run().then(() => {
      if (this.run === run) announce(explainingSaid(run, this.found.size, this.asked, 0));
    });
    this.update();
    this.stop.focus();
  }

  /** {rows, column}: the rows in order, and what they say together. */
  #column(found) {
    const {answered, group, labels} = this;
    if (this.columnDiffers([answered, answered.rows.length, found.size, group, String(labels)])) {
      const rows = [...answered.rows].sort((one, other) => one.row - other.row);
      this.summed = {rows, column: columnOf(rows.map((row) => columnRow(row, found.get(row.row), group)), labels, group !== null)};
    }
    return this.summed;
  }

  #nodes(found) {
    const {group} = this;
    if (!found.size && group === null) return [];
    const {rows, column} = this.#column(found);
    const hues = labelHues(column.whole.shares.map(({label}) => label));
    const byNumber = (number) => rows[number - 1];
    const valued = found.size ? column.whole.reasons.filter(({rows: own}) => own) : [];
    const parts = valued.map((reasons) => this.#reasons(reasons, column, hues, byNumber));
    const how = () => element("details", {class: "note"}, element("summary", {text: "What do the bars say?"}), element("p", {text: HOW}));
    return [
      ...(parts.length ? [element("p", {class: "note", text: KEY}), element("div", {class: "file-labels"}, ...parts), how()] : []),
      group !== null ? scrolling("answers by group", groupTable(column, group, hues)) : null,
      ...remarks(column.whole).map((text) => element("p", {class: "note", text})),
    ].filter(Boolean);
  }

  /** What speaks for a label: bars on one scale for all labels. */
  #reasons({label, words, phrases}, {whole}, hues, byNumber) {
    const full = Math.max(...whole.reasons.flatMap((one) => [...one.words, ...one.phrases].map(({total}) => total)));
    const list = (name, terms) => [
      element("h4", {text: name}),
      ...this.#lists(terms, `${label}\n${name}`, (term) => this.#term(term, label, full, hues, byNumber)),
    ];
    return element(
      "div",
      {},
      element("h3", {}, "What makes answers ", labelName(label, hues)),
      ...list("Words", words), ...list("Phrases", phrases),
    );
  }

  /** The terms whose interval is above 0, and folded those that may be chance. `key`: by which it is known whether they are open. */
  #lists(terms, key, make) {
    const list = (some) => element("ul", {class: "scores file-terms"}, ...some.map(make));
    const [sure, unsure] = [terms.filter(({low}) => low > 0), terms.filter(({low}) => !(low > 0))];
    const more = `${unsure.length} ${sure.length ? "more " : ""}that may be chance`;
    const keep = ({target}) => (target.open ? this.unfolded.add(key) : this.unfolded.delete(key));
    const summary = element("summary", {class: "note", text: more});
    return [
      sure.length ? list(sure) : null,
      !terms.length ? element("p", {class: "note", text: this.run?.state === "running" ? "none yet" : "none"}) : null,
      unsure.length
        ? element("details", {open: this.unfolded.has(key), on: {toggle: keep}}, summary, list(unsure))
        : null,
    ].filter(Boolean);
  }

  /** A word or phrase as a bar, which opens to its numbers and examples. */
  #term(term, label, full, hues, byNumber) {
    const {text, rows, total, mean, low, high, examples} = term;
    const key = `${label}\n${text}`;
    const open = this.shown === key;
    const toggle = element("button", {type: "button", class: "file-term", aria: {expanded: String(open)}, on: {click: () => {
      this.shown = open ? "" : key;
      this.drawnAt = 0;
      this.update();
      this.picture.querySelector(".file-term[aria-expanded=true]")?.focus();
    }}}, element("bdi", {text: visibleText(text)}));
    const bar = element("span", {class: low > 0 ? "bar" : "bar unsure", data: {hue: hues.get(label) ?? ""}, aria: {hidden: "true"}},
      element("span", {style: {width: `${100 * total / full}%`}}));
    const interval = low === null ? "" : `, interval ${signedNumber(low)} to ${signedNumber(high)}`;
    const more = () => element(
      "div",
      {class: "file-term-more"},
      element("p", {class: "note", text: `${signedNumber(total, 1)} logits in all, ${signedNumber(mean)} a row on average${interval}.`}),
      element("ul", {}, ...examples.map(byNumber).map((row) => element(
        "li", {}, `row ${wholeNumber(row.row)}: `, element("bdi", {text: snippet(row.text, text)}), " ",
        explainButton(row, this.open),
      ))),
    );
    return element(
      "li", {class: "score"}, element("span", {class: "name"}, toggle), bar,
      element("span", {class: "number", text: rowsSaid(rows)}), open ? more() : null,
    );
  }
}

/** A button that shows a row in the text view. */
export function explainButton(row, open) {
  const button = quietButton("Explain", () => open(row));
  button.setAttribute("aria-label", `Explain row ${row.row}`);
  return button;
}

/** A row as column.js takes it. `found`: its explanation, if there is one. */
function columnRow({text, label, abstain, error, values}, found, group) {
  const name = group === null ? "" : cellText(values.get(group) ?? "");
  if (error) return {group: name};
  const none = {towards: null, against: null, verdict: "", words: [], values: [], errors: [], sentences: []};
  return {...(found ?? none), text, label, abstain, group: name};
}

function groupTable({groups, lumped}, group, hues) {
  const labels = groups[0]?.shares.map(({label}) => label) ?? [];
  const named = (part, place) => {
    if (lumped && place === groups.length - 1) return `${wholeNumber(lumped)} other groups`;
    return element("bdi", {text: visibleText(part.name.slice(0, NAME_SHOWN).toWellFormed()) || "(empty)"});
  };
  const share = ({share: part, low, high, rows}, answered) => (answered
    ? element("td", {class: "number", title: `${rowsSaid(rows)}; 95 % interval ${percent(low)} to ${percent(high)}`, text: percent(part)})
    : element("td"));
  const row = (part, place) => tableRow([named(part, place)], [
    wholeNumber(part.answered + part.failed), ...part.shares.map((one) => share(one, part.answered)),
    element("td", {class: "number", text: part.answered ? percent(part.undecided / part.answered) : ""}),
    element("td", {class: "file-text"}, ...part.reasons.map((reasons) => shortReasons(reasons, hues))),
  ]);
  const heads = [visibleText(group), "rows", ...labels.map(visibleText), "undecided", "what speaks for them"];
  return tableNode({heads, numeric: [1, 2, ...labels.map((_, place) => place + 3)]}, groups.map(row));
}

/** What speaks for a label in a group, in a line; null if nothing. */
function shortReasons({label, words, phrases}, hues) {
  const terms = [...words, ...phrases].sort((one, other) => other.total - one.total).slice(0, GROUP_TERMS_SHOWN);
  if (!terms.length) return null;
  const said = terms.map(({text, total, low}) => `${visibleText(text)} ${signedNumber(total, 1)}${low > 0 ? "" : "?"}`).join(", ");
  return element("p", {class: "note"}, labelName(label, hues), ": ", element("bdi", {text: said}));
}

/** Which rows have no say in the sums. */
function remarks({notFaithful, flat, repeated}) {
  const counts = [[notFaithful, "NOT_FAITHFUL"], [flat, "FLAT"], [repeated, "the text of an earlier row"]].filter(([count]) => count);
  return counts.length ? [`Not in the sums: ${counts.map(([count, why]) => `${rowsSaid(count)} with ${why}`).join(", ")}.`] : [];
}

function explainingSaid({state, resent, failures, message}, done, all, secondsEach) {
  const said = {running: "Explaining: ", done: "Explained: ", stopped: "Cancelled: ", failed: "Ended early: "}[state];
  const parts = [
    `${wholeNumber(done)} of ${wholeNumber(all)} texts`,
    failures && state !== "stopped" ? `${wholeNumber(failures)} without an explanation` : "",
    resent ? `refusals sent again: ${wholeNumber(resent)}` : "",
    state === "running" && done ? `about ${durationSaid(secondsEach * (all - done))} left` : "",
  ];
  return `${said}${parts.filter(Boolean).join(", ")}.${message && ` ${message}`}`;
}

function durationSaid(seconds) {
  if (seconds < 90) return `${wholeNumber(seconds)} s`;
  return seconds < 5400 ? `${wholeNumber(seconds / 60)} min` : `${plainNumber(seconds / 3600, 1)} h`;
}

/** The part of a text around a word or phrase. */
function snippet(text, term) {
  const line = text.trim().split(/\s+/u).join(" ");
  const words = term.split(" ").map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const place = Math.max(0, line.search(new RegExp(`(?<![\\p{L}\\p{N}_])${words.join("\\s*")}(?![\\p{L}\\p{N}_])`, "iu")));
  const [start, end] = [Math.max(0, place - AROUND), place + term.length + AROUND];
  const part = line.slice(start, end).toWellFormed();
  return `${start ? "\u2026" : ""}${visibleText(part)}${end < line.length ? "\u2026" : ""}`;
}

function rowsSaid(count) {
  return `${wholeNumber(count)} row${count === 1 ? "" : "s"}`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}
