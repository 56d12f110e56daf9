// Finds what has changed since it was last shown, so that only that is redrawn.
import {replace} from "./dom.js";

/** A function (shown) that returns whether any value of the array `shown` has changed since the last call; true at the first. */
export function differing() {
  let last = null;
  return (shown) => {
    if (last && shown.length === last.length && shown.every((value, place) => Object.is(value, last[place]))) return false;
    last = shown;
    return true;
  };
}

/**
 * A function (shown, make) for a node: where a value of the array `shown` differs from the last call's, the node gets the children that
 * `make()` returns, an array.
 */
export function redrawn(node) {
  const differs = differing();
  return (shown, make) => {
    if (differs(shown)) replace(node, ...make());
  };
}
