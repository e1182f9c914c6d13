package admin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	recentOutcomes = 100 // a list counts at most this many of the newest outcomes of a source
	sourcesAtOnce  = 8   // number of sources whose outcomes a list reads concurrently
	// maxTry is the maximum size, in bytes, of a saved request with which an operator tries a source. The JSON that contains the saved
	// request may be twice as large because of escapes.
	maxTry     = 1 << 20
	maxTryBody = 2*maxTry + 1024
)

type sourceView struct {
	Name string `json:"name"`
	From string `json:"from"`
	// Path and Verify are present only if From is "http".
	Path   string           `json:"path,omitempty"`
	Verify string           `json:"verify,omitempty"`
	Events []source.Mapping `json:"events"`
	Last   *outcomeView     `json:"last,omitempty"`
	Recent sourceRecent     `json:"recent"`
}

// sourceRecent counts the newest outcomes of the last hour, including outcomes that were not stored.
type sourceRecent struct {
	Since    time.Time             `json:"since"`
	Outcomes map[ingest.Kind]int64 `json:"outcomes"`
}

// outcomeView describes the outcome of a request to a source, or of one document in a message from an AWS service.
type outcomeView struct {
	Time   time.Time   `json:"time"`
	Kind   ingest.Kind `json:"kind"`
	Reason string      `json:"reason,omitempty"`
	Name   string      `json:"name,omitempty"`
	URI    string      `json:"uri,omitempty"`
	ID     string      `json:"id,omitempty"`
	// Omitted is the number of outcomes of the same kind that happened before this outcome and were not stored.
	Omitted int64 `json:"omitted,omitempty"`
}

func viewOfOutcome(r ingest.Record) outcomeView {
	return outcomeView{Time: r.Time.UTC(), Kind: r.Kind, Reason: r.Reason, Name: r.Name, URI: r.URI, ID: r.ID, Omitted: r.Omitted}
}

type sourceHandlers struct {
	sources  ingest.Sources
	secrets  func(context.Context, secret.Value) (string, error)
	db       store.DB
	kept     records.Keep
	catalogs catalog.Source
}

// listSources returns the sources of the caller's workspace, sorted by name.
func (h *sourceHandlers) listSources(c *call) ([]source.Source, error) {
	all, err := h.sources.Sources(c.Context())
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "look up the sources")
	}
	own := slices.DeleteFunc(slices.Clone(all), func(s source.Source) bool { return s.Workspace != c.principal.Workspace })
	slices.SortFunc(own, func(a, b source.Source) int { return cmp.Compare(a.Name, b.Name) })
	return own, nil
}

func (h *sourceHandlers) find(c *call) (source.Source, error) {
	own, err := h.listSources(c)
	if err != nil {
		return source.Source{}, err
	}
	i := slices.IndexFunc(own, func(s source.Source) bool { return s.Name == c.PathValue("name") })
	if i < 0 {
		return source.Source{}, fault.New(fault.NotFound, "there is no such source in the configuration")
	}
	return own[i], nil
}

func (h *sourceHandlers) list(c *call) (any, error) {
	own, err := h.listSources(c)
	if err != nil {
		return nil, err
	}
	// Compare names instead of searching for the source c.After, because that source may have been removed since the previous page.
	own = slices.DeleteFunc(own, func(s source.Source) bool { return s.Name <= c.After })
	own, next := cutPage(own, func(s source.Source) string { return s.Name }, "", c.Limit)
	views := make([]sourceView, len(own))
	group, ctx := errgroup.WithContext(c.Context())
	group.SetLimit(sourcesAtOnce)
	for i, s := range own {
		group.Go(func() error {
			var err error
			views[i], err = h.view(ctx, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return newList(c, views, next, asIs), nil
}

func (h *sourceHandlers) read(c *call) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	return h.view(c.Context(), s)
}

func (h *sourceHandlers) view(ctx context.Context, s source.Source) (sourceView, error) {
	now := time.Now()
	records, _, err := ingest.ListRecords(ctx, h.db, s.Workspace, s.Name, ingest.RecordQuery{}, "", recentOutcomes)
	v := sourceView{
		Name: s.Name, From: cmp.Or(string(s.From), "http"), Verify: s.Verify.Scheme, Events: s.Events,
		Recent: sourceRecent{Since: now.Add(-time.Hour).UTC(), Outcomes: map[ingest.Kind]int64{}},
	}
	if s.From == source.HTTP {
		if v.Path = "/sources/" + s.Name; s.Verify.Scheme == verify.None {
			v.Path += "/{key}"
		}
	}
	if len(records) > 0 {
		last := viewOfOutcome(records[0])
		v.Last = &last
	}
	for _, r := range records {
		if !r.Time.Before(v.Recent.Since) {
			v.Recent.Outcomes[r.Kind] += 1 + r.Omitted
		}
	}
	return v, err
}

type outcomeList struct {
	list[outcomeView]
	kept
}

func (h *sourceHandlers) outcomes(c *call) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	query := ingest.RecordQuery{Kind: ingest.Kind(c.Kind), Since: c.Since, Until: c.Until}
	records, next, err := ingest.ListRecords(c.Context(), h.db, s.Workspace, s.Name, query, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	return outcomeList{list: newList(c, records, next, viewOfOutcome), kept: keptOf(h.kept, ingest.RecordsKept)}, nil
}

// try handles an API request that contains a saved request to a source. The response shows which events the source would publish for the
// saved request. try does not publish them.
func (h *sourceHandlers) try(c *call) (any, error) {
	var in struct {
		Request string `json:"request"`
	}
	if err := c.readBodyUpTo(maxTryBody, &in); err != nil {
		return nil, err
	}
	switch {
	case in.Request == "":
		return nil, fault.New(fault.Invalid, "request is missing: headers, an empty line and the body, or the message of a bus")
	case len(in.Request) > maxTry:
		return nil, fault.New(fault.TooLarge, "request has %d bytes (at most %d); mcpevents source check takes larger ones", len(in.Request), maxTry)
	}
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	cat, err := h.catalogs.Catalog(c.Context(), s.Workspace)
	if err != nil {
		return nil, err
	}
	trials, err := ingest.Try(c.Context(), cat, s, []byte(in.Request), time.Now(), h.secrets)
	if err != nil {
		return nil, err
	}
	return map[string][]ingest.Trial{"trials": trials}, nil
}
