// The page's state, kept in the fragment of the address, which browsers do not send to servers.

// A longer text is left out: mail and chat programs cut such addresses.
export const ADDRESS_TEXT_MAX = 6000;
const TEXTS = ["text", "pair", "other"];
// They name places in the text, words to leave out, or what the text is about.
const OF_TEXT = [...TEXTS, "targets", "about", "without", "lock", "token"];

/** The page's state: strings by key, in the address. Fires "change", with the changed keys in `detail`. */
export class State extends EventTarget {
  constructor() {
    super();
    this.values = stateOfPage(history.state);
    addEventListener("popstate", (event) => this.#read(event.state));
  }

  /** The value, or "". */
  get(key) {
    return this.values.get(key) ?? "";
  }

  /** A whole number that is not negative, or the fallback. */
  number(key, fallback) {
    const value = this.get(key);
    return /^\d{1,9}$/.test(value) ? Number(value) : fallback;
  }

  /** Whole numbers separated by commas; other parts are left out. */
  list(key) {
    return this.get(key).split(",").filter((part) => /^\d{1,9}$/.test(part)).map(Number);
  }

  /** Set values; null or "" unsets. `remember`: a new entry of the browser's history. */
  set(changes, {remember = false} = {}) {
    const keys = [];
    for (const [key, value] of Object.entries(changes)) {
      const text = value === null || value === undefined ? "" : String(value);
      if (text === this.get(key)) continue;
      keys.push(key);
      if (text === "") this.values.delete(key);
      else this.values.set(key, text);
    }
    if (!keys.length) return;
    this.#write(remember);
    this.#tell(keys);
  }

  /** The address of what is shown. `texts` false: of the view and its settings only. */
  address({texts = true} = {}) {
    const keeps = ([key, value]) => (texts ? !TEXTS.includes(key) || value.length <= ADDRESS_TEXT_MAX : !OF_TEXT.includes(key));
    const kept = [...this.values].filter(keeps);
    const fragment = new URLSearchParams(kept).toString();
    return `${location.href.split("#")[0]}${fragment && "#"}${fragment}`;
  }

  #write(remember) {
    try {
      // The entry keeps a text that is too long for the address.
      history[remember ? "pushState" : "replaceState"](Object.fromEntries(this.values), "", this.address());
    } catch {
      // A frame of a notebook has no address, and browsers limit how often one is changed.
    }
  }

  #read(entry) {
    const read = stateOfPage(entry);
    const keys = [...new Set([...read.keys(), ...this.values.keys()])].filter((key) => read.get(key) !== this.values.get(key));
    this.values = read;
    if (keys.length) this.#tell(keys);
  }

  #tell(keys) {
    this.dispatchEvent(new CustomEvent("change", {detail: keys}));
  }
}

/** The values of an entry of the browser's history, or of the address if it was typed or followed. */
function stateOfPage(entry) {
  return new Map(entry ? Object.entries(entry) : new URLSearchParams(location.hash.slice(1)));
}
