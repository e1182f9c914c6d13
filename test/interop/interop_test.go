//go:build unix

// Package interop tests the embedded server with clients that others made,
// unmodified.
package interop

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// step is a line that a script writes.
type step struct {
	Step   string
	Result json.RawMessage
	Error  string

	// of "event"
	Subscription string
	Event        struct {
		EventID, Name, Timestamp string
		Data                     map[string]any
		Cursor                   *string
	}
	// of "request"
	Status     int
	ID         string
	Signatures int
	// of "connected"
	Version string
}

// script is a running script.
type script struct {
	t     *testing.T
	in    io.WriteCloser
	steps chan step
}

// start runs the script until the end of the test.
func start(t *testing.T, js *harness.JS, name string, args ...string) *script {
	t.Helper()
	cmd := js.Command(t.Context(), name, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, in: in, steps: make(chan step, 1000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(s.steps)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var st step
			if json.Unmarshal(lines.Bytes(), &st) != nil {
				st = step{Step: "no JSON", Error: lines.Text()}
			}
			s.steps <- st
		}
	}()
	t.Cleanup(func() {
		in.Close() // the script ends with its input
		<-read
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return s
}

// next waits for a step of the name; others in between are passed over, except errors.
func (s *script) next(name string) step {
	s.t.Helper()
	timer := time.NewTimer(harness.Patience)
	defer timer.Stop()
	for {
		select {
		case st, ok := <-s.steps:
			if !ok {
				s.t.Fatalf("the script ended before %q", name)
			}
			if st.Error != "" {
				s.t.Fatalf("step %q: %s", st.Step, st.Error)
			}
			if st.Step == name {
				return st
			}
		case <-timer.C:
			s.t.Fatalf("no step %q", name)
		}
	}
}

// do sends a command and waits for its result.
func (s *script) do(command map[string]any, result any) {
	s.t.Helper()
	b, err := json.Marshal(command)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.in.Write(append(b, '\n')); err != nil {
		s.t.Fatal(err)
	}
	st := s.next(command["do"].(string))
	if result == nil {
		return
	}
	if err := json.Unmarshal(st.Result, result); err != nil {
		s.t.Fatalf("%s: %v: %s", command["do"], err, st.Result)
	}
}

// TestAISDK shows the AI SDK's MCP events client: it subscribes, is verified,
// receives, refreshes and unsubscribes, in both protocol eras.
func TestAISDK(t *testing.T) {
	js := harness.Node(t)
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--events-retry-schedule", "0s,1s,1s,1s"}})
	for handshake, version := range map[string]string{"discover": harness.Modern, "initialize": harness.Legacy} {
		t.Run("EVX-20 by "+handshake, func(t *testing.T) {
			client := start(t, js, "ai-sdk.js", s.MCP, s.Keys["alice"], handshake)
			if got := client.next("connected").Version; got != version {
				t.Fatalf("it speaks %s, want %s", got, version)
			}
			var events []struct {
				Name     string
				Delivery []string
			}
			client.do(map[string]any{"do": "list"}, &events)
			i := slices.IndexFunc(events, func(e struct {
				Name     string
				Delivery []string
			},
			) bool {
				return e.Name == "incident.created"
			})
			if i < 0 || !slices.Contains(events[i].Delivery, "webhook") {
				t.Fatalf("listed: %v", events)
			}

			var sub struct {
				ID            string
				RefreshBefore *time.Time
				Truncated     bool
			}
			service := "ai-" + handshake
			args := map[string]any{"service": service, "severity": "critical"}
			client.do(map[string]any{"do": "subscribe", "name": "incident.created", "args": args, "ttlMs": 3_600_000}, &sub)
			if sub.ID == "" || sub.RefreshBefore == nil || time.Until(*sub.RefreshBefore) > time.Hour || sub.Truncated {
				t.Fatalf("subscribed: %+v", sub)
			}

			incident := func(id, severity string) {
				t.Helper()
				s.Publish(t, harness.Event{ID: id, URI: "event://incidents/" + service + "/created", Data: map[string]any{
					"id": id, "title": "It is down", "severity": severity,
				}})
			}
			incident(handshake+"-1", "critical")
			got := client.next("event")
			if got.Subscription != sub.ID || got.Event.EventID != handshake+"-1" || got.Event.Name != "incident.created" || got.Event.Data["severity"] != "critical" {
				t.Errorf("received %+v", got)
			}
			if st := client.next("request"); st.Status != 204 {
				t.Errorf("its handler answered %d", st.Status)
			}

			var again struct{ ID string }
			client.do(map[string]any{"do": "refresh", "id": sub.ID}, &again)
			if again.ID != sub.ID {
				t.Errorf("refreshed as %s, was %s", again.ID, sub.ID)
			}
			incident(handshake+"-2", "info") // filtered out
			incident(handshake+"-3", "critical")
			if got := client.next("event"); got.Event.EventID != handshake+"-3" {
				t.Errorf("received %s after the refresh", got.Event.EventID)
			}

			client.do(map[string]any{"do": "unsubscribe", "id": sub.ID}, nil)
			incident(handshake+"-4", "critical")
			other := map[string]any{"do": "subscribe", "name": "incident.created", "args": map[string]any{"service": service}}
			client.do(other, &sub)
			incident(handshake+"-5", "info")
			if got := client.next("event"); got.Event.EventID != handshake+"-5" || got.Subscription != sub.ID {
				t.Errorf("received %s for %s after unsubscribing", got.Event.EventID, got.Subscription)
			}
			client.do(map[string]any{"do": "unsubscribe", "id": sub.ID}, nil)

			var uris []string
			client.do(map[string]any{"do": "resources"}, &uris)
			if !slices.Contains(uris, "event://ci/build-finished") {
				t.Errorf("resources: %v", uris)
			}
		})
	}
}
