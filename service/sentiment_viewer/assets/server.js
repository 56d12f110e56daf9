// Sends requests to the server that the page came from. The only module that uses the network.

// The server's default limit is 60 s.
const TIME_LIMIT_S = 60;
const ANSWER_LIMIT_S = 10;
const FINAL = ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND"];

/**
 * Why there is no answer, in words for the page. `final`: a retry cannot help. `status`: the gRPC status, "" where none came; `said`: the
 * server's own words. `retryAfterS`: when to try again, or null.
 */
export class ServerError extends Error {
  constructor(message, {final = false, status = "", said = "", retryAfterS = null} = {}) {
    super(message);
    Object.assign(this, {final, status, said, retryAfterS});
  }
}

/** The models of the server: [Model]. */
export async function askModels(signal) {
  return (await (await fetchAnswer("v1/models", {signal}, ANSWER_LIMIT_S)).json()).models ?? [];
}

/** One model with its card. */
export async function askModel(name, version, signal) {
  return (await (await fetchAnswer(`v1/models/${encodeURIComponent(name)}/${version}`, {signal}, ANSWER_LIMIT_S)).json()).model;
}

/** The answer to a text: a ClassifyResponse, and the request_id of the call. */
export async function askAnswer(request, signal) {
  const response = await postJson("v1/classify", request, signal, ANSWER_LIMIT_S);
  return {...(await response.json()), request_id: response.headers.get("x-request-id")};
}

/** Tell the right label: takes a FeedbackRequest, gives a FeedbackResponse. */
export async function sendFeedback(request, signal) {
  return (await postJson("v1/feedback", request, signal, ANSWER_LIMIT_S)).json();
}

/** The messages of an explanation, each as it arrives. */
export async function* askExplanation(request, signal) {
  const response = await postJson("v1/explain", request, signal, TIME_LIMIT_S);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  let ended = false;
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const lines = value.split("\n");
      for (const line of lines.slice(0, -1)) {
        const message = JSON.parse(parts.join("") + line);
        parts = [];
        if (message.error) throw errorOf(message.error);
        ended = Boolean(message.summary);
        yield message;
      }
      parts.push(lines.at(-1));
    }
  } catch (error) {
    throw spoken(error, signal);
  } finally {
    // Cancelling the stream lets the server stop its work.
    reader.cancel().catch(() => {});
  }
  if (!ended) throw new ServerError("The connection ended in the middle of the explanation.");
}

async function postJson(path, request, signal, limitS) {
  const headers = {"Content-Type": "application/json", "Grpc-Timeout": `${limitS}S`};
  return fetchAnswer(path, {method: "POST", headers, body: JSON.stringify(request), signal}, limitS);
}

async function fetchAnswer(path, options, limitS) {
  // A little longer than the server's deadline: its error says more than a time-out here.
  const limit = AbortSignal.timeout((limitS + 5) * 1000);
  let response;
  try {
    response = await fetch(path, {...options, signal: AbortSignal.any([options.signal, limit]), cache: "no-store"});
  } catch (error) {
    throw spoken(error, options.signal);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const wait = Number(response.headers.get("Retry-After"));
  if (body?.error) throw errorOf(body.error, wait || null);
  throw new ServerError(`The server answered with HTTP status ${response.status}.`, {retryAfterS: wait || null});
}

/** An error of the server's, in words for the page. */
function errorOf(error, retryAfterS = null) {
  const delay = error.details?.map((detail) => Number.parseFloat(detail.retry_delay)).find((seconds) => seconds > 0);
  const wait = delay ?? retryAfterS ?? null;
  const said = {
    RESOURCE_EXHAUSTED: "The server has too much to do",
    UNAVAILABLE: "The server is starting or stopping",
    DEADLINE_EXCEEDED: "There was not enough time",
    FAILED_PRECONDITION: "This server or model cannot do that",
    NOT_FOUND: "There is no such model",
    INVALID_ARGUMENT: "The server refused the request",
    INTERNAL: "The server failed",
  }[error.status];
  const again = wait ? ` Try again in ${Math.max(1, Math.ceil(wait))} s.` : "";
  const {status, message} = error;
  const final = FINAL.includes(status);
  return new ServerError(`${said ?? status}: ${message}.${again}`, {final, status, said: message, retryAfterS: wait});
}

function spoken(error, signal) {
  if (error instanceof ServerError || signal?.aborted) return error;
  if (error.name === "TimeoutError") return new ServerError("The server did not answer in time.");
  if (error instanceof SyntaxError) return new ServerError("The server's answer cannot be read.");
  return new ServerError("The server cannot be reached. Is it running?");
}
