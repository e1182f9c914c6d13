package backends

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// authority is an authorization server without a network.
type authority struct {
	mu     sync.Mutex
	asked  []url.Values
	basic  []string // the secrets in headers
	status int      // 0 means 200
	answer string   // empty means a new token that is valid for an hour
	hangs  time.Duration
	hangOn string // the only token for which it hangs; empty means all
}

func (a *authority) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	id, password, _ := r.BasicAuth()
	a.mu.Lock()
	a.asked, a.basic = append(a.asked, form), append(a.basic, id+":"+password)
	status, n, hangs := cmp.Or(a.status, http.StatusOK), len(a.asked), a.hangs
	if a.hangOn != "" && a.hangOn != form.Get("subject_token") {
		hangs = 0
	}
	answer := cmp.Or(a.answer, fmt.Sprintf(`{"access_token":"for-b-%d","issued_token_type":%q,"token_type":"Bearer","expires_in":3600}`, n, accessToken))
	a.mu.Unlock()
	select {
	case <-time.After(hangs):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: status, Body: io.NopCloser(strings.NewReader(answer)), Request: r,
		Header: http.Header{"Content-Type": {"application/json"}, "Location": {"https://elsewhere.example/"}},
	}, nil
}

func (a *authority) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

// set changes the answers of the authorization server.
func (a *authority) set(status int, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.answer = status, answer
}

// exchanging returns a backend whose tokens the authority issues, and the log.
func exchanging(a *authority, x api.Exchange) (*Backend, *bytes.Buffer) {
	log := &bytes.Buffer{}
	x.TokenURL, x.ClientID = "https://id.example/token?key=hidden", "me&you"
	return newBackend(&Options{
		Secrets:    func(context.Context, secret.Value) (string, error) { return "s3:cret", nil },
		AskTimeout: 10 * time.Second, Log: slog.New(slog.NewTextHandler(log, nil)),
		HTTP: &http.Client{Transport: a, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, api.Backend{Name: "b", Exchange: &x}), log
}

// callerOf returns the Authorization header of a caller whose token is valid for the given time.
func callerOf(name string, life time.Duration) string {
	claims := fmt.Sprintf(`{"sub":%q,"exp":%d}`, name, time.Now().Add(life).Unix())
	return "Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// GWN-27: the request has the members of RFC 8693, and the client authenticates itself as configured.
func TestExchangeRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		exchange api.Exchange
		want     url.Values
		basic    string
	}{
		"audience": {
			api.Exchange{Audience: "b"}, url.Values{"audience": {"b"}}, "me%26you:s3%3Acret",
		},
		"resource and scopes, secret in the body": {
			api.Exchange{Resource: "https://b.example/", SecretInBody: true, OAuth: api.OAuth{Scopes: []string{"r", "w"}}},
			url.Values{"resource": {"https://b.example/"}, "scope": {"r w"}, "client_id": {"me&you"}, "client_secret": {"s3:cret"}},
			":",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := &authority{}
			b, _ := exchanging(a, tt.exchange)
			caller := callerOf("ann", time.Hour)
			h := http.Header{}
			expect.OK(t, b.ClientFor(caller).Credentials(t.Context(), h))
			expect.Equal(t, "the Authorization header", h.Get("Authorization"), "Bearer for-b-1")
			tt.want.Set("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange")
			tt.want.Set("subject_token", strings.TrimPrefix(caller, "Bearer "))
			tt.want.Set("subject_token_type", "urn:ietf:params:oauth:token-type:access_token")
			tt.want.Set("requested_token_type", "urn:ietf:params:oauth:token-type:access_token")
			expect.Equal(t, "the request", a.asked[0].Encode(), tt.want.Encode())
			expect.Equal(t, "the client in the header", a.basic[0], tt.basic)
		})
	}
}

// GWN-27: an exchanged token is used until shortly before it or the caller's token expires. Each token of a caller has its own, and
// concurrent calls share a request.
func TestExchangedTokensAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &authority{hangs: time.Second}
		b, _ := exchanging(a, api.Exchange{Audience: "b"})
		get := func(caller, want string, asked int) {
			t.Helper()
			expect.Equal(t, "the token", expect.Value(b.exchangeToken(t.Context(), caller))(t), "Bearer "+want)
			expect.Equal(t, "requests", a.count(), asked)
		}
		long, short := callerOf("ann", 3*time.Hour), callerOf("ann", 10*time.Minute)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { get(long, "for-b-1", 1) })
		}
		all.Wait()
		get(short, "for-b-2", 2)
		time.Sleep(9 * time.Minute)
		get(short, "for-b-2", 2)
		time.Sleep(time.Minute)
		expect.Fault(t, "an expired caller", expect.ErrOf(b.exchangeToken(t.Context(), short)), fault.Unauthenticated)
		expect.Equal(t, "requests", a.count(), 2)
		time.Sleep(49 * time.Minute)
		get(long, "for-b-1", 2)
		time.Sleep(time.Minute - expiryMargin + time.Second)
		get(long, "for-b-3", 3)
		a.set(200, `{"access_token":"brief","token_type":"bearer"}`)
		time.Sleep(time.Hour)
		get(long, "brief", 4)
		time.Sleep(unstatedLife)
		get(long, "brief", 5)
	})
}

// GWN-27: an exchanged token also expires while Lambda has frozen the process, although the monotonic clock may stand still.
func TestExchangedTokensExpireDuringAFreeze(t *testing.T) {
	a := &authority{}
	b, _ := exchanging(a, api.Exchange{Audience: "b"})
	caller := callerOf("ann", 3*time.Hour)
	expect.Equal(t, "the token", expect.Value(b.exchangeToken(t.Context(), caller))(t), "Bearer for-b-1")
	token, _, _, _ := readToken(caller)
	key := subject(sha256.Sum256([]byte(token)))
	have, _ := b.tokens.kept.Get(key)
	have.until = periodictest.AfterFreeze(have.until, -time.Hour)
	b.tokens.kept.Put(key, have)
	expect.Equal(t, "the token after the freeze", expect.Value(b.exchangeToken(t.Context(), caller))(t), "Bearer for-b-2")
}

// GWN-27: the number of cached tokens is limited.
func TestExchangedTokensAreBounded(t *testing.T) {
	a := &authority{}
	b, _ := exchanging(a, api.Exchange{Audience: "b"})
	first := callerOf("first", time.Hour)
	expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), first)))
	for i := range maxExchanged {
		expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf(fmt.Sprint(i), time.Hour))))
	}
	expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), first)))
	expect.Equal(t, "requests", a.count(), maxExchanged+2)
}

// GWN-27: the caller gets an error of its own if the authorization server refuses it, and another one if the server fails. Tokens,
// secrets and texts of the authorization server stay out of the error and the log.
func TestFailedExchanges(t *testing.T) {
	caller := callerOf("ann", time.Hour)
	own := strings.TrimPrefix(caller, "Bearer ")
	const leak = "leaked-token"
	for name, tt := range map[string]struct {
		status int
		answer string
		want   fault.Kind
	}{
		"invalid_grant":          {400, `{"error":"invalid_grant","error_description":"leaked-token"}`, fault.Unauthenticated},
		"invalid_target":         {400, `{"error":"invalid_target","error_description":"leaked-token"}`, fault.Forbidden},
		"invalid_request":        {400, `{"error":"invalid_request"}`, fault.Forbidden},
		"a token as the code":    {400, `{"error":"leaked-token"}`, fault.Forbidden},
		"invalid_client":         {401, `{"error":"invalid_client"}`, fault.Unavailable},
		"unsupported_grant_type": {400, `{"error":"unsupported_grant_type"}`, fault.Unavailable},
		"no JSON":                {400, `leaked-token`, fault.Unavailable},
		"down":                   {503, `{"access_token":"leaked-token"}`, fault.Unavailable},
		"a redirect":             {307, ``, fault.Unavailable},
		"the caller's own token": {200, `{"access_token":"` + own + `","token_type":"Bearer"}`, fault.Unavailable},
		"no bearer token":        {200, `{"access_token":"leaked-token","token_type":"DPoP"}`, fault.Unavailable},
		"a header in the token":  {200, `{"access_token":"leaked-token\r\nX: y","token_type":"Bearer"}`, fault.Unavailable},
		"a huge token":           {200, `{"access_token":"` + strings.Repeat("x", maxToken+1) + `","token_type":"Bearer"}`, fault.Unavailable},
		"an endless answer":      {200, `{"access_token":"` + strings.Repeat("x", 2<<20) + `","token_type":"Bearer"}`, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			a := &authority{status: tt.status, answer: tt.answer}
			b, log := exchanging(a, api.Exchange{Audience: "b"})
			for range 20 { // the caller tries again
				h := http.Header{}
				err := b.ClientFor(caller).Credentials(t.Context(), h)
				expect.Fault(t, "the caller", err, tt.want)
				expect.Contains(t, "the caller's error", fault.Public(err), "backend b")
				for _, text := range []string{err.Error(), log.String(), fmt.Sprint(h)} {
					for _, no := range []string{leak, own, "s3:cret", "hidden"} {
						if strings.Contains(text, no) {
							t.Fatalf("%q contains %q", text, no)
						}
					}
				}
			}
			expect.Equal(t, "requests", a.count(), 1)
			expect.Contains(t, "the log", log.String(), "token exchange")
		})
	}
}

// GWN-27: given an authorization server that fails for two users, then all callers share its failure for a while. After that, a request
// finds out whether it works again.
func TestFailingAuthorizationServerIsSpared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &authority{hangs: failedFor / 2, status: http.StatusServiceUnavailable}
		b, _ := exchanging(a, api.Exchange{Audience: "b"})
		for i := range 50 {
			expect.Fault(t, "a caller", expect.ErrOf(b.exchangeToken(t.Context(), callerOf(fmt.Sprint(i), time.Hour))), fault.Unavailable)
		}
		expect.Equal(t, "requests of 50 callers", a.count(), 2)
		a.set(0, "")
		time.Sleep(failedFor)
		expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf("ann", time.Hour))))
	})
}

// GWN-27: given a user for whom the authorization server always fails, then the other users still get their tokens.
func TestServerThatFailsForOneUserConcernsOnlyThatUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &authority{}
		b, _ := exchanging(a, api.Exchange{Audience: "b"})
		for i := range 10 {
			a.set(http.StatusInternalServerError, "")
			for life := range 3 { // with another token each time
				odd := callerOf("odd", time.Hour+time.Duration(life)*time.Minute)
				expect.Fault(t, "the user", expect.ErrOf(b.exchangeToken(t.Context(), odd)), fault.Unavailable)
			}
			a.set(0, "")
			expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf(fmt.Sprint(i), time.Hour))))
			time.Sleep(failedFor)
		}
	})
}

// GWN-27: given a caller whose exchange takes too long, then only this caller waits, once, and is refused for a while.
func TestSlowExchangeConcernsItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := callerOf("slow", time.Hour)
		a := &authority{hangs: time.Hour, hangOn: strings.TrimPrefix(slow, "Bearer ")}
		b, _ := exchanging(a, api.Exchange{Audience: "b"})
		began := time.Now()
		others := func() {
			t.Helper()
			for i := range 5 {
				expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf(fmt.Sprint(i), 2*time.Hour))))
			}
		}
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				expect.Fault(t, "the slow caller", expect.ErrOf(b.exchangeToken(t.Context(), slow)), fault.Unavailable)
			})
		}
		synctest.Wait()
		others()
		expect.Equal(t, "the time that the others waited", time.Since(began), 0)
		waiting.Wait()
		expect.Equal(t, "the time that the slow caller waited", time.Since(began), b.options.AskTimeout)
		expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf("new", time.Hour))))
		expect.Fault(t, "the slow caller again", expect.ErrOf(b.exchangeToken(t.Context(), slow)), fault.Unavailable)
		expect.Equal(t, "the time until all have an answer", time.Since(began), b.options.AskTimeout)
		expect.Equal(t, "requests", a.count(), 7)
	})
}

// GWN-27: a caller for whom the authorization server issues no usable token does not keep the others from theirs.
func TestUnusableTokenConcernsItsCaller(t *testing.T) {
	odd := callerOf("odd", time.Hour)
	for name, tt := range map[string]struct {
		status int
		answer string
	}{
		"the caller's own token": {200, `{"access_token":"` + strings.TrimPrefix(odd, "Bearer ") + `","token_type":"Bearer"}`},
		"a huge token":           {200, `{"access_token":"` + strings.Repeat("x", maxToken+1) + `","token_type":"Bearer"}`},
		"a request too large":    {413, `too large`},
	} {
		t.Run(name, func(t *testing.T) {
			a := &authority{status: tt.status, answer: tt.answer}
			b, _ := exchanging(a, api.Exchange{Audience: "b"})
			expect.Fault(t, "the caller", expect.ErrOf(b.exchangeToken(t.Context(), odd)), fault.Unavailable)
			a.set(0, "")
			expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), callerOf("ann", time.Hour))))
			expect.Fault(t, "the caller again", expect.ErrOf(b.exchangeToken(t.Context(), odd)), fault.Unavailable)
			expect.Equal(t, "requests", a.count(), 2)
		})
	}
}

// GWN-27: credentials that are no token of an authorization server, for example an API key, are not sent to it. Requests without a token
// have no Authorization header.
func TestOnlyTokensAreExchanged(t *testing.T) {
	a := &authority{}
	b, _ := exchanging(a, api.Exchange{Audience: "b"})
	expect.Equal(t, "without a credential of the operator, lists are per caller", b.OnlyForCallers(), true)
	b.Headers = map[string]secret.Value{"Authorization": secret.Plain("operator")}
	expect.Equal(t, "with one, lists are per caller", b.OnlyForCallers(), false)
	for _, caller := range []string{"Bearer key_1", "Basic YTpi", "Bearer a.b.c", "Bearer e30.e30.e30", "Bearer e30.!.c2ln", "x"} {
		expect.Fault(t, caller, expect.ErrOf(b.exchangeToken(t.Context(), caller)), fault.Forbidden)
	}
	h := http.Header{}
	expect.OK(t, b.ClientFor("").Credentials(t.Context(), h))
	if _, ok := h["Authorization"]; ok || a.count() > 0 {
		t.Errorf("got the headers %v and %d requests, want no Authorization and no request", h, a.count())
	}
	expect.OK(t, b.own.Credentials(t.Context(), h))
	expect.Equal(t, "the Authorization of the gateway's own requests", h.Get("Authorization"), "s3:cret")
}

// GWN-27: a caller stops waiting for the authorization server when its own context ends.
func TestExchangeEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := exchanging(&authority{hangs: 5 * time.Second}, api.Exchange{Audience: "b"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		caller := callerOf("ann", time.Hour)
		expect.Fault(t, "the caller that gave up", expect.ErrOf(b.exchangeToken(ctx, caller)), fault.Unavailable)
		expect.OK(t, expect.ErrOf(b.exchangeToken(t.Context(), caller)))
	})
}
