// Sources: requests from providers and AWS buses with their outcomes, and a form that shows which event a request would become.
import { html, mono, nothing, id, path, badge, table, time, pager, filters, since, until, link, number } from './ui.js';
import { get, post, query } from './session.js';

const kinds = ['', 'refused', 'accepted', 'duplicate', 'unmatched', 'verified', 'unverified', 'invalid', 'unfit', 'limited', 'unavailable'];

const meanings = {
  accepted: 'became an event', duplicate: 'repeats an earlier event', unmatched: 'no mapping matches it', verified: 'the provider verified the URL', unverified: 'not signed by the provider',
  invalid: 'not a valid document', unfit: 'fits no event type', limited: 'over the quota', unavailable: 'this server failed',
};

const pretty = (v) => JSON.stringify(v, null, 2);
const outcome = (o) => html`${badge(o.kind)}${o.omitted ? html` <span class="muted" title="requests before this one that were not kept">+${number(o.omitted)}</span>` : nothing}`;
const pre = (title, v) => html`<details><summary>${title}</summary><pre tabindex="0">${pretty(v)}</pre></details>`;

let tried = null; // {source, trials} or {source, problem}
let busy = false;

async function attempt(source, request) {
  busy = true;
  tried = null;
  dispatchEvent(new Event('redraw'));
  try {
    tried = { source, ...await post('sources/' + encodeURIComponent(source) + '/try', { request }) };
  } catch (error) {
    tried = { source, problem: error.message };
  }
  busy = false;
  dispatchEvent(new Event('redraw'));
  document.querySelector('.tried')?.scrollIntoView({ block: 'nearest' });
}

const result = (t) => html`<article class="job trial" aria-label="Trial"><div>${badge(t.kind)} ${t.kind === 'accepted' ? 'would become an event' : t.kind === 'unverified' && t.uri ? 'would become an event if its signature were right' : meanings[t.kind]}${t.reason ? html`: <span>${t.reason}</span>` : nothing}</div>
  <dl class="facts">
    ${t.signature ? html`<dt>Signature</dt><dd>${t.signature}</dd>` : nothing}
    ${t.mapping ? html`<dt>Mapping</dt><dd>${t.mapping}</dd>` : nothing}
    ${t.name ? html`<dt>Event type</dt><dd>${t.name}</dd>` : nothing}
    ${t.uri ? html`<dt>URI</dt><dd>${mono(t.uri)}</dd>` : nothing}
    ${t.id ? html`<dt>Id</dt><dd>${mono(t.id)}</dd>` : nothing}
    ${t.time ? html`<dt>Time</dt><dd>${time(t.time)}</dd>` : nothing}
  </dl>
  ${t.faults?.length ? html`<ul>${t.faults.map((f) => html`<li><code>${f.pointer || '/'}</code> ${f.message}</li>`)}</ul>` : nothing}
  ${t.data === undefined ? nothing : html`<div>Data</div><pre tabindex="0">${pretty(t.data)}</pre>`}
  ${t.document === undefined ? nothing : pre('The document that patterns and pointers read', t.document)}</article>`;

function trial(s) {
  const submit = (e) => {
    e.preventDefault();
    attempt(s.name, new FormData(e.currentTarget).get('request'));
  };
  const hint = s.from === 'http' ? 'X-GitHub-Event: pull_request\nContent-Type: application/json\n\n{"action":"opened"}' : 'The message as the bus sent it: JSON';
  const mine = tried?.source === s.name ? tried : null;
  return html`<section aria-label="Try a request"><h2>Try a request</h2>
    <p class="muted">${s.from === 'http' ? 'Paste the headers, an empty line and the body.' : 'Paste the message.'} The server publishes and stores nothing.</p>
    <form class="try" @submit=${submit}><label><span>${s.from === 'http' ? 'Request' : 'Message'}</span><textarea name="request" rows="9" required spellcheck="false" autocomplete="off" placeholder=${hint}></textarea></label>
      <button class="primary" ?disabled=${busy}>Show what it becomes</button></form>
    <div class="tried" role="status">${mine?.problem ? html`<p class="bad">${mine.problem}</p>` : nothing}
      ${mine?.trials?.length === 0 ? html`<p class="empty">The message contains no event.</p>` : mine?.trials?.map(result) ?? nothing}</div></section>`;
}

const signed = (s) => (s.verify === 'none' ? 'without signatures' : s.verify);

const letters = (s) => link('dead-letters' + query({ queue: 'inbox' }), s.from === 'http' ? 'Requests that did not fit' : 'Messages that did not fit');

const list = (data, q) => html`<h1>Sources</h1>
  ${table('Sources', [
    { name: 'Name', cell: (s) => link(path('sources', s.name), s.name, 'id') },
    { name: 'From', cell: (s) => html`${s.from}${s.verify ? html` <span class="muted">${signed(s)}</span>` : nothing}` },
    { name: 'Events', cell: (s) => [...new Set(s.events.map((m) => m.name))].join(', ') },
    { name: 'Last hour', cell: (s) => html`${Object.entries(s.recent.outcomes).map(([kind, n]) => html`<div>${number(n)} ${badge(kind)}</div>`)}` },
    { name: 'Last', cell: (s) => (s.last ? html`${time(s.last.time)} ${badge(s.last.kind)}` : html`<span class="muted">no requests yet</span>`) },
    { name: 'Why', cell: (s) => s.last?.reason ?? '' },
  ], data.items, 'The configuration has no sources.')}
  ${pager(data.next, q)}`;

function one(data, q) {
  const s = data.source;
  return html`<h1>${s.name} <span class="muted">${s.from}${s.verify ? ', ' + signed(s) : ''}</span></h1>
    <p>${s.path ? html`${mono('POST ' + s.path)} · ` : nothing}${letters(s)}</p>
    ${table('Mappings', [
      { name: 'Mapping', kind: 'num', cell: (m) => s.events.indexOf(m) + 1 }, { name: 'Event type', cell: (m) => m.name },
      { name: 'For', cell: (m) => (m.match ? html`<code>${JSON.stringify(m.match)}</code>` : 'everything') },
      { name: 'Values', cell: (m) => pre('values', { variables: m.variables, id: m.id, time: m.time, data: m.data }) },
    ], s.events)}
    <h2>Outcomes</h2>
    ${data.kept === 'none' ? html`<p class="muted">The server keeps no outcomes (<code>--delivery-log none</code>).</p>` : nothing}
    ${data.kept === 'failures' ? html`<p class="muted">Of the accepted requests, the server keeps one per minute (<code>--delivery-log failures</code>).</p>` : nothing}
    ${filters([{ name: 'kind', label: 'Outcome', options: kinds }, since, until], q)}
    ${data.refused ? html`<p class="problem" role="alert">${data.refused}</p>` : nothing}
    ${table('Outcomes', [
      { name: 'Time', cell: (o) => time(o.time) }, { name: 'Outcome', cell: outcome },
      { name: 'Event', cell: (o) => (o.id && (o.kind === 'accepted' || o.kind === 'duplicate') ? id(path('events', o.id) + query({ uri: o.uri }), o.id) : mono(o.id)) },
      { name: 'Type', cell: (o) => html`${o.name}${o.uri ? html`<div>${mono(o.uri)}</div>` : nothing}` }, { name: 'Why', cell: (o) => o.reason || meanings[o.kind] },
    ], data.items, data.next ? 'This page has no matches. The next page may have some.' : 'No requests in this time.')}
    ${pager(data.next, q)}
    ${trial(s)}`;
}

export const sources = {
  title: 'Sources', every: 5000, redraws: true,
  load: async ([name], q) => {
    if (!name) return get('sources' + query(Object.fromEntries(q)));
    const at = 'sources/' + encodeURIComponent(name);
    const refused = (e) => { if (e.status === 400) return { items: [], kept: 'all', refused: e.message }; throw e; }; // the form stays
    const [source, list] = await Promise.all([get(at), get(at + '/outcomes' + query(Object.fromEntries(q))).catch(refused)]);
    return { ...list, source };
  },
  view: (data, [name], q) => (name ? one(data, q) : list(data, q)),
};
