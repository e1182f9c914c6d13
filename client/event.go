package client

import (
	"encoding/json"
	"time"
)

// Event is an event as it arrived, in one form for every way.
type Event struct {
	// Via is webhook (SEP-1803), events (a webhook of MCP Events), poll, push or stream.
	Via string `json:"via"`
	// Envelope is the type of a control message of MCP Events, which is no event.
	Envelope string `json:"envelope,omitempty"`
	// ID is the event's id, which is the webhook-id.
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

// How webhooks are asked for.
const (
	ViaRegister = "register" // SEP-1803
	ViaEvents   = "events"   // the MCP Events extension
)
