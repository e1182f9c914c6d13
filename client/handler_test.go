package client_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// script is a server that answers as a test says.
type script struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string][]json.RawMessage // params by method
	answer   map[string]answerer
	arrived  chan string // the methods of requests, if a test reads them
}

// answerer gets the number of a request, which begins with 1 for each method, and returns the result, or an empty text if it has written
// the response itself.
type answerer func(n int, w http.ResponseWriter) string

// newScript starts a server that answers server/discover, notifications, events/unsubscribe and the given method.
func newScript(t *testing.T, method string, answer answerer) *script {
	s := &script{arrived: make(chan string, 1000), requests: map[string][]json.RawMessage{}, answer: map[string]answerer{method: answer}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if json.NewDecoder(r.Body).Decode(&m) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.requests[m.Method] = append(s.requests[m.Method], m.Params)
		n := len(s.requests[m.Method])
		s.mu.Unlock()
		select {
		case s.arrived <- m.Method:
		default:
		}
		result := `{"supportedVersions":["2026-07-28"]}`
		if f := s.answer[m.Method]; f != nil {
			result = f(n, w)
		} else if m.Method == "events/unsubscribe" {
			result = "{}"
		}
		switch {
		case result == "":
		case strings.HasPrefix(result, `{"code"`):
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, result)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// params returns the params of all requests with a method.
func (s *script) params(method string) []json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

// secret returns the secret in the n-th events/subscribe.
func (s *script) secret(t *testing.T, n int) string {
	t.Helper()
	var p struct{ Delivery struct{ Secret string } }
	if err := json.Unmarshal(s.params("events/subscribe")[n-1], &p); err != nil || p.Delivery.Secret == "" {
		t.Fatalf("request %d has no secret: %v", n, err)
	}
	return p.Delivery.Secret
}

// post sends a webhook, signed with a secret by the Standard Webhooks library.
func post(t *testing.T, url, secret, subscription, id, body string, change func(*http.Request)) (status int, text string) {
	t.Helper()
	req := signed(t, url, secret, subscription, id, body)
	if change != nil {
		change(req)
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, string(expect.Value(io.ReadAll(resp.Body))(t))
}

func signed(t *testing.T, url, secret, subscription, id, body string) *http.Request {
	t.Helper()
	now := time.Now()
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
	if secret != "" {
		wh := expect.Value(standardwebhooks.NewWebhook(secret))(t)
		req.Header.Set(webhook.HeaderSignature, expect.Value(wh.Sign(id, now, []byte(body)))(t))
	}
	req.Header.Set(webhook.HeaderID, id)
	req.Header.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(webhook.HeaderSubscription, subscription)
	return req
}

// posted sends a signed webhook, and checks the status and the text of the answer; an empty text is not checked.
func posted(t *testing.T, what, url, secret, subscription, id, body string, status int, text string) {
	t.Helper()
	if got, answer := post(t, url, secret, subscription, id, body, nil); got != status || text != "" && strings.TrimSpace(answer) != text {
		t.Errorf("%s: answered with %d %s, want %d %s", what, got, answer, status, text)
	}
}

func occurrence(id string) string {
	return `{"eventId":"` + id + `","name":"order.shipped","timestamp":"2026-11-21T09:24:00Z","data":{"type":"gap"},"cursor":"after-` + id + `"}`
}

const otherSecret = "whsec_bm90IHRoZSBzZWNyZXQgb2YgdGhlIHN1YnNjcmlwdGlvbg=="

// startSubscribed starts a scripted server and a program that is subscribed there as sub_1, with a webhook.
func startSubscribed(t *testing.T, change func(*program)) (*script, *program) {
	t.Helper()
	s := newScript(t, "events/subscribe", func(int, http.ResponseWriter) string {
		return `{"id":"sub_1","refreshBefore":null,"cursor":null,"truncated":false}`
	})
	p := run(t, s.URL, client.ModeWebhook, change)
	p.begins()
	return s, p
}

func TestRequestsToAHandler(t *testing.T) {
	t.Parallel()
	s, p := startSubscribed(t, nil)
	url, secret := p.o.Webhooks.URL, s.secret(t, 1)
	old := func(r *http.Request) {
		r.Header.Set(webhook.HeaderTimestamp, strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10))
	}
	for _, tt := range []struct {
		name                           string
		secret, subscription, id, body string
		change                         func(*http.Request)
		status                         int
		handled                        bool
	}{
		{"an event whose webhook-id is its id", secret, "sub_1", "e1", occurrence("e1"), nil, 204, true},
		{"EVX-21 an event whose webhook-id is the id of the message", secret, "sub_1", "msg_event_x", occurrence("e2"), nil, 204, true},
		{"a repetition", secret, "sub_1", "e1", occurrence("e1"), nil, 204, false},
		{"EVX-21 a repetition in another message", secret, "sub_1", "msg_event_y", occurrence("e2"), nil, 204, false},
		{"an event that calls itself a message", secret, "sub_1", "msg_gap_1", occurrence("msg_gap_1"), nil, 204, true},
		{"a foreign secret", otherSecret, "sub_1", "e3", occurrence("e3"), nil, 401, false},
		{"no signature", "", "sub_1", "e3", occurrence("e3"), nil, 401, false},
		{"an old timestamp", secret, "sub_1", "e3", occurrence("e3"), old, 401, false},
		{"an unknown subscription", secret, "sub_2", "e3", occurrence("e3"), nil, 425, false},
		{"no subscription", secret, "", "e3", occurrence("e3"), nil, 425, false},
		{"a changed body", secret, "sub_1", "e3", occurrence("e3"), func(r *http.Request) {
			r.Body = io.NopCloser(bytes.NewReader([]byte(strings.Replace(occurrence("e3"), "2026", "2027", 1))))
		}, 401, false},
		{"too large", secret, "sub_1", "e3", `{"eventId":"e3","data":"` + strings.Repeat("x", webhook.MaxReceived) + `"}`, nil, 413, false},
		{"not JSON", secret, "sub_1", "e3", "{", nil, 400, false},
		{"neither", secret, "sub_1", "e3", `{"data":1}`, nil, 400, false},
		{"an unknown control message", secret, "sub_1", "msg_news_1", `{"type":"news"}`, nil, 204, false},
		{"an event whose data looks like a message", secret, "sub_1", "e5", `{"eventId":"e5","type":"terminated","data":{"type":"terminated"}}`, nil, 204, true},
		{"a challenge in a message without its type", secret, "sub_1", "msg_5f2c", `{"type":"verification","challenge":"x"}`, nil, 200, false},
		{"a GET", "", "sub_1", "", "", func(r *http.Request) { r.Method = http.MethodGet }, 405, false},
	} {
		t.Run("RCH-01 EVX-19 "+tt.name, func(t *testing.T) {
			status, text := post(t, url, tt.secret, tt.subscription, tt.id, tt.body, tt.change)
			if status != tt.status {
				t.Errorf("answered %d %s, want %d", status, text, tt.status)
			}
			if handled := len(p.got) > 0; handled != tt.handled || strings.Contains(text, "whsec_") {
				t.Errorf("handled %v, want %v, and an answer without the secret: %s", handled, tt.handled, text)
			}
			for len(p.got) > 0 {
				<-p.got
			}
		})
	}
	expect.AtMost(t, "the gaps", len(p.gaps), 0)
}

func TestAHandlerReportsControlMessages(t *testing.T) {
	t.Parallel()
	t.Run("EVX-13 EVX-19 a gap is reported once, and its cursor is saved", func(t *testing.T) {
		store := client.File(t.TempDir() + "/cursor")
		s, p := startSubscribed(t, func(p *program) { p.o.Store = store })
		for range 2 { // the second is a repetition
			posted(t, "a gap", p.o.Webhooks.URL, s.secret(t, 1), "sub_1", "msg_gap_1", `{"type":"gap","cursor":"fresh"}`, 204, "")
		}
		if g := take(t, p.gaps, p.ended); g.Cursor != "fresh" || g.Name != "order.shipped" {
			t.Errorf("got the gap %+v, want order.shipped and the cursor fresh", g)
		}
		expect.Equal(t, "the saved cursor", expect.Value(store.Load(t.Context(), ""))(t), "fresh")
		p.ends()
		expect.Equal(t, "the reports of the repeated gap", len(p.gaps), 0)
	})
	t.Run("EVX-13 EVX-19 a termination ends the subscription with a Terminated error", func(t *testing.T) {
		s, p := startSubscribed(t, nil)
		body := `{"type":"terminated","error":{"code":-32012,"message":"Forbidden","data":{"reason":"Access revoked"}}}`
		posted(t, "a termination", p.o.Webhooks.URL, s.secret(t, 1), "sub_1", "msg_terminated_1", body, 204, "")
		isTerminated(t, take(t, p.ended, nil))
	})
	t.Run("EVX-12 EVX-19 a challenge is answered while events/subscribe is open, before the id is known", func(t *testing.T) {
		hooks := startHandler(t)
		var s *script
		s = newScript(t, "events/subscribe", func(n int, _ http.ResponseWriter) string {
			challenge := `{"type":"verification","challenge":"nonce"}`
			posted(t, "a foreign challenge", hooks.URL, otherSecret, "sub_7", "msg_verification_1", challenge, 425, "")
			posted(t, "the challenge", hooks.URL, s.secret(t, n), "sub_7", "msg_verification_2", challenge, 200, `{"challenge":"nonce"}`)
			posted(t, "an event before the answer", hooks.URL, s.secret(t, n), "sub_7", "early", occurrence("early"), 204, "")
			return `{"id":"sub_7","refreshBefore":null,"cursor":null}`
		})
		p := run(t, s.URL, client.ModeWebhook, func(p *program) { p.o.Webhooks, p.sub.Unsubscribe = hooks, true })
		expect.Equal(t, "the id of the subscription", p.begins().ID(), "sub_7")
		p.handles("early")
		p.ends()
		posted(t, "after the end", hooks.URL, s.secret(t, 1), "sub_7", "late", occurrence("late"), 425, "")
		expect.Equal(t, "how often it was unsubscribed", len(s.params("events/unsubscribe")), 1)
	})
}

func TestARefreshMayChangeTheID(t *testing.T) {
	t.Parallel()
	hooks := startHandler(t)
	refreshed := make(chan struct{})
	var s *script
	s = newScript(t, "events/subscribe", func(n int, _ http.ResponseWriter) string {
		if n == 2 {
			defer close(refreshed)
		}
		id := fmt.Sprint("sub_", n)
		status, text := post(t, hooks.URL, s.secret(t, n), id, "msg_verification_"+id, `{"type":"verification","challenge":"nonce"}`, nil)
		if status != 200 {
			t.Errorf("the challenge of request %d was answered with %d %s, want 200", n, status, text)
			return `{"code":-32015,"message":"the endpoint did not echo the challenge"}`
		}
		if n == 1 { // the server loses the subscription, and the refresh creates another one
			return fmt.Sprintf(`{"id":%q,"refreshBefore":%q,"cursor":null}`, id, time.Now().Add(time.Second).Format(time.RFC3339Nano))
		}
		posted(t, "during the refresh, under the first id", hooks.URL, s.secret(t, 1), "sub_1", "old", occurrence("old"), 204, "")
		return fmt.Sprintf(`{"id":%q,"refreshBefore":null,"cursor":null}`, id)
	})
	p := run(t, s.URL, client.ModeWebhook, func(p *program) { p.o.Webhooks = hooks })
	t.Run("EVX-12 EVX-19 a challenge under a new id is answered while the refresh is open", func(t *testing.T) {
		p.begins()
		p.handles("old")
		take(t, refreshed, p.ended)
	})
	p.ends()
}

// A server challenges the endpoint again from time to time. If that fails once, for example because the endpoint or a proxy in front of it
// is being restarted, the subscription still exists at the server.
func TestARefreshSurvivesAFailedChallenge(t *testing.T) {
	for _, code := range []int{-32015, -32027} { // of both profiles
		t.Run(fmt.Sprintf("RCH-01 %d", code), func(t *testing.T) {
			t.Parallel()
			hooks := startHandler(t)
			s := newScript(t, "events/subscribe", func(n int, _ http.ResponseWriter) string {
				if n == 2 {
					return fmt.Sprintf(`{"code":%d,"message":"CallbackEndpointError","data":{"reason":"http_5xx"}}`, code)
				}
				return fmt.Sprintf(`{"id":"sub_1","refreshBefore":%q,"cursor":null}`, time.Now().Add(4*time.Second).Format(time.RFC3339Nano))
			})
			p := run(t, s.URL, client.ModeWebhook, func(p *program) { p.o.Webhooks = hooks })
			p.begins()
			for n := 0; n < 3; {
				if take(t, s.arrived, p.ended) == "events/subscribe" {
					n++
				}
			}
			posted(t, "an event after the failed challenge", hooks.URL, s.secret(t, 3), "sub_1", "e", occurrence("e"), 204, "")
			p.handles("e")
			p.ends()
		})
	}
	for accepted, name := range []string{"RCH-01 the first subscription reports the failure", "RCH-01 the subscription ends with its lifetime"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, "events/subscribe", func(n int, _ http.ResponseWriter) string {
				if n > accepted {
					return `{"code":-32015,"message":"CallbackEndpointError","data":{"reason":"http_5xx"}}`
				}
				return fmt.Sprintf(`{"id":"sub_1","refreshBefore":%q,"cursor":null}`, time.Now().Add(time.Second).Format(time.RFC3339Nano))
			})
			p := run(t, s.URL, client.ModeWebhook, nil)
			for range accepted {
				p.begins()
			}
			expect.Error(t, "the subscription", take(t, p.ended, nil), "CallbackEndpointError")
		})
	}
}

func isTerminated(t *testing.T, err error) {
	t.Helper()
	terminated, ok := err.(*client.Terminated)
	if !ok || terminated.Name != "order.shipped" || !fault.Is(err, fault.Forbidden) {
		t.Fatalf("the subscription ended with %v, want a Terminated of kind forbidden", err)
	}
	if errors.As(terminated.Err, new(*client.Terminated)) {
		t.Errorf("the reason of the end is again a Terminated: %v", err)
	}
}

// Two webhook subscriptions with the same event type and arguments are one at the server, which would send each event to only one of
// their functions.
func TestASubscriptionWithTheWebhooksOfAnotherIsRefused(t *testing.T) {
	t.Parallel()
	s := newScript(t, "events/subscribe", func(int, http.ResponseWriter) string { return `{"id":"sub_1","refreshBefore":null}` })
	o := client.SubscribeOptions{
		Name: "order.shipped", Mode: client.ModeWebhook, Unsubscribe: true, Event: func(context.Context, client.Event) error { return nil },
	}
	options := client.Options{Revision: "2026-07-28", Webhooks: startHandler(t)}
	c := expect.Value(client.Connect(t.Context(), s.URL, options))(t)
	sub := expect.Value(c.Subscribe(t.Context(), o))(t)
	expect.Is(t, "the same subscription", expect.ErrOf(c.Subscribe(t.Context(), o)), client.ErrConflict)
	expect.Equal(t, "the number of events/unsubscribe", len(s.params("events/unsubscribe")), 0)
	other := o
	other.Arguments = map[string]string{"carrier": "DHL"}
	expect.OK(t, expect.Value(c.Subscribe(t.Context(), other))(t).Close(), "other arguments")
	another := expect.Value(client.Connect(t.Context(), s.URL, options))(t)
	expect.OK(t, expect.Value(another.Subscribe(t.Context(), o))(t).Close(), "another client, which may be another caller")
	expect.OK(t, sub.Close(), "Close")
	expect.OK(t, expect.Value(c.Subscribe(t.Context(), o))(t).Close(), "after Close")
}

func TestARefreshRotatesTheSecretInTime(t *testing.T) {
	t.Parallel()
	hooks := startHandler(t)
	s := newScript(t, "events/subscribe", func(n int, w http.ResponseWriter) string {
		if n == 2 {
			w.WriteHeader(http.StatusBadGateway) // the server may use the request's secret nevertheless
			return "{}"
		}
		return fmt.Sprintf(`{"id":"sub_1","refreshBefore":%q,"cursor":"c%d"}`, time.Now().Add(time.Second).Format(time.RFC3339Nano), n)
	})
	store := client.File(t.TempDir() + "/cursor")
	p := run(t, s.URL, client.ModeWebhook, func(p *program) {
		p.o.Webhooks, p.o.Store, p.sub.TTL, p.sub.Rotate = hooks, store, time.Minute, time.Nanosecond
	})
	began := time.Now()
	p.begins()
	for n := 0; n < 4; {
		if take(t, s.arrived, p.ended) == "events/subscribe" {
			n++
		}
	}
	t.Run("RCH-01 the client refreshes before the lifetime ends, again after a failure, and with the saved cursor", func(t *testing.T) {
		if took := time.Since(began); took > 20*time.Second { // a third of what the client asked for
			t.Errorf("four requests took %s, want about 3s", took)
		}
		var last struct {
			Cursor string
			TTL    int64 `json:"ttlMs"`
		}
		_ = json.Unmarshal(s.params("events/subscribe")[3], &last)
		expect.Equal(t, "the cursor", last.Cursor, "c3")
		expect.Equal(t, "the TTL", last.TTL, 60_000)
	})
	t.Run("RCH-01 every secret that the server may sign with is accepted", func(t *testing.T) {
		different := map[string]bool{}
		for n := 1; n <= 4; n++ {
			different[s.secret(t, n)] = true
		}
		expect.Equal(t, "the number of different secrets", len(different), 3)
		expect.Equal(t, "the third secret, which repeats the second", s.secret(t, 2), s.secret(t, 3))
		expect.Equal(t, "the bytes of a secret", len(expect.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(s.secret(t, 4), "whsec_")))(t)), 32)
		for n := 3; n <= 4; n++ {
			id := fmt.Sprint("e", n)
			posted(t, fmt.Sprintf("by the secret of request %d", n), hooks.URL, s.secret(t, n), "sub_1", id, occurrence(id), 204, "")
		}
		p.handles("e3", "e4")
	})
	p.ends()
}

func TestASubscriptionIsRefreshedInTimeWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	const lifetime = 4 * time.Second
	for name, ahead := range map[string]time.Duration{"ahead of": -2 * time.Hour, "behind": 2 * time.Hour} {
		t.Run("RCH-01 the program's clock is "+name+" the server's", func(t *testing.T) {
			t.Parallel()
			requests := make(chan time.Time, 10)
			s := newScript(t, "events/subscribe", func(_ int, w http.ResponseWriter) string {
				requests <- time.Now()
				now := time.Now().Add(ahead)
				w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
				return fmt.Sprintf(`{"id":"sub_1","refreshBefore":%q,"cursor":null}`, now.Add(lifetime).Format(time.RFC3339Nano))
			})
			p := run(t, s.URL, client.ModeWebhook, nil)
			first := take(t, requests, p.ended)
			second := take(t, requests, p.ended)
			p.ends()
			// The Date header has whole seconds, so the lifetime looks up to a second longer.
			if got := second.Sub(first); got < lifetime/2 || got > lifetime {
				t.Errorf("refreshed after %s, want between %s and %s", got, lifetime/2, lifetime)
			}
		})
	}
}

func TestAWebhookThatTakesLongIsHandledOnce(t *testing.T) {
	release, entered := make(chan struct{}), make(chan string, 10)
	s, p := startSubscribed(t, func(p *program) {
		p.sub.Event = func(_ context.Context, e client.Event) error {
			entered <- e.ID
			<-release
			return nil
		}
	})
	secret := s.secret(t, 1)
	impatient, cancel := context.WithCancel(t.Context())
	req := signed(t, p.o.Webhooks.URL, secret, "sub_1", "slow", occurrence("slow")).WithContext(impatient)
	go func() {
		<-entered
		cancel()
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Fatalf("the first attempt was answered with %s", resp.Status)
	}
	again := make(chan int)
	go func() {
		status, _ := post(t, p.o.Webhooks.URL, secret, "sub_1", "slow", occurrence("slow"), nil)
		again <- status
	}()
	close(release)
	expect.Equal(t, "RCH-01 the answer to the second attempt", <-again, 204)
	expect.Equal(t, "RCH-01 the further calls", len(entered), 0)
	p.ends()
}

// TestARegistrationWithAChallenge registers at a server that verifies endpoints before it answers.
func TestARegistrationWithAChallenge(t *testing.T) {
	t.Parallel()
	const id, nonce = "msg_verification_1", `{"type":"verification","challenge":"nonce"}`
	hooks := &client.Handler{}
	end := expect.Value(hooks.Listen("127.0.0.1:0"))(t)
	defer end()
	server := newScript(t, spec.MethodRegister, func(int, http.ResponseWriter) string {
		for body, want := range map[string]string{nonce: `200 {"challenge":"nonce"}`, `{"type":"other"}`: "400 not a challenge", strings.Repeat(" ", 5000) + nonce: "400 not a challenge"} {
			if status, text := post(t, hooks.URL, "", "", id, body, nil); fmt.Sprint(status, " ", strings.TrimSpace(text)) != want {
				t.Errorf("%.50s: got %d %s, want %s", body, status, text, want)
			}
		}
		return `{"subscription":{"uri":"subscription://s","webhookSecret":{"type":"standard","key":"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}}`
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := expect.Value(client.Connect(ctx, server.URL, client.Options{Agent: "test/1", Revision: string(spec.V20260728), Webhooks: hooks}))(t)
	var sub *client.Subscription
	t.Run("SRF-07 the challenge of a registration is echoed before the secret is known", func(t *testing.T) {
		sub = expect.Value(c.Subscribe(ctx, client.SubscribeOptions{
			URIs: []string{"event://a"}, Mode: client.ModeWebhook,
			Event: func(_ context.Context, e client.Event) error { t.Errorf("got %+v, want no event", e); return nil },
		}))(t)
	})
	t.Run("SRF-07 afterwards an unsigned challenge is refused", func(t *testing.T) {
		posted(t, "the challenge", hooks.URL, "", "", id, nonce, 401, "")
	})
	expect.OK(t, sub.Close(), "Close")
}

// TestAnEndpointOutsideOfTheProgram: each refresh has the endpoint's secret and the cursor that the endpoint has saved meanwhile. The
// subscription stays at the server when it is closed here, and Resume makes the server continue at the cursor.
func TestAnEndpointOutsideOfTheProgram(t *testing.T) {
	type params struct {
		Cursor   *string
		Delivery struct{ Mode, URL, Secret string }
	}
	server := newScript(t, "events/subscribe", func(int, http.ResponseWriter) string {
		return `{"id":"s1","refreshBefore":"` + time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano) + `"}`
	})
	// registered waits for the n-th registration.
	registered := func(n int) (p params) {
		t.Helper()
		expect.Equal(t, "the client's method", <-server.arrived, "events/subscribe")
		expect.OK(t, json.Unmarshal(server.params("events/subscribe")[n-1], &p))
		return p
	}
	c := expect.Value(client.Connect(t.Context(), server.URL, client.Options{Revision: "2026-07-28", Store: client.Dir(t.TempDir())}))(t)
	var asked, accepted atomic.Int64
	store := client.File(t.TempDir() + "/cursor")
	o := client.SubscribeOptions{Name: "order.shipped", Store: store, Endpoint: &client.Endpoint{
		URL:    "https://events.example.com/hook",
		Secret: func(context.Context) (string, error) { return fmt.Sprint("secret-", asked.Add(1)), nil },
		Accepted: func(_ context.Context, id string, until time.Time) error {
			if id == "s1" && !until.IsZero() {
				accepted.Add(1)
			}
			return nil
		},
	}}
	s := expect.Value(c.Subscribe(t.Context(), o))(t)
	first := registered(1)
	if d := first.Delivery; d.Mode != "webhook" || d.URL != o.Endpoint.URL || d.Secret != "secret-1" || first.Cursor != nil {
		t.Errorf("the registration is %+v", first)
	}
	expect.OK(t, store.Save(t.Context(), "", "c1")) // as the endpoint does
	if d := registered(2); d.Delivery.Secret != "secret-2" || d.Cursor == nil || *d.Cursor != "c1" {
		t.Errorf("the refresh is %+v", d)
	}
	expect.OK(t, s.Close())
	if accepted.Load() == 0 {
		t.Error("Accepted was not called")
	}
	for len(server.arrived) > 0 {
		expect.Equal(t, "the client's method", <-server.arrived, "events/subscribe")
	}
	o.Endpoint.Resume = true
	s = expect.Value(c.Subscribe(t.Context(), o))(t)
	defer func() { _ = s.Close() }()
	expect.Equal(t, "the first request", <-server.arrived, "events/unsubscribe")
	expect.Equal(t, "the second request", <-server.arrived, "events/subscribe")

	for what, bad := range map[string]client.SubscribeOptions{
		"no URL":    {Name: "x", Endpoint: &client.Endpoint{Secret: o.Endpoint.Secret}},
		"no secret": {Name: "x", Endpoint: &client.Endpoint{URL: "https://x.example"}},
		"URIs":      {URIs: []string{shipped}, Endpoint: o.Endpoint},
	} {
		_, err := c.Subscribe(t.Context(), bad)
		expect.Fault(t, what, err, fault.Invalid)
	}
}

// HTTP clients often open connections before they need them.
func TestAReceiverDoesNotWaitForConnectionsWithoutARequest(t *testing.T) {
	t.Parallel()
	var h client.Handler
	end := expect.Value(h.Listen("127.0.0.1:0"))(t)
	conn := expect.Value(net.Dial("tcp", strings.Trim(h.URL, "htp:/")))(t)
	defer conn.Close()
	time.Sleep(100 * time.Millisecond) // the receiver accepts the connection
	start := time.Now()
	end()
	expect.AtMost(t, "the time that the end took", time.Since(start), 4*time.Second)
}
