package functions_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/harness"
)

// AWS-02: a deployment fails, with the reason, if the functions would not start with its settings.
func TestADeploymentWithWrongSettingsFails(t *testing.T) {
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	for name, tc := range map[string]struct {
		parameters map[string]string
		want       string
	}{
		"an unknown setting": {map[string]string{"ExtraSettings": "quotas=3"}, `unknown setting "quotas"`},
		"an issuer":          {map[string]string{"Auth": "jwt", "JwtIssuer": "http://login.example.com", "JwtAudience": "https://events.example.com/mcp"}, "not https"},
	} {
		t.Run(name, func(t *testing.T) {
			stack, err := runner.Start(t.Context(), runner.Options{
				Template: "../template.yaml", Name: "t" + uuid.NewString()[:8], Region: awslocal.Region, Parameters: tc.parameters, Binaries: harness.Functions(t),
				Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
				Output:    lines{t},
			})
			if err == nil {
				stack.Close()
				t.Fatal("the deployment succeeded")
			}
			if !strings.Contains(err.Error(), "resource Keys") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q in it", err, tc.want)
			}
		})
	}
}
