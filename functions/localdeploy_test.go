package functions_test

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// localDeploy returns the page that documents the deployment to LocalStack, and its commands.
func localDeploy(t *testing.T) (text string, commands []string) {
	t.Helper()
	const file = "../docs/how-to/deploy-to-aws.md"
	src := expect.Value(os.ReadFile(file))(t)
	p := expect.Value(page.Read(file))(t)
	for _, b := range p.Blocks {
		if commands = b.Commands(); slices.Contains(commands, "make local-deploy") {
			return string(src), commands
		}
	}
	t.Fatalf("%s has no block with make local-deploy", file)
	return "", nil
}

// TestTheCommandsForLocalStackFitItsFiles checks the command that needs Docker, which the tests do not have.
func TestTheCommandsForLocalStackFitItsFiles(t *testing.T) {
	text, commands := localDeploy(t)
	t.Run("AWS-14 two commands start LocalStack and deploy to it", func(t *testing.T) {
		want := []string{"docker compose -f localstack/compose.yaml -f localstack/deploy.yaml up --wait", "make local-deploy"}
		expect.List(t, "the commands", commands, want)
	})
	compose := func(name string) (service struct {
		Image       string            `yaml:"image"`
		Ports       []string          `yaml:"ports"`
		Environment map[string]string `yaml:"environment"`
		Volumes     []string          `yaml:"volumes"`
	},
	) {
		src := expect.Value(os.ReadFile("../localstack/" + name))(t)
		var file struct{ Services map[string]yaml.Node }
		expect.OK(t, yaml.Unmarshal(src, &file))
		node := file.Services["aws"]
		expect.OK(t, node.Decode(&service))
		return service
	}
	base, added := compose("compose.yaml"), compose("deploy.yaml")
	t.Run("AWS-14 the page names the version and the address of LocalStack", func(t *testing.T) {
		_, version, _ := strings.Cut(base.Image, ":")
		expect.Differ(t, "the version of LocalStack", version, "")
		expect.Contains(t, "the page", text, "LocalStack](https://localstack.cloud) "+version+".")
		expect.List(t, "the ports", base.Ports, []string{"127.0.0.1:4566:4566"})
		expect.Contains(t, "the page", text, "by default http://127.0.0.1:4566")
	})
	t.Run("AWS-14 LocalStack has every service of the template, and Docker for its functions", func(t *testing.T) {
		services := strings.Split(added.Environment["SERVICES"], ",")
		for _, s := range []string{"s3", "sts"} { // for the SAM command line
			expect.Has(t, "the page's services", services, s)
		}
		for id, r := range included(t) {
			s := map[string]string{"serverless": "lambda"}[service(r.Type)]
			if s == "" {
				s = service(r.Type)
			}
			if s != "custom" && !slices.Contains(services, s) {
				t.Errorf("%s needs the service %s", id, s)
			}
		}
		expect.Has(t, "the volumes, without which LocalStack cannot start functions", added.Volumes, "/var/run/docker.sock:/var/run/docker.sock")
	})
}

// service returns the service of a resource type, e.g. "sqs" for AWS::SQS::Queue.
func service(kind string) string {
	parts := strings.Split(strings.ToLower(kind), "::")
	if len(parts) < 3 {
		return parts[0]
	}
	return parts[1]
}

// included returns the resources that the template has with its default parameters.
func included(t *testing.T) map[string]resource {
	t.Helper()
	d, _ := readDeployment(t)
	doc, all := tree(t), map[string]resource{}
	for id, r := range d.Resources {
		if condition, ok := d.Conditions[value(at(doc, "Resources", id, "Condition"))]; !ok || evaluate(d, nil, condition) == true {
			all[id] = r
		}
	}
	return all
}

// stand is a program that runs another one in its place.
const stand = `package main

import (
	"os"
	"syscall"
)

func main() { panic(syscall.Exec(%q, os.Args, os.Environ())) }
`

// TestLocalDeployment runs make local-deploy, as the page says, but with MiniStack instead of LocalStack. MiniStack lacks
// metric math, so the deployed template has no alarms with it. Of the functions, it runs only keys, during the deployment.
// The others are empty programs.
func TestLocalDeployment(t *testing.T) {
	t.Parallel()
	text, commands := localDeploy(t)
	packages := expect.Value(filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python(t))), "lib", "python*", "site-packages")))(t)
	expect.MustLen(t, "the packages", packages, 1)
	endpoint := awslocal.StartCloudFormation(t, packages[0])
	binaries := harness.Functions(t)
	tree := sourceTree(t, "template.yaml")
	for uri, binary := range binaries {
		program := "package main\n\nfunc main() {}\n"
		if uri == "functions/keys" {
			program = fmt.Sprintf(stand, binary)
		}
		dir := filepath.Join(tree, uri)
		expect.OK(t, os.RemoveAll(dir))
		expect.OK(t, os.Mkdir(dir, 0o755))
		write(t, filepath.Join(dir, "main.go"), program)
	}
	template, left := withoutMetricMath(t)
	write(t, filepath.Join(tree, "template.yaml"), template)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", commands[len(commands)-1])
	cmd.Dir, cmd.WaitDelay = tree, 5*time.Second
	cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+endpoint, "GOFLAGS=", "CGO_ENABLED=0", "SAM_CLI_TELEMETRY=0", "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	expect.OK(t, err, out)
	cf := cloudFormation{t, endpoint}

	t.Run("AWS-14 given MiniStack, when make local-deploy runs, then the stack is complete and its outputs are printed", func(t *testing.T) {
		expect.Equal(t, "the status of the stack", cf.status("mcp-events-local"), "CREATE_COMPLETE")
		for _, output := range []string{"McpUrl", "EventsUrl", "AdminUrl", "SettingsTable", "LogTable"} {
			expect.True(t, "the page prints the output "+output, regexp.MustCompile(`(?m)^Key +`+output+` *$`).Match(out))
		}
	})
	t.Run("AWS-14 all resources are there, except for the alarms that the page names", func(t *testing.T) {
		var got struct {
			All []struct {
				ID     string `xml:"LogicalResourceId"`
				Status string `xml:"ResourceStatus"`
			} `xml:"DescribeStackResourcesResult>StackResources>member"`
		}
		cf.call("DescribeStackResources", url.Values{"StackName": {"mcp-events-local"}}, &got)
		created := map[string]bool{}
		for _, r := range got.All {
			created[r.ID] = r.Status == "CREATE_COMPLETE"
		}
		for id := range included(t) {
			if created[id] == slices.Contains(left, id) {
				t.Errorf("%s was created: %v", id, created[id])
			}
		}
		expect.Contains(t, "the page", text, fmt.Sprintf("except the %d alarms", len(left)))
	})
	t.Run("AWS-02 AWS-12 AWS-14 a first deployment with a wrong setting fails with its reason and leaves no table", func(t *testing.T) {
		const name = "wrong"
		cf.call("CreateStack", url.Values{
			"StackName": {name}, "TemplateURL": {cf.uploaded()}, "Capabilities.member.1": {"CAPABILITY_IAM"},
			"Parameters.member.1.ParameterKey": {"ExtraSettings"}, "Parameters.member.1.ParameterValue": {"quota=-1"},
		}, nil)
		eventually(t, "the deployment fails", func() bool { return cf.status(name) == "ROLLBACK_COMPLETE" })
		var events struct {
			Reasons []string `xml:"DescribeStackEventsResult>StackEvents>member>ResourceStatusReason"`
		}
		cf.call("DescribeStackEvents", url.Values{"StackName": {name}}, &events)
		if !slices.ContainsFunc(events.Reasons, func(s string) bool { return strings.Contains(s, "quota") }) {
			t.Errorf("got the reasons %q, want one that names the setting", events.Reasons)
		}
		tables := expect.Value(dynamodb.NewFromConfig(awslocal.Config(endpoint)).ListTables(t.Context(), &dynamodb.ListTablesInput{}))(t)
		if n := slices.IndexFunc(tables.TableNames, func(table string) bool { return strings.HasPrefix(table, name+"-") }); n >= 0 || len(tables.TableNames) != 6 {
			t.Errorf("the tables are %q, want the six of the other stack", tables.TableNames)
		}
	})
	t.Run("AWS-14 the page names the version that the test uses", func(t *testing.T) {
		src := expect.Value(os.ReadFile("../test/awslocal/emulators/ministack/requirements.txt"))(t)
		if v := regexp.MustCompile(`(?m)^ministack==(\S+)$`).FindStringSubmatch(string(src)); v == nil || !strings.Contains(text, "MiniStack "+v[1]) {
			t.Errorf("the page does not name the version %q", v)
		}
	})
}

// withoutMetricMath returns the template without alarms that have metric math, and their ids.
func withoutMetricMath(t *testing.T) (template string, left []string) {
	t.Helper()
	_, template = readDeployment(t)
	resources := at(tree(t), "Resources")
	for i := 0; i < len(resources.Content); i += 2 {
		id, r := resources.Content[i].Value, resources.Content[i+1]
		if value(at(r, "Type")) != "AWS::CloudWatch::Alarm" || at(r, "Properties", "Metrics") == nil {
			continue
		}
		left = append(left, id)
		template = regexp.MustCompile(`(?m)^  `+id+`:\n(?:    .*\n)+`).ReplaceAllString(template, "")
		template = strings.ReplaceAll(template, "!Ref "+id+", ", "") // from the alarms of a gradual deployment
	}
	return template, left
}

// cloudFormation calls CloudFormation at an endpoint.
type cloudFormation struct {
	t        *testing.T
	endpoint string
}

// call calls an operation and decodes its response, unless answer is nil.
func (c cloudFormation) call(action string, parameters url.Values, answer any) {
	c.t.Helper()
	parameters.Set("Action", action)
	parameters.Set("Version", "2010-05-15")
	resp := expect.Value(http.PostForm(c.endpoint, parameters))(c.t)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: got %d %s, %v", action, resp.StatusCode, b, err)
	}
	if answer == nil {
		return
	}
	expect.OK(c.t, xml.Unmarshal(b, answer))
}

// uploaded returns the URL of the template that SAM has uploaded.
func (c cloudFormation) uploaded() string {
	c.t.Helper()
	var buckets struct {
		IDs []string `xml:"DescribeStackResourcesResult>StackResources>member>PhysicalResourceId"`
	}
	c.call("DescribeStackResources", url.Values{"StackName": {"aws-sam-cli-managed-default"}}, &buckets)
	for _, bucket := range buckets.IDs {
		resp := expect.Value(http.Get(c.endpoint + "/" + bucket + "?list-type=2"))(c.t)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		expect.OK(c.t, err)
		if m := regexp.MustCompile(`<Key>([^<]+\.template)</Key>`).FindSubmatch(b); m != nil {
			return c.endpoint + "/" + bucket + "/" + string(m[1])
		}
	}
	c.t.Fatalf("there is no template in %q", buckets.IDs)
	return ""
}

func (c cloudFormation) status(stack string) string {
	c.t.Helper()
	var got struct {
		Status string `xml:"DescribeStacksResult>Stacks>member>StackStatus"`
	}
	c.call("DescribeStacks", url.Values{"StackName": {stack}}, &got)
	return got.Status
}
