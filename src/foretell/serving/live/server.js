// Requests to the server that this page comes from. A server with keys is asked again with the key of the reader.
const KEY = "foretell key";

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    throw error instanceof TypeError ? new Error("The server does not answer. Is it running?") : error;
  });
  if (response.ok) return response;
  const given = response.status === 401 && prompt("The key of this server");
  if (!given && response.status === 401) throw new Error("This server needs a key; reload the page to enter the key.");
  if (!given) throw new Error((await response.json()).error.message);
  sessionStorage.setItem(KEY, given);
  return request(path, options);
}

const post = (path, body, signal) => request(path, { method: "POST", body: JSON.stringify(body), signal });

export const ask = async (path, body, signal) => (await post(path, body, signal)).json();
export const askFile = async (path, body, signal) => (await post(path, body, signal)).blob();
export const models = async () => (await request("explore", {})).json(); // {models: [{name, examples, reads}]}

// Calls `take` with each line of the answer, parsed.
export async function askLines(path, body, signal, take) {
  const reader = (await post(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const parsed = JSON.parse(line);
      if (parsed.error) throw new Error(parsed.error.message);
      await take(parsed);
    }
  }
}
