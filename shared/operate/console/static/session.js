// The signed-in person, and requests to the admin API on their behalf. The token is in sessionStorage, which the browser deletes with the
// tab.

const base = new URL('../admin/v1/', location.href.split('#')[0]);
const store = sessionStorage;
let config = { auth: 'keys' };
let expired = () => {};

// isOwner reports whether the person may see only their own subscriptions (scope events:subscribe).
export const isOwner = () => store.getItem('role') === 'owner';

// summary has the newest overview, for the menu, and the time at which it was requested.
export const summary = { overview: null, read: 0 };

// readOverview requests the overview and stores it in the summary.
export async function readOverview() {
  summary.read = Date.now();
  summary.overview = await get('overview');
  return summary.overview;
}

// knowsRole reports whether judge has found out what the person may see. Until then the console shows no menu.
export const knowsRole = () => config.auth === 'none' || !!store.getItem('role');

// judge finds out whether the token belongs to an operator or an owner. It throws if the token has neither scope, or if the server does
// not answer.
export async function judge() {
  store.removeItem('role');
  try {
    await readOverview();
    store.setItem('role', 'operator');
  } catch (e) {
    if (e.status !== 403) throw e;
    await get('subscriptions?limit=1');
    store.setItem('role', 'owner');
  }
}

export const signedIn = () => config.auth === 'none' || !!store.getItem('token');
export const settings = () => config;

// start reads config.json and finishes a sign-in at the authorization server. It calls onExpired later, when the server refuses the token.
export async function start(onExpired) {
  expired = onExpired;
  config = await (await fetch('config.json')).json();
  const q = new URLSearchParams(location.search);
  if (!q.has('state') || !(q.has('code') || q.has('error'))) return;
  const kept = JSON.parse(store.getItem('flow') || 'null');
  store.removeItem('flow');
  history.replaceState(null, '', location.pathname + (kept?.hash || ''));
  if (!kept || kept.state !== q.get('state')) throw new Error('This sign-in did not start in this tab. Sign in again.');
  if (q.has('iss') && q.get('iss') !== config.signIn?.issuer) throw new Error('The response comes from another authorization server. Sign in again.'); // RFC 9207
  if (q.has('error')) throw new Error(q.get('error_description') || q.get('error'));
  if (!config.signIn) throw new Error('The authorization server does not answer. Load this page again.');
  const answer = await fetch(config.signIn.tokenEndpoint, {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'authorization_code', code: q.get('code'), redirect_uri: callback(), client_id: config.signIn.clientId,
      code_verifier: kept.verifier, resource: config.signIn.resource,
    }),
  });
  const got = await answer.json().catch(() => ({}));
  if (!answer.ok || !got.access_token) throw new Error(got.error_description || got.error || 'The authorization server returned no token. Sign in again.');
  store.setItem('token', got.access_token);
}

const callback = () => location.origin + location.pathname;
const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

// redirect starts the authorization code flow with PKCE (RFC 7636, S256).
export async function redirect() {
  const flow = { state: random(), verifier: random(), hash: location.hash };
  store.setItem('flow', JSON.stringify(flow));
  const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(flow.verifier));
  const to = new URL(config.signIn.authorizationEndpoint);
  for (const [name, value] of Object.entries({
    response_type: 'code', client_id: config.signIn.clientId, redirect_uri: callback(), scope: config.signIn.scopes.join(' '), state: flow.state,
    resource: config.signIn.resource, code_challenge: base64url(new Uint8Array(hash)), code_challenge_method: 'S256',
  })) to.searchParams.set(name, value);
  location.assign(to);
}

// signIn stores a key, if the server accepts it. A browser cannot send other characters in a header, and no key or token has them.
export async function signIn(key) {
  if (!/^[!-~]*$/.test(key)) throw Object.assign(new Error(), { status: 401 });
  store.setItem('token', key);
  try {
    await judge();
  } catch (e) {
    signOut();
    throw e;
  }
}

export const signOut = () => { summary.overview = null; summary.read = 0; store.removeItem('token'); store.removeItem('role'); };

// open sends a request to the admin API and returns the response. It throws an Error with the status if the request fails.
export async function open(method, path, body, signal) {
  const token = store.getItem('token');
  const headers = token ? { Authorization: 'Bearer ' + token } : {};
  if (body) headers['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(base + path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (e) {
    throw e.name === 'AbortError' ? e : new Error('The server does not answer.');
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const error = Object.assign(new Error(problem.detail || `The server answered ${answer.status}.`), { status: answer.status });
  if (answer.status === 401 && token) {
    signOut();
    expired();
  }
  throw error;
}

export async function call(method, path, body) {
  const answer = await open(method, path, body);
  return answer.status === 204 ? null : JSON.parse(await answer.text(), exact);
}

// exact keeps the text of a number that a double would round, such as a number above 2^53 in a payload. JSON.stringify prints
// that text. All other code sees an object, which is fine because our own numbers fit into doubles. Browsers from before 2025 may
// lack rawJSON.
const exact = (_, v, context) => (typeof v === 'number' && JSON.rawJSON && context.source !== String(v) ? JSON.rawJSON(context.source) : v);

export const get = (path) => call('GET', path);
export const post = (path, body) => call('POST', path, body);

const units = { s: 1e3, m: 60e3, min: 60e3, h: 3600e3, d: 86400e3 };

// moment converts a time as people write it: a duration before now (15m, 2h, 7d), a day, a time of today, or a day with a time, in the
// zone that the pages show. As the end of a span, a day means the end of that day. Any other text goes to the API, which may refuse it.
export function moment(text, end) {
  const iso = (d) => (Number.isNaN(+d) ? text : d.toISOString()); // a date has a limit
  const ago = /^(\d+(?:\.\d+)?) ?(s|min|m|h|d)$/.exec(text);
  if (ago) return iso(new Date(Date.now() - ago[1] * units[ago[2]]));
  const utc = store.getItem('utc') === 'yes', now = new Date();
  const today = new Date(now - (utc ? 0 : now.getTimezoneOffset() * 60e3)).toISOString().slice(0, 10);
  const at = /^(?:(\d{4}-\d\d-\d\d)[ T]?)?(\d\d:\d\d(?::\d\d)?)?$/.exec(text);
  if (!at || !text) return text;
  return iso(new Date(`${at[1] ?? today}T${at[2] ?? (end ? '23:59:59.999' : '00:00')}${utc ? 'Z' : ''}`));
}

// query returns the query string for the members that are not empty.
export function query(members) {
  const q = new URLSearchParams(Object.entries(members).filter(([, v]) => v != null && v !== '')
    .map(([name, v]) => [name, name === 'since' || name === 'until' ? moment(String(v), name === 'until') : v]));
  return q.size ? '?' + q : '';
}

// pages requests up to n pages of a list and returns their items. The member more is true if there are further pages.
export async function pages(path, members, n) {
  const items = [];
  for (let cursor = ''; n > 0; n--) {
    const page = await get(path + query({ ...members, limit: 100, cursor }));
    items.push(...page.items);
    cursor = page.next;
    if (!cursor) return { ...page, items, more: false };
    if (n === 1) return { ...page, items, more: true };
  }
}
