// Package profile makes the SDK configuration of a person's machine: profiles,
// single sign-on, the files below ~/.aws. The command line uses it. It stays out
// of the functions, whose environment holds all they need and whose start it
// would slow down.
package profile

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Load takes what [awsx.Load] finds in the environment, and where that is not
// enough asks all the SDK's sources.
func Load(ctx context.Context) (aws.Config, error) {
	if cfg, err := awsx.Load(ctx); err == nil {
		return cfg, nil
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, fault.Wrap(fault.Invalid, err, "reading the AWS configuration")
	}
	return cfg, nil
}
