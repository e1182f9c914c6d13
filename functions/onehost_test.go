package functions_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

// name plays a host name: the client's DNS and TLS. Its URL reaches the target to which the name points.
type name struct {
	URL    string
	target atomic.Pointer[string]
}

// point lets the name point to the front of a stack.
func (n *name) point(stack *runner.Stack) {
	target := stack.Outputs()["FrontTarget"]
	n.target.Store(&target)
}

func newName(t *testing.T, host string) *name {
	n := &name{}
	srv := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: *n.target.Load()})
			p.Out.Host = host
		},
	})
	t.Cleanup(srv.Close)
	n.URL = srv.URL
	return n
}

// frontOf returns the parameters of a front with a name.
func frontOf(host string) map[string]string {
	return map[string]string{
		"FrontDomain": host, "FrontCertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1",
		"BlockedTargets": host, "AllowedOrigins": "https://" + host,
	}
}

// TestOneHost runs the template's CloudFront distribution (AWS-13).
func TestOneHost(t *testing.T) {
	t.Parallel()
	const host, resource = "events.example.com", "https://events.example.com/mcp"
	p := identity.Start(t, resource)
	stack := deploy(t, func(o *runner.Options) {
		o.Parameters["Auth"], o.Parameters["JwtIssuer"], o.Parameters["JwtAudience"] = "jwt", p.Issuer, resource
		for parameter, value := range frontOf(host) {
			o.Parameters[parameter] = value
		}
	})
	n := newName(t, host)
	n.point(stack)
	key := p.Token("alice", "events:read events:subscribe events:publish events:operate", nil)
	token := "Bearer " + key
	const event = `{"uri":"event://ci/build-finished","data":{"build":1,"status":"passed"}}`

	send := func(t *testing.T, method, path, body string, header map[string]string) (resp *http.Response, text string) {
		t.Helper()
		req := expect.Value(http.NewRequestWithContext(t.Context(), method, n.URL+path, strings.NewReader(body)))(t)
		req.Header.Set("Content-Type", "application/json")
		for k, v := range header {
			req.Header.Set(k, v)
		}
		resp = expect.Value(http.DefaultTransport.RoundTrip(req))(t) // follows no redirect
		defer resp.Body.Close()
		b := expect.Value(io.ReadAll(resp.Body))(t)
		return resp, string(b)
	}
	t.Run("AWS-13 a stream at the host gets an event that is published there", func(t *testing.T) {
		body, header := request("subscriptions/listen", `"notifications":{"resourceSubscriptions":["event://ci/build-finished"]}`)
		header["Authorization"] = token
		req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL+"/mcp", strings.NewReader(body)))(t)
		stream := open(t, req, header)
		expect.Receive(t, "the acknowledgement, before anything else is written", stream)
		if resp, body := send(t, "POST", "/events", event, map[string]string{"Authorization": token}); resp.StatusCode != http.StatusAccepted {
			t.Fatalf("publish: got %d %s", resp.StatusCode, body)
		}
		expect.Contains(t, "the event", expect.Receive(t, "the event", stream), "event://ci/build-finished")
	})
	t.Run("AWS-13 each path has its function, with all methods and headers", func(t *testing.T) {
		for _, c := range []struct {
			method, path string
			header       map[string]string
			status       int
			text         string
		}{
			{"GET", "/admin/v1/overview", map[string]string{"Authorization": token, "Origin": "https://" + host}, 200, `"subscriptions"`},
			{"GET", "/admin/v1/overview", map[string]string{"Authorization": token, "Origin": "https://elsewhere.example"}, 403, ""},
			{"DELETE", "/admin/v1/principals/nobody?dryRun=true", map[string]string{"Authorization": token}, 200, `"complete"`},
			{"GET", "/console/", nil, 200, "<html"},
			{"POST", "/sources/none", nil, 404, ""},
			{"GET", "/.well-known/oauth-protected-resource/mcp", nil, 200, resource},
			{"GET", "/.well-known/oauth-protected-resource", nil, 200, resource},
			{"OPTIONS", "/mcp", map[string]string{"Origin": "https://" + host, "Access-Control-Request-Method": "POST"}, 204, ""},
		} {
			if resp, text := send(t, c.method, c.path, "", c.header); resp.StatusCode != c.status || !strings.Contains(text, c.text) {
				t.Errorf("%s %s: got %d %.200s", c.method, c.path, resp.StatusCode, text)
			}
		}
	})
	t.Run("AWS-13 a redirect stays at the host", func(t *testing.T) {
		resp, _ := send(t, "GET", "/console", "", nil)
		if to, err := resp.Location(); err != nil || to.Scheme+"://"+to.Host != n.URL {
			t.Errorf("got %d to %v, %v", resp.StatusCode, to, err)
		}
	})
	t.Run("AWS-13 a refusal says where to get a token, under the header's own name", func(t *testing.T) {
		const challenge = `Bearer resource_metadata="https://events.example.com/.well-known/oauth-protected-resource/mcp"`
		list, header := request("resources/list", "")
		for _, c := range []struct{ method, path, body string }{{"POST", "/mcp", list}, {"POST", "/events", event}, {"GET", "/admin/v1/overview", ""}} {
			resp, text := send(t, c.method, c.path, c.body, header)
			if got := resp.Header["Www-Authenticate"]; resp.StatusCode != http.StatusUnauthorized || len(got) != 1 || got[0] != challenge {
				t.Errorf("%s: got %d %q %s", c.path, resp.StatusCode, got, text)
			}
		}
	})
	t.Run("AWS-25 a Function URL refuses a request that did not pass the front", func(t *testing.T) {
		for _, id := range []string{"StreamFunction", "PublishFunction", "AdminFunction"} {
			resp := expect.Value(http.Get(stack.FunctionURL(id)))(t)
			resp.Body.Close()
			expect.Equal(t, "the status of "+id, resp.StatusCode, http.StatusForbidden)
		}
	})
	t.Run("AWS-13 AWS-17 the MCP endpoint moves to managed instances and back", func(t *testing.T) {
		const uri = "event://ci/build-finished"
		client := &harness.Client{URL: n.URL + "/mcp", Key: key, Version: harness.V20260728}
		publisher := harness.Target{Events: n.URL + "/events", Keys: map[string]string{"publisher": key}}
		listen := func(meta map[string]any) *harness.Stream {
			t.Helper()
			stream := client.Listen(t, 1, map[string]any{"resourceSubscriptions": []string{uri}}, meta)
			stream.Next(t) // the acknowledgement
			return stream
		}
		last := func(s *harness.Stream) (u harness.Update) {
			if all := s.Updates(); len(all) > 0 {
				u = *all[len(all)-1]
			}
			return u
		}
		// publish publishes an event, and waits until all streams have received it.
		publish := func(id string, streams ...*harness.Stream) {
			t.Helper()
			publisher.Publish(t, harness.Event{ID: id, URI: uri, Data: map[string]any{"build": 1, "status": "passed"}})
			for _, stream := range streams {
				eventually(t, "event "+id, func() bool { return last(stream).EventID == id })
			}
		}
		// While the stack changes, a client calls the endpoint.
		done, failed := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(failed)
			for {
				select {
				case <-done:
					return
				default:
				}
				if a, err := client.Try(t.Context(), "resources/list", nil); err != nil || a.Error != nil || a.Status != http.StatusOK {
					failed <- fmt.Errorf("got %+v, %v", a, err)
					return
				}
			}
		}()
		invocations := func(id string) int { return stack.Stats()[id].Invocations }
		before := listen(nil)
		publish("a", before)
		update(t, stack, map[string]string{"StreamCapacityProvider": changed["StreamCapacityProvider"]})
		publish("b", before) // the open stream continues
		onLambda := invocations("StreamFunction")
		moved := listen(nil)
		publish("c", before, moved)
		if n := invocations("StreamFunction"); n != onLambda || invocations("ManagedStreamFunction") == 0 {
			t.Errorf("%d requests after the move reached StreamFunction, and %d ManagedStreamFunction", n-onLambda, invocations("ManagedStreamFunction"))
		}
		if resp, err := http.Get(stack.FunctionURL("ManagedStreamFunction")); err != nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("past the front, got %v, %v", resp, err)
		} else {
			resp.Body.Close()
		}
		update(t, stack, map[string]string{"StreamCapacityProvider": ""})
		publish("d", before)
		expect.Receive(t, "the end of the stream at the function that is gone", moved.Ended())
		again := listen(map[string]any{harness.Prefix + "cursor": last(moved).Cursor})
		eventually(t, "the event that was missed", func() bool { return last(again).EventID == "d" })
		close(done)
		expect.OK(t, <-failed, "a call during the changes")
	})
}
