// Parts of a view that are made anew only when what they show has changed.
import {replace} from "./dom.js";

/**
 * A function (shown, make) for a node: where a value of the array `shown` differs from the last call's, the node gets the children that
 * `make()` returns, an array.
 */
export function redrawn(node) {
  let last = null;
  return (shown, make) => {
    if (last && shown.length === last.length && shown.every((value, place) => Object.is(value, last[place]))) return;
    last = shown;
    replace(node, ...make());
  };
}
