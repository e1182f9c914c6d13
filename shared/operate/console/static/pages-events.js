// Event types, their events, and the page of one event with its outcome for each subscription.
import { html, mono, copyable, pageless, nothing, link, id, path, badge, table, time, span, plural, pager, filters, since, until, ask, act } from './ui.js';
import { get, post, call, query, pages } from './session.js';

export const types = {
  title: 'Event types', every: 30_000,
  load: async () => {
    const [list, switches] = await Promise.all([pages('event-types', {}, 20), pages('switches', {}, 5)]);
    return { items: list.items, paused: new Map(switches.items.map((s) => [s.name, s])) };
  },
  view({ items, paused }) {
    const flip = async (type, on) => {
      if (on) return act(`${type.name} is resumed.`, () => call('DELETE', 'switches/event/' + type.name));
      const said = await ask({ title: `Pause ${type.name}?`, text: 'Deliveries of this type wait until it is resumed, for up to 30 days.', fields: [{ name: 'reason', label: 'Reason' }], confirm: 'Pause', danger: true });
      if (said) act(`${type.name} is paused.`, () => call('PUT', 'switches/event/' + type.name, said));
    };
    return html`<h1>Event types</h1>${table('Event types', [
      { name: 'Name', cell: (t) => html`<b>${t.name}</b>${t.title ? html`<div class="muted" title=${t.description || ''}>${t.title}</div>` : nothing}` },
      { name: 'URI', cell: (t) => mono(t.uri) },
      { name: 'Delivered by', cell: (t) => t.delivery.join(', ') },
      { name: 'State', cell: (t) => badge(paused.has('event/' + t.name) ? 'paused' : 'active') },
      { name: '', title: 'Show', kind: 'act', cell: (t) => html`${link('events' + query({ name: t.name }), 'Events')} ${link('subscriptions' + query({ event: t.name }), 'Subscriptions')}
        <button class="small" @click=${() => flip(t, paused.has('event/' + t.name))}>${paused.has('event/' + t.name) ? 'Resume' : 'Pause'}</button>` },
    ], items, 'The catalog has no event types.')}`;
  },
};

// words are the names of outcomes for people, where they differ from those of the API.
const words = { dead: 'given up', subscribedLater: 'subscribed later', notPermitted: 'not permitted', unrecorded: 'not recorded' };
const tone = { filtered: 'plain', subscribedLater: 'plain', ended: 'plain', notPermitted: 'bad', unrecorded: 'plain' };

async function lookUp(eventID, q) {
  const missing = (e) => { if (e.status === 404) return null; throw e; };
  const at = 'events/' + encodeURIComponent(eventID), uri = q.get('uri');
  const [event, found] = await Promise.all([
    get(at + query({ uri })).catch(missing),
    get(at + '/outcomes' + query({ uri, subscription: q.get('subscription')?.replace('subscription://', ''), cursor: q.get('cursor'), limit: 50 })).catch(missing),
  ]);
  return { event, found };
}

// again returns a button that delivers the event to a subscription, if the outcome allows that.
function again(event, r) {
  const labels = { delivered: 'Deliver again', dead: 'Deliver again', unrecorded: 'Deliver again', subscribedLater: 'Deliver', filtered: 'Deliver anyway' };
  const deliver = async () => {
    if (r.filter && !await ask({ title: 'Deliver a filtered event?', text: `In this event, ${r.why}. The subscription receives it once anyway.`, confirm: 'Deliver anyway', danger: true })) return;
    act(`Event ${event.id} is delivered to ${r.subscription}.`, () => post(`events/${encodeURIComponent(event.id)}/deliver` + query({ uri: event.uri }), { subscription: r.subscription }));
  };
  const other = r.filter && ['name', 'uri'].includes(r.filter.argument); // the server refuses it
  return labels[r.outcome] && !other ? html`<button class="small" @click=${deliver}>${labels[r.outcome]}</button>` : nothing;
}

function one({ event, found }, eventID, q) {
  const asked = q.get('subscription');
  if (!event && !found) return html`<h1>Event <span class="id">${eventID}</span></h1><p class="empty">The event log and the delivery log have no event with this id. The event log keeps events for a day, unless --log-retention sets another time.</p>`;
  const rows = found?.items ?? [];
  const delivered = rows.filter((r) => r.outcome === 'delivered').length;
  return html`<h1>Event ${copyable(eventID)} ${eventID.startsWith('test_') ? badge('test') : nothing}</h1>
    ${event ? html`<dl class="facts"><dt>Type</dt><dd>${event.name}</dd><dt>URI</dt><dd class="id">${event.uri}</dd><dt>Published</dt><dd>${time(event.published)}</dd></dl>`
      : html`<p class="note">The event log no longer has this event. The outcomes come from the delivery log.</p>`}
    <h2>Did it arrive? <span class="muted">${delivered} of ${plural(rows.length, 'subscription')}${found?.next ? ' on this page' : ''}</span></h2>
    ${filters([{ name: 'subscription', label: 'Ask about one subscription', hint: 'sub_…' }], q, ['uri'])}
    ${table('Subscriptions', [
      { name: 'Outcome', cell: (r) => badge(words[r.outcome] || r.outcome, tone[r.outcome]) },
      { name: 'Why', cell: (r) => html`${r.why}${r.nextAttempt ? html` at ${time(r.nextAttempt)}` : nothing}` },
      { name: 'When', cell: (r) => time(r.at) },
      { name: 'Endpoint and subscription', cell: (r) => html`${mono(r.target)}<br>${r.principal ? id(path('subscriptions', r.subscription), r.subscription) : pageless(r.subscription)}` },
      { name: '', title: 'Attempts', kind: 'act', cell: (r) => html`${r.attempts ? link(path('deliveries', r.subscription, eventID), plural(r.attempts, 'attempt')) : nothing}
        ${event && r.principal ? again(event, r) : nothing}` },
    ], rows, asked ? 'There is no such subscription.' : 'No subscription covers this event.')}
    ${pager(found?.next, q)}
    ${event ? html`<h2>Payload</h2><pre tabindex="0">${JSON.stringify(event.data, null, 2)}</pre>` : nothing}`;
}

export const events = {
  title: 'Events', filtered: true,
  every: (data) => !data.none && (data.found?.items.some((r) => r.outcome === 'waiting') ? 3000 : 10_000), // a waiting event may arrive
  load: async (parts, q) => {
    if (parts[0]) return lookUp(parts[0], q);
    if (!q.get('name') && !q.get('uri')) return { items: [], none: true };
    return get('events' + query(Object.fromEntries(q)));
  },
  view(data, parts, q) {
    if (parts[0]) return one(data, parts[0], q);
    return html`<h1>Events</h1>
      ${filters([{ name: 'name', label: 'Type', suggest: 'types' }, { name: 'uri', label: 'URI' }, since, until], q)}
      ${table('Events', [
        { name: 'Published', cell: (e) => time(e.published) }, { name: 'Event', cell: (e) => id(path('events', e.id) + query({ uri: e.uri }), e.id) },
        { name: 'Type', cell: (e) => e.name }, { name: 'URI', cell: (e) => mono(e.uri) },
        { name: 'Age', kind: 'num', cell: (e) => span(Math.max(0, Date.now() - new Date(e.published))) },
      ], data.items, data.none ? 'Enter a type or a URI.' : 'The event log has no matching events.')}
      ${data.truncated ? html`<p class="note">This type has more URIs than this page reads. Enter a URI.</p>` : nothing}
      ${pager(data.next, q)}`;
  },
};
