//lint:file-ignore SA1019 sampling, roots and logging are deprecated since 2026-07-28 and still have to be relayed

package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// call is a request that may put questions to the client: tools/call or prompts/get.
type call struct {
	context.Context
	f       *fixtures
	session *mcp.ServerSession
	name    string
	caps    *mcp.ClientCapabilities
	known   mcp.InputResponseMap // answers of this round and of those before
	resumed bool                 // the request carries our state
}

// begin takes up a request where its last round ended.
func (f *fixtures) begin(ctx context.Context, session *mcp.ServerSession, name string, caps *mcp.ClientCapabilities, answers mcp.InputResponseMap, state string) (*call, error) {
	c := &call{Context: ctx, f: f, session: session, name: name, caps: caps, known: mcp.InputResponseMap{}}
	if c.caps == nil {
		c.caps = &mcp.ClientCapabilities{}
	}
	if state != "" {
		p, err := f.open(name, state)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
		c.resumed = true
		maps.Copy(c.known, p.Answers)
	}
	maps.Copy(c.known, answers)
	return c, nil
}

// pending is the error of a question that the stateless server hands to the
// client as the result of the request.
type pending struct {
	questions mcp.InputRequestMap
	state     string
}

func (p *pending) Error() string { return "input is required" }

// ask puts questions. In a session each goes out as a request. Without one they
// become the answer to the request, unless the client has sent it again with all answers.
func (c *call) ask(questions mcp.InputRequestMap) (mcp.InputResponseMap, error) {
	if err := c.can(questions); err != nil {
		return nil, err
	}
	if !c.f.stateless {
		return c.send(questions)
	}
	p := &pending{questions: mcp.InputRequestMap{}}
	answered := progress{Tool: c.name, Answers: mcp.InputResponseMap{}}
	maps.Copy(answered.Answers, c.known)
	for key, q := range questions {
		if !fits(q, c.known[key]) {
			p.questions[key] = q
			delete(answered.Answers, key)
		}
	}
	if len(p.questions) == 0 {
		return c.known, nil
	}
	var err error
	if p.state, err = c.f.seal(answered); err != nil {
		return nil, err
	}
	return nil, p
}

// send asks all questions concurrently.
func (c *call) send(questions mcp.InputRequestMap) (mcp.InputResponseMap, error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers = mcp.InputResponseMap{}
		failed  []error
	)
	for key, question := range questions {
		wg.Go(func() {
			answer, err := c.put(question)
			mu.Lock()
			defer mu.Unlock()
			if answers[key] = answer; err != nil {
				failed = append(failed, fmt.Errorf("asking for %s: %w", key, err))
			}
		})
	}
	wg.Wait()
	return answers, errors.Join(failed...)
}

// put puts one question to the session.
func (c *call) put(question mcp.InputRequest) (mcp.InputResponse, error) {
	switch q := question.(type) {
	case *mcp.ElicitParams:
		return c.session.Elicit(c, q)
	case *mcp.CreateMessageWithToolsParams:
		return c.session.CreateMessageWithTools(c, q)
	case *mcp.ListRootsParams:
		return c.session.ListRoots(c, q)
	}
	return nil, fmt.Errorf("no client is asked %T", question)
}

// can refuses questions for which the client declared no capability.
func (c *call) can(questions mcp.InputRequestMap) error {
	missing := &mcp.ClientCapabilities{}
	lacks := false
	for _, q := range questions {
		switch q.(type) {
		case *mcp.ElicitParams:
			if c.caps.Elicitation == nil {
				missing.Elicitation, lacks = &mcp.ElicitationCapabilities{}, true
			}
		case *mcp.CreateMessageWithToolsParams:
			if c.caps.Sampling == nil {
				missing.Sampling, lacks = &mcp.SamplingCapabilities{}, true
			}
		case *mcp.ListRootsParams:
			if !c.roots() {
				missing.RootsV2, lacks = &mcp.RootCapabilities{}, true
			}
		}
	}
	if !lacks {
		return nil
	}
	return c.missing(missing)
}

func (c *call) roots() bool { return c.caps.RootsV2 != nil || c.caps.Roots.ListChanged }

// missing returns the error about a capability that the client lacks. Up to revision 2025-11-25 it has no code of its own.
func (c *call) missing(caps *mcp.ClientCapabilities) error {
	if !c.f.stateless {
		return fmt.Errorf("the client did not declare a capability that %s needs", c.name)
	}
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{RequiredCapabilities: caps})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{
		Code:    mcp.CodeMissingRequiredClientCapabilities,
		Message: "a capability of the client is missing",
		Data:    data,
	}
}

// fits reports whether an answer is one to the question.
func fits(q mcp.InputRequest, a mcp.InputResponse) bool {
	switch q := q.(type) {
	case *mcp.ElicitParams:
		a, ok := a.(*mcp.ElicitResult)
		return ok && (a.Action != "accept" || has(a.Content, required(q)))
	case *mcp.CreateMessageWithToolsParams:
		_, ok := a.(*mcp.CreateMessageWithToolsResult)
		return ok
	case *mcp.ListRootsParams:
		_, ok := a.(*mcp.ListRootsResult)
		return ok
	}
	return false
}

func required(q *mcp.ElicitParams) []string {
	var schema struct{ Required []string }
	if raw, ok := q.RequestedSchema.(json.RawMessage); ok {
		_ = json.Unmarshal(raw, &schema)
	}
	return schema.Required
}

func has(content map[string]any, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, ok := content[name]; return !ok })
}

// form returns a question to the user. schema is a JSON Schema.
func form(message, schema string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: message, RequestedSchema: json.RawMessage(schema)}
}

// prompt returns a question to the client's model.
func prompt(text string, maxTokens int64) *mcp.CreateMessageWithToolsParams {
	return &mcp.CreateMessageWithToolsParams{
		MaxTokens: maxTokens,
		Messages:  []*mcp.SamplingMessageV2{{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: text}}}},
	}
}

// elicit asks the user one question.
func (c *call) elicit(key, message, schema string) (*mcp.ElicitResult, error) {
	answers, err := c.ask(mcp.InputRequestMap{key: form(message, schema)})
	if err != nil {
		return nil, err
	}
	return answers[key].(*mcp.ElicitResult), nil
}

// sample asks the model one question and returns the text of its answer.
func (c *call) sample(key, text string, maxTokens int64) (string, error) {
	answers, err := c.ask(mcp.InputRequestMap{key: prompt(text, maxTokens)})
	if err != nil {
		return "", err
	}
	return said(answers[key]), nil
}

func said(a mcp.InputResponse) string {
	for _, part := range a.(*mcp.CreateMessageWithToolsResult).Content {
		if text, ok := part.(*mcp.TextContent); ok {
			return text.Text
		}
	}
	return ""
}
