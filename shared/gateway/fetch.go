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

// list returns the backend's list. If the last one is too old or has another list version, one of the callers fetches it and
// the others wait.
func (v *view) list(ctx context.Context, kind api.Kind, listVersion string, use func(*fetched) time.Duration) (*fetched, error) {
	for {
		v.mu.Lock()
		have, f := v.lists[kind], v.fetching[kind]
		if have != nil && have.at.After(v.stale) && have.listVersion == listVersion && time.Since(have.at) < use(have) {
			v.mu.Unlock()
			return have, nil
		}
		if r := v.backoffs[kind]; r.listVersion == listVersion && time.Now().Before(r.until) {
			v.mu.Unlock()
			return have, errBackingOff
		}
		// A fetch that began before a change may return the list from before it.
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

// refresh fetches the list. If that fails, it returns the last list with the error.
func (v *view) refresh(ctx context.Context, kind api.Kind, f *fetching) (*fetched, error) {
	now, err := v.fetchWithSession(ctx, kind, f.listVersion)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fetching[kind] == f {
		delete(v.fetching, kind)
	}
	last := v.lists[kind]
	if err != nil {
		if took := time.Since(f.began); ctx.Err() == nil && took > v.of.options.AskTimeout/2 {
			v.backoffs[kind] = backoff{time.Now().Add(took), f.listVersion}
		}
		return last, err
	}
	delete(v.backoffs, kind)
	if now.at, now.listVersion = f.began, f.listVersion; last == nil || last.at.Before(now.at) {
		v.lists[kind] = now
	}
	return now, nil
}

// fetchKnown fetches a list in the revision that the backend speaks. It retries once with a new session if the backend has ended the
// old one. Some backends say so, and others end their answer without a response.
func (v *view) fetchWithSession(ctx context.Context, kind api.Kind, listVersion string) (*fetched, error) {
	info, err := v.loadInfo(ctx)
	if err == nil && !v.confirmVersion(info, kind, listVersion) {
		v.forget(info)
		if info, err = v.loadInfo(ctx); err == nil {
			v.confirmVersion(info, kind, listVersion)
		}
	}
	if err != nil {
		return nil, err
	}
	if !info.Has(kind) {
		// The list is empty until the gateway asks for the capabilities again.
		return &fetched{ttl: askAgain, shared: true}, nil
	}
	now, err := v.fetch(ctx, info, kind)
	if errors.Is(err, upstream.ErrSession) || errors.Is(err, upstream.ErrNoResponse) && info.session != "" {
		v.forget(info)
		if info, err = v.loadInfo(ctx); err == nil {
			now, err = v.fetch(ctx, info, kind)
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
func (v *view) fetch(ctx context.Context, info *serverInfo, kind api.Kind) (*fetched, error) {
	b, c := v.of, v.client()
	ctx, cancel := context.WithTimeout(ctx, maxAsks*b.options.AskTimeout)
	defer cancel()
	size := 0
	out := &fetched{ttl: maxTTL, shared: !b.ForwardToken}
	var cursor json.RawMessage
	for range maxPages {
		params := json.RawMessage(`{}`)
		if info.version.Stateless() {
			params = c.Meta(info.version)
		}
		if cursor != nil {
			params = jsonrpc.Insert(params, "cursor", cursor)
		}
		result, err := c.Ask(ctx, upstream.Request{Version: info.version, Session: info.session, MaxDepth: maxListDepth}, kind.Method(), params)
		if errors.Is(err, upstream.ErrUnknownMethod) {
			// The capability "resources" covers two lists, and many servers have no resource templates.
			return &fetched{ttl: askAgain, shared: true}, nil
		}
		if err != nil {
			return nil, err
		}
		if size += len(result); size > maxList {
			return nil, fault.New(fault.Unavailable, "backend %s has a list of more than %d bytes", b.Name, maxList)
		}
		ttl, shared := cachingHints(info.version, result, b.options.ListTTL)
		out.ttl, out.shared = min(out.ttl, ttl), out.shared && shared
		for raw := range jsonrpc.Elements(jsonrpc.Member(result, kind.Member())) {
			e, why := v.parseEntry(kind, raw)
			if why != "" {
				b.dropped(ctx, why)
				continue
			}
			if out.entries = append(out.entries, e); len(out.entries) > maxEntries {
				return nil, fault.New(fault.Unavailable, "backend %s lists more than %d entries", b.Name, maxEntries)
			}
		}
		next := jsonrpc.Member(result, "nextCursor")
		// Since 2026-07-28 an empty cursor means that there is another page (Pagination).
		if text, ok := jsonrpc.String(next); !ok || text == "" && !info.version.Stateless() || string(next) == string(cursor) {
			return out, nil
		}
		cursor = next
	}
	return nil, fault.New(fault.Unavailable, "backend %s lists more than %d pages", b.Name, maxPages)
}

const (
	// maxListDepth is how deeply a backend's list may be nested. It is far above maxEntryDepth, so that one entry that is nested too
	// deeply does not spoil the whole list.
	maxListDepth = 1000
	// maxEntryDepth leaves room for the response, its result and the list, because clients limit the depth of a whole message.
	maxEntryDepth = jsonrpc.MaxDepth - 3
)

// parseEntry parses one entry of a list and adds the backend's prefix to its name. If the entry is unusable, it returns the reason.
func (v *view) parseEntry(kind api.Kind, raw json.RawMessage) (e entry, why string) {
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

// printable reports whether the names and titles in an entry are free of characters that control terminals or the direction of
// text. It checks all members with these names in any case, because some readers ignore case and take
// another one of several equal members.
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

// unprintable reports whether r is a control character or the replacement for invalid Unicode.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar
}

// cachingHints reads the caching hints in a page of a list (2026-07-28, Caching). If there are none, as in all session-based
// revisions, the list is private to its caller and lives as long as the gateway's own limit, own.
func cachingHints(version spec.Version, result json.RawMessage, own time.Duration) (ttl time.Duration, shared bool) {
	ttl = own
	if !version.Stateless() {
		return ttl, false
	}
	scope, _ := jsonrpc.String(jsonrpc.Member(result, "cacheScope"))
	var ms float64
	if raw := jsonrpc.Member(result, "ttlMs"); raw != nil && json.Unmarshal(raw, &ms) == nil {
		ttl = time.Duration(min(max(ms, 0), float64(maxTTL.Milliseconds()))) * time.Millisecond // a negative value means 0
	}
	return ttl, scope == "public"
}
