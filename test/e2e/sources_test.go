//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	sender "github.com/mcp-events/mcpevents/test/provider"
)

// githubSource makes events from pull requests, for the repository's catalog.
const githubSource = `
sources:
  - name: github
    verify: {scheme: github, secrets: ["env:E2E_GITHUB"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, closed, reopened]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner/login, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data: {action: /body/action, number: /body/number, pull_request: {title: /body/pull_request/title, author: /body/pull_request/user/login}}
`

// post sends a request to the source and returns the response.
func post(t *testing.T, s *harness.Target, header http.Header, body []byte) *harness.HTTPAnswer {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimSuffix(s.Events, "/events")+"/sources/github", bytes.NewReader(body)))(t)
	req.Header = header
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return &harness.HTTPAnswer{Status: resp.StatusCode, Header: resp.Header, Body: expect.Value(io.ReadAll(resp.Body))(t)}
}

const pullTitle = "Größe <it> \U0001f680"

// pullBody returns the part of GitHub's webhook that the source reads.
func pullBody(action, repo string, number int) []byte {
	return fmt.Appendf(nil, `{"action":%q,"number":%d,"pull_request":{"title":"`+pullTitle+`","user":{"login":"octocat"}},"repository":{"name":%q,"owner":{"login":"acme"}}}`, action, number, repo)
}

// deliver sends a pull request, signed by the scheme.
func deliver(t *testing.T, s *harness.Target, scheme sender.Scheme, id string, body []byte) *harness.HTTPAnswer {
	t.Helper()
	return post(t, s, scheme.Headers(id, body, time.Now()), body)
}

// accepts sends a request that must become an event. On AWS, a process may still have the configuration from before the source.
func accepts(t *testing.T, id string, send func() *harness.HTTPAnswer) {
	t.Helper()
	var a *harness.HTTPAnswer
	harness.Eventually(t, harness.Patience, "the process has the source", func() bool { a = send(); return a.Status != http.StatusNotFound })
	wantAccepted(t, a, id)
}

func wantAccepted(t *testing.T, a *harness.HTTPAnswer, id string) {
	t.Helper()
	if a.Status != http.StatusAccepted || !strings.Contains(string(a.Body), `"id":"`+id+`"`) {
		t.Fatalf("%d %s, want 202 for %s", a.Status, a.Body, id)
	}
}

// TestSources checks that a provider's webhook becomes an event for the subscribers who asked for it, and for no
// others.
func TestSources(t *testing.T) {
	t.Parallel()
	github := sender.Schemes()[0]
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: []string{github.Setting()}})
	sourcing(t, &s.Target, github)
}

func sourcing(t *testing.T, s *harness.Target, scheme sender.Scheme) {
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice")
	wanted := object{"repo": "site", "action": []string{"opened"}}
	mine, others := receiver.Endpoint("mine"), receiver.Endpoint("others")
	subscribe(t, alice, mine, "github.pull_request", wanted)
	subscribe(t, alice, others, "github.pull_request", object{"repo": "other", "action": []string{"opened"}})
	poller := follow(t, s, "github.pull_request", wanted)
	pushed := opened(t, s, 1, "github.pull_request", wanted, "")
	foreign := opened(t, s, 2, "github.pull_request", object{"repo": "site", "action": []string{"closed"}}, "")
	send := func(t *testing.T, id string, body []byte) {
		t.Helper()
		accepts(t, id, func() *harness.HTTPAnswer { return deliver(t, s, scheme, id, body) })
	}

	t.Run("SRC-01 SRC-02 SRC-04 a signed pull request reaches a webhook, a stream and a poll", func(t *testing.T) {
		send(t, "d-closed", pullBody("closed", "site", 6))
		send(t, "d-1", pullBody("opened", "site", 7))
		d := mine.Wait(t, 1)[0]
		if err := d.Verify(mine.Secret()); err != nil || d.ID() != "d-1" {
			t.Errorf("got %s: %v", d.ID(), err)
		}
		want := object{"action": "opened", "number": 7.0, "pull_request": object{"title": pullTitle, "author": "octocat"}}
		for way, got := range map[string]occurrence{
			"webhook": decode[occurrence](t, d.Body), "stream": occurrences(t, pushed, 1)[0], "poll": poller.wait(t, 1)[0],
		} {
			if got.EventID != "d-1" || !reflect.DeepEqual(object(got.Data), want) {
				t.Errorf("with a %s: got %+v, want %v", way, got, want)
			}
		}
		expect.List(t, "the events of the subscriber to closed pull requests", eventIDs(different(occurrences(t, foreign, 1))), []string{"d-closed"})
	})
	t.Run("SRC-04 a repeated request is the same event, which other subscribers do not receive", func(t *testing.T) {
		send(t, "d-1", pullBody("opened", "site", 7))
		send(t, "d-2", pullBody("opened", "other", 8))
		others.Wait(t, 1)
		for e, want := range map[*harness.Endpoint]string{mine: "d-1", others: "d-2"} {
			if ids := e.IDs(); len(ids) != 1 || ids[want] == 0 {
				t.Errorf("%s got %v, want %s", e.Name, ids, want)
			}
		}
	})
	t.Run("SRC-03 an unmatched request is accepted without an effect", func(t *testing.T) {
		if a := deliver(t, s, scheme, "d-3", pullBody("labeled", "site", 7)); a.Status != http.StatusAccepted || string(a.Body) != `{"accepted":[]}` {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	})
	t.Run("SRC-02 a forged request is refused", func(t *testing.T) {
		forged := scheme
		forged.Secret = "guessed"
		if a := deliver(t, s, forged, "d-4", pullBody("opened", "site", 9)); a.Status != http.StatusUnauthorized || strings.Contains(string(a.Body), scheme.Secret) {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	})
}

// TestSourcesAfterACrash kills the server between a response and the delivery.
func TestSourcesAfterACrash(t *testing.T) {
	t.Parallel()
	github := sender.Schemes()[0]
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: []string{github.Setting()}})
	hook := harness.NewReceiver(t).Endpoint("crash")
	subscribe(t, s.Stateless("alice"), hook, "github.pull_request", object{"repo": "crash"})
	hook.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusServiceUnavailable}
	})
	const n = 10
	for i := range n {
		id := fmt.Sprint("c-", i)
		wantAccepted(t, deliver(t, &s.Target, github, id, pullBody("opened", "crash", i+1)), id)
	}
	s.Kill()
	hook.Answer(nil)
	s.Start()
	t.Run("SRC-05 no accepted request is lost", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "all deliveries", func() bool {
			done := map[string]bool{}
			for _, d := range hook.Deliveries() {
				done[d.ID()] = done[d.ID()] || d.Answered == 0
			}
			for i := range n {
				if !done[fmt.Sprint("c-", i)] {
					return false
				}
			}
			return true
		})
	})
}
