package ready_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/test/expect"
)

// patience limits every wait.
const patience = time.Minute

// TestServer sends each sample to a stand-alone server as its provider would, and sends it again as a redelivery. The
// server uses the generated files. Each sample must become exactly one event. A client with matching arguments
// receives it; a client with one argument changed to a value that does not match does not.
func TestServer(t *testing.T) {
	for _, p := range ready.Providers() {
		_, c := read(t, p)
		for _, s := range samples(t, p.Name) {
			t.Run("SRC-06 "+p.Name+" "+s.File+" becomes one event, for subscribers whose arguments match", func(t *testing.T) {
				t.Parallel()
				base := serve(t, p)
				asks := follow(t, base, s.Want.Name, s.Arguments)
				others := map[string]*follower{}
				for name, value := range s.Arguments {
					changed := maps.Clone(s.Arguments)
					changed[name] = other(value)
					others[name] = follow(t, base, s.Want.Name, changed)
				}
				want := []string{"mark"}
				if sourceOf(t, c, s.Want.Source).From == source.HTTP { // documents of the inbox queue need AWS
					began := time.Now()
					first, second := post(t, base, p.Name, s, began), post(t, base, p.Name, s, began.Add(30*time.Second))
					if len(first) != 1 || !reflect.DeepEqual(first, second) {
						t.Fatalf("accepted %v, and again %v", first, second)
					}
					if first[0].URI != s.Want.URI || s.Want.ID != "" && first[0].ID != s.Want.ID {
						t.Errorf("accepted %v, want %s %s", first, s.Want.ID, s.Want.URI)
					}
					want = []string{first[0].ID, "mark"}
				}
				mark(t, base, s)
				var got []string
				for end := time.Now().Add(patience); !slices.Contains(got, "mark") && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					got = append(got, asks.poll(t)...)
				}
				if !slices.Equal(got, want) {
					t.Errorf("got %v with %v, want %v", got, s.Arguments, want)
				}
				for name, o := range others {
					if got := o.poll(t); len(got) > 0 {
						t.Errorf("got %v though %s is not %v", got, name, o.arguments[name])
					}
				}
			})
		}
	}
}

// serve starts a server with the generated files of a provider.
func serve(t *testing.T, p ready.Provider) (url string) {
	t.Helper()
	_, c := read(t, p)
	s := expect.Value(standalone.New(t.Context(), standalone.Options{
		Data: ":memory:", Catalog: ready.Catalog(p), CatalogName: ready.CatalogFile, Config: c, Auth: auth.ModeNone,
		Limits: standalone.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}))(t)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return h.URL
}

type accepted struct{ ID, URI string }

// post sends a sample, signed at the given time.
func post(t *testing.T, base, provider string, s sample, at time.Time) []accepted {
	t.Helper()
	path, headers := sign(provider, s.body, at)
	r := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader(string(s.body))))(t)
	r.Header.Set("Content-Type", "application/json")
	for _, all := range []map[string]string{s.Headers, headers} {
		for name, value := range all {
			r.Header.Set(name, value)
		}
	}
	var answer struct{ Accepted []accepted }
	exchange(t, r, http.StatusAccepted, &answer)
	return answer.Accepted
}

func exchange(t *testing.T, r *http.Request, status int, out any) {
	t.Helper()
	resp := expect.Value(http.DefaultClient.Do(r))(t)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, text)
	}
	expect.OK(t, json.Unmarshal(text, out))
}

// mark publishes one more event to the URI of a sample. The events of a URI are logged in order, so a client that
// sees this one has seen all earlier ones.
func mark(t *testing.T, base string, s sample) {
	t.Helper()
	body := expect.Value(json.Marshal(map[string]any{"id": "mark", "uri": s.Want.URI, "data": s.Want.Data}))(t)
	r := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/events", strings.NewReader(string(body))))(t)
	r.Header.Set("Content-Type", "application/json")
	var answer any
	exchange(t, r, http.StatusAccepted, &answer)
}
