package operations

import "net/http"

// Parameters that several operations have.
var (
	event        = Param{Name: "event"}
	origin       = Param{Name: "origin", Description: "Scheme, host and port."}
	since        = Param{Name: "since", Format: "date-time"}
	until        = Param{Name: "until", Format: "date-time"}
	outcome      = Param{Name: "outcome", Enum: []string{"delivered", "failed", "dead"}, Description: "failed takes dead as well."}
	subscription = Param{Name: "subscription", Description: "The id that follows subscription://."}
	uri          = Param{Name: "uri", Description: "URI of an event; no pattern."}
)

// All is the table of operations.
var All = []Operation{
	{
		ID: "listSubscriptions", Method: http.MethodGet, Path: "subscriptions",
		Summary: "Subscriptions that have all that is given.",
		Owners:  true, Query: paged(Param{Name: "principal"}, event, origin, Param{Name: "state", Enum: []string{"active", "paused", "suspended", "disabled"}}, Param{Name: "uri", Description: "URI of an event that they are to get; no pattern."}),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Subscriptions"}},
	},
	{
		ID: "readSubscription", Method: http.MethodGet, Path: "subscriptions/{id}",
		Summary: "One subscription.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Subscription"}},
	},
	{
		ID: "endSubscription", Method: http.MethodDelete, Path: "subscriptions/{id}",
		Summary: "End a subscription.",
		Owners:  true,
		Answers: []Answer{{Status: 204, Description: "Done."}},
	},
	{
		ID: "pauseSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/pause",
		Summary: "Attempt nothing until it is resumed.",
		Owners:  true, Body: "Reason",
		Answers: []Answer{{Status: 200, Description: "As it is now.", Schema: "Subscription"}},
	},
	{
		ID: "resumeSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/resume",
		Summary: "Attempt what waited.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "As it is now.", Schema: "Subscription"}},
	},
	{
		ID: "testSubscription", Method: http.MethodPost, Path: "subscriptions/{id}/test",
		Summary: "Deliver a test event.",
		Owners:  true,
		Answers: []Answer{{Status: 202, Description: "Its id.", Schema: "Accepted"}},
	},
	{
		ID: "listDeliveriesOf", Method: http.MethodGet, Path: "subscriptions/{id}/deliveries",
		Summary: "Attempts at a subscription, newest first.",
		Owners:  true, Query: paged(event, origin, since, until, outcome),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Attempts"}},
	},
	{
		ID: "listDeliveries", Method: http.MethodGet, Path: "deliveries",
		Summary: "Attempts, newest first.",
		Owners:  true, Query: paged(subscription, event, origin, since, until, outcome),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Attempts"}},
	},
	{
		ID: "listDeadLetters", Method: http.MethodGet, Path: "dead-letters",
		Summary: "Dead letters, newest first.",
		Owners:  true, Query: paged(subscription, origin, event, Param{Name: "queue"}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "DeadLetters"}},
	},
	{
		ID: "readDeadLetter", Method: http.MethodGet, Path: "dead-letters/{id}",
		Summary: "One dead letter, with all its attempts.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "DeadLetter"}},
	},
	{
		ID: "retryDeadLetter", Method: http.MethodPost, Path: "dead-letters/{id}/retry",
		Summary: "Deliver it again, with its webhook-id and the whole schedule; or send a message back to its queue.",
		Owners:  true,
		Answers: []Answer{{Status: 202, Description: "What is delivered.", Schema: "Accepted"}},
	},
	{
		ID: "listSwitches", Method: http.MethodGet, Path: "switches",
		Summary: "What is paused.",
		Query:   paged(),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Switches"}},
	},
	{
		ID: "readSwitch", Method: http.MethodGet, Path: "switches/{name}",
		Summary: "A switch; 404 if it is not paused. The name holds slashes as they are.",
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Switch"}},
	},
	{
		ID: "pause", Method: http.MethodPut, Path: "switches/{name}",
		Summary: "Pause.",
		Body:    "Reason",
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Switch"}},
	},
	{
		ID: "resume", Method: http.MethodDelete, Path: "switches/{name}",
		Summary: "Resume.",
		Answers: []Answer{{Status: 204, Description: "Done."}},
	},
	{
		ID: "listNotes", Method: http.MethodGet, Path: "notes",
		Summary: "Operators' notes about failing origins, or about one origin.",
		Query:   paged(origin),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Notes"}},
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
		Summary: "Erase what is stored of a principal, or count it.",
		Query:   query(Param{Name: "dryRun", Enum: []string{"true", "false"}, Default: "false", Description: "Whether only to count."}),
		Answers: []Answer{{Status: 200, Description: "What was erased, or would be.", Schema: "Erasure"}},
	},
	{
		ID: "listAudit", Method: http.MethodGet, Path: "audit",
		Summary: "What people did, newest first.",
		Query:   paged(since, until),
		Answers: []Answer{{Status: 200, Description: "A page of it.", Schema: "Audit"}},
	},
	{
		ID: "replay", Method: http.MethodPost, Path: "replays",
		Summary: "Retry selected dead letters, or deliver what was published in a span of time to a subscription again: count them, or begin.",
		Body:    "NewReplay", BodyRequired: true,
		Answers: []Answer{{Status: 200, Description: "With dryRun: how many there are.", Schema: "Count"}, {Status: 202, Description: "It runs; asked for again meanwhile, it is the same one. So is one of events within ten minutes, though it may be done.", Schema: "Replay"}},
	},
	{
		ID: "readReplay", Method: http.MethodGet, Path: "replays/{id}",
		Summary: "How far a replay is.",
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Replay"}},
	},
	{
		ID: "cancelReplay", Method: http.MethodDelete, Path: "replays/{id}",
		Summary: "Cancel a replay.",
		Answers: []Answer{{Status: 200, Description: "As it ends.", Schema: "Replay"}},
	},
	{
		ID: "listEvents", Method: http.MethodGet, Path: "events",
		Summary: "Events of a URI or a type that the log has, newest first.",
		Query:   paged(uri, Param{Name: "name", Description: "An event type."}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Events"}},
	},
	{
		ID: "readEvent", Method: http.MethodGet, Path: "events/{id}",
		Summary: "An event by its id.",
		Query:   query(uri),
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Event"}},
	},
	{
		ID: "deliverEvent", Method: http.MethodPost, Path: "events/{id}/deliver",
		Summary: "Deliver an event again to one subscription.",
		Query:   query(uri), Body: "DeliverAgain", BodyRequired: true,
		Answers: []Answer{{Status: 202, Description: "What is delivered.", Schema: "Accepted"}},
	},
	{
		ID: "listEventOutcomes", Method: http.MethodGet, Path: "events/{id}/outcomes",
		Summary: "The outcome of an event for each subscription that covers it, and for ended ones with attempts; or for one subscription.",
		Query:   paged(uri, Param{Name: "subscription", Description: "Explain the event for this subscription only, which need not cover it."}),
		Answers: []Answer{{Status: 200, Description: "A page of outcomes.", Schema: "EventOutcomes"}},
	},
	{
		ID: "overview", Method: http.MethodGet, Path: "overview",
		Summary: "How it goes.",
		Query:   query(Param{Name: "principal", Description: "Whose quotas to list; by default the caller's."}, since),
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Overview"}},
	},
	{
		ID: "listBackends", Method: http.MethodGet, Path: "backends",
		Summary: "The servers behind the gateway.",
		Query:   paged(),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Backends"}},
	},
	{
		ID: "describe", Method: http.MethodGet, Path: "openapi.json",
		Summary: "This document.",
		Owners:  true,
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "object"}},
	},
	{
		ID: "listEventTypes", Method: http.MethodGet, Path: "event-types",
		Summary: "The event types of the catalog.",
		Query:   paged(),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "EventTypes"}},
	},
	{
		ID: "listSources", Method: http.MethodGet, Path: "sources",
		Summary: "The sources of the workspace, by name.",
		Query:   paged(),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Sources"}},
	},
	{
		ID: "readSource", Method: http.MethodGet, Path: "sources/{name}",
		Summary: "One source.",
		Query:   query(),
		Answers: []Answer{{Status: 200, Description: "It.", Schema: "Source"}},
	},
	{
		ID: "listOutcomes", Method: http.MethodGet, Path: "sources/{name}/outcomes",
		Summary: "What became of requests to a source, newest first.",
		Query:   paged(Param{Name: "kind", Enum: []string{"accepted", "duplicate", "unmatched", "verified", "unverified", "invalid", "unfit", "limited", "unavailable", "refused"}, Description: "refused is unverified, invalid, unfit, limited and unavailable."}, since, until),
		Answers: []Answer{{Status: 200, Description: "A page of them.", Schema: "Outcomes"}},
	},
	{
		ID: "trySource", Method: http.MethodPost, Path: "sources/{name}/try",
		Summary: "What a saved request, or the message of a bus, would publish. Nothing is published.",
		Body:    "Try", BodyRequired: true,
		Answers: []Answer{{Status: 200, Description: "One trial, or one for each document of a message.", Schema: "Trials"}},
	},
	{
		ID: "live", Method: http.MethodGet, Path: "live",
		Summary: "What happens now, as server-sent events: `tick`, each with a Tick as its data. It ends after five minutes at most, and the client comes again. An instance has 20 of them; one more is refused with 429.",
		Query:   query(),
		Answers: []Answer{{Status: 200, Description: "Until the client or the server ends it.", Stream: true}},
	},
}
