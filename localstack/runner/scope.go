package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// scope creates the resources that the template's expressions refer to, each when it is first needed. This way it
// detects circular references, like CloudFormation.
type scope struct {
	ctx        context.Context
	stack      *Stack
	tpl        *template.Template
	clients    resource.Clients
	parameters map[string]string
	made       map[string]*made
	chain      []string // the resources that are being created, outermost first
	replaced   []*made  // resources that others have replaced
	created    []created
}

// created is a resource that did not exist before, with its logical id.
type created struct {
	*made
	id string
}

// made is an existing resource.
type made struct {
	ref        string
	attributes map[string]string
	// properties are the properties that it was created with, as JSON.
	properties []byte
	// remove deletes the resource. It is nil if there is nothing to delete.
	remove func(context.Context) error
}

// queue contains what mappings need to know about a queue.
type queue struct {
	url, arn   string
	deadARN    string // of its dead-letter queue, or empty if it does not have one
	fifo       bool
	visibility time.Duration
}

const tableType = "AWS::DynamoDB::Table"

// Types without an effect here: permissions are not checked, and logs go to the output.
var passive = []string{
	"AWS::Logs::LogGroup", "AWS::IAM::Role", "AWS::IAM::Policy", "AWS::IAM::ManagedPolicy",
	"AWS::Lambda::Permission", "AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard", "AWS::SNS::Topic", "AWS::Logs::MetricFilter",
}

// Ref implements [template.Scope]. SAM's Function.Alias refers to the function itself, because it has only one
// version here.
func (s *scope) Ref(id string) (string, error) {
	if owner, ok := strings.CutSuffix(id, ".Alias"); ok && s.isFunction(owner) {
		return s.Attr(owner, "Arn")
	}
	if r := s.tpl.Resource(id); r != nil && r.Type == "AWS::CloudWatch::Alarm" && len(s.chain) > 0 {
		return s.stack.opts.Name + "-" + id, nil // a deployment group, for which SAM creates a separate resource
	}
	m, err := s.make(id)
	if err != nil {
		return "", err
	}
	return m.ref, nil
}

// Attr implements [template.Scope]. It knows the resources that SAM generates by their names: the URL of a function
// is FunctionId + "Url", and its role FunctionId + "Role".
func (s *scope) Attr(id, attribute string) (string, error) {
	if s.tpl.Resource(id) == nil {
		if owner, ok := strings.CutSuffix(id, "Url"); ok && s.isFunction(owner) {
			id = owner
		} else if owner, ok := strings.CutSuffix(id, "Role"); ok && s.isFunction(owner) && attribute == "Arn" {
			return fmt.Sprintf("arn:aws:iam::%s:role/%s-%s", account, s.stack.opts.Name, id), nil
		}
	}
	m, err := s.make(id)
	if err != nil {
		return "", err
	}
	v, ok := m.attributes[attribute]
	if !ok {
		return "", fmt.Errorf("attribute %q is not supported", attribute)
	}
	return v, nil
}

func (s *scope) isFunction(id string) bool {
	r := s.tpl.Resource(id)
	return r != nil && r.Type == functionType
}

// Parameter implements [template.Scope].
func (s *scope) Parameter(name string) (string, bool) {
	v, ok := s.parameters[name]
	return v, ok
}

// Pseudo implements [template.Scope].
func (s *scope) Pseudo(name string) (string, bool) {
	v, ok := map[string]string{
		"AWS::AccountId": account,
		"AWS::Partition": "aws",
		"AWS::Region":    s.stack.opts.Region,
		"AWS::StackId":   s.stack.id(),
		"AWS::StackName": s.stack.opts.Name,
		"AWS::URLSuffix": "amazonaws.com",
	}[name]
	return v, ok
}

// make returns the resource, which it creates if necessary.
func (s *scope) make(id string) (*made, error) {
	if m := s.made[id]; m != nil {
		return m, nil
	}
	r := s.tpl.Resource(id)
	if r == nil {
		return nil, errors.New("there is no such resource")
	}
	if slices.Contains(s.chain, id) {
		return nil, fmt.Errorf("circular reference: %s", strings.Join(append(s.chain, id), " > "))
	}
	s.chain = append(s.chain, id)
	defer func() { s.chain = s.chain[:len(s.chain)-1] }()
	var properties json.RawMessage
	if err := s.tpl.Properties(r, s, &properties); err != nil {
		return nil, err
	}
	before := s.stack.resources[id]
	if before != nil && bytes.Equal(before.properties, properties) {
		s.made[id] = before
		return before, nil
	}
	m, err := s.create(r, before)
	if err != nil {
		return nil, err
	}
	m.properties = properties
	if before == nil {
		s.created = append(s.created, created{m, id})
	}
	if before != nil && before.ref != m.ref {
		s.replaced = append(s.replaced, before)
	}
	s.made[id] = m
	return m, nil
}

// create creates a resource, or changes the properties of the existing one.
func (s *scope) create(r *template.Resource, before *made) (*made, error) {
	name := s.stack.name(r.ID, before == nil)
	switch {
	case r.Type == functionType && before != nil:
		return s.configure(r, before)
	case r.Type == functionType:
		return s.function(r)
	case r.Type == mappingType:
		return s.mapping(r, name)
	case r.Type == tableType:
		var t resource.Table
		if err := s.tpl.Properties(r, s, &t); err != nil {
			return nil, err
		}
		name := cmp.Or(t.TableName, name)
		s.stack.progress("table  %s", name)
		arn, err := t.Create(s.ctx, s.clients, name)
		s.stack.gate.know(name, tableName{arn: arn, keys: t.Keys()})
		remove := func(ctx context.Context) error { return resource.DeleteTable(ctx, s.clients, name) }
		return &made{ref: name, attributes: map[string]string{"Arn": arn}, remove: remove}, err
	case r.Type == "AWS::SQS::Queue":
		return s.queue(r, name)
	case r.Type == "AWS::KMS::Key":
		var k resource.Key
		if err := s.tpl.Properties(r, s, &k); err != nil {
			return nil, err
		}
		s.stack.progress("key    %s", name)
		id, arn, err := k.Create(s.ctx, s.clients, name)
		remove := func(ctx context.Context) error { return resource.DeleteKey(ctx, s.clients, name, id) }
		return &made{ref: id, attributes: map[string]string{"Arn": arn, "KeyId": id}, remove: remove}, err
	case r.Type == "AWS::KMS::Alias":
		var a resource.Alias
		if err := s.tpl.Properties(r, s, &a); err != nil {
			return nil, err
		}
		remove := func(ctx context.Context) error { return a.Delete(ctx, s.clients) }
		return &made{ref: a.AliasName, remove: remove}, a.Create(s.ctx, s.clients)
	case slices.Contains(senders, r.Type):
		return s.sender(r, name)
	case r.Type == distributionType:
		return s.distribution(r, name)
	case r.Type == responseHeadersType:
		return s.responseHeaders(r, name)
	case isCustom(r.Type):
		return s.custom(r, before)
	case slices.Contains(passive, r.Type):
		// Evaluate it anyway, to find dangling references.
		var ignored map[string]any
		err := s.tpl.Properties(r, s, &ignored)
		arn := "arn:aws:local:" + s.stack.opts.Region + ":" + account + ":" + name
		return &made{ref: name, attributes: map[string]string{"Arn": arn}}, err
	}
	return nil, fmt.Errorf("resource type %s is not supported", r.Type)
}

func (s *scope) queue(r *template.Resource, name string) (*made, error) {
	var q resource.Queue
	if err := s.tpl.Properties(r, s, &q); err != nil {
		return nil, err
	}
	if q.FifoQueue {
		name += ".fifo"
	}
	name = cmp.Or(q.QueueName, name)
	if v := s.stack.opts.Visibility; v > 0 {
		seconds := template.Int(v / time.Second)
		q.VisibilityTimeout = &seconds
	}
	s.stack.progress("queue  %s", name)
	url, arn, err := q.Create(s.ctx, s.clients, name)
	if err != nil {
		return nil, err
	}
	s.stack.gate.mu.Lock()
	defer s.stack.gate.mu.Unlock()
	created := &queue{url: url, arn: arn, fifo: bool(q.FifoQueue), visibility: q.Visibility()}
	if q.RedrivePolicy != nil {
		created.deadARN = q.RedrivePolicy.DeadLetterTargetArn
	}
	s.stack.queues[r.ID] = created
	remove := func(ctx context.Context) error { return resource.DeleteQueue(ctx, s.clients, url) }
	return &made{ref: url, attributes: map[string]string{"Arn": arn, "QueueName": name, "QueueUrl": url}, remove: remove}, nil
}
