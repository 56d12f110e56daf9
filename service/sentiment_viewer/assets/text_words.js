// The text as it was sent, each word a button; unread parts are marked. Does not use the session.
import {element} from "./dom.js";
import {roving} from "./fields.js";
import {directionHues} from "./label_hues.js";
import {scrolling} from "./tables.js";
import {VALUE_MIN, isDark, valueColour} from "./theme.js";
import {sentenceColour, signedNumber, unseenSentence, wordName} from "./wording.js";

// A longer part that was not read is folded.
const UNSEEN_OPEN_MAX = 60;
const RIGHT_TO_LEFT = /[\p{sc=Arabic}\p{sc=Hebrew}\p{sc=Syriac}\p{sc=Thaana}\p{sc=Nko}\p{sc=Adlam}\p{sc=Mandaic}\p{sc=Samaritan}]/u;
const STRONG = /\p{L}/u;
const CLOSING = /^[\p{Pe}\p{Pf}\p{Po}]{1,3}$/u;

/** "rtl", "ltr", or "" for a text without letters: how its first letter is written. */
function directionOf(text) {
  const letter = STRONG.exec(text);
  return letter ? (RIGHT_TO_LEFT.test(letter[0]) ? "rtl" : "ltr") : "";
}

/**
 * One text in its order: [{text, word: index or -1, unseen: true if it was not read, named: true if it names the target, direction}].
 *
 * @param {boolean} pair the second text of a pair.
 */
export function textParts(explanation, pair) {
  const {words, unseen, mention} = explanation.header;
  const text = explanation.texts[pair ? 1 : 0];
  const marked = [
    ...words.map(({start, end, pair: side}, word) => ({start, end, side, word, unseen: false})),
    ...unseen.map(({start, end, pair: side}) => ({start, end, side, word: -1, unseen: true})),
    ...(mention ? [{...mention, side: false, word: -1, unseen: false, named: true}] : []),
  ].filter((part) => part.side === pair);
  marked.sort((one, other) => one.start - other.start || one.end - other.end);
  const parts = [];
  const add = (part, start, end) => {
    const piece = text.slice(start, end);
    parts.push({text: piece, word: part.word, unseen: part.unseen, named: Boolean(part.named), direction: directionOf(piece)});
  };
  let place = 0;
  for (const part of marked) {
    if (part.start > place) add({word: -1, unseen: false}, place, part.start);
    add(part, Math.max(place, part.start), part.end);
    place = Math.max(place, part.end);
  }
  if (place < text.length) add({word: -1, unseen: false}, place, text.length);
  return parts;
}

/** The same in runs of one direction, "" for that of the text: [{direction, parts}]. Buttons take no part in the order of letters. */
export function directedRuns(parts) {
  const base = parts.find((part) => part.direction)?.direction ?? "";
  const runs = [];
  let begun = [];
  const end = () => {
    if (begun.length) runs.push({direction: "", parts: begun});
    begun = [];
  };
  for (let place = 0; place < parts.length; place += 1) {
    const direction = parts[place].direction;
    if (!direction || direction === base || parts[place].unseen) {
      begun.push(parts[place]);
      continue;
    }
    let last = place;
    for (let next = place; next < parts.length && !parts[next].unseen && parts[next].direction !== base; next += 1) {
      if (parts[next].direction === direction) last = next;
    }
    end();
    runs.push({direction, parts: parts.slice(place, last + 1)});
    place = last;
  }
  end();
  return runs;
}

/** Whether a part ends the word before it, as a full stop does: no line should begin with it. Of many marks only the first does. */
export function closesWord(part, before) {
  return part.word >= 0 && before?.word >= 0 && CLOSING.test(part.text) && !CLOSING.test(before.text);
}

/**
 * The coloured text of one explanation, with a button for each word. Made once; `mark` then changes classes only.
 *
 * @param {function|null} tagOf gives a word's tag by its index, such as "ins", for words that are not buttons.
 */
export class WordsOfText {
  constructor(explanation, tagOf = null) {
    this.explanation = explanation;
    this.tagOf = tagOf;
    this.buttons = [];
    // What stands between words, with the word before it.
    this.gaps = [];
    this.element = element("div", {class: "text-words"}, this.#side(false), explanation.texts[1] ? this.#side(true) : null);
    const onward = (button) => (getComputedStyle(button.closest(".text-words-side")).direction === "rtl" ? -1 : 1);
    // The Tab key passes a long text in one step.
    if (!tagOf) roving(this.element, "button.text-word", {onward})();
  }

  /**
   * @param {object} marks attribution: or null; struck, chosen, kept: Set of word indices (kept null: no set is shown); numbers: whether
   *   values are written too. Words that are not buttons take attribution and numbers only.
   */
  mark({attribution, struck = null, chosen = null, kept = null, numbers}) {
    const header = this.explanation.header;
    const [hues, dark] = [directionHues(header), isDark()];
    this.element.classList.toggle("with-numbers", numbers && attribution !== null);
    this.buttons.forEach((button, index) => {
      const value = attribution?.told[index] ?? 0;
      const around = sentenceAround(attribution, index);
      const shown = attribution?.shown[index] ?? 0;
      colourNode(button, valueColour(shown, hues, dark));
      button.classList.toggle("in-sentence", around !== null);
      button.classList.toggle("stands-out", around !== null && shown !== sentenceColour(around));
      button.dataset.value = Math.abs(value) >= VALUE_MIN ? signedNumber(value) : "";
      button.title = attribution === null ? "" : wordName(header, index, attribution);
      if (this.tagOf) return;
      button.classList.toggle("struck", struck.has(index));
      button.classList.toggle("chosen", chosen.has(index));
      button.classList.toggle("kept", kept !== null && kept.has(index));
      button.classList.toggle("aside", kept !== null && !kept.has(index));
      button.setAttribute("aria-pressed", String(struck.has(index) || chosen.has(index)));
      button.setAttribute("aria-label", wordName(header, index, attribution));
    });
    for (const {node, after} of this.gaps) {
      const around = sentenceAround(attribution, after);
      colourNode(node, around?.words.includes(after + 1) ? valueColour(sentenceColour(around), hues, dark) : null);
    }
  }

  #side(pair) {
    const nodes = directedRuns(textParts(this.explanation, pair)).map((run) => {
      const inner = this.#glued(run.parts);
      return run.direction ? [element("span", {dir: run.direction}, ...inner)] : inner;
    });
    const label = `${pair ? "second text" : "text"}, a button for each word; arrow keys go from word to word`;
    if (this.tagOf) return element("div", {class: "text-words-side", dir: "auto"}, ...nodes.flat());
    return element("div", {class: "text-words-side", dir: "auto", role: "group", aria: {label}}, ...nodes.flat());
  }

  /** The nodes of parts; a word and what closes it in one node, for a line may end before any button. */
  #glued(parts) {
    const nodes = [];
    parts.forEach((part, place) => {
      const node = this.#part(part);
      nodes.push(closesWord(part, parts[place - 1]) ? element("span", {class: "text-glued"}, nodes.pop(), node) : node);
    });
    return nodes;
  }

  #part({text, word, unseen, named}) {
    if (unseen) return unseenNode(text);
    if (word < 0 && named) return element("mark", {class: "part-mention", text});
    if (word < 0) {
      const node = element("span", {class: "text-gap", text});
      this.gaps.push({node, after: this.buttons.length - 1});
      return node;
    }
    const button = this.tagOf
      ? element(this.tagOf(word), {class: "text-word"}, element("span", {text}))
      : element("button", {type: "button", class: "text-word", tabIndex: -1, data: {word}}, element("span", {text}));
    this.buttons[word] = button;
    return button;
  }
}

/** The sentence that a word is coloured with, or null. */
function sentenceAround(attribution, index) {
  return attribution?.sentences[attribution.sentenceOf[index]] ?? null;
}

function colourNode(node, colour) {
  node.style.backgroundColor = colour?.background ?? "";
  node.style.color = colour?.text ?? "";
  node.dataset.hue = colour?.hue ?? "";
}

function unseenNode(text) {
  const said = unseenSentence(text);
  if (!text.trim()) return text;
  if ([...text].length > UNSEEN_OPEN_MAX) {
    return element("details", {class: "text-unseen"}, element("summary", {text: said}), scrolling(said, text));
  }
  return element("span", {class: "text-unseen"}, element("span", {text}), element("span", {class: "text-unseen-note", text: ` [${said}]`}));
}
