package subscription

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Service finds, pauses, suspends and ends existing subscriptions, and notifies their owners. A [Registrar] makes them. The methods may
// be called concurrently, and by any number of instances.
type Service struct {
	Records Records
	Catalog catalog.Source
	Log     *eventlog.Log
	// AllowAnonymous lets the anonymous principal use events/subscribe and events/unsubscribe. It is for development only.
	AllowAnonymous bool
	// The topics of notices, see shared/events/stream.
	PrincipalTopic    func(principal string) string
	SubscriptionTopic func(id string) string
}

// Lookup reads a subscription for a delivery. It returns nil if the subscription has ended or was disabled.
func (s *Service) Lookup(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	sub, err := s.Records.load(ctx, workspace, principal, id)
	if err != nil || sub == nil || sub.State == Disabled || sub.lapsed(s.Records.now()) {
		return nil, err
	}
	return sub, nil
}

// Find returns a subscription of any principal of the workspace, or nil if it does not exist.
func (s *Service) Find(ctx context.Context, workspace, id string) (*Selected, error) {
	if !validID(id) {
		return nil, nil
	}
	entry, err := store.One(ctx, s.Records.DB, indexKey(workspace, id), "read subscriptions")
	if err != nil || entry == nil {
		return nil, err
	}
	sub, err := s.Records.load(ctx, workspace, string(entry.Value), id)
	if err != nil || sub == nil || sub.lapsed(s.Records.now()) {
		return nil, err
	}
	status, err := statusOf(ctx, s.Records.DB, workspace, id)
	return &Selected{sub, status}, err
}

func (s *Service) notifyPrincipal(ctx context.Context, workspace, principal string) {
	s.notify(ctx, workspace, s.PrincipalTopic, principal, map[string]any{"changed": "subscriptions"})
}

func (s *Service) notifySubscription(ctx context.Context, workspace, id string, state State) {
	s.notify(ctx, workspace, s.SubscriptionTopic, id, map[string]any{"uri": URI(id), "state": state})
}

func (s *Service) notify(ctx context.Context, workspace string, topic func(string) string, of string, what map[string]any) {
	if topic == nil {
		return
	}
	notice, _ := json.Marshal(what) // texts
	if err := s.Log.Notify(ctx, workspace, topic(of), notice); err != nil {
		slog.WarnContext(ctx, "subscription change not announced", "error", err)
	}
}

// permit checks the scope that every method for clients needs, and returns the catalog.
func (s *Service) permit(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if err := p.Require(auth.ScopeSubscribe); err != nil {
		return nil, err
	}
	cat, err := s.Catalog.Catalog(ctx, p.Workspace)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	return cat, nil
}

// permitEvents checks the principal like permit, and also refuses the anonymous principal. Otherwise any caller could end another
// caller's subscription by guessing its parameters.
func (s *Service) permitEvents(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	if p.Anonymous && !s.AllowAnonymous {
		return nil, fault.New(fault.Unauthenticated, "an authenticated principal is needed")
	}
	return s.permit(ctx, p)
}
