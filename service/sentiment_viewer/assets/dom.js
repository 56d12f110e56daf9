// Nodes of the page. Everything that a user or a server says goes in as text, never as markup.

/**
 * Make a node.
 *
 * @param {string} tag
 * @param {object} properties class, text, on {event: function}, data, aria and style (objects), and any property of the node.
 * @param {...(Node|string|null)} children null is left out.
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "aria") for (const [key, said] of Object.entries(value)) node.setAttribute(`aria-${key}`, said);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "role" || name === "list") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A part of a view under a heading. */
export function section(title, ...children) {
  return element("section", {class: "text-section"}, element("h2", {text: title}), ...children);
}

/** Replace the children of a node; null is left out. */
export function replace(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** Debounce: call a function once, when there have been no more calls for this many milliseconds. */
export function afterwards(milliseconds, call) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}

/** Call a function at most once per frame, with the latest arguments. */
export function eachFrame(call) {
  let asked = 0;
  let last = [];
  return (...values) => {
    last = values;
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      call(...last);
    });
  };
}
