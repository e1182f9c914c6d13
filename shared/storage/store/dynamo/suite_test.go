package dynamo

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

func TestStoreOnDynamoDBLocal(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.DynamoDB).DynamoDB)
}

// The local AWS mode runs on such an emulator, so the store must work there too.
func TestStoreOnMiniStack(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.MiniStack).MiniStack)
}

func suite(t *testing.T, endpoint string) {
	client := dynamodb.NewFromConfig(awslocal.Config(endpoint))
	db := New(client, tables(t, client))
	storetest.Run(t, func(*testing.T) store.DB { return db })
}
