package sqs

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue/queuetest"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

func TestQueuesOnElasticMQ(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.SQS).SQS)
}

// The local AWS mode runs on such an emulator, so the queues must work there too.
func TestQueuesOnMiniStack(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.MiniStack).MiniStack)
}

func suite(t *testing.T, endpoint string) {
	queuetest.Run(t, func(t *testing.T) queuetest.Backend { return backend{open(t, endpoint)} })
}

type backend struct{ *Queues }

func (backend) Grain() time.Duration { return time.Second }
