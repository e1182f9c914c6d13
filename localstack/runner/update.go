package runner

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// Statuses of a stack, with CloudFormation's names.
const (
	creating    = "CREATE_IN_PROGRESS"
	complete    = "UPDATE_COMPLETE"
	updating    = "UPDATE_IN_PROGRESS"
	rollingBack = "UPDATE_ROLLBACK_IN_PROGRESS"
)

// Update changes parameters of the running stack, as a deployment does. Parameters that are not given keep their
// values, so Update without any is a plain deployment. It does not touch resources whose properties have not changed.
// If a resource cannot be changed, Update reverts all changes and returns the reason.
//
// A function gets new processes when a version is published, for which the version's description must change. As on
// AWS, an update fails if a version has a new description but the function has not changed since its last version.
func (s *Stack) Update(ctx context.Context, parameters map[string]string) error {
	s.update.Lock()
	defer s.update.Unlock()
	if s.running.Err() != nil {
		return errors.New("local runner: the stack is closed")
	}
	wanted := over(s.opts.Parameters, parameters)
	if err := s.tpl.CheckParameters(wanted); err != nil {
		return fmt.Errorf("local runner: %w", err)
	}
	s.setStatus(updating)
	defer s.setStatus(complete)
	next := s.scope(ctx, wanted)
	outputs, err := next.makeAll()
	if err == nil {
		s.opts.Parameters = wanted
		if err := s.settle(next, outputs); err != nil {
			return fmt.Errorf("local runner: update: clean up: %w", err)
		}
		return nil
	}
	err = fmt.Errorf("local runner: update: %w", err)
	s.setStatus(rollingBack)
	changed := maps.Clone(s.resources)
	maps.Copy(changed, next.made)
	s.resources = changed
	back := s.scope(context.WithoutCancel(ctx), s.opts.Parameters)
	outputs, failed := back.makeAll()
	if failed == nil {
		failed = s.settle(back, outputs)
	}
	if failed != nil {
		return errors.Join(err, fmt.Errorf("roll back: %w", failed))
	}
	return err
}

func (s *Stack) setStatus(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *Stack) scope(ctx context.Context, parameters map[string]string) *scope {
	return &scope{
		ctx: ctx, stack: s, tpl: s.tpl, clients: s.opts.clients(s.endpoints), parameters: parameters, made: map[string]*made{},
	}
}

// makeAll creates the resources whose conditions hold and returns the outputs. It begins with the custom resources,
// so that an error of one names it rather than a resource that refers to it.
func (s *scope) makeAll() (outputs map[string]string, err error) {
	resources := s.tpl.Resources()
	slices.SortStableFunc(resources, func(a, b *template.Resource) int {
		switch custom := isCustom(a.Type); {
		case custom == isCustom(b.Type):
			return 0
		case custom:
			return -1
		}
		return 1
	})
	for _, r := range resources {
		included, err := s.tpl.Included(r, s)
		if err != nil {
			return nil, err
		}
		if old := s.stack.resources; old != nil && (old[r.ID] != nil) != included && r.Type == mappingType {
			return nil, fmt.Errorf("resource %s: an update cannot add or remove an %s here", r.ID, r.Type)
		}
		if !included {
			continue
		}
		if _, err := s.make(r.ID); err != nil {
			return nil, fmt.Errorf("resource %s: %w", r.ID, err)
		}
	}
	outputs = map[string]string{}
	for _, o := range s.tpl.Outputs() {
		v, ok, err := s.tpl.Output(o, s)
		if err != nil {
			return nil, fmt.Errorf("output %s: %w", o.Name, err)
		}
		if ok {
			outputs[o.Name] = v
		}
	}
	return outputs, nil
}

// settle replaces the stack's resources with the resources of a scope, and deletes the resources that are no longer used
// unless their policy is to retain them.
func (s *Stack) settle(sc *scope, outputs map[string]string) error {
	s.mu.Lock()
	s.outputs = outputs
	rolledBack := s.status == rollingBack
	s.mu.Unlock()
	gone := slices.Clone(sc.replaced)
	for id, old := range s.resources {
		policy := s.tpl.Resource(id).DeletionPolicy
		retained := strings.HasPrefix(policy, "Retain") && !(rolledBack && policy == template.RetainExceptOnCreate)
		if sc.made[id] == nil && !retained {
			gone = append(gone, old)
		}
	}
	s.resources = sc.made
	var failed error
	for _, old := range gone {
		if old.remove != nil {
			failed = errors.Join(failed, old.remove(sc.ctx))
		}
	}
	return failed
}

// deployedBefore reports whether a table of the stack exists.
func (s *scope) deployedBefore() bool {
	return slices.ContainsFunc(s.tpl.Resources(), func(r *template.Resource) bool {
		if r.Type != tableType {
			return false
		}
		_, err := resource.TableKeys(s.ctx, s.clients, s.stack.opts.Name+"-"+r.ID)
		return err == nil
	})
}

// undo deletes everything that a failed first deployment created, the newest first. Like CloudFormation, it keeps
// resources with the policy Retain.
func (s *scope) undo() error {
	ctx := context.WithoutCancel(s.ctx)
	var failed error
	for _, c := range slices.Backward(s.created) {
		if c.remove == nil || s.tpl.Resource(c.id).DeletionPolicy == "Retain" {
			continue
		}
		if err := c.remove(ctx); err != nil {
			failed = errors.Join(failed, fmt.Errorf("roll back: resource %s: %w", c.id, err))
		}
	}
	return failed
}

// name returns the physical name of the resource with a logical id. A fresh name must not find a resource that the
// stack has retained under the old name, so it ends with a number.
func (s *Stack) name(id string, fresh bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh {
		s.names[id]++
	}
	if n := s.names[id]; n > 1 {
		return fmt.Sprintf("%s-%s-%d", s.opts.Name, id, n)
	}
	return s.opts.Name + "-" + id
}

// describe serves CloudFormation's DescribeStacks and DescribeStackResource for this stack.
func (s *Stack) describe(w http.ResponseWriter, r *http.Request) {
	want := access.Request{Action: "cloudformation:DescribeStacks", Resource: s.id()}
	if app := application(r); s.function(app) != nil && !s.opts.Direct && !s.gate.allows(app, want) {
		s.gate.refuse(w, app, describe(want))
		return
	}
	if name := r.FormValue("StackName"); name != s.id() && name != s.opts.Name {
		http.Error(w, "only this stack is supported", http.StatusBadRequest)
		return
	}
	switch action := r.FormValue("Action"); action {
	case "DescribeStacks":
	case "DescribeStackResource":
		s.describeResource(w, r.FormValue("LogicalResourceId"))
		return
	default:
		http.Error(w, action+" is not supported", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	answer := struct {
		XMLName xml.Name `xml:"DescribeStacksResponse"`
		Status  string   `xml:"DescribeStacksResult>Stacks>member>StackStatus"`
	}{Status: s.status}
	s.mu.Unlock()
	_ = xml.NewEncoder(w).Encode(answer) // fails if the caller has disconnected
}

// describeResource writes the physical id of a resource.
func (s *Stack) describeResource(w http.ResponseWriter, id string) {
	s.update.Lock()
	defer s.update.Unlock()
	m := s.resources[id]
	if m == nil {
		http.Error(w, "there is no resource "+id, http.StatusBadRequest)
		return
	}
	_ = xml.NewEncoder(w).Encode(struct { // fails if the caller has disconnected
		XMLName  xml.Name `xml:"DescribeStackResourceResponse"`
		Logical  string   `xml:"DescribeStackResourceResult>StackResourceDetail>LogicalResourceId"`
		Physical string   `xml:"DescribeStackResourceResult>StackResourceDetail>PhysicalResourceId"`
	}{Logical: id, Physical: m.ref})
}
