package functions_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// changed contains new values for parameters that do not list their allowed values.
var changed = map[string]string{
	"JwtIssuer": "https://login.example.com", "JwtAudience": "https://e.example/mcp", "JwtJwksUrl": "https://login.example.com/keys",
	"JwtPrincipalClaim": "email", "JwtWorkspaceClaim": "org", "AllowedOrigins": "https://console.example.com", "BlockedTargets": "a.example",
	"PlainTargets": "https://chatgpt.com/", "Retention": "48h", "InboxConcurrency": "3", "FanoutConcurrency": "3", "DispatchConcurrency": "3",
	"SlowConcurrency": "3", "StreamSeconds": "600", "StreamConcurrency": "100", "StreamReservedConcurrency": "50", "PublishReservedConcurrency": "5",
	"StreamCapacityProvider":   "arn:aws:lambda:eu-central-1:123456789012:capacity-provider:streams",
	"AdminReservedConcurrency": "5", "DispatchReservedConcurrency": "5", "PublisherArns": "arn:aws:iam::123456789012:root", "SecretsPrefix": "/other/",
	"SourceEventPattern": `{"source":["aws.s3"]}`, "SourceEventBus": "orders", "SourceTopicArn": "arn:aws:sns:eu-central-1:123456789012:orders",
	"SourceBucketArns": "arn:aws:s3:::my-uploads", "ExtraSettings": "quota=50", "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:alarms",
	"AlarmEmail": "a@example.com", "FrontDomain": "events.example.com", "FrontCertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1",
	"FrontWebAclArn":        "arn:aws:wafv2:us-east-1:123456789012:global/webacl/a/1",
	"SubscriptionsTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/s", "LogTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/l",
	"DeliveriesTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/d", "SessionsTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/n",
	"SettingsTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/c", "KeysTableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/k",
	"SealingKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/1",
}

// deployed holds the two texts of a function that CloudFormation compares, and the deletion policy of its version.
type deployed struct{ Config, Version, Policy string }

// transformed returns the functions of the stack as SAM's transform makes them, for each set of parameters.
func transformed(t *testing.T, sets []map[string]string) (stacks []map[string]deployed) {
	t.Helper()
	in := expect.Value(json.Marshal(sets))(t)
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/versions.py", "../template.yaml")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.Env = bytes.NewReader(in), &stderr, append(os.Environ(), "SAM_CLI_TELEMETRY=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	expect.OK(t, json.Unmarshal(out, &stacks))
	return stacks
}

// TestEachParameterCanBeChangedAlone compares a stack before and after a change, as CloudFormation does, in both
// directions. A version with a new description and the old configuration fails the deployment ("A version for this
// Lambda function exists"). A new configuration without a new version never gets any traffic.
func TestEachParameterCanBeChangedAlone(t *testing.T) {
	t.Parallel()
	d, _ := readDeployment(t)
	names, sets := []string{}, []map[string]string{{}}
	for name, p := range d.Parameters {
		value := changed[name]
		for _, other := range p.AllowedValues {
			if other != *p.Default {
				value = other
			}
		}
		if value == "" {
			t.Fatalf("there is no value to change %s to", name)
		}
		names, sets = append(names, name), append(sets, map[string]string{name: value})
	}
	stacks := transformed(t, sets)
	t.Run("a replaced version on managed instances is deleted, because its processes would run forever", func(t *testing.T) {
		expect.Equal(t, "the deletion policy", stacks[0]["ManagedStreamFunction"].Policy, "Delete")
	})
	for i, name := range names {
		t.Run("AWS-17 "+name, func(t *testing.T) {
			var stale, unpublished []string
			for id, before := range stacks[0] {
				after := stacks[i+1][id]
				if before.Version == "" {
					continue // except keys, which CloudFormation calls without a version
				}
				switch config, version := before.Config != after.Config, before.Version != after.Version; {
				case version && !config:
					stale = append(stale, id)
				case config && !version:
					unpublished = append(unpublished, id)
				}
			}
			slices.Sort(stale)
			slices.Sort(unpublished)
			expect.Equal(t, "the new versions of unchanged functions, which roll the deployment back: "+strings.Join(stale, ", "), len(stale), 0)
			if len(unpublished) > 0 {
				t.Errorf("changed functions without a new version: %s", strings.Join(unpublished, ", "))
			}
		})
	}
}

// TestAPlainDeploymentKeepsEveryChange asks SAM which values a deployment sends to CloudFormation.
func TestAPlainDeploymentKeepsEveryChange(t *testing.T) {
	t.Parallel()
	d, _ := readDeployment(t)
	t.Run("AWS-18 the defaults of the SAM command line set no parameters", func(t *testing.T) {
		b := expect.Value(os.ReadFile("../samconfig.toml"))(t)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(strings.TrimSpace(line), "parameter_overrides") {
				t.Errorf("samconfig.toml has %s", line)
			}
		}
	})
	t.Run("AWS-18 no page lets a guided deployment save all parameters", func(t *testing.T) {
		err := filepath.WalkDir("../docs", func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" || filepath.Base(path) == "conformance.md" {
				return err
			}
			b, err := os.ReadFile(path)
			if err == nil && bytes.Contains(b, []byte("--guided")) && !bytes.Contains(b, []byte("| `Save arguments to configuration file` | `n`,")) {
				t.Errorf("%s has --guided, without the answer n to the question whether to save the arguments", path)
			}
			return err
		})
		expect.OK(t, err)
	})
	t.Run("AWS-18 a parameter that a deployment does not name keeps its value", func(t *testing.T) {
		template := map[string]any{"Parameters": d.Parameters}
		in := expect.Value(json.Marshal([]any{template, map[string]string{"Retention": "48h"}}))(t)
		const program = "import json, sys; from samcli.commands.deploy.deploy_context import DeployContext; json.dump(DeployContext.merge_parameters(*json.load(sys.stdin)), sys.stdout)"
		cmd := exec.CommandContext(t.Context(), python(t), "-c", program)
		cmd.Stdin, cmd.Env = bytes.NewReader(in), append(os.Environ(), "SAM_CLI_TELEMETRY=0")
		out := expect.Value(cmd.Output())(t)
		var sent []struct {
			ParameterKey, ParameterValue string
			UsePreviousValue             bool
		}
		expect.OK(t, json.Unmarshal(out, &sent))
		expect.Equal(t, "the number of parameters that SAM sends", len(sent), len(d.Parameters))
		for _, p := range sent {
			if named := p.ParameterKey == "Retention"; p.UsePreviousValue == named || named != (p.ParameterValue != "") {
				t.Errorf("got %+v", p)
			}
		}
	})
	t.Run("AWS-18 keys is given all parameters for adoption, in the order that it expects", func(t *testing.T) {
		b := expect.Value(os.ReadFile("internal/keyresource/handler.go"))(t)
		var names []string
		for _, n := range d.Resources["Keys"].Properties.Adopted {
			names = append(names, `"`+n+`"`)
		}
		if want := strings.Join(names, ", "); len(names) != 7 || !strings.Contains(string(b), want) {
			t.Errorf("internal/keyresource/handler.go does not have %s", want)
		}
	})
}

// python returns the path of the interpreter that has SAM.
func python(t *testing.T) string {
	t.Helper()
	where := expect.Value(exec.CommandContext(t.Context(), "make", "-s", "-C", "..", "sam-path").Output())(t)
	return filepath.Join(filepath.Dir(string(bytes.TrimSpace(where))), "python")
}
