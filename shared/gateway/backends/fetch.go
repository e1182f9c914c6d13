package backends

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// ServerInfo holds the information that a backend gives about itself: its capabilities and the revision of MCP that it speaks.
type ServerInfo struct {
	api.Capabilities
	Version spec.Version
	session string // the id of the gateway's own session with the backend; empty in 2026-07-28
}

// refreshInfo asks the backend for its capabilities. A session-based backend sends them only at the start of a session, so refreshInfo
// begins a new session and ends the previous one. If another goroutine still uses the previous session, it gets an error and calls
// LoadInfo again.
func (v *View) refreshInfo(ctx context.Context, have *ServerInfo) (*ServerInfo, error) {
	now, err := v.ask(ctx)
	if err != nil {
		return nil, err
	}
	if have != nil {
		ctx, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		v.backend.EndSession(ctx, v.token, have.Version, have.session)
	}
	return now, nil
}

// ask asks the backend for its revision and capabilities. Unless the configuration sets the revision, it first tries server/discover, which
// only 2026-07-28 has, and then initialize.
func (v *View) ask(ctx context.Context) (*ServerInfo, error) {
	c, pinned := v.client(), v.backend.ProtocolVersion
	auto := pinned == api.AutoVersion
	if stateless := !auto && spec.Version(pinned).Stateless(); auto || stateless {
		got, err := c.Discover(ctx)
		if err == nil {
			return v.newServerInfo(ctx, got), nil
		}
		if stateless || fault.Is(err, fault.Unavailable) && !upstream.IsRefused(err) {
			return nil, err
		}
	}
	version := spec.LatestSessionBased
	if !auto {
		version = spec.Version(pinned)
	}
	got, err := c.Initialize(ctx, upstream.Declared{Version: version, Capabilities: upstream.ListCapabilities})
	if err != nil {
		return nil, err
	}
	return v.newServerInfo(ctx, got), nil
}

// maxInstructions limits the instructions of one backend, in bytes, because clients give them to a model in each conversation.
const maxInstructions = 8 << 10

func (v *View) newServerInfo(ctx context.Context, k upstream.Known) *ServerInfo {
	info := &ServerInfo{Capabilities: ParseCapabilities(k.Capabilities), Version: k.Version, session: k.Session}
	if len(k.Instructions) <= maxInstructions {
		info.Instructions = k.Instructions
	} else {
		v.backend.CountDrop(ctx, dropInstructions)
	}
	return info
}

// fetchWithSession fetches a list from the backend. If the known revision and capabilities are older than infoAge, it first asks for them
// again. If the backend has ended the session or seems to speak another revision now, fetchWithSession asks for the capabilities again,
// which begins a new session, and retries once.
//
// An answer without a response in a session also counts as an ended session, because some backends do not report the end in another way.
func (v *View) fetchWithSession(ctx context.Context, kind api.Kind, infoAge time.Duration) (*fetched, error) {
	for again := false; ; again = true {
		info, err := v.info.Within(ctx, infoAge)
		if err != nil {
			return nil, err
		}
		if !info.Has(kind) {
			// The backend has no list of this kind. Look again after askAgain, when its capabilities may have changed.
			return &fetched{ttl: askAgain, shared: true}, nil
		}
		list, err := v.fetchList(ctx, info, kind)
		lost := errors.Is(err, upstream.ErrSession) || errors.Is(err, upstream.ErrNoResponse) && info.session != ""
		moved := errors.Is(err, upstream.ErrVersion) || info.Version.Stateless() && upstream.MayRefuseRevision(err)
		switch {
		case again:
			return list, err
		case lost:
			v.Forget(info)
		case !moved || !v.doubt(info):
			return list, err
		}
	}
}

func (v *View) fetchList(ctx context.Context, info *ServerInfo, kind api.Kind) (*fetched, error) {
	b, c := v.backend, v.client()
	ctx, cancel := context.WithTimeout(ctx, maxAsks*b.options.AskTimeout)
	defer cancel()
	size := 0
	out := &fetched{ttl: maxTTL, shared: !b.ActsForCallers() && !b.rules[kind].PerCaller()}
	var cursor json.RawMessage
	for range maxPages {
		params := json.RawMessage(`{}`)
		if info.Version.Stateless() {
			params = c.ListParams(info.Version)
		}
		if cursor != nil {
			params = jsonrpc.Insert(params, "cursor", cursor)
		}
		result, err := c.Ask(ctx, upstream.Request{Version: info.Version, Session: info.session, MaxDepth: maxListDepth}, kind.Method(), params)
		if errors.Is(err, upstream.ErrUnknownMethod) {
			// The backend declares the capability but does not have the method that reads the list, so its list is empty. For example,
			// many servers with resources do not have resources/templates/list.
			return &fetched{ttl: askAgain, shared: true}, nil
		}
		if err != nil {
			return nil, err
		}
		if size += len(result); size > maxList {
			return nil, fault.New(fault.Unavailable, "backend %s has a list of more than %d bytes", b.Name, maxList)
		}
		ttl, shared := cachingHints(info.Version, result, b.options.ListTTL)
		out.ttl, out.shared = min(out.ttl, ttl), out.shared && shared
		for raw := range jsonrpc.Elements(jsonrpc.Member(result, kind.Member())) {
			e, why := v.parseEntry(kind, raw)
			if kind == api.Tools && why == "" && info.Version.Stateless() {
				// Clients must leave out a tool with invalid x-mcp-header annotations (2026-07-28, x-mcp-header).
				if _, err := translate.Parameters(raw); err != nil {
					why = dropHeader
				}
			}
			if why != "" {
				b.CountDrop(ctx, why)
				continue
			}
			var permitted bool
			e.scopes, permitted = b.rules[kind].Permits(e.Own)
			if e.matches != nil && (!permitted || len(e.scopes) > 0) {
				out.restricted = append(out.restricted, e.matches)
			}
			if permitted { // callers must not see an entry that the rules deny
				out.entries = append(out.entries, e)
			}
			if max(len(out.entries), len(out.restricted)) > maxEntries {
				return nil, fault.New(fault.Unavailable, "backend %s lists more than %d entries", b.Name, maxEntries)
			}
		}
		next := jsonrpc.Member(result, "nextCursor")
		// In 2026-07-28, an empty cursor means that there is another page (Pagination). In earlier revisions, the gateway treats it as the
		// end of the list.
		if text, ok := jsonrpc.String(next); !ok || text == "" && !info.Version.Stateless() || string(next) == string(cursor) {
			return out, nil
		}
		cursor = next
	}
	return nil, fault.New(fault.Unavailable, "backend %s lists more than %d pages", b.Name, maxPages)
}

const (
	// maxListDepth limits how deeply a backend's list may be nested. It is far above maxEntryDepth, so that the gateway can drop one entry
	// that is nested too deeply and keep the rest of the list.
	maxListDepth = 1000
	// maxEntryDepth limits how deeply an entry may be nested, so that clients accept the message that contains the entry. The message,
	// its result and the list add three levels.
	maxEntryDepth = jsonrpc.MaxDepth - 3
)

// parseEntry parses one entry of a list and adds the backend's prefix to its name. If the entry is unusable, the result why is the
// reason.
func (v *View) parseEntry(kind api.Kind, raw json.RawMessage) (e Entry, why string) {
	own, ok := jsonrpc.String(jsonrpc.Member(raw, kind.Name()))
	switch {
	case !ok || own == "" || len(own) > maxName:
		return e, dropNameless
	case jsonrpc.Depth(raw) > maxEntryDepth:
		return e, dropDeep
	case !isPrintable(raw):
		return e, dropControls
	}
	raw, _ = translate.WithoutOwn(raw)
	e = Entry{Entry: api.Entry{Name: own, JSON: raw, Backend: v.backend.Name, Own: own}, View: v}
	if kind == api.Templates {
		e.matches = matcher(own)
	}
	if prefix := v.backend.Prefix; kind.Prefixed() && prefix != "" {
		e.Name = prefix + own
		e.JSON = jsonrpc.Replace(raw, kind.Name(), jsonrpc.Quote(e.Name))
	}
	return e, ""
}

// isPrintable reports whether the names and titles in an entry are free of characters that control terminals or the direction of text. It
// checks all members with such a name, in upper or lower case, because clients differ in which of them they read.
func isPrintable(entry json.RawMessage) bool {
	for key, value := range jsonrpc.Members(entry) {
		switch strings.ToLower(string(key)) {
		case "name", "title", "uri", "uritemplate":
			text, _ := jsonrpc.String(value)
			if strings.ContainsFunc(text, catalog.IsUnprintable) {
				return false
			}
		case "annotations":
			if !isPrintable(value) {
				return false
			}
		}
	}
	return true
}

// cachingHints returns how long the gateway may cache a page of a backend's list (ttl), and whether all users may share the page. In MCP
// revisions without sessions, the backend says this in result (2026-07-28, Caching). The ttl is own if the backend gives none. Older
// revisions have no such hints, so their pages get the ttl own and are not shared.
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
