//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"syscall"
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

// secretsOfSources returns the environment of a server that has sources of all schemes.
func secretsOfSources() (env []string) {
	for _, s := range sender.Schemes() {
		env = append(env, s.Setting())
	}
	return env
}

func schemeOf(name string) sender.Scheme {
	all := sender.Schemes()
	return all[slices.IndexFunc(all, func(s sender.Scheme) bool { return s.Name == name })]
}

// senders is a client that reuses connections, as providers do.
var senders = &http.Client{Timeout: harness.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}

// post sends a request, which edit may change, and returns the response. A server that refuses a body before it has read
// the end may close the connection while the client still sends, so that the response is lost. Then post sends it again.
func post(t *testing.T, url string, header http.Header, body []byte, edit func(*http.Request)) *harness.HTTPAnswer {
	t.Helper()
	var resp *http.Response
	var err error
	harness.Within(t, harness.Patience, func() bool {
		r, wrong := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
		if wrong != nil {
			t.Fatal(wrong)
		}
		r.Header = header.Clone()
		if edit != nil {
			edit(r)
		}
		resp, err = senders.Do(r)
		return !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE)
	})
	if err != nil {
		t.Error(err)
		return &harness.HTTPAnswer{Header: http.Header{}}
	}
	defer resp.Body.Close()
	raw := expect.Value(io.ReadAll(resp.Body))(t)
	return &harness.HTTPAnswer{Status: resp.StatusCode, Header: resp.Header, Body: raw}
}

const pullTitle = "Größe <it> \U0001f680"

// pullBody returns the part of GitHub's webhook that the source reads.
func pullBody(action, repo string, number int) []byte {
	return fmt.Appendf(nil, `{"action":%q,"number":%d,"pull_request":{"title":"`+pullTitle+`","user":{"login":"octocat"}},"repository":{"name":%q,"owner":{"login":"acme"}}}`, action, number, repo)
}

// deliver sends a pull request to a source.
func deliver(t *testing.T, s *harness.Target, scheme sender.Scheme, source, id string, body []byte) *harness.HTTPAnswer {
	t.Helper()
	return post(t, strings.TrimSuffix(s.Events, "/events")+"/sources/"+source, scheme.Headers(id, body, time.Now()), body, nil)
}

// github delivers a pull request to a stand-alone server's source.
func github(t *testing.T, s *harness.Server, source, id string, body []byte) *harness.HTTPAnswer {
	t.Helper()
	return deliver(t, &s.Target, schemeOf("github"), source, id, body)
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
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: secretsOfSources()})
	sourcing(t, &s.Target, schemeOf("github"))
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
		accepts(t, id, func() *harness.HTTPAnswer { return deliver(t, s, scheme, "github", id, body) })
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
		if a := deliver(t, s, scheme, "github", "d-3", pullBody("labeled", "site", 7)); a.Status != http.StatusAccepted || string(a.Body) != `{"accepted":[]}` {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	})
	t.Run("SRC-02 a forged request is refused", func(t *testing.T) {
		forged := scheme
		forged.Secret = "guessed"
		if a := deliver(t, s, forged, "github", "d-4", pullBody("opened", "site", 9)); a.Status != http.StatusUnauthorized || strings.Contains(string(a.Body), scheme.Secret) {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	})
}

// TestSourcesAreReloaded changes the file while the server runs.
func TestSourcesAreReloaded(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: secretsOfSources()})
	wantAccepted(t, github(t, s, "github", "r-1", pullBody("opened", "site", 1)), "r-1")
	t.Run("SRC-01 an added source works immediately", func(t *testing.T) {
		s.SetConfig(t, githubSource+strings.ReplaceAll(strings.TrimPrefix(githubSource, "\nsources:\n"), "name: github\n", "name: second\n"))
		harness.Eventually(t, harness.Patience, "the second source", func() bool {
			return github(t, s, "second", "r-2", pullBody("opened", "site", 2)).Status == http.StatusAccepted
		})
	})
	t.Run("SRC-03 a changed source works immediately", func(t *testing.T) {
		s.SetConfig(t, strings.Replace(githubSource, "closed, reopened", "labeled", 1))
		harness.Eventually(t, harness.Patience, "the new pattern", func() bool {
			return string(github(t, s, "github", "r-3", pullBody("closed", "site", 3)).Body) == `{"accepted":[]}`
		})
		expect.Equal(t, "the status of a removed source", github(t, s, "second", "r-4", pullBody("opened", "site", 4)).Status, http.StatusNotFound)
	})
	t.Run("SRC-01 a faulty file is refused, and the source continues to work", func(t *testing.T) {
		s.SetConfig(t, strings.Replace(githubSource, "/body/number", "/body/~number", 1))
		harness.Eventually(t, harness.Patience, "the complaint", func() bool { return strings.Contains(s.Output(), "reload failed") })
		log := s.Output()
		log = log[strings.LastIndex(log, "reload failed"):]
		expect.Contains(t, "the log", log, "source github: events: data: /number:", "config.yaml:")
		wantAccepted(t, github(t, s, "github", "r-1", pullBody("opened", "site", 1)), "r-1")
	})
}

// TestSourcesAfterACrash kills the server between a response and the delivery.
func TestSourcesAfterACrash(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: secretsOfSources()})
	hook := harness.NewReceiver(t).Endpoint("crash")
	subscribe(t, s.Stateless("alice"), hook, "github.pull_request", object{"repo": "crash"})
	poller := follow(t, &s.Target, "github.pull_request", object{"repo": "crash"})
	hook.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusServiceUnavailable}
	})
	const n = 10
	for i := range n {
		id := fmt.Sprint("c-", i)
		wantAccepted(t, github(t, s, "github", id, pullBody("opened", "crash", i+1)), id)
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
	t.Run("SRC-04 a redelivery after the restart does not become a second event", func(t *testing.T) {
		for i := range n {
			id := fmt.Sprint("c-", i)
			wantAccepted(t, github(t, s, "github", id, pullBody("opened", "crash", i+1)), id)
		}
		wantAccepted(t, github(t, s, "github", "last", pullBody("opened", "crash", n+1)), "last")
		ids := eventIDs(poller.wait(t, n+1))
		slices.Sort(ids)
		expect.Len(t, "the events", ids, n+1)
		expect.Equal(t, "the number of different events", len(slices.Compact(ids)), n+1)
	})
}
