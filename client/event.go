package client

import (
	"encoding/json"
	"time"
)

// Event is an event as it arrived, in one form for every way.
type Event struct {
	// Via is webhook (SEP-1803), events (a webhook of MCP Events), poll, push or stream.
	Via string `json:"via"`
	// Envelope is gap or terminated for what is no event; only the command listen makes such ones.
	Envelope string `json:"envelope,omitempty"`
	// ID is the same in every mode and whenever the event arrives again. Together with URI it is the key to make the event's
	// effects idempotent by, because publishers may choose the same id for events of two URIs.
	ID           string `json:"id,omitempty"`
	Name         string `json:"name,omitempty"`
	URI          string `json:"uri,omitempty"`
	Time         string `json:"time,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	// Repeat is true when an event with this id arrived before.
	Repeat bool `json:"repeat,omitempty"`
	// Verified tells of webhooks whether a signature was checked. It is false only
	// where the server sends unsigned ones.
	Verified *bool           `json:"verified,omitempty"`
	Received time.Time       `json:"received"`
	Cursor   string          `json:"cursor,omitempty"`
	Data     json.RawMessage `json:"data"`
}

// viaEvents is the way of a webhook of MCP Events.
const viaEvents = "events"
