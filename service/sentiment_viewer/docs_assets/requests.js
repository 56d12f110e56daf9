// Sends a request of the page and reads its answer. The only module of the page that uses the network.

// Of an answer: longer ones are cut. An explanation with all attention maps has 128 MiB.
const SHOWN_CHARACTERS_MAX = 200_000;

/** The OpenAPI document of the server. */
export async function askDocument() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: HTTP status ${response.status}`);
  return response.json();
}

/**
 * Send a request and show its answer as it arrives.
 *
 * @param {{method: string, url: string, headers: object, body: string|undefined}} request
 * @param {(answer: {status: number, statusText: string, requestId: string|null, seconds: number, text: string, done: boolean}) => void} show
 * @param {AbortSignal} signal ends the request.
 */
export async function send({method, url, headers, body}, show, signal) {
  const begun = performance.now();
  const response = await fetch(url, {method, headers, body, signal, cache: "no-store"});
  const head = {status: response.status, statusText: response.statusText, requestId: response.headers.get("x-request-id")};
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {done, value} = await reader.read();
    text += value ?? "";
    const cut = text.length > SHOWN_CHARACTERS_MAX;
    if (cut) await reader.cancel();
    const shown = cut ? `${text.slice(0, SHOWN_CHARACTERS_MAX)}\n... (cut)` : text;
    show({...head, seconds: (performance.now() - begun) / 1000, text: shown, done: done || cut});
    if (done || cut) return;
  }
}
