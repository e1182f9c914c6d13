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

// Pauses before retries that the SDK does not make: after conflicts between transactions, and for the unprocessed part of a
// batch.
const (
	maxPauses  = 10
	firstPause = 10 * time.Millisecond
	longPause  = 640 * time.Millisecond
)

// errBusy is returned after too many retries.
var errBusy = fault.New(fault.Unavailable, "the table is too busy")

// pause is the pause between retries. It is random, up to a bound that doubles with each retry.
type pause struct {
	count int
	bound time.Duration
}

func newPause() *pause { return &pause{bound: firstPause} }

// reset starts again with the shortest pause, after a retry that made progress.
func (p *pause) reset() { *p = *newPause() }

// wait waits for the next pause. It returns an error if ctx has ended or after ten pauses, which take about two seconds.
func (p *pause) wait(ctx context.Context) error {
	if p.count++; p.count > maxPauses {
		return errBusy
	}
	d := rand.N(p.bound)
	p.bound = min(2*p.bound, longPause)
	return periodic.Sleep(ctx, d)
}

// isConflict reports whether a write failed because of a concurrent transaction or throttling, so that a retry may succeed.
func isConflict(err error) bool {
	if _, ok := errors.AsType[*types.TransactionConflictException](err); ok {
		return true
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(canceled.CancellationReasons, func(r types.CancellationReason) bool {
		return r.Code != nil && slices.Contains(temporary, *r.Code)
	})
}

// temporary lists the temporary reasons for which DynamoDB cancels a transaction.
var temporary = []string{"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"}

// failure wraps an error for the callers of the package.
func failure(err error, format string, args ...any) error {
	kind := awsx.KindOf(err)
	switch {
	case errors.Is(err, store.ErrConflict):
		kind = fault.Conflict
	case isConflict(err):
		kind = fault.Unavailable
	}
	return fault.Wrap(kind, err, format, args...)
}

// attempts is a middleware that observes the requests that the SDK makes for one call.
type attempts struct {
	lost bool // after a failed request that DynamoDB may have applied
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

// watch adds the middleware inside of the SDK's retries.
func (a *attempts) watch(stack *middleware.Stack) error {
	return stack.Finalize.Insert(a, "Retry", middleware.After)
}
