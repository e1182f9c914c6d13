package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestPublishDoesNotWaitForAFullBatch publishes the output of a program that writes one event and continues to run.
func TestPublishDoesNotWaitForAFullBatch(t *testing.T) {
	bodies := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"accepted":[]}`)
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, w := io.Pipe()
	published := make(chan error, 1)
	go func() { published <- client.Publisher{URL: s.URL, URI: "event://a/b"}.PublishFrom(ctx, r) }()
	for _, data := range []string{`{"n":1}`, `{"n":2}`} {
		_ = expect.Value(io.WriteString(w, data+"\n"))(t)
		expect.Contains(t, "the published events", expect.Receive(t, "a request while the program runs", bodies), data)
	}
	_ = expect.Value(io.WriteString(w, `{"n":3}`))(t) // without a line end, the value ends with the output
	expect.OK(t, w.Close())
	expect.OK(t, <-published)
	expect.Equal(t, "whether the rest was published", strings.Contains(<-bodies, `{"n":3}`), true)
}

func TestPublishEvents(t *testing.T) {
	var bodies []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := expect.Value(io.ReadAll(r.Body))(t)
		bodies = append(bodies, string(body))
		if strings.Contains(string(body), "refuse") {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, `{"accepted":[{"id":"%d","uri":"event://a/b"}]}`, len(bodies))
	}))
	defer s.Close()
	publisher := client.Publisher{URL: s.URL, URI: "event://a/b", Batch: 1}
	accepted, err := publisher.Publish(t.Context(),
		client.Event{ID: "x", Data: json.RawMessage(`1`)},
		client.Event{ID: "y", URI: "event://a/c", Time: "2026-01-02T03:04:05Z", Data: json.RawMessage(`2`)},
		client.Event{ID: "z", Data: json.RawMessage(`"refuse"`)})
	expect.Is(t, "the error, because the third event was refused", err, client.ErrSchema)
	expect.Error(t, "the error", err, "events 3 to 3: the server refused")
	expect.List(t, "the accepted events", accepted, []client.Accepted{{ID: "1", URI: "event://a/b"}, {ID: "2", URI: "event://a/b"}})
	expect.List(t, "the requests", bodies, []string{
		`{"data":1,"id":"x","uri":"event://a/b"}`,
		`{"data":2,"id":"y","time":"2026-01-02T03:04:05Z","uri":"event://a/c"}`,
		`{"data":"refuse","id":"z","uri":"event://a/b"}`,
	})

	bodies = nil
	for name, events := range map[string][]client.Event{
		"no data":     {{Data: json.RawMessage(`1`)}, {}},
		"no JSON":     {{Data: json.RawMessage(`{`)}},
		"no URI":      {{Data: json.RawMessage(`1`)}},
		"the same id": {{Data: json.RawMessage(`1`)}, {Data: json.RawMessage(`2`)}},
	} {
		p := publisher
		if name == "no URI" {
			p.URI = ""
		}
		if name == "the same id" {
			p.ID = "x"
		}
		expect.Is(t, name, expect.ErrOf(p.Publish(t.Context(), events...)), client.ErrInvalid)
	}
	expect.Equal(t, "the requests with invalid events", len(bodies), 0)
}

// The errors are for programs, too, so they do not name flags of the command.
func TestPublishRefusesInvalidData(t *testing.T) {
	for name, tc := range map[string]struct {
		publisher  client.Publisher
		data, want string
	}{
		"a number without URI":  {client.Publisher{}, `1`, "give its URI"},
		"a payload without URI": {client.Publisher{}, `{"x":1}`, "give its URI"},
		"one id for two events": {client.Publisher{URI: "event://a/b", ID: "x"}, `1 2`, `the id "x" is for one event`},
		"one id for a list":     {client.Publisher{ID: "x"}, `[{"uri":"event://a/b"},{"uri":"event://a/b"}]`, `the id "x" is for one event`},
		"data that is not JSON": {client.Publisher{URI: "event://a/b"}, `{"x"`, "value 1 of the data is not JSON"},
		"no data":               {client.Publisher{URI: "event://a/b"}, ` `, "the data is empty"},
		"the MCP endpoint":      {client.Publisher{URL: "http://127.0.0.1/mcp"}, `1`, "ends with /mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.publisher.URL == "" {
				tc.publisher.URL = "http://127.0.0.1:1"
			}
			tc.publisher.Tries = 1
			err := tc.publisher.PublishFrom(t.Context(), strings.NewReader(tc.data))
			if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "--") {
				t.Errorf("got %v, want ErrInvalid with %q and without a flag", err, tc.want)
			}
		})
	}
}

// The end of the context alone would not say what is wrong with the server.
func TestPublishSaysWhyItTriedUntilTheDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := expect.ErrOf(client.Publisher{URL: "http://127.0.0.1:1", Tries: 100}.Publish(ctx, client.Event{URI: "event://a/b", Data: json.RawMessage(`1`)}))
	expect.Is(t, "the error", err, context.DeadlineExceeded)
	expect.Error(t, "the error", err, "connection refused")
}
