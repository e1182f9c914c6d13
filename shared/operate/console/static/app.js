// The frame: sign-in, navigation and the current page. The part of the address after # identifies a page, with its filters.
import { html, nothing, render, badge, time, inUTC, setUTC, zone, suggest } from './ui.js';
import * as session from './session.js';
import * as live from './live.js';
import { now, tail } from './pages-now.js';
import { failing } from './pages-failing.js';
import { types, events } from './pages-events.js';
import { subscriptions } from './pages-subscriptions.js';
import { deliveries } from './pages-deliveries.js';
import { letters } from './pages-letters.js';
import { sources } from './pages-sources.js';
import { switches, backends, audit } from './pages-system.js';
import { search as searchPage, start as startSearch } from './pages-search.js';

// A page has a title, load(path, query), which gets its data, and view(data, path, query). Optional members are
// every, the time in milliseconds after which it loads again (or a function of its data); live, if it uses the live stream;
// redraws, if it changes without loading; and filtered, if its list has a form with filters.
const pages = {
  now, failing, types, sources, subscriptions, deliveries, 'dead-letters': letters, switches, backends, audit, live: tail, events, search: searchPage,
};
const ownerPages = ['subscriptions', 'deliveries', 'dead-letters'];
const menu = ['now', 'live', 'failing', 'types', 'sources', 'subscriptions', 'deliveries', 'dead-letters', 'switches', 'backends', 'audit'];

const menuEvery = 30_000; // milliseconds after which a load also updates the counts in the menu

let at = { name: 'now', path: [], q: new URLSearchParams() };
let shown = null; // the page on the screen: {...at, data} or {...at, error}
let problem = ''; // why the sign-in failed
let busy = false;
let leaving = false; // the browser is about to reload the console, so draw does nothing
let turn = 0; // counts loads, so that a late response is dropped
let timer;
let waits = ''; // why a due update of the page waits
let submitted = null; // the field that had the focus when its form was submitted, until it changes

function address() {
  const [where, q] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = where.split('/').map((p) => { try { return decodeURIComponent(p); } catch { return p; } });
  const owner = session.isOwner();
  if (!Object.hasOwn(pages, parts[0]) || owner && !ownerPages.includes(parts[0])) return { name: owner ? ownerPages[0] : 'now', path: [], q: new URLSearchParams() };
  return { name: parts[0], path: parts.slice(1).filter(Boolean), q: new URLSearchParams(q || '') };
}

// everyOf returns the time in milliseconds after which a page loads again, or a falsy value if it does not. A refused request is
// not repeated, because the server would refuse it again.
function everyOf(page, { data, error }) {
  if (error) return !(error.status < 500 && error.status !== 429) && page.every && 10_000;
  return typeof page.every === 'function' ? page.every(data) : page.every;
}

// held says why the page must not change now, because a person is working on it. Otherwise it returns an empty text.
function held() {
  const at = document.activeElement;
  if (document.querySelector('dialog[open]')) return 'a dialog is open';
  if (document.querySelector('main tbody input:checked')) return 'rows are selected';
  if (document.querySelector('main td details[open]')) return 'details are open';
  return at !== submitted && at?.matches('main form :is(input, select, textarea)') ? 'a form has the focus' : '';
}

// loadLater loads the page again after some milliseconds, or later, as soon as held allows it.
function loadLater(ms) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (document.hidden) return;
    const why = held();
    if (!why) return load();
    if (why !== waits) { waits = why; draw(); }
    loadLater(1000);
  }, ms);
}

async function load() {
  clearTimeout(timer);
  waits = '';
  if (!session.signedIn()) return draw();
  const mine = ++turn, moved = !shown || shown.name !== at.name || shown.path.join() !== at.path.join() || shown.q.toString() !== at.q.toString();
  const page = pages[at.name];
  live.want(page.live);
  busy = moved;
  draw();
  let next;
  try {
    if (!session.knowsRole()) {
      await session.judge();
      if (mine === turn) at = address(); // an owner has fewer pages
      return load();
    }
    next = { ...at, data: await page.load(at.path, at.q), loaded: new Date().toISOString() };
    if (Date.now() - session.summary.read > menuEvery && !session.isOwner()) session.readOverview().then(draw, () => {});
    if (!suggest.types && !session.isOwner()) session.get('event-types?limit=100').then((l) => { suggest.types = l.items.map((t) => t.name); draw(); }, () => {});
  } catch (error) {
    const gone = !error.status || error.status >= 500; // without an answer, the last data stays on the screen
    next = gone && !moved && shown?.data !== undefined ? { ...shown, lost: error } : { ...at, error };
  }
  if (mine !== turn) return;
  busy = false;
  shown = next;
  const every = everyOf(page, next);
  if (session.signedIn() && every) loadLater(every);
  draw();
  if (!moved) return;
  document.getElementById('main')?.scrollTo(0, 0);
  const here = document.querySelector('.menu [aria-current]'); // on a phone the menu is wider than the screen
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;
}

function draw() {
  if (leaving) return;
  document.title = (session.signedIn() ? pages[at.name].title + ' · ' : '') + 'mcp-events';
  render(session.signedIn() ? frame() : signInForm(), document.getElementById('app'));
}

function frame() {
  const here = (name) => (at.name === name || at.name === 'events' && name === 'types' ? 'page' : nothing);
  return html`
    <a class="skip" href="#main" @click=${(e) => { e.preventDefault(); document.getElementById('main').focus(); }}>Skip to the content</a>
    <header>
      <a class="brand" href="#/now"><img src="icon.svg" alt="" width="20" height="20">mcp-events</a>
      ${!session.knowsRole() ? html`<span></span>` : session.isOwner() ? html`<span class="muted">your own subscriptions</span>` : html`<form role="search" @submit=${search}><input id="search" name="for" type="search" placeholder="Find an id, a URL, a host, an owner or an event type" aria-label="Find an id, a URL, a host, an owner or an event type" aria-keyshortcuts="/" autocomplete="off" spellcheck="false"><kbd aria-hidden="true">/</kbd></form>`}
      ${session.settings().auth === 'none' ? html`<span class="open" title="The server runs with --auth none: everyone who can reach this address is an operator.">${badge('no sign-in', 'warn')}</span>` : html`<button class="quiet" @click=${leave}>Sign out</button>`}
    </header>
    <nav class="menu" aria-label="Pages">${(session.isOwner() ? ownerPages : session.knowsRole() ? menu : []).map((name) => html`<a href=${'#/' + name} aria-current=${here(name)}>${pages[name].title}${count(name)}</a>`)}
      ${who()}</nav>
    <main id="main" tabindex="-1" aria-busy=${busy}><div class="bar" ?hidden=${!busy}></div>
      <button class="small quiet zone" title="Switch between local times and UTC. Times of today show no day." @click=${() => { setUTC(!inUTC()); draw(); }}>${inUTC() ? 'Times in UTC' : `Local times (${zone()})`}</button>${content()}</main>`;
}

// count shows how many items of a menu page need attention, according to the last overview.
function count(name) {
  const o = session.summary.overview;
  const n = { failing: o?.recent.failing.length, 'dead-letters': o?.deadLetters, switches: o?.paused.length }[name];
  return n ? html` <span class="count" title=${`at ${new Date(o.now).toLocaleTimeString()}`}>${n >= 1000 ? '1,000+' : n}</span>` : nothing;
}

// who shows who is signed in, in which workspace, and at which server.
function who() {
  const o = session.summary.overview;
  return o ? html`<p class="who"><b>${session.settings().auth === 'none' ? 'everyone' : o.principal}</b> in workspace <b>${o.workspace}</b> at ${location.host}</p>` : nothing;
}

function content() {
  if (!shown) return html`<h1>${pages[at.name].title}</h1>`;
  const page = pages[shown.name], problem = (what) => html`<div class="problem" role="alert"><p>${what}</p><button @click=${load}>Try again</button></div>`;
  if (shown.lost) return html`${problem(html`${shown.lost.message} The page below is from ${time(shown.loaded)}.`)}<div class="stale">${page.view(shown.data, shown.path, shown.q)}</div>`;
  if (!shown.error) return html`${page.view(shown.data, shown.path, shown.q)}${page.live ? nothing : asOf(everyOf(page, shown))}`;
  // If the server refuses a filter, the form stays on the page, so that the person can correct it.
  if (shown.error.status === 400 && page.filtered && !shown.path.length) return html`${problem(shown.error.message)}<div class="failed">${page.view({ items: [], kept: 'all' }, [], shown.q)}</div>`;
  return html`<h1>${page.title}</h1>${problem(shown.error.message)}`;
}

// asOf shows the age of the page, and when it updates itself.
const asOf = (every) => html`<p class="as-of">As of ${time(shown.loaded)}. ${waits ? `Updates wait because ${waits}.` : every ? `Updated every ${every / 1000} s.` : ''} <button class="small quiet" @click=${load}>Update now</button></p>`;

function search(e) {
  e.preventDefault();
  const input = e.currentTarget.elements.for, text = input.value.trim();
  if (!text) return;
  startSearch(text);
  input.value = '';
  input.blur();
}

// leave signs out and reloads the console, so that its memory has no data for the next person.
function leave() {
  session.signOut();
  leaving = true;
  location.reload();
}

function signInForm() {
  const c = session.settings();
  const submit = async (e) => {
    e.preventDefault();
    try {
      if (c.signIn) return await session.redirect();
      await session.signIn(e.currentTarget.elements.key.value.trim());
      problem = '';
      at = address(); // an owner has fewer pages
      return load();
    } catch (failure) {
      problem = { 401: 'The server does not know this key.', 403: 'This key needs the scope events:operate or, to see its own subscriptions, events:subscribe.' }[failure.status] || failure.message;
    }
    draw();
  };
  const missing = c.client && !c.signIn;
  return html`<main class="sign-in" id="main"><form @submit=${submit}>
    <h1><img src="icon.svg" alt="" width="28" height="28">mcp-events</h1>
    ${c.signIn ? html`<p class="muted">You sign in at <span class="id">${c.signIn.issuer}</span>.</p>` : nothing}
    ${c.signIn || missing ? nothing : html`<label><span>${c.auth === 'jwt' ? 'Access token' : 'Key'}</span><input name="key" type="password" required autocomplete="off" autofocus></label>`}
    <p role="alert" class="bad">${missing ? 'The authorization server does not answer. Load this page again.' : problem}</p>
    <button class="primary" ?disabled=${missing}>Sign in</button>
    <p class="muted">Only this tab keeps the ${c.signIn || c.auth === 'jwt' ? 'token' : 'key'}, until you close it.</p>
  </form></main>`;
}

addEventListener('hashchange', () => { at = address(); load(); });
addEventListener('reload', load);
addEventListener('redraw', () => { if (shown && (pages[shown.name].live || pages[shown.name].redraws)) draw(); });
document.addEventListener('visibilitychange', () => { if (document.hidden) live.want(false); else if (held()) loadLater(1000); else load(); });
addEventListener('submit', () => { submitted = document.activeElement; });
for (const kind of ['input', 'focusin']) addEventListener(kind, () => { submitted = null; });
addEventListener('keydown', (e) => {
  if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName) || document.querySelector('dialog[open]')) return;
  const input = document.getElementById('search');
  if (!input) return;
  e.preventDefault();
  input.focus();
  input.select();
});

session.start(() => {
  live.want(false);
  shown = null;
  problem = 'You were signed out because your key or token is no longer valid.';
  draw();
}).catch((e) => { problem = e.message; }).finally(() => { at = address(); load(); });
