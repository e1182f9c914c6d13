package admin

import (
	"cmp"
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// mostCounted is up to how many an overview counts.
const mostCounted = 1000

type overview struct {
	Workspace     string                     `json:"workspace"`
	Now           time.Time                  `json:"now"`
	Subscriptions map[subscription.State]int `json:"subscriptions"`
	DeadLetters   int                        `json:"deadLetters"`
	Paused        []switches.Switch          `json:"paused"`
	Recent        recent                     `json:"recent"`
	Delivery      kept                       `json:"delivery"`
	// Principal is whose quotas are listed: who is asked for, or the caller.
	Principal string     `json:"principal"`
	Quotas    []quotaUse `json:"quotas"`
}

// quotaUse is a limit that may be another for each principal.
type quotaUse struct {
	Name string `json:"name"`
	// Max is absent if there is no limit; Used is absent of what is counted per second, or by each process.
	Max  float64 `json:"max,omitempty"`
	Used *int64  `json:"used,omitempty"`
}

// recent is about the newest attempts that the delivery log has, those of the last hour.
type recent struct {
	Attempts int       `json:"attempts"`
	Failed   int       `json:"failed"`
	Since    time.Time `json:"since"`
	// Series are the last minutes, oldest first, without steps of which nothing is known.
	Series []step `json:"series"`
	// Failing are the origins with the most failures.
	Failing []failing `json:"failing"`
}

// kept says which records are kept, and for how long.
type kept struct {
	// Kept is what the operator has the delivery log keep: all, failures or none. Failures are kept with their
	// outcome, and of the successes then the subscription's last.
	Kept    string `json:"kept"`
	Seconds int64  `json:"keptSeconds"`
}

func keptOf(keep records.Keep, length time.Duration) kept {
	return kept{string(keep), int64(length / time.Second)}
}

// overviewHandler shows what there is in a workspace.
type overviewHandler struct {
	lists      *subscription.Lists
	operations *deadletter.Operations
	switches   *switches.Set
	db         store.DB
	kept       records.Keep
	most       func(name string) func(ctx context.Context, workspace, principal string) float64
}

// show is a bounded number of queries, whatever there is.
func (h *overviewHandler) show(c *call) (any, error) {
	ctx, workspace, now := c.Context(), c.who.Workspace, time.Now().UTC()
	o := overview{
		Workspace: workspace, Now: now, Paused: []switches.Switch{}, Recent: recent{Since: now.Add(-time.Hour)},
		Delivery:  keptOf(h.kept, state.KeptFor),
		Principal: cmp.Or(c.text("principal"), c.who.ID),
	}
	used, err := subscription.Used(ctx, h.db, workspace, o.Principal)
	if err != nil {
		return nil, err
	}
	sum, err := subscription.Used(ctx, h.db, workspace, "")
	if err != nil {
		return nil, err
	}
	for _, name := range quota.Names() {
		of := quotaUse{Name: name, Max: h.most(name)(ctx, workspace, o.Principal)}
		switch name {
		case quota.Subscriptions:
			of.Used = &used
		case quota.WorkspaceSubscriptions:
			of.Used = &sum
		}
		o.Quotas = append(o.Quotas, of)
	}
	if o.Subscriptions, err = h.lists.CountStates(ctx, workspace, mostCounted); err != nil {
		return nil, err
	}
	letters, _, err := h.operations.Letters(ctx, workspace, deadletter.LetterQuery{}, "", mostCounted)
	if err != nil {
		return nil, err
	}
	o.DeadLetters = len(letters)
	paused, _, err := h.switches.List(ctx, workspace, "", maxLimit)
	if err != nil {
		return nil, err
	}
	o.Paused = append(o.Paused, paused...)
	found, _, err := records.List(ctx, h.db, workspace, records.Query{Span: records.Span{Since: o.Recent.Since}}, "", mostCounted)
	if err != nil {
		return nil, err
	}
	all := figuresOf(found)
	o.Recent.Attempts, o.Recent.Failed = all.Attempts, all.Failed
	o.Recent.Series, o.Recent.Failing = seriesOf(found, now), failingOf(found)
	return o, nil
}

// backendHandler lists the servers behind the gateway.
type backendHandler struct {
	backends func(ctx context.Context, workspace string) ([]Backend, error)
}

func (h *backendHandler) list(c *call) (any, error) {
	after, limit := c.page()
	if c.err != nil {
		return nil, c.err
	}
	all, err := h.backends(c.Context(), c.who.Workspace)
	if err != nil {
		return nil, err
	}
	page, next := cut(all, func(b Backend) string { return b.Name }, after, limit)
	return listOf(c, page, next, itself), nil
}
