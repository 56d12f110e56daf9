// Colours of the current theme, for drawing.

/** Values of this size or more, in logits, have full colour: one scale for all texts. */
export const VALUE_FULL = 2;
/** Smaller values are not coloured. */
export const VALUE_MIN = 0.05;

const THEME_NAMES = ["background", "panel", "text", "muted", "line", "accent", "positive", "negative", "focus"];
// Weak to strong; the text on them has a contrast of at least 4.5 to 1 (tests/viewer).
const VALUE_STEPS = {
  light: {
    positive: ["#fff1e0", "#ffddb5", "#ffc68a", "#ffae5c", "#f7962f", "#ea8210"],
    negative: ["#e6f1fd", "#c9e1fb", "#a6cdf8", "#82b7f3", "#5fa2ec", "#4a92e3"],
    text: "#10151c",
  },
  dark: {
    positive: ["#3a2a18", "#52371a", "#6b441a", "#855118", "#9f5f14", "#ac630b"],
    negative: ["#182a3e", "#1b3654", "#1d436c", "#1e5184", "#1d5f9e", "#1b6db8"],
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
 * The colours of an attribution in logits: orange towards the explained label, blue away from it. Null for what is too small.
 *
 * @param {boolean} dark the result of isDark(); pass it when asking for many colours.
 */
export function valueColour(logits, dark = isDark()) {
  if (!(Math.abs(logits) >= VALUE_MIN)) return null;
  const steps = VALUE_STEPS[dark ? "dark" : "light"];
  const table = logits > 0 ? steps.positive : steps.negative;
  const step = Math.min(table.length, Math.ceil((Math.abs(logits) / VALUE_FULL) * table.length)) - 1;
  return {background: table[step], text: steps.text};
}

/** The scale's colours from -VALUE_FULL to VALUE_FULL, for a legend. */
export function valueScale(dark = isDark()) {
  const steps = VALUE_STEPS[dark ? "dark" : "light"];
  return [...[...steps.negative].reverse(), ...steps.positive];
}
