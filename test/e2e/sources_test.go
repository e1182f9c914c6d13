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
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return &harness.HTTPAnswer{Status: resp.StatusCode, Header: resp.Header, Body: raw}
}

// pullBody returns the part of GitHub's webhook that the source reads.
func pullBody(action, repo string, number int) []byte {
	return fmt.Appendf(nil, `{"action":%q,"number":%d,"pull_request":{"title":"Change <it>","user":{"login":"octocat"}},"repository":{"name":%q,"owner":{"login":"acme"}}}`, action, number, repo)
}

// github delivers a pull request to a server's source.
func github(t *testing.T, s *harness.Server, source, id string, body []byte) *harness.HTTPAnswer {
	t.Helper()
	return post(t, s.Base()+"/sources/"+source, schemeOf("github").Headers(id, body, time.Now()), body, nil)
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
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice")
	wanted := object{"repo": "site", "action": []string{"opened"}}
	mine, others := receiver.Endpoint("mine"), receiver.Endpoint("others")
	subscribe(t, alice, mine, "github.pull_request", wanted)
	subscribe(t, alice, others, "github.pull_request", object{"repo": "other", "action": []string{"opened"}})
	poller := follow(t, &s.Target, "github.pull_request", wanted)
	pushed := opened(t, &s.Target, 1, "github.pull_request", wanted, "")
	foreign := opened(t, &s.Target, 2, "github.pull_request", object{"repo": "site", "action": []string{"closed"}}, "")

	t.Run("SRC-01 SRC-04 a signed pull request reaches a webhook, a stream and a poll", func(t *testing.T) {
		wantAccepted(t, github(t, s, "github", "d-closed", pullBody("closed", "site", 6)), "d-closed")
		wantAccepted(t, github(t, s, "github", "d-1", pullBody("opened", "site", 7)), "d-1")
		d := mine.Wait(t, 1)[0]
		if err := d.Verify(mine.Secret()); err != nil || d.ID() != "d-1" {
			t.Errorf("got %s: %v", d.ID(), err)
		}
		want := decode[object](t, []byte(`{"action":"opened","number":7,"pull_request":{"title":"Change <it>","author":"octocat"}}`))
		for way, got := range map[string]occurrence{
			"webhook": decode[occurrence](t, d.Body), "stream": occurrences(t, pushed, 1)[0], "poll": poller.wait(t, 1)[0],
		} {
			if got.EventID != "d-1" || !reflect.DeepEqual(object(got.Data), want) {
				t.Errorf("with a %s: %+v", way, got)
			}
		}
		if got := eventIDs(occurrences(t, foreign, 1)); !slices.Equal(got, []string{"d-closed"}) {
			t.Errorf("the subscriber to closed pull requests got %v", got)
		}
	})
	t.Run("SRC-04 other subscribers do not receive it", func(t *testing.T) {
		wantAccepted(t, github(t, s, "github", "d-2", pullBody("opened", "other", 8)), "d-2")
		others.Wait(t, 1)
		for e, want := range map[*harness.Endpoint]string{mine: "d-1", others: "d-2"} {
			if ids := e.IDs(); len(ids) != 1 || ids[want] != 1 {
				t.Errorf("%s got %v", e.Name, ids)
			}
		}
	})
	t.Run("SRC-03 an unmatched request is accepted without an effect", func(t *testing.T) {
		if a := github(t, s, "github", "d-3", pullBody("labeled", "site", 7)); a.Status != http.StatusAccepted || string(a.Body) != `{"accepted":[]}` {
			t.Errorf("%d %s", a.Status, a.Body)
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
		if a := github(t, s, "second", "r-4", pullBody("opened", "site", 4)); a.Status != http.StatusNotFound {
			t.Errorf("a removed source responds %d", a.Status)
		}
	})
	t.Run("SRC-01 a faulty file is refused, and the source continues to work", func(t *testing.T) {
		s.SetConfig(t, strings.Replace(githubSource, "/body/number", "/body/~number", 1))
		harness.Eventually(t, harness.Patience, "the complaint", func() bool { return strings.Contains(s.Output(), "reload failed") })
		log := s.Output()
		log = log[strings.LastIndex(log, "reload failed"):]
		if want := "source github: events: data: /number:"; !strings.Contains(log, want) || !strings.Contains(log, "config.yaml:") {
			t.Errorf("the log has %.400s, want %s and the file", log, want)
		}
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
		if len(ids) != n+1 || len(slices.Compact(ids)) != n+1 {
			t.Errorf("got %v", ids)
		}
	})
}
