// Event types, their events, and what became of one event.
import { html, mono, nothing, link, id, path, badge, table, time, span, plural, pager, filters, ask, act, cause } from './ui.js';
import { get, post, call, query, pages } from './session.js';

export const types = {
  title: 'Event types',
  load: async () => {
    const [list, switches] = await Promise.all([pages('event-types', {}, 20), pages('switches', {}, 5)]);
    return { items: list.items, paused: new Map(switches.items.map((s) => [s.name, s])) };
  },
  view({ items, paused }) {
    const flip = async (type, on) => {
      if (on) return act(`${type.name} is resumed.`, () => call('DELETE', 'switches/event/' + type.name));
      const said = await ask({ title: `Pause ${type.name}?`, text: 'Nothing of this type is attempted until it is resumed. What waits is kept.', fields: [{ name: 'reason', label: 'Reason' }], confirm: 'Pause', danger: true });
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

// verdict says whether an event reached a subscription, and why not.
function verdict(sub, tries, event, kept) {
  const last = tries[0], letter = last?.outcome === 'dead';
  if (tries.some((t) => t.outcome === 'delivered')) {
    const t = tries.find((x) => x.outcome === 'delivered');
    return { word: 'reached', at: t.at, why: t.attempt > 1 ? `at attempt ${t.attempt}` : 'at the first attempt' };
  }
  if (letter) return { word: 'given up', at: last.at, why: `${plural(last.attempt, 'attempt')}; ${cause(last.category)}` };
  if (last && sub.paused) return { word: 'waiting', at: last.at, why: `${cause(last.category)}; attempt ${last.attempt + 1} when the subscription is resumed` };
  if (last) return { word: 'retrying', at: last.at, why: html`${cause(last.category)}; attempt ${last.attempt + 1} at ${time(last.nextAttempt)}` };
  if (sub.paused) return { word: 'waiting', at: sub.paused, why: 'the subscription is paused' };
  if (event && sub.created > event.published) return { word: 'not for it', why: html`it subscribed later, at ${time(sub.created)}` };
  if (sub.state !== 'active') return { word: 'not reached', tone: 'bad', why: `the subscription is ${sub.state}${sub.reason ? `: ${sub.reason}` : ''}` };
  if (kept === 'all') return { word: 'no attempt yet', why: 'no attempt is recorded; a filter of the subscription may leave it out, or a switch may hold it' };
  return { word: 'no failure', why: kept === 'failures' ? 'the delivery log keeps failures only, and has none' : 'the delivery log keeps nothing' };
}

async function lookUp(eventID, q) {
  const missing = (e) => { if (e.status === 404) return null; throw e; };
  const [event, attempts] = await Promise.all([get('events/' + encodeURIComponent(eventID) + query({ uri: q.get('uri') })).catch(missing), pages('deliveries', { event: eventID }, 5)]);
  const uri = event?.uri || attempts.items[0]?.uri;
  const subs = uri ? await get('subscriptions' + query({ uri, cursor: q.get('cursor'), limit: 50 })) : { items: [] };
  const tries = Map.groupBy(attempts.items, (a) => a.subscription);
  const listed = new Set(subs.items.map((s) => s.id));
  const others = q.get('cursor') || subs.next ? [] : [...tries.keys()].filter((s) => !listed.has(s));
  const rows = [...subs.items, ...others.map((s) => ({ id: s, target: tries.get(s)[0].origin, gone: true, state: 'ended' }))];
  if (attempts.more || attempts.omitted) { // the list of the event is not whole: those of the subscriptions are
    const asked = event ? { since: event.published } : {};
    await Promise.all(rows.map(async (s) => tries.set(s.id, (await get(`subscriptions/${s.id}/deliveries` + query({ event: eventID, limit: 100, ...asked })).catch(() => ({ items: [] }))).items)));
  }
  return { event, rows: rows.map((s) => ({ ...s, tries: tries.get(s.id) || [], ...verdict(s, tries.get(s.id) || [], event, attempts.kept) })), next: subs.next, test: attempts.items[0]?.test };
}

function one({ event, rows, next, test }, eventID, q) {
  const again = (s) => act(`Event ${eventID} is delivered to ${s.id} again.`, () => post(`events/${encodeURIComponent(eventID)}/deliver`, { subscription: s.id }));
  if (!event && !rows.length) return html`<h1>Event <span class="id">${eventID}</span></h1><p class="empty">Neither the log nor the delivery log has an event with this id. The log keeps events for a day unless --log-retention says otherwise.</p>`;
  const reached = rows.filter((r) => r.word === 'reached').length;
  return html`<h1>Event <span class="id">${eventID}</span> ${test ? badge('test') : nothing}</h1>
    ${event ? html`<dl class="facts"><dt>Type</dt><dd>${event.name}</dd><dt>URI</dt><dd class="id">${event.uri}</dd><dt>Published</dt><dd>${time(event.published)}</dd></dl>`
      : html`<p class="note">${test ? 'A test event is not in the log.' : 'The log has this event no more.'} What follows is from the delivery log.</p>`}
    <h2>Did it arrive? <span class="muted">${reached} of ${plural(rows.length, 'subscription')}${next ? ' on this page' : ''}</span></h2>
    ${table('Subscriptions', [
      { name: 'Reached', cell: (r) => badge(r.word, r.tone) }, { name: 'Why', cell: (r) => r.why }, { name: 'When', cell: (r) => time(r.at) },
      { name: 'Endpoint', cell: (r) => mono(r.target) },
      { name: 'Subscription', cell: (r) => (r.gone ? html`<span class="id muted">${r.id}</span>` : id(path('subscriptions', r.id), r.id)) },
      { name: '', title: 'Attempts', kind: 'act', cell: (r) => html`${r.tries.length ? link(path('deliveries', r.id, eventID), plural(r.tries.length, 'attempt')) : nothing}
        ${event && !r.gone && !['retrying', 'waiting'].includes(r.word) ? html`<button class="small" @click=${() => again(r)}>Deliver again</button>` : nothing}` },
    ], rows, 'No subscription is for this event.')}
    ${pager(next, q)}
    ${event ? html`<h2>Payload</h2><pre tabindex="0">${JSON.stringify(event.data, null, 2)}</pre>` : nothing}`;
}

export const events = {
  title: 'Events',
  load: async (parts, q) => {
    if (parts[0]) return lookUp(parts[0], q);
    if (!q.get('name') && !q.get('uri')) return { items: [], none: true };
    return get('events' + query(Object.fromEntries(q)));
  },
  view(data, parts, q) {
    if (parts[0]) return one(data, parts[0], q);
    return html`<h1>Events</h1>
      ${filters([{ name: 'name', label: 'Type' }, { name: 'uri', label: 'URI' }, { name: 'since', label: 'Since', hint: '2026-11-22T12:00:00Z' }, { name: 'until', label: 'Until' }], q)}
      ${table('Events', [
        { name: 'Published', cell: (e) => time(e.published) }, { name: 'Event', cell: (e) => id(path('events', e.id) + query({ uri: e.uri }), e.id) },
        { name: 'Type', cell: (e) => e.name }, { name: 'URI', cell: (e) => mono(e.uri) },
        { name: 'Age', kind: 'num', cell: (e) => span(Math.max(0, Date.now() - new Date(e.published))) },
      ], data.items, data.none ? 'Name a type or a URI.' : 'The log has no such events.')}
      ${data.truncated ? html`<p class="note">The type has more URIs than are looked at. Name a URI.</p>` : nothing}
      ${pager(data.next, q)}`;
  },
};
