package bench

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Shape is a load: what is published, how fast, and who subscribes. A figure means nothing without it.
type Shape struct {
	Events      int  `json:"events"`
	Batch       int  `json:"batch"`       // events per request
	Publishers  int  `json:"publishers"`  // connections
	Rate        int  `json:"rate"`        // events per second; 0 is as fast as the server accepts them
	URIs        int  `json:"uris"`        // events are spread over them in turn
	Subscribers int  `json:"subscribers"` // for each URI
	Payload     int  `json:"payload"`     // bytes
	Latency     bool `json:"latency"`     // one event at a time; the next when it has arrived everywhere
	// Hang is how many endpoints take requests and never answer. Each subscribes to every URI, at the origin
	// of the healthy endpoints or, with HangOrigin, each at an origin of its own. They count for nothing themselves.
	Hang       int  `json:"hang"`
	HangOrigin bool `json:"hangOrigin"`
	// AnswerDelay is how long the healthy endpoints take to answer.
	AnswerDelay time.Duration `json:"answerDelayNs,omitempty"`
	// Client selects the HTTP code of the publishers and the receiver: [ClientOwn], which is the default, or [ClientStd].
	Client string `json:"client,omitempty"`
}

// The values of Shape.Client.
const (
	ClientOwn = "own"      // a few lines of HTTP/1.1, which use little CPU time
	ClientStd = "net/http" // Go's, for a comparison that others can repeat with their own programs
)

// maxDeliveries bounds what one run keeps in memory about its deliveries, four bytes each.
const maxDeliveries = 100_000_000

func (s Shape) check() error {
	for name, n := range map[string]int{
		"events": s.Events, "batch": s.Batch, "publishers": s.Publishers, "uris": s.URIs, "subscribers": s.Subscribers, "payload": s.Payload,
	} {
		if n < 1 {
			return fault.New(fault.Invalid, "--%s %d is not allowed (at least 1)", name, n)
		}
	}
	if s.Rate < 0 || s.Hang < 0 || s.AnswerDelay < 0 {
		return fault.New(fault.Invalid, "--rate, --hang and --answer-delay are not allowed to be negative")
	}
	if s.deliveries() > maxDeliveries {
		return fault.New(fault.Invalid, "%d deliveries are too many (at most %d)", s.deliveries(), maxDeliveries)
	}
	if s.Client != "" && s.Client != ClientOwn && s.Client != ClientStd {
		return fault.New(fault.Invalid, "--client %.40q is not known (allowed: %s, %s)", s.Client, ClientOwn, ClientStd)
	}
	if s.HangOrigin && s.Hang == 0 {
		return fault.New(fault.Invalid, "--hang-origin needs --hang")
	}
	return nil
}

func (s Shape) deliveries() int { return s.Events * s.Subscribers }

// endpoints returns the number of healthy endpoints. Endpoint i subscribes to the URI i modulo URIs.
func (s Shape) endpoints() int { return s.Subscribers * s.URIs }

func (s Shape) uri(i int) string { return "event://bench/" + strconv.Itoa(i%s.URIs) + "/tick" }

// due returns the time at which to send the request with event n.
func (s Shape) due(started time.Time, n int) time.Time {
	return started.Add(time.Duration(float64(n) / float64(s.Rate) * float64(time.Second)))
}

// filler returns a payload of the shape's size.
func (s Shape) filler() string {
	b := make([]byte, max(1, (s.Payload-14)/2))
	_, _ = rand.Read(b) // never fails (Go 1.24)
	return fmt.Sprintf(`{"filler":"%x"}`, b)
}

// String says the shape as a person would.
func (s Shape) String() string {
	speed := "as fast as possible"
	switch {
	case s.Latency:
		speed = "one event at a time"
	case s.Rate > 0:
		speed = fmt.Sprintf("%d events a second", s.Rate)
	}
	delay := ""
	if s.AnswerDelay > 0 {
		delay = fmt.Sprintf(", answers after %s", s.AnswerDelay)
	}
	client := ""
	if s.Client == ClientStd {
		client = ", with net/http"
	}
	return fmt.Sprintf("%d events, batch %d, %d publishers, %s, %d URIs, %d subscribers each, payload %d B%s%s",
		s.Events, s.Batch, s.Publishers, speed, s.URIs, s.Subscribers, s.Payload, delay, client)
}
