// Package schedule invokes functions at a fixed rate, like an EventBridge schedule.
package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"
)

var rate = regexp.MustCompile(`^rate\(([1-9][0-9]{0,4}) (minute|hour|day)s?\)$`)

// Parse parses a schedule expression. Only rates are supported, e.g. "rate(1 minute)".
func Parse(expression string) (time.Duration, error) {
	m := rate.FindStringSubmatch(expression)
	if m == nil {
		return 0, fmt.Errorf("schedule %q is not supported, only rate(N minutes|hours|days)", expression)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0, fmt.Errorf("schedule %q: %w", expression, err)
	}
	unit := map[string]time.Duration{"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}[m[2]]
	return time.Duration(n) * unit, nil
}

// maxRunning is the maximum number of concurrent invocations of a schedule. Ticks beyond it are skipped.
const maxRunning = 4

// Run calls invoke with the event of a schedule once per interval, starting after the first interval, until ctx ends.
// Then it waits for running calls. A call that takes longer than the interval does not delay the next one.
func Run(ctx context.Context, interval time.Duration, rule string, invoke func(ctx context.Context, payload []byte)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	slots := make(chan struct{}, maxRunning)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			select {
			case slots <- struct{}{}:
				running.Go(func() {
					defer func() { <-slots }()
					invoke(context.WithoutCancel(ctx), event(now, rule))
				})
			default:
			}
		}
	}
}

// event returns the payload of a scheduled invocation.
func event(now time.Time, rule string) []byte {
	b, err := json.Marshal(events.EventBridgeEvent{
		Version: "0", ID: uuid.NewString(), DetailType: "Scheduled Event", Source: "aws.events",
		AccountID: "000000000000", Time: now.UTC().Truncate(time.Second), Region: "us-east-1",
		Resources: []string{rule}, Detail: json.RawMessage("{}"),
	})
	if err != nil {
		panic(err) // strings and a time always encode
	}
	return b
}
