package conversation

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxAnswer is the maximum size of a provider's response in bytes.
const maxAnswer = 256 << 10

// headerMethod tells a provider the kind of message, with the header that MCP uses for the method.
const headerMethod = "Mcp-Method"

// newHTTP returns a client for providers at URLs. The operator configured the URLs, so private addresses are allowed.
// The client does not follow redirects, because they would receive the credentials and the message, and it ignores
// proxies in the environment.
func newHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    5 * time.Second,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    32,
			IdleConnTimeout:        upstream.RestTime,
			MaxResponseHeaderBytes: 32 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// headers returns the headers that the operator configured for a provider.
func (s *Service) headers(ctx context.Context, v rules.Provider) (http.Header, error) {
	h := http.Header{}
	for name, value := range v.Headers {
		text, err := s.options.Secrets(ctx, value)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "provider %s: header %s", v.Name, name)
		}
		h.Set(name, text)
	}
	return h, nil
}

// askURL asks a provider at a URL with a POST of the message's params. The provider responds with a context as JSON,
// or with 204.
func (s *Service) askURL(v rules.Provider) asker {
	return func(ctx context.Context, _ Caller, m *Message, principal string) (json.RawMessage, error) {
		header, err := s.headers(ctx, v)
		if err != nil {
			s.options.Log.ErrorContext(ctx, "provider header missing", "error", err)
			return nil, failure{internal}
		}
		return post(ctx, s.options.HTTP, v.URL, header, m, principal)
	}
}

func post(ctx context.Context, client *http.Client, url string, header http.Header, m *Message, principal string) (json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(m.Params(nil)))
	if err != nil {
		return nil, failure{internal}
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set(headerMethod, m.Kind.Method())
	req.Header.Set(rules.PrincipalHeader, principal)
	resp, err := client.Do(req)
	if err != nil {
		return nil, failure{unreachable}
	}
	defer func() { _ = resp.Body.Close() }()
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return json.RawMessage(`{}`), nil
	case resp.StatusCode != http.StatusOK:
		return nil, failure{refused}
	case media != "application/json":
		return nil, failure{malformed}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, failure{unreachable}
	case len(text) > maxAnswer:
		return nil, failure{oversized}
	}
	parts, batch, bad := jsonrpc.Split(text)
	if bad != nil || batch {
		return nil, failure{malformed}
	}
	return parts[0], nil
}
