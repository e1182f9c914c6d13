package runner

import (
	"context"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/localstack/internal/backup"
)

// BackupAPI returns the API of AWS Backup for the tables at the endpoints, in all Regions. Backups outlive the stacks.
func BackupAPI(e Endpoints) http.Handler {
	e = e.fromEnvironment()
	return &backup.Server{
		DB: Options{Region: "us-east-1"}.clients(e).DynamoDB,
		HasKey: func(ctx context.Context, region, arn string) bool {
			keys := Options{Region: region}.clients(e).KMS
			if keys == nil {
				return false
			}
			_, err := keys.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: &arn})
			return err == nil
		},
	}
}
