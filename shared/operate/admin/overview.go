package admin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const maxCounted = 1000

type overview struct {
	Workspace     string                     `json:"workspace"`
	Now           time.Time                  `json:"now"`
	Subscriptions map[subscription.State]int `json:"subscriptions"`
	DeadLetters   int                        `json:"deadLetters"`
	Paused        []switches.Switch          `json:"paused"`
	Recent        recent                     `json:"recent"`
	Delivery      kept                       `json:"delivery"`
	// Principal is the principal whose quotas are listed, by default the caller.
	Principal string     `json:"principal"`
	Quotas    []quotaUse `json:"quotas"`
}

type quotaUse struct {
	Name string `json:"name"`
	// Max is the limit of a quota. It is absent if there is no limit. Used is absent for quotas that are counted per second, or
	// separately by each process.
	Max  float64 `json:"max,omitempty"`
	Used *int64  `json:"used,omitempty"`
}

// recent summarizes the newest attempts since a time, by default within the last hour. It covers at most [maxCounted] attempts.
type recent struct {
	Attempts int       `json:"attempts"`
	Failed   int       `json:"failed"`
	Since    time.Time `json:"since"`
	// Series counts the attempts of the last [seriesLength] in steps of [stepLength], oldest first, without empty steps.
	Series  []step    `json:"series"`
	Failing []failing `json:"failing"`
}

type kept struct {
	// Kept is the operator's setting for the records of attempts: all, failures or none. With failures, the delivery log does not record
	// successful attempts. Only the subscription then has the time of its last success.
	Kept    string `json:"kept"`
	Seconds int64  `json:"keptSeconds"`
}

func keptOf(keep records.Keep, length time.Duration) kept {
	return kept{Kept: string(keep), Seconds: int64(length / time.Second)}
}

type overviewHandler struct {
	lists      *subscription.Lists
	operations *deadletter.Operations
	switches   *switches.Set
	db         store.DB
	kept       records.Keep
	quota      func(name string) func(ctx context.Context, workspace, principal string) float64
}

// show responds with the overview. It makes a fixed number of queries and reads a limited number of items with each.
func (h *overviewHandler) show(c *call) (any, error) {
	ctx, workspace, now := c.Context(), c.principal.Workspace, time.Now().UTC()
	o := overview{
		Workspace: workspace, Now: now, Paused: []switches.Switch{}, Recent: recent{Since: now.Add(-time.Hour)},
		Delivery:  keptOf(h.kept, state.KeptFor),
		Principal: cmp.Or(c.Principal, c.principal.ID),
	}
	if !c.Since.IsZero() {
		o.Recent.Since = c.Since.UTC()
	}
	used, err := tally.ReadCount(ctx, h.db, workspace, o.Principal)
	if err != nil {
		return nil, err
	}
	sum, err := tally.ReadCount(ctx, h.db, workspace, "")
	if err != nil {
		return nil, err
	}
	for _, name := range quota.Names() {
		use := quotaUse{Name: name, Max: h.quota(name)(ctx, workspace, o.Principal)}
		switch name {
		case quota.Subscriptions:
			use.Used = &used
		case quota.WorkspaceSubscriptions:
			use.Used = &sum
		}
		o.Quotas = append(o.Quotas, use)
	}
	if o.Subscriptions, err = h.lists.CountStates(ctx, workspace, maxCounted); err != nil {
		return nil, err
	}
	letters, _, err := h.operations.ListLetters(ctx, workspace, deadletter.LetterQuery{}, "", maxCounted)
	if err != nil {
		return nil, err
	}
	o.DeadLetters = len(letters)
	paused, _, err := h.switches.List(ctx, workspace, "", operations.MaxLimit)
	if err != nil {
		return nil, err
	}
	o.Paused = append(o.Paused, paused...)
	found, _, err := records.List(ctx, h.db, workspace, records.Query{Span: records.Span{Since: o.Recent.Since}}, "", maxCounted)
	if err != nil {
		return nil, err
	}
	all := summarize(found)
	o.Recent.Attempts, o.Recent.Failed = all.Attempts, all.Failed
	o.Recent.Series = newSeries(found, now)
	if !c.Since.IsZero() {
		// If there are many attempts, the records read so far may cover only a few minutes of the requested time. So read only failures
		// from here on. The same number of records then covers more time.
		q := records.Query{Span: records.Span{Since: o.Recent.Since}, Outcome: records.Failed}
		if found, _, err = records.List(ctx, h.db, workspace, q, "", maxCounted); err != nil {
			return nil, err
		}
	}
	o.Recent.Failing = listFailing(found)
	origins := make([]string, len(o.Recent.Failing))
	for i, f := range o.Recent.Failing {
		origins[i] = f.Origin
	}
	notes, err := h.switches.NotesOf(ctx, workspace, origins...)
	for i, f := range o.Recent.Failing {
		o.Recent.Failing[i].Note = notes[f.Origin]
	}
	return o, err
}

const (
	stepLength   = 10 * time.Second // the time span of one step of the series in an overview
	seriesLength = 15 * time.Minute
	maxFailing   = 50
)

type figures struct {
	Attempts int   `json:"attempts"`
	Failed   int   `json:"failed"`
	P50MS    int64 `json:"p50Ms"`
	P95MS    int64 `json:"p95Ms"`
}

func summarize(found []records.Record) figures {
	f := figures{Attempts: len(found)}
	took := make([]int64, 0, len(found))
	for _, r := range found {
		took = append(took, r.TookMS)
		if r.Outcome() != records.Delivered {
			f.Failed++
		}
		f.Attempts += int(r.Omitted)
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		f.P50MS, f.P95MS = took[(n-1)/2], took[(n-1)*95/100]
	}
	return f
}

type step struct {
	At time.Time `json:"at"` // when it begins
	figures
}

// newSeries groups the attempts of the last [seriesLength] into steps of [stepLength], oldest first. It leaves out steps without
// attempts. The records in the parameter found are newest first.
func newSeries(found []records.Record, now time.Time) []step {
	series := []step{}
	for len(found) > 0 {
		at := found[0].At.UTC().Truncate(stepLength)
		n := slices.IndexFunc(found, func(r records.Record) bool { return r.At.Before(at) })
		if n < 0 {
			n = len(found)
		}
		if at.Before(now.Add(-seriesLength)) {
			break
		}
		series = append(series, step{At: at, figures: summarize(found[:n])})
		found = found[n:]
	}
	slices.Reverse(series)
	return series
}

type failing struct {
	Origin     string `json:"origin"`
	Attempts   int    `json:"attempts"`
	Failed     int    `json:"failed"`
	Category   string `json:"category"`
	StatusCode int    `json:"statusCode,omitempty"`
	// Since is the time of the first failure that was counted. Subscriptions is the number of subscriptions that had a failure.
	Since         time.Time      `json:"since"`
	Subscriptions int            `json:"subscriptions"`
	Note          *switches.Note `json:"note,omitempty"`
}

func listFailing(found []records.Record) []failing {
	by := map[string]*failing{}
	affected := map[[2]string]bool{} // pairs of an origin and a subscription with a failure
	for _, r := range found {
		f := by[r.Origin]
		if f == nil {
			f = &failing{Origin: r.Origin}
			by[r.Origin] = f
		}
		f.Attempts++
		if r.Outcome() != records.Delivered {
			f.Failed++
			f.Since = r.At.UTC() // the records are newest first
			if key := [2]string{r.Origin, r.Subscription}; !affected[key] {
				affected[key] = true
				f.Subscriptions++
			}
			if f.Category == "" {
				f.Category, f.StatusCode = r.Category, r.Status
			}
		}
	}
	list := []failing{}
	for _, f := range by {
		if f.Failed > 0 {
			list = append(list, *f)
		}
	}
	slices.SortFunc(list, func(a, b failing) int { return cmp.Or(b.Failed-a.Failed, cmp.Compare(a.Origin, b.Origin)) })
	return list[:min(len(list), maxFailing)]
}

type backendHandler struct {
	backends func(ctx context.Context, workspace string) ([]Backend, error)
}

func (h *backendHandler) list(c *call) (any, error) {
	all, err := h.backends(c.Context(), c.principal.Workspace)
	if err != nil {
		return nil, err
	}
	page, next := cutPage(all, func(b Backend) string { return b.Name }, c.After, c.Limit)
	return newList(c, page, next, asIs), nil
}
