package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// list is the backend's list, fetched by one caller at a time when the one that was fetched
// last is too old or has another list version.
func (v *view) list(ctx context.Context, kind api.Kind, listVersion string, use func(*fetched) time.Duration) (*fetched, error) {
	for {
		v.mu.Lock()
		have, f := v.lists[kind], v.fetching[kind]
		if have != nil && have.at.After(v.stale) && have.listVersion == listVersion && time.Since(have.at) < use(have) {
			v.mu.Unlock()
			return have, nil
		}
		if r := v.rests[kind]; r.listVersion == listVersion && time.Now().Before(r.until) {
			v.mu.Unlock()
			return have, errRests
		}
		// What was begun before a change may end with the list from before.
		first := f == nil || !f.began.After(v.stale) || f.listVersion != listVersion
		if first {
			f = &fetching{flight: newFlight[*fetched](), listVersion: listVersion}
			v.fetching[kind] = f
		}
		v.mu.Unlock()
		if first {
			return f.fly(ctx, func() (*fetched, error) { return v.refresh(ctx, kind, f) })
		}
		if now, err, ok := f.wait(ctx); ok {
			if now == nil {
				now = have
			}
			return now, fault.Wrap(fault.Unavailable, err, "wait for the list of backend %s", v.of.Name)
		}
	}
}

// refresh fetches the list; with an error it is the one that was fetched before.
func (v *view) refresh(ctx context.Context, kind api.Kind, f *fetching) (*fetched, error) {
	now, err := v.fetchKnown(ctx, kind, f.listVersion)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fetching[kind] == f {
		delete(v.fetching, kind)
	}
	last := v.lists[kind]
	if err != nil {
		if took := time.Since(f.began); ctx.Err() == nil && took > v.of.options.AskTimeout/2 {
			v.rests[kind] = rest{time.Now().Add(took), f.listVersion}
		}
		return last, err
	}
	delete(v.rests, kind)
	if now.at, now.listVersion = f.began, f.listVersion; last == nil || last.at.Before(now.at) {
		v.lists[kind] = now
	}
	return now, nil
}

// fetchKnown fetches a list in the revision that the backend speaks. A session that it has
// ended is begun again: it says so, or ends its answer without a response.
func (v *view) fetchKnown(ctx context.Context, kind api.Kind, listVersion string) (*fetched, error) {
	known, err := v.known(ctx)
	if err == nil && !v.learned(known, kind, listVersion) {
		v.forget(known)
		if known, err = v.known(ctx); err == nil {
			v.learned(known, kind, listVersion)
		}
	}
	if err != nil {
		return nil, err
	}
	if !known.Has(kind) {
		// It adds nothing and says nothing, until it is asked again what it serves.
		return &fetched{ttl: askAgain, shared: true}, nil
	}
	now, err := v.fetch(ctx, known, kind)
	if errors.Is(err, upstream.ErrSession) || errors.Is(err, upstream.ErrNoResponse) && known.session != "" {
		v.forget(known)
		if known, err = v.known(ctx); err == nil {
			now, err = v.fetch(ctx, known, kind)
		}
	}
	return now, err
}

// Outdate makes the next caller fetch the lists again.
func (v *view) Outdate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = time.Now()
}

// fetch reads all pages of a list.
func (v *view) fetch(ctx context.Context, known *known, kind api.Kind) (*fetched, error) {
	b, c := v.of, v.client()
	ctx, cancel := context.WithTimeout(ctx, maxAsks*b.options.AskTimeout)
	defer cancel()
	size := 0
	out := &fetched{ttl: maxTTL, shared: !b.ForwardToken}
	var cursor json.RawMessage
	for range maxPages {
		params := json.RawMessage(`{}`)
		if known.version.Stateless() {
			params = c.Meta(known.version)
		}
		if cursor != nil {
			params = jsonrpc.Insert(params, "cursor", cursor)
		}
		result, err := c.Ask(ctx, upstream.Request{Version: known.version, Session: known.session, MaxDepth: maxListDepth}, kind.Method(), params)
		if errors.Is(err, upstream.ErrUnknownMethod) {
			// The capability resources stands for two lists, and many servers have no resource templates.
			return &fetched{ttl: askAgain, shared: true}, nil
		}
		if err != nil {
			return nil, err
		}
		if size += len(result); size > maxList {
			return nil, fault.New(fault.Unavailable, "backend %s has a list of more than %d bytes", b.Name, maxList)
		}
		ttl, shared := hints(known.version, result, b.options.ListTTL)
		out.ttl, out.shared = min(out.ttl, ttl), out.shared && shared
		for raw := range jsonrpc.Elements(jsonrpc.Member(result, kind.Member())) {
			e, why := v.entry(kind, raw)
			if why != "" {
				b.dropped(ctx, why)
				continue
			}
			if out.entries = append(out.entries, e); len(out.entries) > maxEntries {
				return nil, fault.New(fault.Unavailable, "backend %s lists more than %d entries", b.Name, maxEntries)
			}
		}
		next := jsonrpc.Member(result, "nextCursor")
		// An empty one goes on since 2026-07-28 (Pagination).
		if text, ok := jsonrpc.String(next); !ok || text == "" && !known.version.Stateless() || string(next) == string(cursor) {
			return out, nil
		}
		cursor = next
	}
	return nil, fault.New(fault.Unavailable, "backend %s lists more than %d pages", b.Name, maxPages)
}

const (
	// maxListDepth is how deeply a backend's list may be nested, so that an entry over maxEntryDepth costs no other one.
	maxListDepth = 1000
	// maxEntryDepth leaves room for the response, its result and the list, because clients bound the depth of a whole message.
	maxEntryDepth = jsonrpc.MaxDepth - 3
)

// entry is one of a backend's list, under the name that clients use; or why it is none.
func (v *view) entry(kind api.Kind, raw json.RawMessage) (e entry, why string) {
	own, ok := jsonrpc.String(jsonrpc.Member(raw, kind.Name()))
	switch {
	case !ok || own == "" || len(own) > maxName:
		return e, dropNameless
	case jsonrpc.Depth(raw) > maxEntryDepth:
		return e, dropDeep
	case !printable(raw):
		return e, dropControls
	}
	e = entry{Entry: api.Entry{Name: own, JSON: raw, Backend: v.of.Name, Own: own}, view: v}
	if kind == api.Templates {
		e.matches = matcher(own)
	}
	if prefix := v.of.Prefix; kind.Prefixed() && prefix != "" {
		e.Name = prefix + own
		e.JSON = jsonrpc.Replace(raw, kind.Name(), jsonrpc.Quote(e.Name))
	}
	return e, ""
}

// printable reports whether what clients show or use as names in an entry of a list has no characters that steer
// terminals or the direction of text. Readers may take another one of several members, or ignore case.
func printable(entry json.RawMessage) bool {
	for key, value := range jsonrpc.Members(entry) {
		switch strings.ToLower(string(key)) {
		case "name", "title", "uri", "uritemplate":
			text, _ := jsonrpc.String(value)
			if strings.ContainsFunc(text, unprintable) {
				return false
			}
		case "annotations":
			if !printable(value) {
				return false
			}
		}
	}
	return true
}

// unprintable are controls, and what stands for text that is no Unicode.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar
}

// hints are what a page of a list says of its caching (2026-07-28, Caching). A backend that
// says nothing, as all of the earlier revisions, has a list for its caller alone and for as
// long as the gateway itself uses it.
func hints(version spec.Version, result json.RawMessage, own time.Duration) (ttl time.Duration, shared bool) {
	ttl = own
	if !version.Stateless() {
		return ttl, false
	}
	scope, _ := jsonrpc.String(jsonrpc.Member(result, "cacheScope"))
	var ms float64
	if raw := jsonrpc.Member(result, "ttlMs"); raw != nil && json.Unmarshal(raw, &ms) == nil {
		ttl = time.Duration(min(max(ms, 0), float64(maxTTL.Milliseconds()))) * time.Millisecond // negative counts as 0
	}
	return ttl, scope == "public"
}
