package runner

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
)

// Options configure a stack. The zero value runs template.yaml in the working directory, with the endpoints in the
// environment.
type Options struct {
	// Template is the file of the template. "" means template.yaml. Function code is found relative to its directory.
	Template string
	// Name is the stack's name, with which the names of its resources begin. "" means "mcpevents". A stack that
	// starts again with the same name finds its data.
	Name string
	// Parameters are values for the template's parameters.
	Parameters map[string]string
	// Env overrides the environment of every function.
	Env map[string]string
	// Managed are the functions that run on simulated managed instances, by logical id.
	Managed map[string]Managed
	// Region is the region of the functions. "" means AWS_REGION, or us-east-1.
	Region string
	// Endpoints are the URLs of the services.
	Endpoints Endpoints
	// Front is the address of the front, which is one host for all Function URLs. "" means any free port on
	// 127.0.0.1.
	Front string
	// Routes maps path prefixes, in whole segments, to the logical ids of the functions that serve them at the front.
	// Nil means [defaultRoutes].
	Routes map[string]string
	// PortBase is the port of the first Function URL. The others follow. 0 means any free ports.
	PortBase int
	// Binaries are executables by CodeUri. They are used instead of building the functions.
	Binaries map[string]string
	// Race builds the functions with the race detector.
	Race bool
	// Concurrency is the account's quota, i.e. the maximum number of concurrent invocations of all functions. 0 means
	// 200. Functions without a reservation share what the others have not reserved.
	Concurrency int
	// AllowLoops disables the detection of recursive loops for all functions.
	AllowLoops bool
	// KeepHeaders makes Function URLs keep the headers that they rename on AWS.
	KeepHeaders bool
	// WholeQueries disables the simulation of DynamoDB's limit of 1 MB per query on emulators that do not have it.
	WholeQueries bool
	// Timeouts override the timeouts of functions, by logical id.
	Timeouts map[string]time.Duration
	// Visibility overrides the visibility timeout of all queues, in whole seconds, so that tests of lost work do not
	// have to wait for minutes. Longer timeouts of functions are reduced to half of it, except for functions with a
	// streamed URL or a schedule. 0 keeps the template's values.
	Visibility time.Duration
	// Speed divides the intervals of schedules; 0 is 1.
	Speed float64
	// Kills is the average number of processes that are killed per second.
	Kills float64
	// Direct makes functions use the endpoints directly. Then permissions are not checked, [Stack.Requests] counts
	// nothing, and chains of requests are not detected.
	Direct bool
	// Grace is how long processes may continue when the stack is closed. 0 means 2 s.
	Grace time.Duration
	// Progress receives a line for every step of the start. Nil discards them.
	Progress io.Writer
	// Output receives the functions' output, line by line. Each line begins with the name of the function and its
	// process. Nil discards it.
	Output io.Writer
	// Log logs what the runner does. Nil discards the messages.
	Log *slog.Logger
}

// Managed configures a function on managed instances: the minimum number of processes, and the number of concurrent
// invocations of each. An invocation goes to any process with a free slot.
type Managed struct{ Instances, AtOnce int }

// defaultRoutes returns the routes that serve this project's functions at one host, as a custom domain would. Routes
// to functions that the template lacks are omitted.
func defaultRoutes() map[string]string {
	return map[string]string{"/": "StreamFunction", "/events": "PublishFunction", "/sources": "PublishFunction", "/admin": "AdminFunction", "/console": "AdminFunction"}
}

// Endpoints are base URLs of AWS services. Empty ones are read from the environment: AWS_ENDPOINT_URL_DYNAMODB etc.,
// or AWS_ENDPOINT_URL.
type Endpoints struct {
	DynamoDB, SQS, KMS string
	SSM                string // may be empty; then secrets in Parameter Store cannot be read
	EventBridge, SNS   string // may be empty; needed only for rules and topics that put events into the inbox
}

// fromEnvironment fills in empty endpoints.
func (e Endpoints) fromEnvironment() Endpoints {
	find := func(own, service string) string {
		return cmp.Or(own, os.Getenv("AWS_ENDPOINT_URL_"+service), os.Getenv("AWS_ENDPOINT_URL"))
	}
	return Endpoints{
		DynamoDB: find(e.DynamoDB, "DYNAMODB"), SQS: find(e.SQS, "SQS"), KMS: find(e.KMS, "KMS"), SSM: find(e.SSM, "SSM"),
		EventBridge: find(e.EventBridge, "EVENTBRIDGE"), SNS: find(e.SNS, "SNS"),
	}
}

// account is the account number that emulators use.
const account = "000000000000"

func (o Options) withDefaults() (Options, error) {
	o.Template = cmp.Or(o.Template, "template.yaml")
	o.Name = cmp.Or(o.Name, "mcpevents")
	o.Region = cmp.Or(o.Region, os.Getenv("AWS_REGION"), "us-east-1")
	o.Front = cmp.Or(o.Front, "127.0.0.1:0")
	o.Concurrency = cmp.Or(o.Concurrency, 200)
	o.Speed = cmp.Or(o.Speed, 1)
	o.Progress, o.Output = cmp.Or(o.Progress, io.Discard), cmp.Or(o.Output, io.Discard)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Endpoints = o.Endpoints.fromEnvironment()
	switch {
	case o.Endpoints.DynamoDB == "" || o.Endpoints.SQS == "":
		return o, errors.New("there is no endpoint for DynamoDB and SQS: set AWS_ENDPOINT_URL to that of an emulator (localstack/start.sh starts one)")
	case o.Visibility != 0 && o.Visibility < 2*time.Second:
		return o, errors.New("a visibility timeout under two seconds leaves functions no time")
	case o.Speed < 0 || o.Kills < 0 || o.Concurrency < 1:
		return o, errors.New("speed, kills and concurrency must not be negative")
	}
	return o, nil
}

// credentials returns credentials that emulators accept, unless the environment has others.
func credentials() (id, secret string) {
	if id, secret = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		return id, secret
	}
	return "test", "test"
}

// clients returns clients for the services at the endpoints.
func (o Options) clients(e Endpoints) resource.Clients {
	id, secret := credentials()
	cfg := func(endpoint string) aws.Config {
		return aws.Config{
			Region: o.Region, BaseEndpoint: aws.String(endpoint), RetryMaxAttempts: 5,
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: runnerApp, Source: "local runner"}, nil
			}),
		}
	}
	c := resource.Clients{DynamoDB: dynamodb.NewFromConfig(cfg(e.DynamoDB)), SQS: sqs.NewFromConfig(cfg(e.SQS))}
	if e.KMS != "" {
		c.KMS = kms.NewFromConfig(cfg(e.KMS))
	}
	if e.EventBridge != "" {
		c.Events = eventbridge.NewFromConfig(cfg(e.EventBridge))
	}
	if e.SNS != "" {
		c.SNS = sns.NewFromConfig(cfg(e.SNS))
	}
	return c
}

// environment returns the variables that every function gets in addition to the template's: credentials, region, and
// the endpoints. The session token identifies the sender of a request, see gate.
func (o Options) environment(id string, e Endpoints, invoke string) map[string]string {
	key, secret := credentials()
	env := map[string]string{
		"AWS_REGION": o.Region, "AWS_DEFAULT_REGION": o.Region,
		"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": id,
		"AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ENDPOINT_URL_DYNAMODB": e.DynamoDB, "AWS_ENDPOINT_URL_SQS": e.SQS,
		"AWS_ENDPOINT_URL_LAMBDA": invoke, "AWS_ENDPOINT_URL_CLOUDFORMATION": invoke + "/cloudformation",
	}
	if e.KMS != "" {
		env["AWS_ENDPOINT_URL_KMS"] = e.KMS
	}
	if e.SSM != "" {
		env["AWS_ENDPOINT_URL_SSM"] = e.SSM
	}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "GORACE", "GOCOVERDIR"} {
		if v := os.Getenv(name); v != "" {
			env[name] = v
		}
	}
	return env
}

// over returns base, overridden by top.
func over(base, top map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, top)
	return out
}
