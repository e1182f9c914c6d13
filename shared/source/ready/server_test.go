package ready_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/source"
	"github.com/mcp-events/mcpevents/shared/source/ready"
)

// patience bounds every wait.
const patience = time.Minute

// TestServer sends samples as their providers do to an embedded server with the files as they are written, and again as
// they redeliver.
func TestServer(t *testing.T) {
	for _, p := range ready.Providers() {
		for _, s := range samples(t, p.Name) {
			_, c := read(t, p)
			if sourceOf(t, c, s.Want.Source).From != source.HTTP {
				continue // what comes by the inbox queue is for AWS
			}
			t.Run("SRC-06 "+p.Name+" "+s.File+" is one event, however often it comes", func(t *testing.T) {
				t.Parallel()
				u := serve(t, p)
				began := time.Now()
				first := post(t, u, p.Name, s, began)
				second := post(t, u, p.Name, s, began.Add(30*time.Second))
				if len(first) != 1 || !reflect.DeepEqual(first, second) {
					t.Fatalf("accepted %v, and again %v", first, second)
				}
				if first[0].URI != s.Want.URI || s.Want.ID != "" && first[0].ID != s.Want.ID {
					t.Errorf("accepted %v, want %s %s", first, s.Want.ID, s.Want.URI)
				}
				mark(t, u, s)
				events := logged(t, u, s.Want.URI, "mark")
				if len(events) != 2 {
					t.Fatalf("%d events, that of the test included", len(events))
				}
				e := events[1] // the newest is first
				if e.ID != first[0].ID || e.URI != s.Want.URI || e.Name != s.Want.Name || !reflect.DeepEqual(e.Data, document(t, s.Want.Data)) {
					t.Errorf("got %+v, want %+v", e, s.Want)
				}
				if want := instant(t, s.Want.Time); !want.IsZero() && !e.Time.Equal(want) || want.IsZero() && (e.Time.Before(began.Add(-time.Second)) || e.Time.After(time.Now().Add(time.Second))) {
					t.Errorf("its time is %s, want %s", e.Time, s.Want.Time)
				}
			})
		}
	}
}

// serve starts a server with what is written for a provider.
func serve(t *testing.T, p ready.Provider) (url string) {
	t.Helper()
	_, c := read(t, p)
	s, err := server.New(t.Context(), server.Options{
		Data: ":memory:", Catalog: ready.Catalog(p), CatalogName: ready.CatalogFile, Config: c, Auth: auth.ModeNone,
		Limits: server.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
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

// post sends a sample, signed at a time.
func post(t *testing.T, base, provider string, s sample, at time.Time) []accepted {
	t.Helper()
	path, headers := sign(provider, s.body, at)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader(string(s.body)))
	if err != nil {
		t.Fatal(err)
	}
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
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
}

type loggedEvent struct {
	ID, URI, Name string
	Time          time.Time
	Data          any
}

// mark publishes one more event to the URI of a sample. Events of a URI are logged in their order, so whoever sees this
// one sees all that came before it.
func mark(t *testing.T, base string, s sample) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"id": "mark", "uri": s.Want.URI, "data": s.Want.Data})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/events", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	var answer any
	exchange(t, r, http.StatusAccepted, &answer)
}

// logged are the events of a URI, as an operator sees them, once the one with the id is among them.
func logged(t *testing.T, base, uri, id string) []loggedEvent {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/admin/v1/events?uri="+url.QueryEscape(uri), nil)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []loggedEvent }
		exchange(t, r, http.StatusOK, &list)
		if slices.ContainsFunc(list.Items, func(e loggedEvent) bool { return e.ID == id }) {
			return list.Items
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no event %s: %+v", uri, id, list.Items)
		}
	}
}
