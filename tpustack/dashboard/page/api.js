// Talks to the server that this page is from.

const KEY = "tpustack-token";

/** Takes the token out of the address, where a screenshot or a shared link would show it. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) ?? "";
}
const token = takeToken();

export class Refused extends Error {}

/** The server can't be reached; the browser's own words for that differ and help no one. */
export class Lost extends Error {
  constructor() { super("Lost the connection to tpustack dashboard. Retrying…"); }
}

function lost(error) {
  throw error instanceof TypeError ? new Lost() : error;
}

async function ask(path, about = {}) {
  const answer = await fetch(`api/${path}`, { ...about, headers: { Authorization: `Bearer ${token}` } }).catch(lost);
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(said.problem ?? `the server answers ${answer.status}`);
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");
export const get = async (where) => (await ask(where)).json();
export const post = async (where) => (await ask(where, { method: "POST" })).json();
export const blob = async (where) => (await ask(where)).blob();

/** Hands each line of a stream to `hear`, until it ends or `signal` says so. */
export async function lines(where, hear, signal) {
  const answer = await ask(where, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [];
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const whole = value.split("\n");
    rest.push(whole[0]);
    for (const next of whole.slice(1)) {
      const line = rest.join("");
      rest = [next];
      if (line) hear(JSON.parse(line));
    }
  }
}
