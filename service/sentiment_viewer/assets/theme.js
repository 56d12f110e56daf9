// Colours of the current theme, for drawing.

/** Values of this size or more, in logits, have full colour: one scale for all texts. */
export const VALUE_FULL = 2;
/** Smaller values are not coloured. */
export const VALUE_MIN = 0.05;

const THEME_NAMES = ["background", "panel", "text", "muted", "line", "accent", "fourth", "fifth", "focus"];
// Weak to strong; the text on them has a contrast of at least 4.5 to 1 (tests/viewer).
const VALUE_STEPS = {
  light: {
    positive: ["#fff1e0", "#ffddb5", "#ffc68a", "#ffae5c", "#f7962f", "#ea8210"],
    negative: ["#e6f1fd", "#c9e1fb", "#a6cdf8", "#82b7f3", "#5fa2ec", "#4a92e3"],
    neutral: ["#eceff2", "#dce1e6", "#c8ced5", "#b4bcc5", "#a0a9b4", "#8d97a3"],
    fourth: ["#e6f5ea", "#c8e9d1", "#a4dab3", "#7fca94", "#5ab876", "#3da55d"],
    fifth: ["#f3ebfb", "#e4d2f7", "#d2b4f1", "#c299eb", "#b480e5", "#a669de"],
    text: "#10151c",
  },
  dark: {
    positive: ["#3a2a18", "#52371a", "#6b441a", "#855118", "#9f5f14", "#ac630b"],
    negative: ["#182a3e", "#1b3654", "#1d436c", "#1e5184", "#1d5f9e", "#1b6db8"],
    neutral: ["#262c33", "#323942", "#3f4751", "#4c5561", "#596370", "#66717f"],
    fourth: ["#16301f", "#1a4029", "#1c5132", "#1b613a", "#187142", "#127e48"],
    fifth: ["#2c1f3d", "#3d2857", "#4f3171", "#613a8b", "#7343a4", "#8350b8"],
    text: "#ffffff",
  },
};

/** Whether the dark theme is active. */
export function isDark() {
  return getComputedStyle(document.documentElement).colorScheme.includes("dark");
}

/** The theme's colours by name, as CSS takes them. */
export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(THEME_NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/**
 * The colours of an attribution in logits, and the hue that they are of: the label's that it speaks for. Null for what is too small.
 *
 * @param {{towards: string, against: string}} hues of directionHues.
 * @param {boolean} dark the result of isDark(); pass it when asking for many colours.
 */
export function valueColour(logits, hues, dark = isDark()) {
  if (!(Math.abs(logits) >= VALUE_MIN)) return null;
  const steps = VALUE_STEPS[dark ? "dark" : "light"];
  const hue = logits > 0 ? hues.towards : hues.against;
  const table = steps[hue];
  const step = Math.min(table.length, Math.ceil((Math.abs(logits) / VALUE_FULL) * table.length)) - 1;
  return {background: table[step], text: steps.text, hue};
}

/** The scale's colours from -VALUE_FULL to VALUE_FULL, for a legend. */
export function valueScale({towards, against}, dark = isDark()) {
  const steps = VALUE_STEPS[dark ? "dark" : "light"];
  return [...[...steps[against]].reverse(), ...steps[towards]];
}
