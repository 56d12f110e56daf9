// The page: assembles the form, the answer and the views, and redraws the visible parts after changes.
import {answerLine} from "./answer.js";
import {cardView} from "./card_view.js";
import {compareView} from "./compare_view.js";
import {eachFrame, element} from "./dom.js";
import {savePng, saveSvg} from "./exporting.js";
import {acceptDrops, FileView} from "./file_view.js";
import {GeometryView} from "./geometry_view.js";
import {HeadView} from "./head_view.js";
import {ModelView} from "./model_view.js";
import {NeuronView} from "./neuron_view.js";
import {EXAMPLE, questionForm} from "./question.js";
import {redrawn} from "./redrawn.js";
import {Session} from "./session.js";
import {ADDRESS_TEXT_MAX, State} from "./state.js";
import {statusNote} from "./status_note.js";
import {termsOfView} from "./terms.js";
import {textView} from "./text_view.js";
import {isDark} from "./theme.js";

// made: {element, update(), drawing() where it has a picture to save}. live: needs a server, so a saved page lacks it.
const VIEWS = {
  text: {name: "Text", make: textView},
  heads: {name: "Heads", make: (context) => new HeadView(context)},
  model: {name: "Model", make: (context) => new ModelView(context)},
  neuron: {name: "Neuron", make: (context) => new NeuronView(context)},
  geometry: {name: "Geometry", make: (context) => new GeometryView(context)},
  compare: {name: "Compare", make: compareView, live: true},
  file: {name: "File", make: (context) => new FileView(context), live: true},
  card: {name: "Scorecard", make: cardView},
};

// How long a message outside of the views stays.
const TOAST_MS = 6000;

/** The data of a saved page, {page, messages}, or null in a page from a server. */
function savedData() {
  const data = document.getElementById("explanation");
  if (!data) return null;
  const [page, ...messages] = data.textContent.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return {page: page.page, messages};
}

function startPage() {
  const saved = savedData();
  const state = new State();
  const session = new Session(state, saved, saved ? "" : EXAMPLE);
  const live = document.getElementById("live");
  const toast = document.getElementById("toast");
  const announce = (said) => {
    live.textContent = "";
    setTimeout(() => { live.textContent = said; }, 50);
  };
  const tell = (said) => {
    announce(said);
    toast.textContent = said;
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => { toast.textContent = ""; }, TOAST_MS);
  };
  const context = {session, state, announce, tell, redraw: () => update()};
  const parts = [
    saved ? null : questionForm(context), pageModel(context), answerLine(context), pageNotes(context), viewTabs(context),
  ].filter(Boolean);
  if (!saved) document.getElementById("question").append(parts[0].element);
  document.getElementById("question").hidden = Boolean(saved);
  const answer = parts.at(-3);
  document.getElementById("answer").append(answer.element);
  const update = eachFrame(() => {
    document.getElementById("answer").hidden = !session.text;
    for (const part of parts) part.update();
  });
  themeButton(state, update);
  copyButtons(state, tell, Boolean(saved));
  if (!saved) acceptDrops(context);
  document.querySelector(".skip").addEventListener("click", (event) => {
    // The fragment of the address holds the page's state.
    event.preventDefault();
    document.getElementById("panel").focus();
  });
  session.addEventListener("change", update);
  session.addEventListener("failed", ({detail}) => announce(detail));
  state.addEventListener("change", update);
  addEventListener("resize", update);
  update();
  session.start();
}

/** Which model answers. */
function pageModel({session}) {
  const said = document.getElementById("model-said");
  const guide = element("code", {text: "docs/guide/viewer.md"});
  // A saved page has no links.
  const docs = session.live ? [element("a", {href: "docs", text: "HTTP API"}), element("span", {}, ", ", guide)] : [guide];
  document.getElementById("docs").append("· Docs: ", ...docs);
  const update = () => {
    const id = session.answer?.model ?? session.explanation?.header?.model ?? session.model?.id;
    const name = id ? `${id.name}/${id.version}` : "";
    if (said.textContent !== name) said.textContent = name;
    said.title = id ? `The model that answers, digest ${id.digest}` : "";
  };
  return {update};
}

/** Why there are no models; and below the view, so that they do not move it, the server's notes: what was left out, and why. */
function pageNotes({session}) {
  const [drawFailure, drawNotes] = ["failure", "notes"].map((id) => redrawn(document.getElementById(id)));
  const update = () => {
    const notes = session.explanation?.notes ?? [];
    const {state, message} = session.status("models");
    drawFailure([state === "failed", message], () => [state === "failed" ? statusNote(session, "models", "", "Models") : null]);
    drawNotes(notes, () => {
      const list = element("ul", {}, ...notes.map((note) => element("li", {text: note})));
      const title = element("summary", {text: `The server notes (${notes.length})`});
      return [notes.length ? element("details", {class: "panel note"}, title, list) : null];
    });
  };
  return {update};
}

/** The tabs, and the view that is chosen; views are made when first shown. */
function viewTabs(context) {
  const {session, state} = context;
  const list = document.getElementById("tabs");
  const panel = document.getElementById("panel");
  const made = {};
  const views = Object.entries(VIEWS).filter(([, {live}]) => session.live || !live);
  const chosen = () => views.find(([name]) => name === state.get("view"))?.[0] ?? "text";
  const tabs = views.map(([name, {name: said}]) => element("button", {
    type: "button", class: "tab", id: `tab-${name}`, role: "tab", text: said, data: {view: name}, aria: {controls: "panel"},
    on: {click: () => state.set({view: name === "text" ? null : name}, {remember: true})},
  }));
  list.append(...tabs);
  const terms = termsOfView(context);
  list.after(terms.button);
  list.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const place = tabs.indexOf(document.activeElement);
    if (!step || place < 0) return;
    event.preventDefault();
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  panel.setAttribute("role", "tabpanel");
  const save = (kind) => {
    const drawing = made[chosen()]?.drawing();
    if (!drawing) context.tell("There is nothing to save yet.");
    else kind(drawing, `sentiment-${chosen()}`).catch((error) => context.tell(`It was not saved: ${error.message}.`));
  };
  const exports = element(
    "div",
    {class: "row exports"},
    element("span", {class: "grow"}),
    element("button", {type: "button", class: "button quiet", id: "save-svg", text: "Save SVG", on: {click: () => save(saveSvg)}}),
    element("button", {type: "button", class: "button quiet", id: "save-png", text: "Save PNG", on: {click: () => save(savePng)}}),
  );
  panel.append(terms.list, exports);
  const update = () => {
    const name = chosen();
    for (const tab of tabs) {
      const selected = tab.dataset.view === name;
      // On a phone the tabs are wider than the page.
      if (selected && panel.dataset.view !== name) list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
    }
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    if (!made[name]) {
      made[name] = VIEWS[name].make(context);
      exports.before(made[name].element);
    }
    panel.dataset.view = name;
    for (const [other, view] of Object.entries(made)) view.element.hidden = other !== name;
    made[name].update();
    terms.update(name);
    const {drawing} = made[name];
    exports.hidden = !drawing || (name === "card" ? !drawing() : !session.explanation?.header);
  };
  return {update};
}

function themeButton(state, update) {
  const button = document.getElementById("theme");
  const apply = () => {
    const theme = state.get("theme");
    if (["light", "dark"].includes(theme)) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
    update();
  };
  button.addEventListener("click", () => state.set({theme: isDark() ? "light" : "dark"}));
  state.addEventListener("change", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

function copyButtons(state, tell, saved) {
  const copy = async (address, said) => {
    try {
      await navigator.clipboard.writeText(address);
      tell(said);
    } catch {
      tell("The browser did not let the page copy.");
    }
  };
  const whole = () => ["text", "pair", "other"].every((key) => state.get(key).length <= ADDRESS_TEXT_MAX);
  const held = () => `The address is copied${whole() ? `${state.get("text") && "; it holds the text"}.` : ", without the text, which is too long for it."}`;
  const buttons = {
    copy: () => copy(state.address(), held()),
    "copy-settings": () => copy(state.address({texts: false}), "The address is copied; it holds the view and its settings, and no text."),
  };
  for (const [id, click] of Object.entries(buttons)) {
    const button = document.getElementById(id);
    button.addEventListener("click", click);
  }
  document.getElementById("share").hidden = saved || !navigator.clipboard;
}

startPage();
