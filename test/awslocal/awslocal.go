//go:build unix

// Package awslocal starts real servers for the AWS services that the system uses: DynamoDB Local for DynamoDB, ElasticMQ
// for SQS, and MiniStack for DynamoDB, SQS and KMS together. It also runs Event Ruler, AWS's own library for EventBridge's
// event patterns, to compare our patterns with.
//
// The servers are child processes of the test binary on free ports of 127.0.0.1. The binary's tests share them, and they
// end with the binary even if it crashes. The first use on a machine installs them from Maven Central and PyPI into the
// user's cache directory, which needs a JDK 17 or later, Maven, and Python 3.10 or later. If the environment names an
// endpoint, the package uses it and starts no server. Only tests import this package.
package awslocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
)

// Service is an emulator that can be started.
type Service string

// The emulators.
const (
	// DynamoDB is DynamoDB Local, the vendor's own.
	DynamoDB Service = "DynamoDB Local"
	// SQS is ElasticMQ with the limits of SQS.
	SQS Service = "ElasticMQ"
	// MiniStack is a LocalStack-compatible emulator of many services.
	MiniStack Service = "MiniStack"
	// EventRuler tells which documents match an event pattern.
	EventRuler Service = "Event Ruler"
)

// Environment variables that name a running endpoint, as http://HOST:PORT.
// Tests keep to tables and queues of their own, so it may be a shared one.
const (
	EnvDynamoDB   = "MCPEVENTS_TEST_DYNAMODB"
	EnvSQS        = "MCPEVENTS_TEST_SQS"
	EnvMiniStack  = "MCPEVENTS_TEST_MINISTACK"
	EnvEventRuler = "MCPEVENTS_TEST_EVENTRULER"
)

// Region and credentials that every emulator takes.
const (
	Region    = "us-east-1"
	AccessKey = "test"
	SecretKey = "test"
)

const (
	installTime = 10 * time.Minute
	startTime   = 3 * time.Minute
)

// Endpoints are base URLs. One that was not asked for is empty.
type Endpoints struct {
	DynamoDB, SQS, MiniStack, EventRuler string
}

// httpClient allows one minute for each request, because an emulator on a busy machine can be slow.
var httpClient = awsx.NewHTTPClient(time.Minute)

// Config returns an SDK configuration for base, one of the [Endpoints]. It ignores the environment.
func Config(base string) aws.Config {
	return aws.Config{
		Region:       Region,
		HTTPClient:   httpClient,
		BaseEndpoint: aws.String(base),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: AccessKey, SecretAccessKey: SecretKey, Source: "awslocal"}, nil
		}),
	}
}

// Start returns endpoints of the services, [DynamoDB] and [SQS] when none is
// named. What runs already in this test binary is used again; the rest is
// started. A service that cannot be started fails the test.
//
// The processes end with the test binary; [Main] ends them in order.
func Start(t testing.TB, services ...Service) Endpoints {
	t.Helper()
	if len(services) == 0 {
		services = []Service{DynamoDB, SQS}
	}
	ends, err := shared.start(t.Context(), os.Stderr, services)
	if err != nil {
		t.Fatalf("awslocal: %v", err)
	}
	return ends
}

// StartCloudFormation starts a MiniStack for this test alone, to which SAM can deploy. packages is a directory with the
// Python package aws-sam-translator, which MiniStack needs for this. Its functions reach it at AWS_ENDPOINT_URL.
func StartCloudFormation(t testing.TB, packages string) (url string) {
	t.Helper()
	dir, err := install(t.Context(), os.Stderr, kinds[MiniStack])
	if err != nil {
		t.Fatalf("awslocal: install MiniStack: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	p, url, err := launchMiniStackWith(ctx, dir, packages)
	if err != nil {
		t.Fatalf("awslocal: start MiniStack: %v", err)
	}
	t.Cleanup(p.stop)
	return url
}

// Main runs the tests of m, ends what they started, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.close()
	return code
}

// Running is a set of emulators that its starter ends.
type Running struct {
	Endpoints
	set set
}

// StartAll starts the services for a caller that is not a test. Without names it starts all AWS services. It writes the
// progress of an installation to log.
func StartAll(ctx context.Context, log io.Writer, services ...Service) (*Running, error) {
	if len(services) == 0 {
		services = []Service{DynamoDB, SQS, MiniStack}
	}
	r := &Running{}
	ends, err := r.set.start(ctx, log, services)
	if err != nil {
		r.set.close()
		return nil, fmt.Errorf("awslocal: %w", err)
	}
	r.Endpoints = ends
	return r, nil
}

// Close ends the emulators and waits for their processes.
func (r *Running) Close() { r.set.close() }

// shared are the emulators of this test binary.
var shared set

// set holds running emulators by service.
type set struct {
	mu      sync.Mutex
	running map[Service]*emulator
}

// emulator is one endpoint; process is nil when it is someone else's.
type emulator struct {
	url     string
	process *process
}

// start makes sure that the services run. The mutex is held while they start:
// who comes second wants the same servers.
func (s *set) start(ctx context.Context, log io.Writer, services []Service) (Endpoints, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[Service]*emulator{}
	}
	started := make([]*emulator, len(services))
	errs := make([]error, len(services))
	var wg sync.WaitGroup
	for i, service := range services {
		if s.running[service] != nil {
			continue
		}
		wg.Go(func() { started[i], errs[i] = run(ctx, log, service) })
	}
	wg.Wait()
	for i, e := range started {
		if e != nil {
			s.running[services[i]] = e
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Endpoints{}, err
	}
	var ends Endpoints
	for _, service := range services {
		url := s.running[service].url
		switch service {
		case DynamoDB:
			ends.DynamoDB = url
		case SQS:
			ends.SQS = url
		case MiniStack:
			ends.MiniStack = url
		case EventRuler:
			ends.EventRuler = url
		}
	}
	return ends, nil
}

func (s *set) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wg sync.WaitGroup
	for service, e := range s.running {
		delete(s.running, service)
		if e.process != nil {
			wg.Go(e.process.stop)
		}
	}
	wg.Wait()
}

// run installs a service where needed and starts it.
func run(ctx context.Context, log io.Writer, service Service) (*emulator, error) {
	k, ok := kinds[service]
	if !ok {
		return nil, fmt.Errorf("no emulator is called %q", service)
	}
	if url := os.Getenv(k.env); url != "" {
		return &emulator{url: url}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	dir, err := install(ctx, log, k)
	if err != nil {
		return nil, fmt.Errorf("installing %s: %w", service, err)
	}
	ctx, cancel = context.WithTimeout(ctx, startTime)
	defer cancel()
	p, url, err := k.launch(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", service, err)
	}
	return &emulator{url: url, process: p}, nil
}
