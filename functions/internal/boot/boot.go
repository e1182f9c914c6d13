// Package boot is what every function's main begins with: settings from the
// environment, AWS clients, the store, the queues, the catalog and the callers'
// keys, built once per process and without a request to anything.
//
// The time from exec to the first request for work is what a cold start costs,
// so what needs a request is made at first use ([Lazy]). Rules of the domain do
// not enter here; a function's main.go puts the pieces together.
package boot

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"mcpevents/functions/internal/parameters"
	"mcpevents/shared/auth"
	"mcpevents/shared/awsx"
	"mcpevents/shared/catalog"
	"mcpevents/shared/config"
	"mcpevents/shared/eventlog"
	"mcpevents/shared/fault"
	"mcpevents/shared/queue"
	queuesqs "mcpevents/shared/queue/sqs"
	"mcpevents/shared/store"
	"mcpevents/shared/store/dynamo"
	"mcpevents/shared/wiring/tokens"
)

// Environment variables that the template sets, beside those of
// [config.FromEnv]. A table's is MCPEVENTS_TABLE_ and its name, a queue's
// MCPEVENTS_QUEUE_, its name and _URL, in capitals.
const (
	envTable    = "MCPEVENTS_TABLE_"
	envQueue    = "MCPEVENTS_QUEUE_"
	envAuth     = "MCPEVENTS_AUTH"
	envLogLevel = "MCPEVENTS_LOG_LEVEL"
	// EnvKey is the KMS key that wraps the private keyset.
	EnvKey = "MCPEVENTS_KEY_ID"
	// EnvRegister and EnvDeregister are the functions that stream hands
	// subscriptions to.
	EnvRegister   = "MCPEVENTS_REGISTER_FUNCTION"
	EnvDeregister = "MCPEVENTS_DEREGISTER_FUNCTION"
)

// UserAgent names the product to webhook endpoints and MCP clients.
const UserAgent = "mcp-events/" + Version

// Version is the product's.
const Version = "0.1.0"

// Process is what a function's process holds.
type Process struct {
	AWS     aws.Config
	Limits  config.Limits
	DB      *dynamo.DB
	Queues  *queuesqs.Queues
	Catalog *catalog.Stored
	Config  *config.Stored
	Secrets *parameters.Store // of the configuration
	Auth    auth.Authenticator
	// ResourceMetadata is where clients learn how to get a token; empty unless they need one.
	ResourceMetadata string
	// Anonymous is true without authentication.
	Anonymous bool
	EventLog  *eventlog.Log
	Log       *slog.Logger

	getenv func(string) string
	mount  func(*http.ServeMux) // what is served beside the function's own; may be nil
}

// Start builds the process from the environment. On an error it ends the
// process, which Lambda reports as a failed start.
func Start() *Process {
	p, err := build(os.Getenv)
	if err != nil {
		slog.Error("the function cannot start", "error", err)
		os.Exit(1)
	}
	return p
}

func build(getenv func(string) string) (*Process, error) {
	limits, err := config.FromEnv(func(name string) (string, bool) { v := getenv(name); return v, v != "" })
	if err != nil {
		return nil, err
	}
	cfg, err := awsx.Load(context.Background())
	if err != nil {
		return nil, err
	}
	log, err := newLog(getenv(envLogLevel))
	if err != nil {
		return nil, err
	}
	slog.SetDefault(log)
	p := &Process{AWS: cfg, Limits: limits, Log: log, getenv: getenv}
	for _, t := range store.Tables() {
		if getenv(tableVariable(t)) == "" {
			return nil, fault.New(fault.Invalid, "%s is not set", tableVariable(t))
		}
	}
	for _, q := range queue.Names() {
		if getenv(queueVariable(q)) == "" {
			return nil, fault.New(fault.Invalid, "%s is not set", queueVariable(q))
		}
	}
	p.DB = dynamo.New(dynamodb.NewFromConfig(cfg), func(t store.Table) string { return getenv(tableVariable(t)) })
	p.Queues = queuesqs.New(sqs.NewFromConfig(cfg), func(q queue.Name) string { return getenv(queueVariable(q)) }, log)
	p.Catalog = catalog.NewStored(p.DB, time.Now, log)
	p.Config = config.NewStored(p.DB, time.Now, log)
	p.Secrets = parameters.New(cfg, log)
	p.EventLog = &eventlog.Log{DB: p.DB, Retention: limits.LogRetention}
	switch mode := auth.Mode(getenv(envAuth)); mode {
	case auth.ModeNone:
		p.Auth, p.Anonymous = auth.None(), true
	case auth.ModeKeys:
		p.Auth = p.Config.Authenticator()
	case auth.ModeJWT:
		access, err := tokens.Authenticator(limits, log)
		if err != nil {
			return nil, err
		}
		p.Auth, p.ResourceMetadata, p.mount = access, access.MetadataURL(), access.Mount
	default:
		return nil, fault.New(fault.Invalid, "%s is %q; it can be none, keys or jwt", envAuth, mode)
	}
	return p, nil
}

// Variable reads a variable that the function cannot do without; on an empty one
// it ends the process.
func (p *Process) Variable(name string) string {
	v := p.getenv(name)
	if v == "" {
		p.Log.Error("the function cannot start", "error", name+" is not set")
		os.Exit(1)
	}
	return v
}

// IsFrom reports whether an event source ARN is that of a queue.
func (p *Process) IsFrom(arn string, name queue.Name) bool {
	url := p.getenv(queueVariable(name))
	return arn[strings.LastIndexByte(arn, ':')+1:] == url[strings.LastIndexByte(url, '/')+1:]
}

func tableVariable(t store.Table) string { return envTable + strings.ToUpper(string(t)) }

func queueVariable(q queue.Name) string { return envQueue + strings.ToUpper(string(q)) + "_URL" }

// newLog writes JSON as Lambda's log filter reads it: members timestamp, level
// and message.
func newLog(level string) (*slog.Logger, error) {
	least := slog.LevelInfo
	if level != "" {
		if err := least.UnmarshalText([]byte(level)); err != nil {
			return nil, fault.New(fault.Invalid, "%s is %q; it can be DEBUG, INFO, WARN or ERROR", envLogLevel, level)
		}
	}
	return slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{
		Level: least,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 {
				switch a.Key {
				case slog.TimeKey:
					a.Key = "timestamp"
				case slog.MessageKey:
					a.Key = "message"
				}
			}
			return a
		},
	})), nil
}
