package mcp

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
)

// streams opens the streams, and knows what all of them need.
type streams struct {
	admission    *admission
	auth         auth.Authenticator
	catalogs     catalogs
	targets      *targets
	backends     Gateway
	methods      methodTable
	sessions     *session.Store
	log          Log
	feeds        Feeds
	conversation Conversation
	replies      *replies
	faults       faults
	timing       timing
	maxAge       time.Duration
	// How many URIs a stream may have, and how many of them parents and wildcards.
	maxURIs, maxPatterns int
}
