package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// This file compares a source with POST /events. It sends signed requests, like the ones of GitHub, to a source. Then it publishes the
// resulting events directly.

const (
	sourceVariable = "MCPEVENTS_BENCH_SOURCE_SECRET"
	sourceSecret   = "a secret that is for this run alone"
	sourceConfig   = `sources:
  - name: github
    verify: {scheme: github, secrets: ["env:` + sourceVariable + `"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, closed, reopened]}}
        name: bench.tick
        variables: {n: /body/repository/name}
        id: /headers/x-github-delivery
        time: /body/pull_request/updated_at
        data:
          action: /body/action
          number: /body/number
          title: /body/pull_request/title
          filler: /body/pull_request/body
          url: /body/pull_request/html_url
          state: /body/pull_request/state
          draft: /body/pull_request/draft
          author: /body/pull_request/user/login
          base: /body/pull_request/base/ref
          head: /body/pull_request/head/ref
          sha: /body/pull_request/head/sha
          sender: /body/sender/login
`
	// sourceData is the data of the event that the source's mapping creates from a request.
	sourceData = `{"action":"opened","author":"octocat","base":"main","draft":false,"filler":"It was slow.","head":"search","number":{{n}},` +
		`"sender":"octocat","sha":"{{id}}","state":"open","title":"Mend the search","url":"https://github.com/acme/0/pull/{{n}}"}`
)

// Source measures a source with requests of 1 KB, and with requests of 20 KB such as GitHub sends.
func Source(ctx context.Context, o Options) (Report, error) {
	return o.report(ctx, func(ctx context.Context, r *receiver, report *Report) error {
		if o.Server != "" || o.URIs != 1 || o.Batch != 1 || o.Hang != 0 {
			return fault.New(fault.Invalid, "--source does not go with --server, --uris, --batch and --hang: requests of a provider come one by one")
		}
		o.env = []string{sourceVariable + "=" + sourceSecret}
		s, err := o.start(ctx, sourceConfig, "--publish-rate", "0")
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "start a server with a source")
		}
		defer s.stop()
		p := &pass{options: o, adapter: own(s.url, ""), server: s, receiver: r}
		if p.secrets, err = p.registerEndpoints(ctx); err != nil {
			return err
		}
		for _, body := range []string{pullRequest(0), pullRequest(95)} {
			if err := p.compareSource(ctx, body, report); err != nil {
				return err
			}
		}
		return nil
	})
}

// compareSource measures requests to the source with the given body, and then POST /events with the resulting events.
func (p *pass) compareSource(ctx context.Context, body string, report *Report) error {
	direct := own(p.server.url, "")
	source := direct
	source.Publish = Request{
		URL: p.server.url + "/sources/github", Body: body,
		Headers: map[string]string{"User-Agent": "GitHub-Hookshot/bench", "X-GitHub-Event": "pull_request", "X-GitHub-Delivery": "{{id}}"},
		sign:    &signature{header: "X-Hub-Signature-256", prefix: "sha256=", secret: sourceSecret},
	}
	source.Name = fmt.Sprintf("POST /sources/github, requests of %.1f KB", float64(len(body))/1000)
	direct.Name, direct.Publish.Body = "POST /events with what comes of them", `{"id":"{{id}}","uri":"{{uri}}","data":`+sourceData+`}`
	for _, a := range []Adapter{source, direct} {
		p.adapter = a
		if err := p.run(ctx, report); err != nil {
			return err
		}
	}
	of, than := report.Results[len(report.Results)-2], &report.Results[len(report.Results)-1]
	if of.SenderCPUPer10k != nil && than.SenderCPUPer10k != nil {
		ratio := *of.SenderCPUPer10k / *than.SenderCPUPer10k
		than.SourceRatio = &ratio
	}
	return nil
}

// pullRequest returns the body of a request that GitHub sends about an opened pull request. The parameter links is a number of links,
// which appear in three places of the body.
func pullRequest(links int) string {
	var more strings.Builder
	for i := range links {
		fmt.Fprintf(&more, `,"link_%d_url":"https://api.github.com/repos/acme/0/things{/thing_%d}"`, i, i)
	}
	repository := `{"id":186853002,"name":"0","full_name":"acme/0","private":false,"owner":{"login":"acme","id":21031067,"type":"User"},` +
		`"html_url":"https://github.com/acme/0","default_branch":"main"` + more.String() + `}`
	of := ""
	if links > 0 {
		of = `,"repo":` + repository
	}
	return `{"action":"opened","number":{{n}},"pull_request":{"url":"https://api.github.com/repos/acme/0/pulls/{{n}}","id":279147437,` +
		`"html_url":"https://github.com/acme/0/pull/{{n}}","number":{{n}},"state":"open","locked":false,"title":"Mend the search",` +
		`"user":{"login":"octocat","id":21031067,"type":"User"},"body":"It was slow.","created_at":"2026-11-23T08:00:00Z","updated_at":"2026-11-23T08:00:00Z",` +
		`"head":{"label":"acme:search","ref":"search","sha":"{{id}}"` + of + `},"base":{"label":"acme:main","ref":"main","sha":"f95f852bd8fca8fcc58a9a2d6c842781e32a215e"` + of + `},` +
		`"draft":false,"merged":false,"labels":[]},"repository":` + repository + `,"sender":{"login":"octocat","id":21031067,"type":"User"}}`
}
