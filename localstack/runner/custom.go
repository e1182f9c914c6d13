package runner

import (
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

// callback is what a custom resource reports.
type callback struct {
	Status             cfn.StatusType
	Reason             string
	PhysicalResourceId string //nolint:revive // CloudFormation's name
	Data               map[string]any
}

// callbacks are the reports that are waited for, by an unguessable token.
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

// serve takes a report, the first one for its token.
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

// createCustom invokes the function of a custom resource with a Create, at every
// start: the runner does not know what it created before.
func (s *Stack) createCustom(ctx context.Context, sc *scope, r *template.Resource) error {
	var properties map[string]any
	if err := sc.tpl.Properties(r, sc, &properties); err != nil {
		return err
	}
	target, _ := properties["ServiceToken"].(string)
	fn := s.functionByName(target)
	if fn == nil {
		return errors.New("its ServiceToken is no function of the template")
	}
	s.progress("custom %s by %s", r.ID, fn.id)
	token, report, cancel := s.callbacks.expect()
	defer cancel()
	payload, err := json.Marshal(cfn.Event{
		RequestType: cfn.RequestCreate, RequestID: uuid.NewString(), ResponseURL: s.invokeURL() + "/cloudformation/" + token,
		ResourceType: r.Type, LogicalResourceID: r.ID, StackID: s.id(), ResourceProperties: properties,
	})
	if err != nil {
		return err
	}
	resp, err := fn.Invoke(ctx, lambda.Invocation{Payload: payload})
	if err != nil {
		return err
	}
	answer, err := resp.ReadAll()
	if err == nil && resp.FunctionError != "" {
		err = fmt.Errorf("%s failed: %s", fn.id, answer)
	}
	select {
	case got := <-report: // also of a function that reported a failure and then failed
		if got.Status != cfn.StatusSuccess {
			return fmt.Errorf("%s: %s", got.Status, got.Reason)
		}
		m := &made{ref: got.PhysicalResourceId, attributes: map[string]string{}}
		for k, v := range got.Data {
			m.attributes[k] = fmt.Sprint(v)
		}
		sc.made[r.ID] = m
		return nil
	default:
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s ended without a report to the ResponseURL", fn.id)
}
