// Package profile makes the SDK configuration on people's machines, with profiles, single sign-on and the files in ~/.aws. The command
// line uses it. Lambda functions do not, because it would slow down their start, and their environment has all settings.
package profile

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Load returns the configuration of [awsx.Load]. If that fails, for example because the environment has no credentials, it uses
// all configuration sources of the SDK.
func Load(ctx context.Context) (aws.Config, error) {
	if cfg, err := awsx.Load(); err == nil {
		return cfg, nil
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, fault.Wrap(fault.Invalid, err, "reading the AWS configuration")
	}
	return cfg, nil
}
