// The search looks up a text as an id, a URI, an origin, an owner and an event type. The page says which of these it found.
import { html, link, path, go } from './ui.js';
import { get, query, pages } from './session.js';

// found resolves to true if the API has the object or, for a list, if the list is not empty. It fails if the server does not say.
const found = (at) => get(at).then((v) => !v.items || v.items.length > 0, (e) => { if (e.status < 500 && e.status !== 429) return false; throw e; });

// candidates returns what a text may mean. Each has a name, the address of its page, and whether it exists.
async function candidates(text) {
  const types = (await pages('event-types', {}, 20)).items.map((t) => t.name); // before the lookups, because nothing waits for them yet
  const list = [], add = (what, to, exists) => list.push({ what, to, exists });
  const sub = text.replace(/^subscription:\/\//, ''), at = encodeURIComponent(text);
  add('a subscription with this id', path('subscriptions', sub), found(path('subscriptions', sub)));
  if (text.startsWith('event://')) {
    add('events with this URI', 'events' + query({ uri: text }), found('events' + query({ uri: text, limit: 1 })));
    return list;
  }
  const url = /^https?:\/\/./.test(text) && URL.canParse(text) ? new URL(text).origin : '';
  const host = url || /^[a-z0-9.-]+\.[a-z0-9-]+(:\d+)?$|^localhost(:\d+)?$|^[0-9.]+:\d+$/i.test(text);
  for (const origin of url ? [url] : host ? [`https://${text}`, `http://${text}`] : []) {
    add(`subscriptions with endpoints at ${origin}`, 'subscriptions' + query({ origin }), found('subscriptions' + query({ origin, limit: 1 })));
  }
  if (url) return list;
  add('an event with this id', 'events/' + at, found(`events/${at}/outcomes?limit=1`));
  add('an owner of subscriptions', 'subscriptions' + query({ principal: text }), found('subscriptions' + query({ principal: text, limit: 1 })));
  const part = types.filter((name) => name.toLowerCase().includes(text.toLowerCase()));
  for (const name of types.includes(text) ? [text] : part.slice(0, 10)) add(`the event type ${name}`, 'events' + query({ name }), true);
  if (!part.length) add('an event type', '', false);
  return list;
}

export const search = {
  title: 'Search',
  load: async ([text]) => {
    const all = await candidates(text ?? '');
    await Promise.all(all.map(async (c) => { c.exists = await c.exists; }));
    const hits = all.filter((c) => c.exists);
    if (hits.length !== 1) return { hits, missing: all.filter((c) => !c.exists) };
    location.replace('#/' + hits[0].to);
    return new Promise(() => {}); // the address has changed, so the found page loads instead
  },
  view: ({ hits, missing }, [text]) => html`<h1>Search <span class="id">${text}</span></h1>
    ${hits.length ? html`<ul class="hits">${hits.map((h) => html`<li>${link(h.to, h.what)}</li>`)}</ul>` : html`<p class="empty">Nothing was found.</p>`}
    ${missing.length ? html`<p class="note">Not found: ${missing.map((m) => m.what).join('; ')}.</p>` : ''}`,
};

// start starts a search.
export const start = (text) => go(path('search', text));
