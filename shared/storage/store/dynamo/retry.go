package dynamo

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// What the SDK does not repeat by itself: conflicts between transactions, and
// the unprocessed part of a batch.
const (
	maxPauses  = 10
	firstPause = 10 * time.Millisecond
	longPause  = 640 * time.Millisecond
)

// errBusy ends a series of retries.
var errBusy = fault.New(fault.Unavailable, "the table is too busy")

// pause spaces retries: a random time up to a bound that doubles.
type pause struct {
	count int
	bound time.Duration
}

func newPause() *pause { return &pause{bound: firstPause} }

// reset forgets the retries so far, after one that made progress.
func (p *pause) reset() { *p = *newPause() }

// wait returns an error when ctx has ended or there were enough retries, about
// two seconds of them.
func (p *pause) wait(ctx context.Context) error {
	if p.count++; p.count > maxPauses {
		return errBusy
	}
	d := rand.N(p.bound)
	p.bound = min(2*p.bound, longPause)
	return periodic.Sleep(ctx, d)
}

// conflicting reports that a write met a transaction on the same item, so that
// trying again may help.
func conflicting(err error) bool {
	if _, ok := errors.AsType[*types.TransactionConflictException](err); ok {
		return true
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(canceled.CancellationReasons, func(r types.CancellationReason) bool {
		return r.Code != nil && slices.Contains(passing, *r.Code)
	})
}

// passing are the reasons for which a transaction is canceled that pass.
var passing = []string{"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"}

// failure wraps an error that leaves the package.
func failure(err error, format string, args ...any) error {
	kind := awsx.KindOf(err)
	switch {
	case errors.Is(err, store.ErrConflict):
		kind = fault.Conflict
	case conflicting(err):
		kind = fault.Unavailable
	}
	return fault.Wrap(kind, err, format, args...)
}

// attempts watches the tries that the SDK makes of one call.
type attempts struct {
	// lost is true after a try that may have been applied.
	lost bool
}

func (a *attempts) ID() string { return "mcpevents.attempts" }

func (a *attempts) HandleFinalize(
	ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
) (middleware.FinalizeOutput, middleware.Metadata, error) {
	out, meta, err := next.HandleFinalize(ctx, in)
	if err != nil {
		api, answered := errors.AsType[smithy.APIError](err)
		if !answered || api.ErrorFault() != smithy.FaultClient {
			a.lost = true
		}
	}
	return out, meta, err
}

// watch puts the middleware inside of the SDK's retries.
func (a *attempts) watch(stack *middleware.Stack) error {
	return stack.Finalize.Insert(a, "Retry", middleware.After)
}
