// Colours of heads. Never the only sign of a head: its number stands beside them.
import {isDark} from "./theme.js";

// Searched for the largest least difference (CIEDE2000) between any two, seen normally and with protanopia, deuteranopia and
// tritanopia, at a contrast of 3 to 1 or more with the panel. More heads are harder to tell apart, so there is a table for each range.
// tests/viewer/test_palette.py holds them to their differences, in Oklab.
const PALETTE_LIGHT = {
  8: ["#4b0f1e", "#4b5a00", "#2d0f5a", "#3c9696", "#d21e69", "#4b00e1", "#a58700", "#9669ff"],
  12: ["#a52d00", "#5a0000", "#699600", "#3c0f3c", "#a578a5", "#00784b", "#004b3c", "#3c78ff", "#1e0096", "#0f1eff", "#874b78", "#e15a78"],
  16: [
    "#002d00", "#4b4b00", "#b41e4b", "#3c005a", "#ff2d0f", "#2d8778", "#e15a87", "#4b0f2d",
    "#0f4bff", "#875a96", "#693c69", "#87874b", "#1e2db4", "#a578b4", "#005a3c", "#2d87ff",
  ],
};
const PALETTE_DARK = {
  8: ["#d2ffd2", "#873ce1", "#1e7869", "#c396ff", "#965a0f", "#69b4a5", "#ffff00", "#d2963c"],
  12: ["#d2c3ff", "#ffd2a5", "#4b785a", "#d2000f", "#69a578", "#b4fff0", "#d278a5", "#873ce1", "#b478ff", "#875a78", "#ffff3c", "#a5b400"],
  16: [
    "#b4b4ff", "#d20078", "#00fff0", "#9687b4", "#965a4b", "#e1ffd2", "#695ac3", "#c3c300",
    "#f0ff78", "#d2000f", "#c37878", "#b4c387", "#78c3b4", "#a5963c", "#007878", "#8778ff",
  ],
};

/**
 * The colour of a head, "#rrggbb".
 *
 * @param {number} head from 0.
 * @param {number} count how many heads a layer has; beyond 16 the colours come again.
 * @param {boolean} dark the result of isDark(); pass it when asking for many colours.
 */
export function headColour(head, count, dark = isDark()) {
  const tables = dark ? PALETTE_DARK : PALETTE_LIGHT;
  const table = tables[count <= 8 ? 8 : count <= 12 ? 12 : 16];
  return table[head % table.length];
}
