// Failing endpoints by origin, and the page of one origin with the affected subscriptions and a note.
import { html, mono, nothing, filters, since, link, id, path, badge, table, time, plural, number, ask, act, cause } from './ui.js';
import { get, call, query, readOverview } from './session.js';

const failed = (s) => s.delivery.failingSince || s.delivery.lastError;
const earliest = (times) => times.filter(Boolean).sort()[0];

async function issue(origin) {
  const [overview, subs, attempts, notes] = await Promise.all([
    readOverview(), get('subscriptions' + query({ origin, limit: 100 })), get('deliveries' + query({ origin, outcome: 'failed', limit: 20 })), get('notes' + query({ origin })),
  ]);
  return { note: notes.items[0], recent: overview.recent.failing.find((f) => f.origin === origin), paused: overview.paused.find((s) => s.name === 'origin/' + origin), subs, attempts };
}

async function pause(origin) {
  const said = await ask({ title: `Pause ${origin}?`, text: 'Deliveries to this origin wait until it is resumed, for up to 30 days.', fields: [{ name: 'reason', label: 'Reason' }], confirm: 'Pause', danger: true });
  if (said) act(`${origin} is paused.`, () => call('PUT', 'switches/origin/' + origin, said));
}

async function write(origin, note) {
  const said = await ask({ title: `Note about ${origin}`, text: 'Other operators see it until you remove it, or until deliveries to this origin succeed again.', fields: [{ name: 'text', label: 'Note', value: note?.text, required: true }], confirm: 'Save' });
  if (said) act('The note is saved.', () => call('PUT', 'notes/' + origin, said));
}

const noteOf = (n) => (n ? html`${n.text} <span class="muted">${n.by}, ${time(n.at)}</span>` : nothing);

function one({ recent, paused, note, subs, attempts }, origin) {
  const affected = subs.items.filter(failed), last = attempts.items[0];
  const first = earliest([...affected.map((s) => s.delivery.failingSince), recent?.since]);
  return html`<h1>Endpoint <span class="id">${origin}</span> ${recent ? badge('failing', 'bad') : badge('no failure in the last hour', 'ok')} ${paused ? badge('paused') : nothing}</h1>
    <div class="actions">${paused ? html`<button class="primary" @click=${() => act(`${origin} is resumed.`, () => call('DELETE', 'switches/origin/' + origin))}>Resume</button>`
      : html`<button @click=${() => pause(origin)}>Pause this origin</button>`}
      <button @click=${() => write(origin, note)}>${note ? 'Change the note' : 'Write a note'}</button>
      ${note ? html`<button @click=${() => act('The note is removed.', () => call('DELETE', 'notes/' + origin))}>Remove the note</button>` : nothing}</div>
    ${note ? html`<p class="note">${noteOf(note)}</p>` : nothing}
    <dl class="facts"><dt>First seen</dt><dd>${time(first)}</dd>
      <dt>Last failure</dt><dd>${last ? html`${time(last.at)}: ${cause(last.category, last.statusCode)}` : 'not recorded'}</dd>
      <dt>Last hour</dt><dd>${recent ? `${number(recent.failed)} of ${plural(recent.attempts, 'attempt')} failed` : 'no failures'}</dd></dl>
    <h2>Affected subscriptions <span class="muted">${affected.length} of ${plural(subs.items.length, 'subscription')}${subs.next ? ' on this page' : ''}</span> ${link('subscriptions' + query({ origin }), 'all')}</h2>
    ${table('Affected subscriptions', [
      { name: 'Subscription', cell: (s) => id(path('subscriptions', s.id), s.id) }, { name: 'State', cell: (s) => badge(s.state) }, { name: 'Owner', cell: (s) => s.principal },
      { name: 'Endpoint', cell: (s) => mono(s.target) }, { name: 'Failing since', cell: (s) => time(s.delivery.failingSince) }, { name: 'Last success', cell: (s) => time(s.delivery.last) },
      { name: 'Last error', cell: (s) => cause(s.delivery.lastError, s.delivery.lastStatusCode) },
    ], affected, 'No subscription is failing now.')}
    <h2>Newest failures ${link('deliveries' + query({ origin, outcome: 'failed' }), 'all')} ${link('dead-letters' + query({ origin }), 'dead letters')}</h2>
    ${table('Newest failures', [
      { name: 'Time', cell: (d) => time(d.at) }, { name: 'Event', cell: (d) => id(path('deliveries', d.subscription, d.event), d.event) }, { name: 'Type', cell: (d) => d.name },
      { name: 'Subscription', cell: (d) => id(path('subscriptions', d.subscription), d.subscription) }, { name: 'Attempt', kind: 'num', cell: (d) => d.attempt }, { name: 'Why', cell: (d) => cause(d.category, d.statusCode) },
    ], attempts.items, 'No failure is recorded.')}`;
}

export const failing = {
  title: 'Failing', filtered: true, every: 10_000,
  load: async ([origin], q) => (origin ? issue(origin) : (q.get('since') ? await get('overview' + query({ since: q.get('since') })) : await readOverview()).recent.failing),
  view(data, [origin], q) {
    if (origin) return one(data, origin);
    const list = data.items ?? data, span = q.get('since'), counts = (f) => (span ? number(f.failed) : `${number(f.failed)} of ${number(f.attempts)}`);
    return html`<h1>Failing endpoints <span class="muted">${span ? 'since ' + span : 'in the last hour'}</span></h1>
      ${filters([since], q)}
      ${table('Failing endpoints', [
        { name: 'Endpoint', cell: (f) => link(path('failing', f.origin), f.origin, 'id') }, { name: 'First seen', cell: (f) => time(f.since) },
        { name: 'Last status', cell: (f) => cause(f.category, f.statusCode) }, { name: 'Failed', kind: 'num', cell: counts },
        { name: 'Subscriptions', kind: 'num', cell: (f) => link('subscriptions' + query({ origin: f.origin }), number(f.subscriptions)) },
        { name: 'Note', cell: (f) => noteOf(f.note) },
      ], list, 'No endpoint failed in this time.')}
      ${list.length < 50 ? nothing : html`<p class="note">These are the 50 origins with the most failures.</p>`}`;
  },
};
