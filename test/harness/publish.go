//go:build unix

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// Event is an event to publish. Zero members are left away.
type Event struct {
	ID   string    `json:"id,omitempty"`
	URI  string    `json:"uri"`
	Time time.Time `json:"time,omitzero"`
	Data any       `json:"data"`
}

// Accepted is how the server names an event that it took.
type Accepted struct{ ID, URI string }

// HTTPAnswer is the answer to a plain HTTP request.
type HTTPAnswer struct {
	Status int
	Header http.Header
	Body   []byte
}

// publishers keeps as many connections open as a test publishes concurrently.
var publishers = &http.Client{
	Timeout:   Patience,
	Transport: &http.Transport{MaxIdleConnsPerHost: 32},
}

// Post sends a body to POST /events as the principal; "" sends no key.
func (t *Target) Post(ctx context.Context, principal, contentType string, body []byte, header ...string) (*HTTPAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Events, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	if key := t.Keys[principal]; key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := publishers.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return &HTTPAnswer{Status: resp.StatusCode, Header: resp.Header, Body: b}, nil
}

// TryPublish publishes events as JSON: one alone as an object, more as an array.
func (t *Target) TryPublish(ctx context.Context, principal string, events ...Event) ([]Accepted, error) {
	var v any = events
	if len(events) == 1 {
		v = events[0]
	}
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return t.accepted(t.Post(ctx, principal, "application/json", body))
}

func (t *Target) accepted(a *HTTPAnswer, err error) ([]Accepted, error) {
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusAccepted {
		return nil, fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	var v struct{ Accepted []Accepted }
	if err := json.Unmarshal(a.Body, &v); err != nil {
		return nil, fmt.Errorf("answer to a publish: %w", err)
	}
	return v.Accepted, nil
}

// Publish publishes events as the principal publisher and fails the test if they are not accepted.
func (t *Target) Publish(tb testing.TB, events ...Event) []Accepted {
	tb.Helper()
	accepted, err := t.TryPublish(tb.Context(), "publisher", events...)
	if err != nil {
		tb.Fatalf("publish: %v", err)
	}
	if len(accepted) != len(events) {
		tb.Fatalf("publish: %d of %d events were accepted", len(accepted), len(events))
	}
	return accepted
}

// PostEvents posts a body that is to be refused, and returns the answer.
func (t *Target) PostEvents(tb testing.TB, principal, contentType, body string, header ...string) *HTTPAnswer {
	tb.Helper()
	a, err := t.Post(tb.Context(), principal, contentType, []byte(body), header...)
	if err != nil {
		tb.Fatalf("post to /events: %v", err)
	}
	return a
}

// The CloudEvents content modes (HTTP binding, section 3).
const (
	ModeBinary     = "binary"
	ModeStructured = "structured"
	ModeBatch      = "batch"
)

// TryPublishCloudEvents publishes events as CloudEvents, several only in [ModeBatch].
// Their subject is the event's URI.
func (t *Target) TryPublishCloudEvents(ctx context.Context, principal, mode string, events ...Event) ([]Accepted, error) {
	const source, kind = "https://publisher.example/", "com.example.changed"
	if mode == ModeBinary {
		body, err := json.Marshal(events[0].Data)
		if err != nil {
			return nil, err
		}
		return t.accepted(t.Post(ctx, principal, "application/json", body, "ce-specversion", "1.0", "ce-id", events[0].ID,
			"ce-source", source, "ce-type", kind, "ce-subject", events[0].URI))
	}
	batch := make([]map[string]any, len(events))
	for i, e := range events {
		batch[i] = map[string]any{
			"specversion": "1.0", "id": e.ID, "source": source, "type": kind, "subject": e.URI,
			"datacontenttype": "application/json", "data": e.Data,
		}
	}
	var v any = batch
	contentType := "application/cloudevents-batch+json"
	if mode == ModeStructured {
		v, contentType = batch[0], "application/cloudevents+json"
	}
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return t.accepted(t.Post(ctx, principal, contentType, body))
}
