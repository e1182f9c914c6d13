// Command keys is the function behind the custom resource Keys in template.yaml, see functions/internal/keyresource.
package main

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/keyresource"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/functions/internal/sealing/kmswrap"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func main() {
	// Build the process only during an invocation. The handler can then report a failure to CloudFormation, which would otherwise wait
	// for an answer until its timeout.
	handler := keyresource.Handler{
		Open: func() (store.DB, sealing.Wrapper, error) {
			p, err := boot.Build(0)
			if err != nil {
				return nil, nil, err
			}
			key, err := p.Variable(boot.EnvKey)
			return p.DB, kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: key}, err
		},
		StackStatus: func(ctx context.Context, stackID string) (string, error) {
			p, err := boot.Build(0)
			if err != nil {
				return "", err
			}
			return keyresource.ReadStatus(ctx, p.AWS, stackID)
		},
	}
	boot.NewHandler(handler.Handle, nil).Serve()
}
