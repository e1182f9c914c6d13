//go:build unix && !noemulators

package property

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestEveryEventReachesEverySubscriberOverDynamoDB(t *testing.T) {
	client := dynamodb.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB))
	s := setup{
		instances: 3, skew: 500 * time.Millisecond, round: time.Second, limits: limits, attempts: delivery.Options{Concurrency: 64},
		shared: func(t *testing.T) store.DB {
			prefix := fmt.Sprintf("property-%d-", time.Now().UnixNano())
			name := func(table store.Table) string { return prefix + string(table) }
			expect.OK(t, awslocal.CreateTables(t.Context(), client, name))
			return dynamo.New(client, name)
		},
	}
	k := scale{
		worst: slow, faults: true, length: 4 * time.Second, gap: 400 * time.Millisecond, naps: 100 * time.Millisecond, every: 250 * time.Millisecond,
		patience: 6 * time.Minute, linger: time.Second, idle: 7 * time.Second, publishers: 2, followers: 6, webhooks: 2,
	}
	t.Run("EVX-26 EVX-11 instances with clocks half a second apart, real time", func(t *testing.T) {
		schedules(t, 2*time.Second, func(t *testing.T, seed uint64) ([]string, []string, figures) { return play(t, s, k, seed) })
	})
}
