// The text view as a picture: the coloured text in lines, the legend and the verdict.
import {partsSaid, wholeSaid} from "./answer_parts.js";
import {directionHues, drawMark, huesSaid} from "./label_hues.js";
import {drawLines, fittedText, textWidth} from "./surface.js";
import {closesWord, directedRuns, textParts} from "./text_words.js";
import {VALUE_FULL, VALUE_MIN, isDark, themeColours, valueColour, valueScale} from "./theme.js";
import {
  adaptiveSentence, answerSentence, changingSentence, counterfactualSentence, decidingSentence, errorSentences, estimateSentence,
  evidenceSentence, explainedSentence, methodSentence, sentenceColour, signedNumber, unseenSentence, visibleText, withoutSentence,
} from "./wording.js";

const PICTURE_WIDTH = 720;
const PICTURE_MARGIN = 20;
const INNER_WIDTH = PICTURE_WIDTH - 2 * PICTURE_MARGIN;
const WORD_STYLE = {size: 15};
const VALUE_STYLE = {size: 10};
const SENTENCE_STYLE = {size: 13};
const SENTENCE_HEIGHT = 19;
const WORD_PAD = 2;
const WORD_SPACE = 4;
const SCALE_STEP = 20;

/** What is drawn of {explanation, answer, attribution, evidence, deciding, reason, struck, without, numbers}; some may be null. */
export function textDrawing(shown) {
  const {header, texts} = shown.explanation;
  const rowHeight = shown.numbers && shown.attribution ? 38 : 27;
  const sides = [false, ...(texts[1] ? [true] : [])].map((pair) => pictureLines(shown, pair));
  const said = [shown.reason, answerSentence(header)].filter(Boolean);
  const above = said.flatMap((sentence) => wrappedSentence(sentence));
  const below = sentencesBelow(shown).flatMap((sentence) => wrappedSentence(sentence));
  const textTop = PICTURE_MARGIN + above.length * SENTENCE_HEIGHT + 14;
  const count = sides.reduce((sum, side) => sum + side.length, 0);
  const textBottom = textTop + count * rowHeight + (sides.length - 1) * 14;
  const height = textBottom + 46 + below.length * SENTENCE_HEIGHT + PICTURE_MARGIN;
  const draw = (surface) => {
    const [colours, hues] = [themeColours(), directionHues(header)];
    const style = {...SENTENCE_STYLE, colour: colours.text};
    drawLines(surface, above, PICTURE_MARGIN, PICTURE_MARGIN + 13, SENTENCE_HEIGHT, style);
    let top = textTop;
    for (const side of sides) {
      for (const line of side) {
        for (const item of line) drawItem(surface, item, top + 18, colours, hues);
        top += rowHeight;
      }
      top += 14;
    }
    drawScale(surface, textBottom + 20, colours, hues);
    drawLines(surface, below, PICTURE_MARGIN, textBottom + 62, SENTENCE_HEIGHT, style);
  };
  const title = `${answerSentence(header)}: the text by ${shown.attribution?.method ?? "nothing yet"}`;
  return {width: PICTURE_WIDTH, height, title, draw};
}

/** What the colours mean first, then what the values are. */
function sentencesBelow({explanation, answer, attribution, evidence, deciding, without}) {
  const {header, counterfactuals, texts} = explanation;
  return [
    huesSaid(header).map(({name, direction}) => `${name}: ${direction}`).join("; "),
    explainedSentence(header),
    adaptiveSentence(header),
    ...(attribution ? [...errorSentences(attribution), methodSentence(attribution)] : []),
    attribution?.estimate ? estimateSentence(attribution) : "",
    ...(deciding ? [changingSentence(header, deciding), decidingSentence(header, deciding)] : []),
    evidence ? `evidence: ${evidence.verdict}: ${evidenceSentence(evidence, header.words.length)}` : "",
    without ? withoutSentence(header, without) : "",
    ...[counterfactuals?.flip, counterfactuals?.keep].filter(Boolean).map((found) => counterfactualSentence(header, found)),
    ...wholeSaid(answer?.prediction ?? header.prediction, answer),
    ...partsSaid(answer, texts[0]),
  ].filter(Boolean);
}

/** The items of one text in lines, each with its place `x`. */
function pictureLines(shown, pair) {
  const parts = textParts(shown.explanation, pair);
  const base = parts.find((part) => part.direction)?.direction ?? "ltr";
  const lines = [[]];
  let used = 0;
  const items = pictureItems(shown, parts);
  for (const [place, item] of items.entries()) {
    const gap = lines.at(-1).length && item.spaced ? WORD_SPACE : 0;
    const closed = items[place + 1]?.closes ? items[place + 1].width : 0;
    if (item.broken || (used && !item.closes && used + gap + item.width + closed > INNER_WIDTH)) {
      if (lines.at(-1).length) lines.push([]);
      used = 0;
    }
    item.gap = lines.at(-1).length ? gap : 0;
    used += item.gap + item.width;
    lines.at(-1).push(item);
  }
  for (const line of lines) placeItems(line, base);
  return lines.filter((line) => line.length);
}

/** Words and what stands between them, without white space. spaced, broken: a space, or the end of a line, stands before it; before: what
 * that space is coloured by. */
function pictureItems({attribution, struck, numbers}, parts) {
  const items = [];
  let [spaced, broken] = [false, false];
  const add = (text, more, direction) => {
    const value = more.value ?? 0;
    const number = numbers && Math.abs(value) >= VALUE_MIN ? signedNumber(value) : "";
    const width = Math.min(INNER_WIDTH, Math.max(textWidth(text, WORD_STYLE), textWidth(number, VALUE_STYLE)) + 2 * WORD_PAD);
    items.push({text, width, number, shown: 0, before: 0, word: -1, closes: false, struck: false, muted: false, spaced, broken, direction, ...more});
    [spaced, broken] = [false, false];
  };
  for (const run of directedRuns(parts)) {
    for (const [place, part] of run.parts.entries()) {
      if (part.word >= 0) {
        const value = attribution?.told[part.word] ?? 0;
        const shown = attribution?.shown[part.word] ?? 0;
        const closes = closesWord(part, run.parts[place - 1]);
        const around = attribution?.sentences[attribution.sentenceOf[part.word]];
        const before = around?.words.includes(part.word - 1) ? sentenceColour(around) : 0;
        add(visibleText(part.text), {word: part.word, value, shown, before, closes, struck: struck.has(part.word)}, run.direction);
      } else if (part.unseen) {
        spaced = true;
        if (part.text.trim()) add(`[${unseenSentence(part.text)}]`, {muted: true}, "");
      } else {
        for (const piece of part.text.match(/\s+|\S+/gu) ?? []) {
          if (piece.trim()) add(visibleText(piece), {muted: true}, run.direction);
          else [spaced, broken] = [true, broken || piece.includes("\n")];
        }
      }
    }
  }
  return items;
}

/** Left to right, or from the right; words of the other direction the other way round among themselves. */
function placeItems(line, base) {
  const order = [];
  for (let place = 0; place < line.length; place += 1) {
    const run = [line[place]];
    while (line[place].direction && line[place + 1]?.direction === line[place].direction) {
      place += 1;
      run.push(line[place]);
    }
    order.push(...(run[0].direction ? run.reverse() : run));
  }
  const gaps = line.map((item) => item.gap);
  let x = 0;
  order.forEach((item, place) => {
    x += gaps[place];
    item.x = base === "rtl" ? PICTURE_WIDTH - PICTURE_MARGIN - x - item.width : PICTURE_MARGIN + x;
    x += item.width;
  });
}

function drawItem(surface, item, baseline, colours, hues) {
  const {x, width} = item;
  const colour = valueColour(item.shown, hues);
  const gap = valueColour(item.before, hues);
  const middle = x + width / 2;
  if (gap && item.gap) surface.rect(x - item.gap, baseline - 15, item.gap, 20, {fill: gap.background});
  if (colour) surface.rect(x, baseline - 15, width, 20, {fill: colour.background});
  const style = {...WORD_STYLE, colour: colour?.text ?? (item.muted ? colours.muted : colours.text), anchor: "middle", maxWidth: width};
  surface.text(item.text, middle, baseline, style);
  if (colour) drawMark(surface, colour.hue, [x + WORD_PAD, x + width - WORD_PAD, baseline + 3, baseline - 13.5], colour.text);
  if (item.struck) surface.line(x, baseline - 5, x + width, baseline - 5, {colour: colours.text, width: 2});
  if (item.number) surface.text(item.number, middle, baseline + 15, {...VALUE_STYLE, colour: colours.muted, anchor: "middle"});
}

function drawScale(surface, top, colours, hues) {
  const style = {...SENTENCE_STYLE, colour: colours.text};
  const least = signedNumber(-VALUE_FULL, 0);
  const left = PICTURE_MARGIN + textWidth(least, style) + 6;
  const scale = valueScale(hues, isDark());
  surface.text(least, PICTURE_MARGIN, top + 12, style);
  scale.forEach((fill, step) => surface.rect(left + step * SCALE_STEP, top, SCALE_STEP, 14, {fill}));
  const right = left + scale.length * SCALE_STEP + 6;
  surface.text(`${signedNumber(VALUE_FULL, 0)} logits, the same for every text`, right, top + 12, style);
}

function wrappedSentence(sentence) {
  const lines = [""];
  for (const word of sentence.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && textWidth(longer, SENTENCE_STYLE) > INNER_WIDTH) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => fittedText(line, INNER_WIDTH, SENTENCE_STYLE));
}
