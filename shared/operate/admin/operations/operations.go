// Package operations declares the operations of the admin API in one table, from which package admin makes its routes and its OpenAPI 3.1
// document.
package operations

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Operation describes one operation of the admin API: an HTTP method on a path.
type Operation struct {
	ID, Method, Path, Summary string
	// Owners is true if callers with the scope events:subscribe may use the operation, too. They see only their own subscriptions and
	// deliveries.
	Owners bool
	// Query lists the query parameters of the operation. The API refuses requests with other parameters, unless Query is nil.
	Query []Param
	// Body is the name of the JSON schema of the request's body.
	Body         string
	BodyRequired bool
	Answers      []Answer
}

// Param describes a query parameter. Its value is a string unless Integer is set.
type Param struct {
	Name, Format, Default, Description string
	Enum                               []string
	// Integer is the maximum of a parameter whose value is an integer. The minimum is always 1.
	Integer int
}

// Answer describes a response to a successful request.
type Answer struct {
	Status      int
	Description string
	// Schema is the name of the JSON schema of the response. "object" means any object, and empty means no content.
	Schema string
	Stream bool
}

// listQuery returns the list of an operation's query parameters. The list is never nil, because for nil, the API accepts any
// parameter.
func listQuery(params ...Param) []Param { return append([]Param{}, params...) }

func withPaging(params ...Param) []Param {
	return append(params, Param{Name: "cursor"}, Param{Name: "limit", Integer: MaxLimit, Default: strconv.Itoa(DefaultLimit)})
}

// These are the limits for the number of items on a page of a list.
const (
	DefaultLimit = 50
	MaxLimit     = 100
)

// rest is the part of the OpenAPI document that is written by hand. [Document] adds the operations.
//
//go:embed document.json
var rest []byte

// Document returns the OpenAPI document.
var Document = sync.OnceValue(func() json.RawMessage {
	document := map[string]any{}
	if err := json.Unmarshal(rest, &document); err != nil {
		panic(err)
	}
	paths := map[string]map[string]any{}
	for _, o := range All {
		path := "/" + o.Path
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(o.Method)] = o.describe()
	}
	document["paths"] = paths
	b, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return b
})

type object = map[string]any

var inPath = regexp.MustCompile(`\{(\w+)\}`)

func (o Operation) describe() object {
	out := object{"operationId": o.ID, "summary": o.Summary}
	scopes := []object{{"bearer": []string{"events:operate"}}}
	if o.Owners {
		scopes = append(scopes, object{"bearer": []string{"events:subscribe"}})
	}
	out["security"] = scopes
	var params []object
	for _, name := range inPath.FindAllStringSubmatch(o.Path, -1) {
		params = append(params, object{"name": name[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range o.Query {
		params = append(params, object{"name": p.Name, "in": "query", "schema": p.schema()})
	}
	if params != nil {
		out["parameters"] = params
	}
	if o.Body != "" {
		out["requestBody"] = object{"required": o.BodyRequired, "content": content(o.Body)}
	}
	answers := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, a := range o.Answers {
		answer := object{"description": a.Description}
		switch {
		case a.Stream:
			answer["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
		case a.Schema != "":
			answer["content"] = content(a.Schema)
		}
		answers[strconv.Itoa(a.Status)] = answer
	}
	out["responses"] = answers
	return out
}

func (p Param) schema() object {
	s := object{"type": "string"}
	if p.Integer > 0 {
		n, _ := strconv.Atoi(p.Default)
		return object{"type": "integer", "minimum": 1, "maximum": p.Integer, "default": n}
	}
	for name, value := range map[string]string{"format": p.Format, "default": p.Default, "description": p.Description} {
		if value != "" {
			s[name] = value
		}
	}
	if p.Enum != nil {
		s["enum"] = p.Enum
	}
	return s
}

func content(schema string) object {
	s := object{"$ref": "#/components/schemas/" + schema}
	if schema == "object" {
		s = object{"type": "object"}
	}
	return object{"application/json": object{"schema": s}}
}

var (
	event        = Param{Name: "event"}
	origin       = Param{Name: "origin", Description: "Scheme, host and port."}
	since        = Param{Name: "since", Format: "date-time"}
	until        = Param{Name: "until", Format: "date-time"}
	outcome      = Param{Name: "outcome", Enum: []string{"delivered", "failed", "dead"}, Description: "failed takes dead as well."}
	subscription = Param{Name: "subscription", Description: "The id that follows subscription://."}
	uri          = Param{Name: "uri", Description: "URI of an event; no pattern."}
)

// All lists the operations of the admin API.
var All = []Operation{
	{
		ID: "listSubscriptions", Method: http.MethodGet, Path: "subscriptions",
		Summary: "Subscriptions that match all given parameters.",
		Owners:  true, Query: withPaging(Param{Name: "principal"}, event, origin, Param{Name: "state", Enum: []string{"active", "paused", "suspended", "disabled"}}, Param{Name: "uri", Description: "URI of an event that they are to get; no pattern."}),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Subscriptions"}},
	},
	{
		ID: "readSubscription", Method: http.MethodGet, Path: "subscriptions/{id}",
		Summary: "One subscription.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "The subscription.", Schema: "Subscription"}},
	},
	{
		ID: "endSubscription", Method: http.MethodDelete, Path: "subscriptions/{id}",
		Summary: "End a subscription.",
		Owners:  true,
		Answers: []Answer{{Status: 204, Description: "Done."}},
	},
	{
		ID: "pauseSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/pause",
		Summary: "Pause a subscription. Its deliveries wait.",
		Owners:  true, Body: "Reason",
		Answers: []Answer{{Status: 200, Description: "The changed subscription.", Schema: "Subscription"}},
	},
	{
		ID: "resumeSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/resume",
		Summary: "Resume a subscription, and send the waiting deliveries.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "The changed subscription.", Schema: "Subscription"}},
	},
	{
		ID: "testSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/test",
		Summary: "Deliver a test event.",
		Owners:  true,
		Answers: []Answer{{Status: 202, Description: "The id of the event.", Schema: "Accepted"}},
	},
	{
		ID: "listDeliveriesOf", Method: http.MethodGet, Path: "subscriptions/{id}/deliveries",
		Summary: "Attempts at a subscription, newest first.",
		Owners:  true, Query: withPaging(event, origin, since, until, outcome),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Attempts"}},
	},
	{
		ID: "listDeliveries", Method: http.MethodGet, Path: "deliveries",
		Summary: "Attempts, newest first.",
		Owners:  true, Query: withPaging(subscription, event, origin, since, until, outcome),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Attempts"}},
	},
	{
		ID: "listDeadLetters", Method: http.MethodGet, Path: "dead-letters",
		Summary: "Dead letters, newest first.",
		Owners:  true, Query: withPaging(subscription, origin, event, Param{Name: "queue"}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "DeadLetters"}},
	},
	{
		ID: "readDeadLetter", Method: http.MethodGet, Path: "dead-letters/{id}",
		Summary: "One dead letter, with all its attempts.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "The dead letter.", Schema: "DeadLetter"}},
	},
	{
		ID: "retryDeadLetter", Method: http.MethodPost, Path: "dead-letters/{id}/retry",
		Summary: "Deliver a dead letter again, with the same webhook-id and the whole retry schedule, or send a message back to its queue.",
		Owners:  true,
		Answers: []Answer{{Status: 202, Description: "The accepted delivery.", Schema: "Accepted"}},
	},
	{
		ID: "listSwitches", Method: http.MethodGet, Path: "switches",
		Summary: "The paused switches.",
		Query:   withPaging(),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Switches"}},
	},
	{
		ID: "readSwitch", Method: http.MethodGet, Path: "switches/{name}",
		Summary: "A paused switch, or 404. The name contains slashes as they are.",
		Answers: []Answer{{Status: 200, Description: "The switch.", Schema: "Switch"}},
	},
	{
		ID: "pause", Method: http.MethodPut, Path: "switches/{name}",
		Summary: "Pause deliveries.",
		Body:    "Reason",
		Answers: []Answer{{Status: 200, Description: "The switch.", Schema: "Switch"}},
	},
	{
		ID: "resume", Method: http.MethodDelete, Path: "switches/{name}",
		Summary: "Resume deliveries.",
		Answers: []Answer{{Status: 204, Description: "Done."}},
	},
	{
		ID: "listNotes", Method: http.MethodGet, Path: "notes",
		Summary: "Operators' notes about failing origins, or about one origin.",
		Query:   withPaging(origin),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Notes"}},
	},
	{
		ID: "writeNote", Method: http.MethodPut, Path: "notes/{origin}",
		Summary: "Write a note about an origin, in place of an earlier one. The origin contains slashes as they are. The server removes the note within an hour after the origin is healthy again.",
		Body:    "NewNote", BodyRequired: true,
		Answers: []Answer{{Status: 200, Description: "The note.", Schema: "Note"}},
	},
	{
		ID: "removeNote", Method: http.MethodDelete, Path: "notes/{origin}",
		Summary: "Remove the note about an origin.",
		Answers: []Answer{{Status: 204, Description: "Done."}},
	},
	{
		ID: "erasePrincipal", Method: http.MethodDelete, Path: "principals/{id}",
		Summary: "Erase the stored data of a principal, or count it.",
		Query:   listQuery(Param{Name: "dryRun", Enum: []string{"true", "false"}, Default: "false", Description: "Whether only to count."}),
		Answers: []Answer{{Status: 200, Description: "The numbers of erased items or, with dryRun, of items that would be erased.", Schema: "Erasure"}},
	},
	{
		ID: "listAudit", Method: http.MethodGet, Path: "audit",
		Summary: "Actions of people, newest first.",
		Query:   withPaging(since, until),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Audit"}},
	},
	{
		ID: "replay", Method: http.MethodPost, Path: "replays",
		Summary: "Retry the selected dead letters, or deliver the events of a span of time to a subscription again. A dry run counts them.",
		Body:    "NewReplay", BodyRequired: true,
		Answers: []Answer{{Status: 200, Description: "With dryRun: the count.", Schema: "Count"}, {Status: 202, Description: "The running replay. A repeated request returns the same replay while it runs and, for a replay of events, within ten minutes.", Schema: "Replay"}},
	},
	{
		ID: "readReplay", Method: http.MethodGet, Path: "replays/{id}",
		Summary: "The progress of a replay.",
		Answers: []Answer{{Status: 200, Description: "The replay.", Schema: "Replay"}},
	},
	{
		ID: "cancelReplay", Method: http.MethodDelete, Path: "replays/{id}",
		Summary: "Cancel a replay.",
		Answers: []Answer{{Status: 200, Description: "The canceled replay.", Schema: "Replay"}},
	},
	{
		ID: "listEvents", Method: http.MethodGet, Path: "events",
		Summary: "Events of a URI or a type in the event log, newest first.",
		Query:   withPaging(uri, Param{Name: "name", Description: "An event type."}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Events"}},
	},
	{
		ID: "readEvent", Method: http.MethodGet, Path: "events/{id}",
		Summary: "An event by its id.",
		Query:   listQuery(uri),
		Answers: []Answer{{Status: 200, Description: "The event.", Schema: "Event"}},
	},
	{
		ID: "deliverEvent", Method: http.MethodPost, Path: "events/{id}/deliver",
		Summary: "Deliver an event again to one subscription.",
		Query:   listQuery(uri), Body: "DeliverAgain", BodyRequired: true,
		Answers: []Answer{{Status: 202, Description: "The accepted delivery.", Schema: "Accepted"}},
	},
	{
		ID: "listEventOutcomes", Method: http.MethodGet, Path: "events/{id}/outcomes",
		Summary: "The outcome of an event for each subscription that covers it, and for ended ones with attempts; or for one subscription.",
		Query:   withPaging(uri, Param{Name: "subscription", Description: "Explain the event for this subscription only, which need not cover it."}),
		Answers: []Answer{{Status: 200, Description: "A page of outcomes.", Schema: "EventOutcomes"}},
	},
	{
		ID: "overview", Method: http.MethodGet, Path: "overview",
		Summary: "Counts, recent activity, failing origins and quotas.",
		Query:   listQuery(Param{Name: "principal", Description: "Whose quotas to list; by default the caller's."}, since),
		Answers: []Answer{{Status: 200, Description: "The overview.", Schema: "Overview"}},
	},
	{
		ID: "listBackends", Method: http.MethodGet, Path: "backends",
		Summary: "The servers behind the gateway.",
		Query:   withPaging(),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Backends"}},
	},
	{
		ID: "describe", Method: http.MethodGet, Path: "openapi.json",
		Summary: "This document.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "The document.", Schema: "object"}},
	},
	{
		ID: "listEventTypes", Method: http.MethodGet, Path: "event-types",
		Summary: "The event types of the catalog.",
		Query:   withPaging(),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "EventTypes"}},
	},
	{
		ID: "listSources", Method: http.MethodGet, Path: "sources",
		Summary: "The sources of the workspace, by name.",
		Query:   withPaging(),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Sources"}},
	},
	{
		ID: "readSource", Method: http.MethodGet, Path: "sources/{name}",
		Summary: "One source.",
		Query:   listQuery(),
		Answers: []Answer{{Status: 200, Description: "The source.", Schema: "Source"}},
	},
	{
		ID: "listOutcomes", Method: http.MethodGet, Path: "sources/{name}/outcomes",
		Summary: "Outcomes of requests to a source, newest first.",
		Query:   withPaging(Param{Name: "kind", Enum: []string{"accepted", "duplicate", "unmatched", "verified", "unverified", "invalid", "unfit", "limited", "unavailable", "refused"}, Description: "refused is unverified, invalid, unfit, limited and unavailable."}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of the list.", Schema: "Outcomes"}},
	},
	{
		ID: "trySource", Method: http.MethodPost, Path: "sources/{name}/try",
		Summary: "The events that a saved request or message of a bus would publish. The server publishes nothing.",
		Body:    "Try", BodyRequired: true,
		Answers: []Answer{{Status: 200, Description: "One trial, or one for each document of a message.", Schema: "Trials"}},
	},
	{
		ID: "live", Method: http.MethodGet, Path: "live",
		Summary: "New attempts and events, as server-sent events named `tick`, each with a Tick as its data. A stream ends after at most five minutes, and the client connects again. An instance serves 20 streams and refuses others with 429.",
		Query:   listQuery(),
		Answers: []Answer{{Status: 200, Description: "Until the client or the server ends it.", Stream: true}},
	},
}
