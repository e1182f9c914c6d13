// Package schedule invokes functions at a rate, as an EventBridge schedule does.
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

// Parse reads a schedule expression. Only rates are known, such as "rate(1 minute)".
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

// maxRunning bounds the invocations of a schedule that run at once; a tick on
// top of it is lost.
const maxRunning = 4

// Run calls invoke every interval, the first time after one, with the event of a
// schedule, until ctx ends; then it waits for running calls. A call that takes longer
// than the interval does not hold up the next one.
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
					invoke(context.WithoutCancel(ctx), Event(now, rule))
				})
			default:
			}
		}
	}
}

// Event is the payload of a scheduled invocation.
func Event(now time.Time, rule string) []byte {
	b, err := json.Marshal(events.EventBridgeEvent{
		Version: "0", ID: uuid.NewString(), DetailType: "Scheduled Event", Source: "aws.events",
		AccountID: "000000000000", Time: now.UTC().Truncate(time.Second), Region: "us-east-1",
		Resources: []string{rule}, Detail: json.RawMessage("{}"),
	})
	if err != nil {
		panic(err) // strings and a time of this era always marshal
	}
	return b
}
