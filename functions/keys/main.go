// Command keys is the function of the custom resource that checks the settings of a deployment before
// any other function gets them, and makes the sealing keys and the cursor key once. Delete does
// nothing: the keys outlive the stack.
//
// An operator rotates the sealing key by invoking it with {"rotate":"add"} and, a
// minute or more later, with {"rotate":"promote"}.
package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/functions/internal/sealing/kmswrap"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func main() {
	// At each event, so that a deletion never needs what the stack may have lost.
	open := func() (store.DB, sealing.Wrapper, error) {
		p, err := boot.Build(0)
		if err != nil {
			return nil, nil, err
		}
		return p.DB, kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: p.Variable(boot.EnvKey)}, nil
	}
	status := func(ctx context.Context, stackID string) (string, error) {
		p, err := boot.Build(0)
		if err != nil {
			return "", err
		}
		return readStatus(ctx, p.AWS, stackID)
	}
	lambda.Start(handler(open, status))
}

// opener reaches the store of the deployment, and the key that wraps the keyset.
type opener func() (store.DB, sealing.Wrapper, error)

// handler serves events of CloudFormation and the orders of an operator.
func handler(open opener, status stackStatus) func(context.Context, json.RawMessage) (any, error) {
	serve := cfn.LambdaWrap(func(ctx context.Context, e cfn.Event) (string, map[string]any, error) {
		return resourceID, map[string]any{"Fingerprint": fingerprint(e.ResourceProperties)}, change(ctx, open, status, e)
	})
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var order struct {
			Rotate sealing.Step `json:"rotate"`
		}
		if err := json.Unmarshal(raw, &order); err == nil && order.Rotate != "" {
			db, wrapper, err := open()
			if err != nil {
				return nil, err
			}
			return nil, sealing.Rotate(ctx, db, wrapper, order.Rotate)
		}
		var event cfn.Event
		if err := json.Unmarshal(raw, &event); err != nil {
			return nil, err
		}
		return serve(ctx, event)
	}
}

// create makes the keys that are missing.
func create(ctx context.Context, open opener) error {
	db, wrapper, err := open()
	if err != nil {
		return err
	}
	return patiently(ctx, func() error {
		if err := cursors.Create(ctx, db); err != nil {
			return err
		}
		return sealing.Create(ctx, db, wrapper)
	})
}

// patiently tries again for some seconds: the permissions of a function that was
// made a moment ago may not have reached every service. Keys that do not fit will not fit later either.
func patiently(ctx context.Context, do func() error) error {
	for pause := time.Second; ; pause *= 2 {
		err := do()
		if err == nil || fault.Is(err, fault.Invalid) || pause > 8*time.Second || periodic.Sleep(ctx, pause) != nil {
			return err
		}
	}
}
