// Student's t, as explain/methods/student.py. Pure.

// Of the continued fraction: it converges in far fewer terms for the degrees of freedom that a file has.
const TERMS_MAX = 300;
const PRECISE = 1e-12;
const TINY = 1e-300;
const HALVINGS = 80;
// Lanczos' approximation of the gamma function with these coefficients: relative errors below 1e-14 (Numerical Recipes, 6.1).
const LANCZOS_SHIFT = 7.5;
const LANCZOS = [
  0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
  -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
];

/** The t beyond which, on both sides together, this probability lies, with `freedom` degrees of freedom, at least 1. */
export function quantile(outside, freedom) {
  const chance = (t) => beta(freedom / (freedom + t * t), freedom / 2, 0.5);
  let [low, high] = [0, 1];
  while (chance(high) > outside) [low, high] = [high, 2 * high];
  for (let halved = 0; halved < HALVINGS; halved += 1) {
    const middle = (low + high) / 2;
    [low, high] = chance(middle) > outside ? [middle, high] : [low, middle];
  }
  return high;
}

/** The regularized incomplete beta function, by its continued fraction (Lentz's method; Numerical Recipes, 6.4). */
function beta(x, a, b) {
  if (x <= 0 || x >= 1) return Math.min(1, Math.max(0, x));
  if (x > (a + 1) / (a + b + 2)) return 1 - beta(1 - x, b, a);
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x)) / a;
  const apart = (value) => (Math.abs(value) > TINY ? value : TINY);
  let [c, d] = [1, 1 / apart(1 - (a + b) * x / (a + 1))];
  let fraction = d;
  for (let m = 1; m < TERMS_MAX; m += 1) {
    const even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    for (const term of [even, odd]) {
      [c, d] = [apart(1 + term / c), 1 / apart(1 + term * d)];
      fraction *= c * d;
    }
    if (Math.abs(c * d - 1) < PRECISE) break;
  }
  return front * fraction;
}

/** The logarithm of the gamma function of at least 0.5. */
function logGamma(value) {
  const at = value + LANCZOS_SHIFT - 1;
  const series = LANCZOS.reduce((sum, factor, place) => sum + (place ? factor / (value - 1 + place) : factor), 0);
  return 0.5 * Math.log(2 * Math.PI) + (value - 0.5) * Math.log(at) - at + Math.log(series);
}
