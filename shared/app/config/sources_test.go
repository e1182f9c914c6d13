package config

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/test/expect"
)

const githubSource = `sources:
  - name: github
    verify: {scheme: github, secrets: ["env:NEW", "env:OLD"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, {prefix: re}]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner/login, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data: {action: /body/action, fixed: 7}
`

func TestSources(t *testing.T) {
	t.Run("SRC-01 an HTTP source", func(t *testing.T) {
		c := expect.Value(Parse([]byte(githubSource)))(t)
		s := c.Sources[0]
		if s.Name != "github" || s.Workspace != "default" || s.From != source.HTTP || len(s.Secrets) != 2 || s.Secrets[0].String() != "env:NEW" {
			t.Errorf("got %+v", s)
		}
		doc, err := source.Document([]byte(`{"headers":{"x-github-event":"pull_request","x-github-delivery":"d"},"body":{"action":"reopened","repository":{"name":"r","owner":{"login":"o"}}}}`))
		expect.OK(t, err)
		e, err := s.Map(doc)
		if err != nil || e == nil || e.ID != "d" || e.Variables["owner"] != "o" || string(e.Data) != `{"action":"reopened","fixed":7}` {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("SRC-02 the settings of hmac", func(t *testing.T) {
		c := expect.Value(Parse([]byte(`sources:
  - name: own
    verify: {scheme: hmac, secrets: ["ssm:/x"], header: X-Sig, algorithm: sha512, encoding: base64, prefix: "v1=", signed: "{timestamp}.{body}", timestamp: X-Time, tolerance: 1m}
    events: [{name: a.b}]
`)))(t)
		if v := c.Sources[0].Verify; v.Header != "X-Sig" || v.Algorithm != "sha512" || v.Timestamp != "X-Time" || v.Tolerance != time.Minute {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("SRC-04 constants", func(t *testing.T) {
		_, err := Parse([]byte(`sources: [{name: a, from: sns, events: [{name: a.b, variables: {a: x, b: 7, c: true}, time: "2026-11-23T08:00:00Z", data: fixed}]}]`))
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("SRC-03 patterns and constants that are right", func(t *testing.T) {
		for _, change := range []struct{ from, to string }{
			{"[pull_request]", `["5", {prefix: "1"}, {anything-but: [5]}, {exists: false}, {wildcard: "*"}, {equals-ignore-case: A}, {cidr: 10.0.0.0/8}]`},
			{"headers: {x-github-event: [pull_request]}", `$or: [{headers: {a: [{exists: true}]}}, {query: {b: [c]}}]`},
			{"fixed: 7", "fixed: /headers, other: /query, third: /body"},
			{"id: /headers/x-github-delivery", "id: /body"},
			{"headers: {x-github-event: [pull_request]}", "headers: {host: [events.example]}, query: {'': [a]}"},
			{"fixed: 7", "fixed: $.50, other: $, third: US$, fourth: 'costs $.a'"},
		} {
			if _, err := Parse([]byte(strings.Replace(githubSource, change.from, change.to, 1))); err != nil {
				t.Errorf("%s: %v", change.to, err)
			}
		}
	})
	t.Run("SRC-01 a bus source", func(t *testing.T) {
		c, err := Parse([]byte("sources: [{name: alarms, from: eventbridge, events: [{name: a.b, id: /id, time: /time, data: /detail}]}]"))
		if err != nil || c.Sources[0].From != source.EventBridge {
			t.Errorf("got %+v, %v", c, err)
		}
	})
}

func TestSourcesRefused(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"a mistake in a pattern has its line", strings.Replace(githubSource, "{prefix: re}", "\n          {prefx: re}", 1), "config.yaml:6: "},
		{"a secret in the file", strings.Replace(githubSource, "env:NEW", "hunter2hunter2", 1), "config.yaml:3: source github: verify: secrets: a secret must not stand in this file"},
		{"no secrets", strings.Replace(githubSource, `, secrets: ["env:NEW", "env:OLD"]`, "", 1), "0 secrets"},
		{"an unknown scheme", strings.Replace(githubSource, "scheme: github", "scheme: gihub", 1), "config.yaml:3: source github: verify: "},
		{"an unknown member", strings.Replace(githubSource, "id: /", "ident: /", 1), `config.yaml:8: `},
		{"a bad pointer", strings.Replace(githubSource, "/body/action,", "/body/~action,", 1), "config.yaml:9: source github: events: data: /action: "},
		{"a pointer to nothing of a request", strings.Replace(githubSource, "id: /headers/", "id: /header/", 1), `config.yaml:8: source github: events: id: "/header/x-github-delivery" finds no value: a request has /headers, /query and /body`},
		{"a header in capitals", strings.Replace(githubSource, "id: /headers/x-g", "id: /headers/X-G", 1), "config.yaml:8: source github: events: id: \"/headers/X-Github-delivery\" finds no value: names of headers are in lower case"},
		{"a header in capitals in a pattern", strings.Replace(githubSource, "x-github-event", "X-GitHub-Event", 1), "config.yaml:5: source github: events: match: \"/headers/X-GitHub-Event\" finds no value"},
		{"a pattern for nothing of a request", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "$or: [{body: {a: [1]}}, {detail: {a: [1]}}]", 1), `events: match: "/detail" finds no value`},
		{"the header with the signature", strings.Replace(githubSource, "fixed: 7", "fixed: /headers/x-hub-signature-256", 1), "config.yaml:9: source github: events: data: \"/headers/x-hub-signature-256\" finds no value: headers with credentials or signatures"},
		{"a variable of credentials", strings.Replace(githubSource, "owner: /body/repository/owner/login", "owner: /headers/authorization", 1), "config.yaml:7: source github: events: variables: "},
		{"an id that is the same for all", strings.Replace(githubSource, "id: /headers", "id: headers", 1), `config.yaml:8: source github: events: id: must be a JSON Pointer to a value that is unique per delivery`},
		{"an id of several values", strings.Replace(githubSource, "id: /headers/x-github-delivery", "id: {a: /body/id}", 1), `config.yaml:8: source github: events: id: must be a JSON Pointer`},
		{"a variable of several values", strings.Replace(githubSource, "repo: /body/repository/name", "repo: [a]", 1), `config.yaml:7: source github: events: variables: repo: must be a JSON Pointer, or a text`},
		{"an empty variable", strings.Replace(githubSource, "repo: /body/repository/name", `repo: ""`, 1), `config.yaml:7: source github: events: variables: repo: must be a JSON Pointer, or a text`},
		{"a constant that is no time", strings.Replace(githubSource, "data: {action", "time: body/at\n        data: {action", 1), `config.yaml:9: source github: events: time: must be a JSON Pointer, or a time`},
		{"a number for a header", strings.Replace(githubSource, "[pull_request]", "[pull_request, 5]", 1), `config.yaml:5: source github: events: match: /headers/x-github-event/1: a header is a string: write "5"`},
		{"a number for a parameter of the query", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "query: {a: [true]}", 1), `match: /query/a/0: a parameter of the query is a string: write "true"`},
		{"null for a header", strings.Replace(githubSource, "[pull_request]", "[null]", 1), `match: /headers/x-github-event/0: a header is a string and never null`},
		{"a range for a header", strings.Replace(githubSource, "[pull_request]", "[{numeric: ['>', 5]}]", 1), `match: /headers/x-github-event/0: a header is a string, which numeric never matches`},
		{"values for all headers", strings.Replace(githubSource, "{x-github-event: [pull_request]}", "[pull_request]", 1), `config.yaml:5: source github: events: match: /headers: needs the name of a member, e.g. {headers: {NAME: […]}}`},
		{"members of a header", strings.Replace(githubSource, "[pull_request]", "\n            {a: [b]}", 1), `config.yaml:6: source github: events: match: /headers/x-github-event: a header is a string without members: write its allowed values, e.g. [opened, closed]`},
		{"in an alternative", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "$or: [{body: {a: [1]}}, {headers: {$or: [{a: [b]}, {a: [1]}]}}]", 1), `match: /$or/1/headers/$or/1/a/0: a header is a string: write "1"`},
		{"a pointer below a header", strings.Replace(githubSource, "x-github-delivery", "x-github-delivery/0", 1), `config.yaml:8: source github: events: id: "/headers/x-github-delivery/0" finds no value: a header is a string without members; write /headers/x-github-delivery`},
		{"a pointer below a parameter", strings.Replace(githubSource, "/headers/x-github-delivery", "/query/a/b", 1), `id: "/query/a/b" finds no value: a parameter of the query is a string without members; write /query/a`},
		{"a mapping that is never reached", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a}\n  - {name: b}\n  - {name: c, match: {a: [b]}}", "config.yaml:6: source x: events: this mapping and those after it are never reached: that of line 5 has no match and takes all; give it one, or write it last"},
		{"an id that is all headers", strings.Replace(githubSource, "/headers/x-github-delivery", "/headers", 1), `config.yaml:8: source github: events: id: "/headers" is always an object: write one of its members, e.g. /headers/NAME`},
		{"a variable that is the query", strings.Replace(githubSource, "repo: /body/repository/name", "repo: /query", 1), `config.yaml:7: source github: events: variables: repo: "/query" is always an object: write one of its members, e.g. /query/NAME`},
		{"a time that is all headers", strings.Replace(githubSource, "data: {action", "time: /headers\n        data: {action", 1), `config.yaml:9: source github: events: time: "/headers" is always an object`},
		{"a name that no header has", strings.Replace(githubSource, "x-github-event", `"x a"`, 1), `config.yaml:5: source github: events: match: "/headers/x a" finds no value: this is not a header name; write one without spaces, e.g. x-request-id`},
		{"a header without a name", strings.Replace(githubSource, "x-github-event", `""`, 1), `match: "/headers/" finds no value: this is not a header name`},
		{"a pointer to a header without a name", strings.Replace(githubSource, "x-github-delivery", "", 1), `config.yaml:8: source github: events: id: "/headers/" finds no value: this is not a header name`},
		{"how the body came", strings.Replace(githubSource, "fixed: 7", "fixed: /headers/content-length", 1), `"/headers/content-length" finds no value`},
		{"a part of a request in a message of EventBridge", "sources:\n- name: x\n  from: eventbridge\n  events:\n  - {name: a, variables: {v: /body/detail/v}}", `config.yaml:5: source x: events: variables: v: "/body/detail/v" finds no value: a message of EventBridge has /id, /time, /source, /detail-type and /detail`},
		{"a pattern for a part of a request in a message of SNS", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, match: {headers: {a: [b]}}}", `config.yaml:5: source x: events: match: "/headers" finds no value: a message of SNS has /MessageId`},
		{"the whole query of a message of SNS", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, id: /query}", `config.yaml:5: source x: events: id: "/query" finds no value: a message of SNS`},
		{"all records of a notification of S3", "sources:\n- name: x\n  from: s3\n  events:\n  - {name: a, data: {key: /Records/0/s3/object/key}}", `config.yaml:5: source x: events: data: "/Records/0/s3/object/key" finds no value: a document of S3 is one record, with /eventName, /eventTime and /s3`},
		{"the same match twice", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, match: {Subject: [b]}}\n  - {name: b, match: {Subject: [c]}}\n  - {name: c, match: {Subject: [b]}}", "config.yaml:7: source x: events: this mapping is never reached: that of line 5 has the same match; give it another, or delete it"},
		{"a signature of itself", strings.Replace(githubSource, "scheme: github,", `scheme: hmac, header: X-S, signed: "{header:x-s}{body}",`, 1), `config.yaml:3: source github: verify: signed: {header:x-s} is the header with the signature, which cannot sign itself; write the name of another`},
		{"a signature that is a time", strings.Replace(githubSource, "scheme: github,", `scheme: hmac, header: X-S, signed: "{timestamp}{body}", timestamp: x-s,`, 1), `config.yaml:3: source github: verify: timestamp: "x-s" is the header with the signature; write the name of that with the time`},
		{"a JSONPath", strings.Replace(githubSource, "fixed: 7", "fixed: $.body.action", 1), `config.yaml:9: source github: events: data: /fixed: "$.body.action" looks like a JSONPath: write a JSON Pointer, which begins with /, such as /body/action`},
		{"a JSONPath of an index", strings.Replace(githubSource, "repo: /body/repository/name", "repo: '$[0].name'", 1), `config.yaml:7: source github: events: variables: repo: "$[0].name" looks like a JSONPath`},
		{"all of it", strings.Replace(githubSource, "match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, {prefix: re}]}}", "match: {}", 1), `events: match: is an empty object`},
		{"a scheme alone", strings.Replace(githubSource, `{scheme: github, secrets: ["env:NEW", "env:OLD"]}`, "none", 1), `config.yaml:3: source github: verify must be a mapping: {scheme: none, secrets: ["env:NAME"]}`},
		{"a setting of another scheme", strings.Replace(githubSource, "scheme: github,", "scheme: github, prefix: x,", 1), `config.yaml:3: source github: verify: prefix: is a setting of the scheme hmac only`},
		{"no verification", "sources: [{name: x, events: [{name: a}]}]", "source x: verify is missing: one of "},
		{"verification of a bus", "sources: [{name: x, from: sns, verify: {scheme: none, secrets: ['env:X']}, events: [{name: a}]}]", "is not possible with from"},
		{"an unknown bus", "sources: [{name: x, from: sqs, events: [{name: a}]}]", `"sqs" is not known (eventbridge, sns, s3; `},
		{"no events", "sources: [{name: x, from: sns}]", "source x: events are missing"},
		{"an empty list of events", "sources: [{name: x, from: sns, events: []}]", "0 mappings"},
		{"events of nothing", "sources:\n- name: x\n  from: sns\n  events:", "config.yaml:4: source x: events must be a list, not null"},
		{"no event type", "sources: [{name: x, from: sns, events: [{id: /id}]}]", "a mapping has no name"},
		{"a name twice, even in two workspaces", "sources:\n- {name: x, from: sns, events: [{name: a}]}\n- {name: x, workspace: w, from: s3, events: [{name: a}]}", "config.yaml:3: source x was already given in line 2"},
		{"a name that is no segment", "sources: [{name: a/b, from: sns, events: [{name: a}]}]", "does not match"},
	} {
		t.Run("SRC-01 "+tt.name, func(t *testing.T) { refuses(t, tt.file, tt.want) })
	}
}
