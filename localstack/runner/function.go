package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/furl"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/schedule"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

const functionType = "AWS::Serverless::Function"

// functionProperties contains the properties of an AWS::Serverless::Function that the deployment uses. The last ones
// are accepted but ignored: tags and logs concern only the account.
type functionProperties struct {
	FunctionName string
	CodeUri      string
	Handler      string
	Runtime      string
	Role         string
	MemorySize   template.Int
	Timeout      template.Int
	Environment  struct {
		Variables map[string]template.Text
	}
	ReservedConcurrentExecutions *template.Int
	RecursiveLoop                string
	FunctionUrlConfig            *struct {
		AuthType   string
		InvokeMode furl.Mode
	}
	Events map[string]struct {
		Type       string
		Properties json.RawMessage
	}

	CapacityProviderConfig *struct {
		Arn                                   string
		PerExecutionEnvironmentMaxConcurrency template.Int

		ExecutionEnvironmentMemoryGiBPerVCpu json.RawMessage
	}
	FunctionScalingConfig struct{ MinExecutionEnvironments, MaxExecutionEnvironments template.Int }

	// The gate enforces Policies.
	Policies json.RawMessage

	Description, Architectures, LoggingConfig, Tracing, Tags, EventInvokeConfig, RuntimeManagementConfig json.RawMessage
	// Traffic is never shifted: all calls go to the latest version.
	AutoPublishAlias, VersionDescription                template.Text
	AutoPublishAliasAllProperties, DeploymentPreference json.RawMessage
	PublishToLatestPublished, VersionDeletionPolicy     json.RawMessage
}

type scheduleEvent struct {
	Schedule           string // in type Schedule
	ScheduleExpression string // in type ScheduleV2
	Name, Description  string
	Enabled            *template.Bool
	State              string

	RetryPolicy, FlexibleTimeWindow json.RawMessage
}

// shared contains the properties of a function that are not part of its versions.
var shared = []string{
	"ReservedConcurrentExecutions", "RecursiveLoop", "FunctionUrlConfig", "Events", "Policies", "Tags", "EventInvokeConfig",
	"RuntimeManagementConfig", "AutoPublishAlias", "AutoPublishAliasAllProperties", "VersionDescription", "DeploymentPreference",
}

// described is a function as the template describes it.
type described struct {
	functionProperties
	cfg    lambda.Config // without its limit
	policy access.Policy
	// version and fixed are JSON. version contains the properties that belong to a version, and fixed the properties that
	// an update cannot change here.
	version, fixed []byte
}

func (s *scope) describe(r *template.Resource) (described, error) {
	var d described
	if err := s.tpl.Properties(r, s, &d.functionProperties); err != nil {
		return d, err
	}
	p, st := &d.functionProperties, s.stack
	if p.Runtime != "provided.al2023" && p.Runtime != "provided.al2" {
		return d, fmt.Errorf("resource %s: runtime %q is not supported, only provided.al2023", r.ID, p.Runtime)
	}
	name := cmp.Or(p.FunctionName, st.opts.Name+"-"+r.ID)
	owner, err := s.owner(r, p.Role)
	if err != nil {
		return d, err
	}
	env := st.opts.environment(owner, st.endpoints, st.invokeURL())
	for k, v := range p.Environment.Variables {
		env[k] = string(v)
		s.adopt(string(v))
	}
	d.cfg = lambda.Config{
		Name: name, ARN: fmt.Sprintf("arn:aws:lambda:%s:%s:function:%s", st.opts.Region, account, name),
		Binary: st.binary(p.CodeUri), Env: over(env, st.opts.Env),
		Memory: int(p.MemorySize), Timeout: time.Duration(p.Timeout) * time.Second,
		Grace: st.opts.Grace, Output: st.output, Log: st.opts.Log,
	}
	managed := st.opts.Managed[r.ID]
	if c := p.CapacityProviderConfig; c != nil {
		if p.MemorySize < leastManaged || p.ReservedConcurrentExecutions != nil || len(p.AutoPublishAlias) == 0 {
			return d, fmt.Errorf("resource %s: a function with a capacity provider needs an alias, MemorySize of at least %d, and no reservation", r.ID, leastManaged)
		}
		managed = Managed{Instances: int(p.FunctionScalingConfig.MinExecutionEnvironments), AtOnce: int(c.PerExecutionEnvironmentMaxConcurrency)}
		d.cfg.Limit = lambda.NewLimit(int(p.FunctionScalingConfig.MaxExecutionEnvironments) * managed.AtOnce)
	}
	if managed.AtOnce > 0 {
		d.cfg.Env[lambda.MaxConcurrency], d.cfg.Instances = strconv.Itoa(managed.AtOnce), managed.Instances
	}
	switch p.RecursiveLoop {
	case "", "Terminate", "Allow":
		d.cfg.AllowLoops = st.opts.AllowLoops || p.RecursiveLoop == "Allow"
	default:
		return d, fmt.Errorf("resource %s: RecursiveLoop %q is not allowed (allowed: Allow, Terminate)", r.ID, p.RecursiveLoop)
	}
	streams := p.FunctionUrlConfig != nil && p.FunctionUrlConfig.InvokeMode == furl.Stream
	if st.opts.Visibility > 0 && !streams && len(p.Events) == 0 {
		d.cfg.Timeout = min(d.cfg.Timeout, st.opts.Visibility/2)
	}
	if limit := st.opts.Timeouts[r.ID]; limit > 0 {
		d.cfg.Timeout = limit
	}
	if d.policy, err = access.Parse(p.Policies); err != nil {
		return d, fmt.Errorf("resource %s: %w", r.ID, err)
	}
	var all map[string]json.RawMessage
	if err := s.tpl.Properties(r, s, &all); err != nil {
		return d, err
	}
	maps.DeleteFunc(all, func(k string, _ json.RawMessage) bool { return slices.Contains(shared, k) })
	if d.version, err = json.Marshal(all); err != nil {
		return d, err
	}
	d.fixed, err = json.Marshal([]any{p.FunctionName, p.CodeUri, p.FunctionUrlConfig, p.Events, p.AutoPublishAlias, p.Role, p.CapacityProviderConfig != nil})
	return d, err
}

// leastManaged is the least memory in MB of a function on managed instances.
const leastManaged = 2048

// owner returns the logical id of the function whose policies a function has. Without a role, this is the function itself. A
// role is the one that SAM creates for another function.
func (s *scope) owner(r *template.Resource, role string) (string, error) {
	if role == "" {
		return r.ID, nil
	}
	_, name, _ := strings.Cut(role, ":role/"+s.stack.opts.Name+"-")
	owner, ok := strings.CutSuffix(name, "Role")
	if !ok || !s.isFunction(owner) {
		return "", fmt.Errorf("resource %s: role %q is not supported, only that of another function", r.ID, role)
	}
	_, err := s.make(owner)
	return owner, err
}

// adopt registers another stack's table with the gate if value is its ARN. If the table does not exist, the gate
// continues to refuse requests to it.
func (s *scope) adopt(value string) {
	if _, name, ok := strings.Cut(value, ":table/"); ok && strings.HasPrefix(value, "arn:") {
		if keys, err := resource.TableKeys(s.ctx, s.clients, name); err == nil {
			s.stack.gate.know(name, tableName{arn: value, keys: keys})
		}
	}
}

// function creates a function and records what must run with it.
func (s *scope) function(r *template.Resource) (*made, error) {
	d, err := s.describe(r)
	if err != nil {
		return nil, err
	}
	st := s.stack
	fn := &function{id: r.ID, fixed: d.fixed, versions: 1, description: string(d.VersionDescription), published: d.version}
	if st.running != nil && len(d.Events) > 0 {
		return nil, fmt.Errorf("resource %s: an update cannot add a function with events here", r.ID)
	}
	if fn.limit = d.cfg.Limit; fn.limit == nil {
		if err := fn.reserve(st.unreserved, d.ReservedConcurrentExecutions); err != nil {
			return nil, fmt.Errorf("resource %s: %w", r.ID, err)
		}
		d.cfg.Limit = fn.limit
	}
	fn.Function = lambda.New(d.cfg)
	st.gate.grant(r.ID, d.policy)
	st.mu.Lock()
	st.functions = append(slices.Clone(st.functions), fn)
	st.mu.Unlock()
	m := &made{ref: d.cfg.Name, attributes: map[string]string{"Arn": d.cfg.ARN}, remove: func(ctx context.Context) error { return st.remove(ctx, fn) }}
	if u := d.FunctionUrlConfig; u != nil {
		if u.AuthType != "NONE" {
			return nil, fmt.Errorf("resource %s: Function URLs of AuthType %q are not supported, only NONE", r.ID, u.AuthType)
		}
		url, err := st.serveURL(fn, furl.Handler{Function: fn, Mode: cmp.Or(u.InvokeMode, furl.Buffered), Log: st.opts.Log})
		if err != nil {
			return nil, err
		}
		m.attributes["FunctionUrl"] = url
	}
	for event, e := range d.Events {
		if err := s.event(fn, r, event, e.Type, e.Properties); err != nil {
			return nil, fmt.Errorf("resource %s: event %s: %w", r.ID, event, err)
		}
	}
	return m, nil
}

// configure changes a function. It publishes a version if the version's description has changed. A function that is
// called through its alias keeps the configuration of its last version until then.
func (s *scope) configure(r *template.Resource, before *made) (*made, error) {
	d, err := s.describe(r)
	if err != nil {
		return nil, err
	}
	fn := s.stack.function(r.ID)
	if !bytes.Equal(d.fixed, fn.fixed) {
		return nil, errors.New("an update cannot change the name, code, URL, events or alias of a function here")
	}
	changed, publish := !bytes.Equal(d.version, fn.published), string(d.VersionDescription) != fn.description
	if len(d.AutoPublishAlias) == 0 {
		publish = changed
	} else if publish && !changed {
		return nil, fmt.Errorf("CREATE_FAILED: A version for this Lambda function exists ( %d ). Modify the function to create a new version", fn.versions)
	}
	if d.cfg.Limit != nil {
		fn.limit = d.cfg.Limit
	} else if err := fn.reserve(s.stack.unreserved, d.ReservedConcurrentExecutions); err != nil {
		return nil, err
	}
	s.stack.gate.grant(r.ID, d.policy)
	fn.Govern(fn.limit, d.cfg.AllowLoops)
	if publish {
		s.stack.progress("update %s", d.cfg.Name)
		fn.Configure(d.cfg)
		fn.versions, fn.description, fn.published = fn.versions+1, string(d.VersionDescription), d.version
	}
	return &made{ref: before.ref, attributes: before.attributes, remove: before.remove}, nil
}

// remove ends a function that has left the stack, and its URL.
func (s *Stack) remove(ctx context.Context, fn *function) error {
	s.progress("remove %s", fn.Name())
	s.mu.Lock()
	s.functions = slices.DeleteFunc(slices.Clone(s.functions), func(f *function) bool { return f == fn })
	delete(s.urls, fn.id)
	delete(s.handlers, fn.id)
	s.mu.Unlock()
	fn.Close()
	if fn.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	if fn.server.Shutdown(ctx) != nil {
		return fn.server.Close()
	}
	return nil
}

// reserve gives the function its own limit. If n is nil, the function shares the limit of the functions without a
// reservation.
func (f *function) reserve(unreserved *lambda.Limit, n *template.Int) error {
	if f.limit != nil && (n == nil) == (f.reserved == nil) && (n == nil || *n == *f.reserved) {
		return nil
	}
	if f.reserved != nil {
		unreserved.Unreserve(int(*f.reserved))
	}
	limit := unreserved
	if n != nil {
		if err := unreserved.Reserve(int(*n)); err != nil {
			if f.reserved != nil {
				_ = unreserved.Reserve(int(*f.reserved)) // it was available a moment ago
			}
			return err
		}
		limit = lambda.NewLimit(int(*n))
	}
	f.reserved, f.limit = n, limit
	return nil
}

// event records a trigger of a function. It starts when the stack is complete.
func (s *scope) event(fn *function, r *template.Resource, event, kind string, properties json.RawMessage) error {
	switch kind {
	case "SQS":
		// SAM would allow the function to read every queue of the account.
		return errors.New("type SQS is not supported, only AWS::Lambda::EventSourceMapping with permissions of the function's own")
	case "Schedule", "ScheduleV2":
		var e scheduleEvent
		if err := strict(properties, &e); err != nil {
			return err
		}
		if e.Enabled != nil && !bool(*e.Enabled) || e.State == "DISABLED" {
			return nil
		}
		every, err := schedule.Parse(e.Schedule + e.ScheduleExpression)
		if err != nil {
			return err
		}
		s.stack.schedules = append(s.stack.schedules, scheduled{
			fn: fn, every: max(time.Duration(float64(every)/s.stack.opts.Speed), time.Millisecond),
			rule: fmt.Sprintf("arn:aws:events:%s:%s:rule/%s-%s", s.stack.opts.Region, account, r.ID, event),
		})
	default:
		return fmt.Errorf("type %q is not supported", kind)
	}
	return nil
}

// binary returns the path of the executable for a CodeUri.
func (s *Stack) binary(codeURI string) string {
	if path, ok := s.opts.Binaries[codeURI]; ok {
		return path
	}
	return filepath.Join(s.dir, strings.ReplaceAll(filepath.Clean(codeURI), string(filepath.Separator), "-"))
}

// parallelBuilds is the number of concurrent compilations. Each uses several threads.
const parallelBuilds = 2

// build compiles the functions as the deployment does, but for this machine and without trimming source paths, so
// that the build cache can be used.
func (s *Stack) build(ctx context.Context, sc *scope) error {
	var todo []string
	for _, r := range s.tpl.Resources() {
		if r.Type != functionType {
			continue
		}
		uri, err := s.tpl.Text(r, "CodeUri", sc)
		if err != nil {
			return err
		}
		if _, ok := s.opts.Binaries[uri]; !ok && !slices.Contains(todo, uri) {
			todo = append(todo, uri)
		}
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		fault error
		done  int
	)
	slots := make(chan struct{}, parallelBuilds)
	for _, uri := range todo {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			start := time.Now()
			size, err := s.compile(ctx, uri)
			mu.Lock()
			defer mu.Unlock()
			done++
			switch {
			case err == nil:
				s.progress("built  %s (%d of %d, %.1f MB, %.1f s)", uri, done, len(todo), float64(size)/1e6, time.Since(start).Seconds())
			case fault == nil:
				fault = err
			}
		})
	}
	wg.Wait()
	return fault
}

func (s *Stack) compile(ctx context.Context, uri string) (size int64, err error) {
	dir, err := filepath.Abs(filepath.Join(filepath.Dir(s.opts.Template), filepath.FromSlash(uri)))
	if err != nil {
		return 0, err
	}
	out := s.binary(uri)
	args := []string{"build", "-tags", "lambda.norpc", "-o", out}
	cgo := "CGO_ENABLED=0"
	if s.opts.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	} else {
		args = append(args, "-ldflags", "-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), cgo)
	if b, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build %s: %w\n%s", uri, err, b)
	}
	info, err := os.Stat(out)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
