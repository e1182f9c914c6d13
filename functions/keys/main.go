// Command keys is the function of the custom resource that makes the sealing
// keys and the cursor key once. Update and Delete do nothing: the keys outlive the stack.
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

	"mcpevents/functions/internal/boot"
	"mcpevents/functions/internal/cursors"
	"mcpevents/functions/internal/sealing"
	"mcpevents/functions/internal/sealing/kmswrap"
)

// resourceID never changes, so that CloudFormation never replaces the resource.
const resourceID = "mcpevents-sealing-keys"

func main() {
	p := boot.Start()
	wrapper := kmswrap.KMS{Client: kms.NewFromConfig(p.AWS), Key: p.Variable(boot.EnvKey)}
	create := cfn.LambdaWrap(func(ctx context.Context, e cfn.Event) (string, map[string]any, error) {
		if e.RequestType != cfn.RequestCreate {
			return resourceID, nil, nil
		}
		return resourceID, nil, patiently(ctx, func() error {
			if err := cursors.Create(ctx, p.DB); err != nil {
				return err
			}
			return sealing.Create(ctx, p.DB, wrapper)
		})
	})
	lambda.Start(func(ctx context.Context, raw json.RawMessage) (any, error) {
		var order struct {
			Rotate sealing.Step `json:"rotate"`
		}
		if err := json.Unmarshal(raw, &order); err == nil && order.Rotate != "" {
			return nil, sealing.Rotate(ctx, p.DB, wrapper, order.Rotate)
		}
		var event cfn.Event
		if err := json.Unmarshal(raw, &event); err != nil {
			return nil, err
		}
		return create(ctx, event)
	})
}

// patiently tries again for some seconds: the permissions of a function that was
// made a moment ago may not have reached every service.
func patiently(ctx context.Context, do func() error) error {
	pause := time.Second
	for {
		err := do()
		if err == nil || pause > 8*time.Second {
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return err
		}
	}
}
