//go:build unix

package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Principal and workspace of the sources on local AWS.
const (
	sourced  = "sourced"
	listener = "listener"
)

// githubSecret names the parameter with the secret of the source github.
const githubSecret = "/mcp-events/e2e/github"

// awsSources returns the configuration of the source. The path leads to the title of a pull request.
func awsSources(title string) string {
	return `sources:
  - name: github
    workspace: sourced
    verify: {scheme: github, secrets: ["ssm:` + githubSecret + `"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, closed, reopened]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner/login, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data:
          action: /body/action
          number: /body/number
          pull_request: {title: ` + title + `, author: /body/pull_request/user/login}
`
}

// githubApp sends requests to a source, as GitHub does.
type githubApp struct {
	target *harness.Target
	secret string
}

// hookRequest is one request of a provider.
type hookRequest struct {
	id, event string
	body      []byte
	// signed is the text to sign. If it is empty, the body is signed.
	signed []byte
	header map[string]string
}

func (p githubApp) send(t *testing.T, d hookRequest) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimSuffix(p.target.Events, "/events")+"/sources/github", bytes.NewReader(d.body))
	expect.OK(t, err)
	if d.signed == nil {
		d.signed = d.body
	}
	h := hmac.New(sha256.New, []byte(p.secret))
	h.Write(d.signed)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "X-GitHub-Event": d.event, "X-GitHub-Delivery": d.id,
		"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(h.Sum(nil)),
	} {
		req.Header.Set(name, value)
	}
	for name, value := range d.header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	expect.OK(t, err)
	defer resp.Body.Close()
	var b bytes.Buffer
	expect.OK(t, expect.ErrOf(b.ReadFrom(resp.Body)))
	return resp.StatusCode, b.String()
}

// accepts sends a request that must become an event. It repeats the request if a process still uses the old
// configuration.
func (p githubApp) accepts(t *testing.T, d hookRequest, id string) {
	t.Helper()
	var status int
	var answer string
	harness.Eventually(t, harness.Patience, "the process has the source", func() bool {
		status, answer = p.send(t, d)
		return status != http.StatusNotFound
	})
	if status != http.StatusAccepted || !strings.Contains(answer, `"id":"`+id+`"`) {
		t.Fatalf("got %d %s, want the event %s", status, answer, id)
	}
}

// pullOpened returns the webhook for an opened pull request.
func pullOpened(id string, number int) hookRequest {
	return hookRequest{id: id, event: "pull_request", body: fmt.Appendf(nil,
		"{\"action\":\"opened\",\"number\":%d,\"repository\":{\"name\":\"website\",\"owner\":{\"login\":\"acme\"}},"+
			"\"pull_request\":{\"title\":\"Größe \\u00e4ndern \\ud83d\\ude80\",\"user\":{\"login\":\"octocat\"}}}\r\n", number)}
}

// TestSourcesOnLocalAWS tests sources on AWS, where requests arrive through a Function URL, and any process may handle each
// of them. TestServicesSendToTheInbox of package functions tests the messages of AWS services.
func TestSourcesOnLocalAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
	p := githubApp{target: &aws.Target, secret: rand.Text()}
	aws.PutSecret(t, githubSecret, p.secret)
	aws.ApplyCatalog(t, sourced, operatedCatalog(t))
	aws.ApplyConfig(t, awsSources("/body/pull_request/title"))
	harness.Eventually(t, harness.Patience, "the functions have the sources", func() bool {
		status, _ := p.send(t, hookRequest{event: "ping", body: []byte(`{}`)})
		return status == http.StatusAccepted
	})
	client := aws.Stateless(listener)
	receiver := harness.NewReceiver(t)
	hook := receiver.Endpoint("agent")
	subscribe(t, client, hook, "github.pull_request", object{"owner": "acme", "repo": "website", "action": "opened"})
	t.Run("SRC-01 SRC-02 SRC-04 a signed request reaches a webhook, a stream and a poll", func(t *testing.T) {
		stream := client.Listen(t, "pulls", object{"resourceSubscriptions": []string{"event://github/acme"}}, nil)
		arguments := object{"owner": "acme", "repo": "website"}
		poller := &follower{client: client, name: "github.pull_request", arguments: arguments}
		poller.poll(t, nil)
		p.accepts(t, pullOpened("d-1", 1), "d-1")
		d := hook.Wait(t, 1)[0]
		if err := d.Verify(hook.Secret()); err != nil || d.ID() != "d-1" || !strings.Contains(string(d.Body), "Größe ändern 🚀") {
			t.Errorf("the webhook is %s %s, %v", d.ID(), d.Body, err)
		}
		if u := stream.Wait(t, 1)[0]; u.EventID != "d-1" || u.URI != "event://github/acme/website/pull_request" {
			t.Errorf("the stream has %+v", u)
		}
		if got := poller.wait(t, 1)[0]; got.EventID != "d-1" {
			t.Errorf("the poll has %+v", got)
		}
	})
	t.Run("SRC-04 a repeated request is the same event", func(t *testing.T) {
		p.accepts(t, pullOpened("d-1", 1), "d-1")
		p.accepts(t, pullOpened("d-1-again", 1), "d-1") // the same signed body under another id
		p.accepts(t, pullOpened("d-2", 2), "d-2")
		hook.Wait(t, 2)
		if got := hook.IDs(); len(got) != 2 {
			t.Errorf("arrived: %v", got)
		}
	})
	t.Run("SRC-02 a forged request is refused", func(t *testing.T) {
		forger := githubApp{target: p.target, secret: "guessed"}
		if status, answer := forger.send(t, pullOpened("d-3", 3)); status != http.StatusUnauthorized || strings.Contains(answer, p.secret) {
			t.Errorf("got %d %s", status, answer)
		}
	})
	t.Run("SRC-05 compressed bodies and forms pass the Function URL unchanged", func(t *testing.T) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		plain := pullOpened("d-4", 4)
		_, _ = z.Write(plain.body) // in memory, so it cannot fail
		_ = z.Close()
		gzipped := map[string]string{"Content-Encoding": "gzip"}
		p.accepts(t, hookRequest{id: "d-4", event: "pull_request", body: packed.Bytes(), header: gzipped}, "d-4")
		form := "payload=" + url.QueryEscape(string(pullOpened("d-5", 5).body))
		p.accepts(t, hookRequest{id: "d-5", event: "pull_request", body: []byte(form), header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}}, "d-5")
		hook.Wait(t, 4)
	})
	t.Run("SRC-03 an unmatched request is accepted and not kept", func(t *testing.T) {
		if status, answer := p.send(t, hookRequest{id: "d-6", event: "ping", body: []byte(`{"zen":"Keep it logically awesome."}`)}); status != http.StatusAccepted || !sameJSON(t, []byte(answer), []byte(`{"accepted":[]}`)) {
			t.Errorf("got %d %s", status, answer)
		}
	})
	t.Run("SRC-04 OPS-04 an unfit document becomes a dead letter, and an event after its mapping was fixed", func(t *testing.T) { mendMapping(t, aws, p, hook) })
	t.Run("SRC-03 operators see the outcomes of requests", func(t *testing.T) {
		o := operate(t, &aws.Target)
		for _, kind := range []string{"accepted", "unmatched", "unverified", "unfit"} {
			var l struct {
				Items []struct{ Kind, Reason string }
			}
			o.callAs(listener, "GET", "sources/github/outcomes?kind="+kind, "", http.StatusOK, &l)
			if len(l.Items) == 0 || l.Items[0].Kind != kind || strings.Contains(l.Items[0].Reason, p.secret) {
				t.Errorf("outcomes of %s: %+v", kind, l.Items)
			}
		}
	})
}

// mendMapping first configures a mapping that no document fits, and then one that fits.
func mendMapping(t *testing.T, aws *harness.AWS, p githubApp, hook *harness.Endpoint) {
	o := operate(t, &aws.Target)
	type letter struct{ ID, Queue, Reason string }
	list := func() []letter {
		var l struct{ Items []letter }
		o.callAs(listener, "GET", "dead-letters?queue=inbox", "", http.StatusOK, &l)
		return l.Items
	}
	aws.ApplyConfig(t, awsSources("/body/number"))
	n, answered := 100, []string{}
	next := func() (status int, answer string) {
		n++
		id := fmt.Sprint("unfit-", n)
		if status, answer = p.send(t, pullOpened(id, n)); status == http.StatusAccepted || status == http.StatusUnprocessableEntity {
			answered = append(answered, id)
		} // otherwise the function is throttled, as a provider would repeat the request
		return status, answer
	}
	harness.Eventually(t, harness.Patience, "the mapping does not fit", func() bool {
		status, answer := next()
		if status == http.StatusUnprocessableEntity && !strings.Contains(answer, `"pointer":"/data/pull_request/title"`) {
			t.Errorf("got %s", answer)
		}
		return status == http.StatusUnprocessableEntity
	})
	var dead []letter
	harness.Eventually(t, harness.Patience, "the request is in the list", func() bool { dead = list(); return len(dead) > 0 })
	if !strings.HasPrefix(dead[0].Reason, "source github: ") {
		t.Errorf("got %+v", dead)
	}
	aws.ApplyConfig(t, awsSources("/body/pull_request/title"))
	harness.Eventually(t, harness.Patience, "the mapping fits again", func() bool {
		status, _ := next()
		return status == http.StatusAccepted
	})
	harness.Eventually(t, harness.Patience, "each request is an event", func() bool {
		for _, l := range list() { // a process may still use the old mapping
			o.callAs(listener, "POST", "dead-letters/"+l.ID+"/retry", "", http.StatusAccepted, nil)
		}
		arrived := hook.IDs()
		return !slices.ContainsFunc(answered, func(id string) bool { return arrived[id] == 0 })
	})
	if left := list(); len(left) > 0 {
		t.Errorf("left %+v", left)
	}
}
