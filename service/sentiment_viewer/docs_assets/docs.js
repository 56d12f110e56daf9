// The page of the HTTP routes: made from the server's OpenAPI document, each with a form that sends a request.

import {element, replace} from "../viewer/dom.js";
import {scrolling, tableNode} from "../viewer/tables.js";
import {askDocument, send} from "./requests.js";

const METHODS = ["get", "post"];
// Levels of nested fields in a table; below it stands the name of the object.
const DEPTH_MAX = 3;

/** What a "$ref" refers to, or the node itself. */
function resolved(node, page) {
  if (!node?.$ref) return node;
  return node.$ref.slice(2).split("/").reduce((found, name) => found[name], page);
}

function nameOf(schema) {
  return schema.$ref?.split("/").at(-1);
}

function typeOf(schema, page) {
  const found = resolved(schema, page);
  if (found.anyOf) return found.anyOf.map((each) => typeOf(each, page)).join(" or ");
  if (found.type === "array") return `array of ${typeOf(found.items, page)}`;
  return found.enum ? "one of a list" : [found.type ?? "object"].flat().join(" or ");
}

/** The rows of a table: each field with its path, and below an object its fields. */
function rowsOf(schema, page, path = "", depth = 1) {
  const object = resolved(schema, page);
  return Object.entries(object.properties ?? {}).flatMap(([name, field]) => {
    const inner = resolved(field, page);
    const member = inner.type === "array" ? resolved(inner.items, page) : inner;
    const at = `${path}${name}${inner.type === "array" ? "[]" : ""}`;
    const said = field.description ?? inner.description ?? nameOf(field) ?? "";
    const row = {at, type: typeOf(field, page), needed: object.required?.includes(name) ?? false, said, values: member.enum ?? []};
    return [row, ...(depth < DEPTH_MAX ? rowsOf(member, page, `${at}.`, depth + 1) : [])];
  });
}

function fieldTable(title, schema, page, needed) {
  const rows = rowsOf(schema, page);
  if (rows.length === 0) return null;
  const body = rows.map(({at, type, needed: must, said, values}) => element("tr", {},
    element("td", {}, element("code", {text: at}), needed && must ? " (needed)" : null),
    element("td", {text: type}),
    element("td", {text: said.split("\n")[0]}, values.length ? element("p", {class: "note", text: values.join(", ")}) : null)));
  const table = tableNode({class: "fields", heads: ["Field", "Type", "What it is"]}, body);
  return element("details", {}, element("summary", {text: title}), scrolling(title, table));
}

function labelled(id, label, control, className = "field") {
  control.id = id;
  return element("div", {class: className}, element("label", {htmlFor: id, text: label}), control);
}

/** JSON, indented, if the text is one document or lines of documents; else the text. */
function pretty(text, lines) {
  try {
    const parts = lines ? text.split("\n").filter(Boolean) : [text];
    return parts.map((part) => JSON.stringify(JSON.parse(part), null, lines ? 0 : 2)).join("\n");
  } catch {
    return text;
  }
}

/** The command that sends the same request. */
function curlOf({method, url, headers, body}) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const said = Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${name === "Authorization" ? "Bearer TOKEN" : value}`)}`);
  const parts = ["curl -s", ...said, ...(body === undefined ? [] : ["-d", quoted(body)]), quoted(new URL(url, location.href).href)];
  return `${parts.join(" ")}${method === "GET" || body !== undefined ? "" : ` -X ${method}`}`;
}

/** A route: what it is, its fields, and a form that tries it. */
function routeOf(path, method, operation, page, tokenField) {
  const id = operation.operationId;
  const parameters = operation.parameters?.map((each) => resolved(each, page)) ?? [];
  const asked = operation.requestBody?.content["application/json"];
  const [kind, answered] = Object.entries(operation.responses["200"].content)[0];
  const inputs = parameters.map((each) => [each, element("input", {value: each.in === "path" ? (each.example ?? "") : "", required: each.required ?? false,
    placeholder: each.in === "header" ? (each.example ?? "") : "", autocomplete: "off", spellcheck: false})]);
  const body = asked && element("textarea", {class: "body", rows: 6, spellcheck: false});
  const examples = Object.values(asked?.examples ?? {});
  const choice = examples.length > 1 ? element("select", {}, ...examples.map(({summary}, at) => element("option", {text: summary, value: at}))) : null;
  const fillIn = () => (body.value = JSON.stringify(examples[choice?.value ?? 0].value, null, 2));
  if (examples.length) fillIn();
  choice?.addEventListener("change", fillIn);
  const status = element("p", {role: "status"});
  const shown = element("pre", {class: "code", hidden: true, tabIndex: 0, role: "region", aria: {label: `Answer of ${path}`}});
  const command = element("pre", {class: "code", hidden: true, tabIndex: 0, role: "region", aria: {label: `Command for ${path}`}});
  let running = null;

  const submit = async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    const headers = asked ? {"Content-Type": "application/json"} : {};
    if (tokenField.value) headers.Authorization = `Bearer ${tokenField.value}`;
    let url = path.slice(1) || ".";
    for (const [each, input] of inputs) {
      if (each.in === "path") url = url.replace(`{${each.name}}`, encodeURIComponent(input.value));
      else if (input.value) headers[each.name] = input.value;
    }
    const request = {method: method.toUpperCase(), url, headers, body: body?.value};
    command.textContent = curlOf(request);
    status.className = "";
    status.textContent = "Waiting for the answer.";
    command.hidden = false;
    shown.hidden = true;
    try {
      await send(request, (answer) => {
        shown.textContent = pretty(answer.text, kind.includes("ndjson"));
        shown.hidden = answer.text === "";
        if (!answer.done) return;
        const named = answer.requestId ? `, request id ${answer.requestId}` : "";
        status.textContent = `${answer.status} ${answer.statusText} after ${Math.round(answer.seconds * 1000)} ms${named}`;
        status.className = answer.status < 400 ? "" : "failed";
      }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      status.className = "failed";
      status.textContent = `There is no answer: ${error.message}.`;
    }
  };

  const form = element("form", {on: {submit}},
    choice && labelled(`${id}-example`, "Example", choice),
    body ? labelled(`${id}-body`, "Body", body) : null,
    ...inputs.map(([each, input]) => labelled(`${id}-${each.name}`, `${each.name}${each.in === "header" ? " (header, optional)" : ""}: ${each.description}`, input)),
    element("div", {class: "row"}, element("button", {class: "button", type: "submit", text: "Send", aria: {label: `Send ${method.toUpperCase()} ${path}`}})));
  const heading = element("h2", {id: `${id}-heading`, class: "path"}, element("span", {class: "method", text: method.toUpperCase()}), path);
  const failures = Object.entries(operation.responses).filter(([code]) => code !== "200").map(([code, each]) =>
    element("tr", {}, element("td", {text: code}), element("td", {text: resolved(each, page).description})));
  return element("section", {id, class: "panel route", aria: {labelledby: `${id}-heading`}}, heading,
    element("p", {class: "said", text: operation.description ?? operation.summary}),
    form, status, shown, command,
    asked ? fieldTable("Fields of the request", asked.schema, page, true) : null,
    fieldTable("Fields of the answer", answered.schema, page, false),
    failures.length ? element("details", {}, element("summary", {text: "Errors"}), tableNode({}, failures)) : null);
}

async function start() {
  const routes = document.querySelector("#routes");
  let page;
  try {
    page = await askDocument();
  } catch (error) {
    routes.append(element("p", {class: "panel failed", role: "alert", text: `The server does not describe its routes: ${error.message}`}));
    return;
  }
  document.querySelector("#version").textContent = `${page.info.title} ${page.info.version}`;
  const tokenField = element("input", {type: "password", autocomplete: "off", spellcheck: false});
  const token = labelled("token", "Bearer token, if the server wants one. It stays on this page.", tokenField, "field token");
  const links = [];
  const sections = [];
  for (const [path, operations] of Object.entries(page.paths)) {
    for (const method of METHODS.filter((each) => operations[each])) {
      const operation = operations[method];
      const name = element("span", {class: "method", text: method.toUpperCase()});
      links.push(element("li", {}, element("a", {href: `#${operation.operationId}`, class: "path"}, name, path)));
      sections.push(routeOf(path, method, operation, page, tokenField));
    }
  }
  replace(document.querySelector("#contents"), element("h2", {text: "Routes"}), element("ul", {}, ...links));
  routes.append(element("form", {class: "panel", aria: {label: "Token"}, on: {submit: (event) => event.preventDefault()}}, token), ...sections);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

start();
