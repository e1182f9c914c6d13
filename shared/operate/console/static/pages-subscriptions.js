// The list of subscriptions, and the page of one, on which people can pause, resume, test and end it.
import { html, mono, copyable, nothing, link, id, path, badge, table, time, age, plural, pager, filters, ask, act, cause, go } from './ui.js';
import { get, post, call, query } from './session.js';

const state = (s) => html`${badge(s.state)}${s.delivery.failingSince && s.state === 'active' ? badge('failing', 'warn') : nothing}`;

async function pause(s) {
  const said = await ask({ title: 'Pause this subscription?', text: 'Deliveries wait until it is resumed, for up to 30 days.', fields: [{ name: 'reason', label: 'Reason' }], confirm: 'Pause' });
  if (said) act('The subscription is paused.', () => post(`subscriptions/${s.id}/pause`, said));
}

async function end(s) {
  if (!await ask({ title: 'End this subscription?', text: `The server stops sending to ${s.target}. To receive events again, the owner has to subscribe again.`, confirm: 'End it', danger: true })) return;
  act('The subscription has ended.', async () => {
    await call('DELETE', 'subscriptions/' + s.id);
    go('subscriptions');
  });
}

const test = (s) => act('The server delivers a test event.', async () => {
  const sent = await post(`subscriptions/${s.id}/test`);
  go(path('deliveries', s.id, sent.event));
});

// args returns the arguments of a subscription as names and texts. They are values of variables, and filters.
const args = (s) => Object.entries(s.arguments ?? {}).map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)]);

function one([s, deliveries]) {
  const disabled = s.state === 'disabled'; // cannot be paused or tested
  return html`<h1>Subscription ${copyable(s.id)} ${state(s)}</h1>
    <div class="actions">
      ${disabled || s.state === 'paused' ? html`<button class="primary" @click=${() => act('The subscription is resumed.', () => post(`subscriptions/${s.id}/resume`))}>Resume</button>` : html`<button @click=${() => pause(s)}>Pause</button>`}
      ${disabled ? nothing : html`<button @click=${() => test(s)}>Send a test event</button>`}<button class="danger" @click=${() => end(s)}>End</button>
    </div>
    ${s.reason ? html`<p class="problem">${s.reason}</p>` : nothing}
    ${s.delivery.lastError ? html`<p class="problem">The last attempt failed: ${cause(s.delivery.lastError, s.delivery.lastStatusCode)}.${s.delivery.failingSince ? html` It has been failing since ${time(s.delivery.failingSince)}.` : nothing}</p>` : nothing}
    <dl class="facts">
      <dt>Endpoint</dt><dd>${copyable(s.target)}</dd><dt>Owner</dt><dd>${link('subscriptions' + query({ principal: s.principal }), s.principal)}</dd>
      <dt>Events</dt><dd>${s.eventUris.map((u) => html`<div class="id">${u}</div>`)}</dd>
      ${args(s).map(([name, value]) => html`<dt>${name}</dt><dd class="id">${value}</dd>`)}
      <dt>Protocol</dt><dd>${s.protocol}</dd>
      <dt>Last success</dt><dd>${time(s.delivery.last)}</dd><dt>Subscribed</dt><dd>${time(s.created)}</dd>
      ${s.expires ? html`<dt>Expires</dt><dd>${time(s.expires)}</dd>` : nothing}${s.paused ? html`<dt>Paused</dt><dd>${time(s.paused)}${s.switch ? html` by ${s.switch.by}${s.switch.reason ? `: ${s.switch.reason}` : ''}` : nothing}</dd>` : nothing}
      <dt>Waiting</dt><dd>${s.waiting?.deliveries ? html`${plural(s.waiting.deliveries, 'delivery', 'deliveries')}${s.waiting.more ? ' or more' : ''}, the oldest event is ${age(s.waiting.oldest)} old` : 'nothing'}</dd>
      ${s.delivery.throttledUntil ? html`<dt>The endpoint asked to wait</dt><dd>until ${time(s.delivery.throttledUntil)}</dd>` : nothing}
    </dl>
    <h2>Newest attempts ${link('deliveries' + query({ subscription: s.id }), 'all')} ${link('dead-letters' + query({ subscription: s.id }), 'dead letters')}</h2>
    ${table('Newest attempts', [
      { name: 'Time', cell: (d) => time(d.at) }, { name: 'Outcome', cell: (d) => badge(d.outcome) },
      { name: 'Event', cell: (d) => id(path('deliveries', s.id, d.event), d.event) }, { name: 'Attempt', kind: 'num', cell: (d) => d.attempt }, { name: 'Why', cell: (d) => cause(d.category, d.statusCode) },
    ], deliveries.items, deliveries.kept === 'all' ? 'No attempts in the last seven days.' : `The delivery log keeps ${deliveries.kept === 'none' ? 'nothing' : 'failures only, and has none'}.`)}`;
}

export const subscriptions = {
  title: 'Subscriptions', filtered: true, every: 10_000,
  load: async ([sub], q) => (sub
    ? Promise.all([get('subscriptions/' + encodeURIComponent(sub)), get(`subscriptions/${encodeURIComponent(sub)}/deliveries?limit=20`)])
    : get('subscriptions' + query({ limit: 50, ...Object.fromEntries(q) }))),
  view(data, [sub], q) {
    if (sub) return one(data);
    return html`<h1>Subscriptions</h1>
      ${filters([{ name: 'principal', label: 'Owner' }, { name: 'event', label: 'Event type', suggest: 'types' }, { name: 'origin', label: 'Origin', hint: 'https://host' },
        { name: 'state', label: 'State', options: ['', 'active', 'paused', 'suspended', 'disabled'] }], q)}
      ${table('Subscriptions', [
        { name: 'Subscription', cell: (s) => id(path('subscriptions', s.id), s.id) }, { name: 'State', cell: state },
        { name: 'Owner', cell: (s) => s.principal }, { name: 'Events', cell: (s) => html`${s.events.join(', ') || s.eventUris[0]}${args(s).map(([name, value]) => html`<div class="muted">${name}: ${value}</div>`)}` },
        { name: 'Endpoint', cell: (s) => mono(s.target) }, { name: 'Last success', cell: (s) => time(s.delivery.last) },
        { name: 'Last error', cell: (s) => cause(s.delivery.lastError, s.delivery.lastStatusCode) },
      ], data.items, data.next ? 'This page has no matches. The next page may have some.' : 'No subscription matches.')}
      ${pager(data.next, q)}`;
  },
};
