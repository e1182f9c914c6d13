package main

import (
	"os"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// sections are the headings of SEP-3415 below Specification and Security Considerations, and those parts
// of its long ones that ask something of a server.
var sections = []string{
	"Extension Identifier", "Capability Negotiation", "Delivery Modes", "Listing Available Events", "Schema evolution",
	"Dynamic event types", "Event type removal and breaking changes", "Event Occurrences", "Poll-Based Delivery", "Push-Based Delivery",
	"stdio", "Heartbeat", "Webhook-Based Delivery", "Subscribing", "Subscription TTL", "Subscription identity", "Webhook event delivery",
	"Non-event webhook bodies", "Webhook delivery status", "SSRF", "Endpoint verification", "Server identity", "TLS requirement",
	"Signature scheme", "Secret generation, rotation", "Authentication to the callback endpoint", "Delivery profile", "Unsubscribing",
	"Cursor Lifecycle", "Subscription Termination", "Ordering and Delivery Guarantees", "Client-Owned Subscription State",
	"Error Handling", "Reservations", "Event payloads are untrusted data", "Payload minimality", "Authorization", "Governance",
}

func TestTheTableOfTheSpecification(t *testing.T) {
	text := expect.Value(os.ReadFile("../../docs/reference/sep-3415.md"))(t)
	says := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			says[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[2])
		}
	}
	t.Run("EVX-23 the reference says of each section of the specification what is done", func(t *testing.T) {
		for _, section := range sections {
			said := ""
			for name, what := range says {
				if strings.Contains(name, section) {
					said = what
				}
			}
			if said == "" {
				t.Errorf("docs/reference/sep-3415.md does not mention %q", section)
			}
		}
	})
}
