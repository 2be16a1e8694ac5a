// Questions to the scheduler, with the token of this tab.

const KEY = "oneflow-token";
let token = sessionStorage.getItem(KEY) || "";

export const hasToken = () => token !== "";

export function setToken(given) {
  token = given;
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export async function ask(path, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return send("/api/" + path + (words && "?" + words), {headers: headers()});
}

export const change = path => send("/api/" + path, {method: "POST", headers: headers()});

export const jobPath = (id, more = "") => "jobs/" + encodeURIComponent(id) + more;
const headers = () => ({Authorization: "Bearer " + token});

// Throws an Error with the status of the answer, 0 if none came.
async function send(address, options) {
  const reply = await fetch(address, options).catch(() => {
    throw Object.assign(new Error("the scheduler does not answer"), {status: 0});
  });
  const found = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(found.error), {status: reply.status});
  return found;
}
