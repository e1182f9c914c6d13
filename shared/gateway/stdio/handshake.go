package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// probes reports whether the handshake tries server/discover, i.e. 2026-07-28.
func (s *server) probes() bool {
	version := s.backend.ProtocolVersion
	return version == api.AutoVersion || spec.Version(version).Stateless()
}

// initializes reports whether the handshake tries initialize, i.e. an earlier revision.
func (s *server) initializes() bool {
	version := s.backend.ProtocolVersion
	return version == api.AutoVersion || !spec.Version(version).Stateless()
}

// oldestVersion is the first revision. Over stdio it differs from the next one in nothing that the gateway uses, so the gateway treats it as the
// next one.
const oldestVersion = "2024-11-05"

// answer is the outcome of one of the two requests of a handshake.
type answer struct {
	discover bool
	message  json.RawMessage
	err      error
}

// handshake finds out which revision the shared process speaks: it asks with server/discover, and if the process answers with an error
// or not at all, with initialize (2026-07-28, stdio, Backward Compatibility). A late answer to server/discover counts, because a command
// may take long to start.
func (p *process) handshake(ctx context.Context, probe bool) error {
	answers := make(chan answer, 2)
	ask := func(discover bool, method string, params json.RawMessage) {
		id := upstream.FreshID()
		x, err := p.request(ctx, id, method, jsonrpc.AppendRequest(nil, id, method, params))
		if err != nil {
			answers <- answer{discover, nil, err}
			return
		}
		go func() {
			message, err := x.await()
			_ = x.Close()
			answers <- answer{discover, message, err}
		}()
	}
	initialize := func() { ask(false, spec.MethodInitialize, p.initializeParams()) }
	var silent <-chan time.Time
	switch {
	case !probe:
		initialize()
	default:
		ask(true, spec.MethodDiscover, (&upstream.Client{Server: p.server.t.Server}).Meta(spec.V20260728))
		if p.server.initializes() {
			silent = time.After(p.server.t.probeTime())
		}
	}
	for {
		select {
		case <-silent:
			silent = nil
			initialize()
		case a := <-answers:
			switch {
			case ctx.Err() != nil:
				return fmt.Errorf("it did not answer within %s", p.server.t.startTime())
			case a.err != nil:
				return a.err
			case a.discover && speaksStateless(a.message):
				p.mu.Lock()
				p.stateless = true
				p.mu.Unlock()
				return nil
			case !a.discover:
				return p.begin(ctx, a.message)
			case !p.server.initializes():
				return errors.New("it does not speak 2026-07-28")
			case silent != nil:
				silent = nil
				initialize()
			}
		}
	}
}

// speaksStateless reports whether the response to server/discover offers 2026-07-28.
func speaksStateless(response json.RawMessage) bool {
	for v := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(response, "result"), "supportedVersions")) {
		if text, _ := jsonrpc.String(v); text == string(spec.V20260728) {
			return true
		}
	}
	return false
}

func (p *process) initializeParams() json.RawMessage {
	version := spec.LatestSessionBased
	if pinned := p.server.backend.ProtocolVersion; pinned != api.AutoVersion {
		version = spec.Version(pinned)
	}
	params := append([]byte(`{"protocolVersion":`), jsonrpc.Quote(string(version))...)
	params = append(append(params, `,"capabilities":{},"clientInfo":`...), p.server.t.Server...)
	return append(params, '}')
}

// begin keeps the result of initialize, and completes the handshake.
func (p *process) begin(ctx context.Context, response json.RawMessage) error {
	result := jsonrpc.Member(response, "result")
	if result == nil {
		return errors.New("it refuses initialize")
	}
	p.mu.Lock()
	p.initialized = withKnownVersion(result)
	p.mu.Unlock()
	return p.send(ctx, jsonrpc.AppendNotification(nil, spec.NoteInitialized, nil))
}

// withKnownVersion replaces [oldestVersion] in the result of initialize.
func withKnownVersion(result json.RawMessage) json.RawMessage {
	if version, _ := jsonrpc.String(jsonrpc.Member(result, "protocolVersion")); version == oldestVersion {
		return jsonrpc.Replace(result, "protocolVersion", jsonrpc.Quote(string(spec.V20250326)))
	}
	return result
}
