package webhook

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestVerifyTarget(t *testing.T) {
	secret, key := NewSecret()
	echo := newEndpoint(secret)
	t.Run("EVX-12 an endpoint that echoes a signed challenge is verified", func(t *testing.T) {
		var seen captured
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			seen = captured{header: r.Header, body: body}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			echo.ServeHTTP(w, r)
		})
		s := open(t, Options{})
		var challenges []string
		for range 2 {
			expect.OK(t, s.Verify(t.Context(), srv.URL, "sub_1", [][]byte{key}))
			var v verification
			if err := json.Unmarshal(seen.body, &v); err != nil || v.Type != "verification" || len(v.Challenge) < 40 {
				t.Errorf("body %s", seen.body)
			}
			challenges = append(challenges, v.Challenge)
		}
		if challenges[0] == challenges[1] {
			t.Error("a challenge was used twice")
		}
		if err := Verify(seen.header, seen.body, secret); err != nil {
			t.Error(err)
		}
		if id := seen.header.Get(HeaderID); !strings.HasPrefix(id, "msg_verification_") || strings.Contains(id, ".") || len(id) < 30 {
			t.Errorf("EVX-13 webhook-id %q", id)
		}
		expect.Equal(t, "the header with the subscription id", seen.header.Get(HeaderSubscription), "sub_1")
	})

	for name, tt := range map[string]struct {
		status int
		body   func(challenge string) string
		want   Category
	}{
		"another challenge":          {200, func(string) string { return `{"challenge":"other"}` }, ChallengeFailed},
		"a prefix of it":             {200, func(c string) string { return `{"challenge":"` + c[:10] + `"}` }, ChallengeFailed},
		"an empty one":               {200, func(string) string { return `{"challenge":""}` }, ChallengeFailed},
		"nothing":                    {204, func(string) string { return "" }, ChallengeFailed},
		"the challenge without JSON": {200, func(c string) string { return c }, ChallengeFailed},
		"another type":               {200, func(c string) string { return `{"challenge":["` + c + `"]}` }, ChallengeFailed},
		"after 16 KiB":               {200, func(c string) string { return strings.Repeat(" ", maxAnswer) + `{"challenge":"` + c + `"}` }, ChallengeFailed},
		"it in a 4xx":                {404, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP4xx},
		"it in a redirect":           {302, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP4xx},
		"it in a 5xx":                {500, func(c string) string { return `{"challenge":"` + c + `"}` }, HTTP5xx},
		"it, with other members":     {201, func(c string) string { return `{"ok":true,"challenge":"` + c + `"}` }, ""},
	} {
		t.Run("EVX-12 an endpoint that answers with "+name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					http.NotFound(w, r)
					return
				}
				var v verification
				_ = json.NewDecoder(r.Body).Decode(&v)
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body(v.Challenge))
			})
			err := open(t, Options{}).Verify(t.Context(), srv.URL, "sub_1", [][]byte{key})
			if tt.want == "" {
				expect.OK(t, err)
				return
			}
			wantReason(t, err, tt.want)
		})
	}

	t.Run("EVX-12 an unreachable endpoint is not verified", func(t *testing.T) {
		srv := serve(t, nil)
		srv.Close()
		wantReason(t, open(t, Options{}).Verify(t.Context(), srv.URL, "sub_1", nil), ConnectionRefused)
	})
	t.Run("EVX-12 a blocked address is reported as a refused connection", func(t *testing.T) {
		guard := &Guard{Resolver: newNameServer(t, localhost).resolver()}
		wantReason(t, open(t, Options{Guard: guard}).Verify(t.Context(), "https://hooks.example.com/", "sub_1", nil), ConnectionRefused)
	})
	t.Run("SRF-06 an invalid URL is an invalid argument", func(t *testing.T) {
		if err := open(t, Options{Guard: &Guard{}}).Verify(t.Context(), "http://example.com/", "sub_1", nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("got %v", err)
		}
	})
}

func wantReason(t *testing.T, err error, want Category) {
	t.Helper()
	data, _ := fault.DataOf(err).(map[string]any)
	if !fault.Is(err, fault.Unavailable) || data["reason"] != string(want) {
		t.Errorf("got %v with %v, want the reason %s", err, data, want)
	}
	if strings.Contains(fault.Public(err), "127.0.0.1") {
		t.Errorf("SRF-05 the error reveals too much: %s", fault.Public(err))
	}
}

func TestVerifyTarget_Declared(t *testing.T) {
	for name, tt := range map[string]struct {
		document string
		path     string
		ok       bool
	}{
		"under a declared path":           {`{"receivers":["/other/","/hooks/"]}`, "/hooks/a", true},
		"a declared path":                 {`{"receivers":["/hooks"]}`, "/hooks", true},
		"under a path without its slash":  {`{"receivers":["/hooks"]}`, "/hooks/a", true},
		"the whole origin":                {`{"receivers":["/"]}`, "/hooks/a", true},
		"next to a declared path":         {`{"receivers":["/hooks"]}`, "/hooks2", false},
		"none":                            {`{"receivers":[]}`, "/hooks", false},
		"an empty prefix":                 {`{"receivers":[""]}`, "/hooks", false},
		"a relative prefix":               {`{"receivers":["hooks"]}`, "/hooks", false},
		"out of a declared path":          {`{"receivers":["/hooks/"]}`, "/hooks/../admin", false},
		"out of a declared path, encoded": {`{"receivers":["/hooks/"]}`, "/hooks/%2e%2E/admin", false},
		"not a document":                  {`nothing`, "/hooks", false},
		"an endless document":             {`{"receivers":["/hooks"],"x":"` + strings.Repeat("x", maxAnswer) + `"}`, "/hooks", false},
	} {
		t.Run("EVX-12 "+name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && r.URL.Path == receiverPath {
					_, _ = io.WriteString(w, tt.document)
					return
				}
				w.WriteHeader(http.StatusNotFound)
			})
			err := open(t, Options{}).Verify(t.Context(), srv.URL+tt.path, "sub_1", nil)
			if (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
			if err != nil {
				wantReason(t, err, HTTP4xx)
			}
		})
	}
}

func TestVerifyAndChallenge(t *testing.T) {
	secret, key := NewSecret()
	older, olderKey := NewSecret()
	rawSecret, rawKey := NewRawSecret()
	srv := serve(t, newEndpoint(secret, older, rawSecret))
	s := open(t, Options{})
	for name, tt := range map[string]struct {
		change func(*Request)
		status int
	}{
		"a good one":                {func(*Request) {}, 204},
		"with the older secret":     {func(r *Request) { r.Keys = [][]byte{olderKey} }, 204},
		"with a raw secret":         {func(r *Request) { r.Keys = [][]byte{rawKey} }, 204},
		"with both during rotation": {func(r *Request) { r.Keys = [][]byte{[]byte(strings.Repeat("n", 32)), key} }, 204},
		"with a foreign secret":     {func(r *Request) { r.Keys = [][]byte{[]byte(strings.Repeat("n", 32))} }, 401},
		"with an empty key":         {func(r *Request) { r.Keys = [][]byte{{}} }, 401},
		"unsigned":                  {func(r *Request) { r.Keys = nil }, 401},
		"too old":                   {func(r *Request) { r.At = time.Now().Add(-6 * time.Minute) }, 401},
		"of the future":             {func(r *Request) { r.At = time.Now().Add(6 * time.Minute) }, 401},
		"an event that looks like a challenge": {func(r *Request) {
			r.Body = []byte(`{"type":"verification","challenge":"x"}`)
		}, 204},
		"an event with the id of a challenge": {func(r *Request) { r.ID = "msg_verification_1" }, 204},
		"a challenge": {func(r *Request) {
			r.ID, r.Body = "msg_verification_1", []byte(`{"type":"verification","challenge":"x"}`)
		}, 200},
		"a challenge with a foreign secret": {func(r *Request) {
			r.ID, r.Body, r.Keys = "msg_verification_1", []byte(`{"type":"verification","challenge":"x"}`), [][]byte{[]byte(strings.Repeat("n", 32))}
		}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(srv.URL)
			r.Keys = [][]byte{key}
			tt.change(&r)
			expect.Equal(t, "the status", s.Send(t.Context(), r).Status, tt.status)
		})
	}
}

func TestVerify_Errors(t *testing.T) {
	secret, key := NewSecret()
	body := []byte("{}")
	now := time.Now()
	header := func(id, at, signature string) http.Header {
		h := http.Header{}
		h.Set(HeaderID, id)
		h.Set(HeaderTimestamp, at)
		h.Set(HeaderSignature, signature)
		return h
	}
	at := fmt.Sprint(now.Unix())
	good := Sign([][]byte{key}, "evt_1", now, body)
	if err := Verify(header("evt_1", at, "v1a,AAAA v2,x garbage "+good), body, secret); err != nil {
		t.Error(err)
	}
	for name, h := range map[string]http.Header{
		"no headers":   {},
		"no id":        header("", at, good),
		"another id":   header("evt_2", at, good),
		"no number":    header("evt_1", "soon", good),
		"another time": header("evt_1", fmt.Sprint(now.Unix()-1), good),
		"no signature": header("evt_1", at, ""),
		"another kind": header("evt_1", at, strings.Replace(good, "v1,", "v1a,", 1)),
	} {
		expect.Fault(t, name, Verify(h, body, secret), fault.Unauthenticated)
	}
	expect.Fault(t, "without a secret", Verify(header("evt_1", at, good), body), fault.Unauthenticated)
	expect.Fault(t, "with a malformed secret", Verify(header("evt_1", at, good), body, "whsec_x"), fault.Invalid)
}
