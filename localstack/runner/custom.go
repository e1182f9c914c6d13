package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

func isCustom(kind string) bool {
	return kind == "AWS::CloudFormation::CustomResource" || strings.HasPrefix(kind, "Custom::")
}

// callback is the report of a custom resource.
type callback struct {
	Status             cfn.StatusType
	Reason             string
	PhysicalResourceId string //nolint:revive // CloudFormation's name
	Data               map[string]any
}

// callbacks are the expected reports, by an unguessable token.
type callbacks struct {
	mu      sync.Mutex
	waiting map[string]chan callback
}

func (c *callbacks) expect() (token string, report <-chan callback, cancel func()) {
	token, ch := uuid.NewString(), make(chan callback, 1)
	c.mu.Lock()
	c.waiting[token] = ch
	c.mu.Unlock()
	return token, ch, func() {
		c.mu.Lock()
		delete(c.waiting, token)
		c.mu.Unlock()
	}
}

// serve accepts a report. Only the first one for a token counts.
func (c *callbacks) serve(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	var report callback
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if err != nil {
		http.Error(w, "this is no response of a custom resource", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	ch := c.waiting[r.PathValue("token")]
	delete(c.waiting, r.PathValue("token"))
	c.mu.Unlock()
	if ch == nil {
		http.NotFound(w, r)
		return
	}
	ch <- report
}

// custom invokes the function of a custom resource. It sends an Update if this stack has created the resource.
// Otherwise it sends a Create, i.e. at every start, because the runner does not know what it created earlier. Like
// CloudFormation, a rollback sends a Delete even if the Create failed.
func (s *scope) custom(r *template.Resource, before *made) (*made, error) {
	st := s.stack
	event := cfn.Event{
		RequestType: cfn.RequestCreate, RequestID: uuid.NewString(), ResourceType: r.Type, LogicalResourceID: r.ID, StackID: st.id(),
	}
	if err := s.tpl.Properties(r, s, &event.ResourceProperties); err != nil {
		return nil, err
	}
	if before != nil {
		event.RequestType, event.PhysicalResourceID = cfn.RequestUpdate, before.ref
		if err := json.Unmarshal(before.properties, &event.OldResourceProperties); err != nil {
			return nil, err
		}
	}
	m, err := s.sendEvent(s.ctx, r, event)
	event.RequestType, event.PhysicalResourceID, event.OldResourceProperties = cfn.RequestDelete, m.ref, nil
	m.remove = func(ctx context.Context) error {
		_, err := s.sendEvent(ctx, r, event)
		return err
	}
	if err != nil && before == nil {
		s.created = append(s.created, created{m, r.ID})
	}
	return m, err
}

// sendEvent sends a request to the function of a custom resource and returns the resource that it reports, which has an id
// even if the request failed.
func (s *scope) sendEvent(ctx context.Context, r *template.Resource, event cfn.Event) (*made, error) {
	st, m := s.stack, &made{ref: event.LogicalResourceID, attributes: map[string]string{}}
	target, _ := event.ResourceProperties["ServiceToken"].(string)
	fn := st.functionByName(target)
	if fn == nil {
		return m, errors.New("its ServiceToken is no function of the template")
	}
	st.progress("custom %s by %s", r.ID, fn.id)
	token, report, cancel := st.callbacks.expect()
	defer cancel()
	event.ResponseURL = st.invokeURL() + "/cloudformation/" + token
	payload, err := json.Marshal(event)
	if err != nil {
		return m, err
	}
	resp, err := fn.Invoke(ctx, lambda.Invocation{Payload: payload})
	if err != nil {
		return m, err
	}
	answer, err := resp.ReadAll()
	if err == nil && resp.FunctionError != "" {
		err = fmt.Errorf("%s failed: %s", fn.id, answer)
	}
	select {
	case got := <-report: // even if the function reported a failure and then failed
		m.ref = cmp.Or(got.PhysicalResourceId, m.ref)
		if got.Status != cfn.StatusSuccess {
			return m, fmt.Errorf("%s: %s", got.Status, got.Reason)
		}
		for k, v := range got.Data {
			m.attributes[k] = fmt.Sprint(v)
		}
		return m, nil
	default:
	}
	if err != nil {
		return m, err
	}
	return m, fmt.Errorf("%s ended without a report to the ResponseURL", fn.id)
}
