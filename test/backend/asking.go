//lint:file-ignore SA1019 sampling and roots are deprecated since 2026-07-28 and still have to be relayed

package backend

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// asking returns the tools that ask the client for something. Each revision's suite calls its own tools, and both backends
// have all of them, so that a suite can run against a backend of the other revision.
func asking() []tool {
	return []tool{
		{name: "test_sampling", description: "Asks the client's model.", schema: stringArgument("prompt"), run: askModel},
		{name: "test_elicitation", description: "Asks the user for a name and an address.", schema: stringArgument("message"), run: askUser},
		{name: "test_elicitation_sep1034_defaults", description: "Asks the user with a default for each type.", run: askForm("Is this right?", withDefaults)},
		{name: "test_elicitation_sep1330_enums", description: "Asks the user to choose, in each form that a choice has.", run: askForm("Choose.", choices)},
		{name: "test_missing_capability", description: "Needs a client that can sample.", run: needSampling},
		{name: "test_streaming_elicitation", description: "Tells progress, then asks the user.", run: progressThenAsk},

		{name: "test_input_required_result_elicitation", description: "Asks the user for a name.", run: askName},
		{name: "test_input_required_result_sampling", description: "Asks the client's model for a capital.", run: askCapital},
		{name: "test_input_required_result_list_roots", description: "Asks the client for its roots.", run: askRoots},
		{name: "test_input_required_result_request_state", description: "Asks the user, and wants its state back.", run: askWithState},
		{name: "test_input_required_result_tampered_state", description: "Asks the user, and wants its state back untouched.", run: askWithState},
		{name: "test_input_required_result_multiple_inputs", description: "Asks the user, the model and the client at once.", run: askAll},
		{name: "test_input_required_result_multi_round", description: "Asks the user twice.", run: askTwice},
		{name: "test_input_required_result_capabilities", description: "Asks whom it can.", run: askWhoCan},
	}
}

func stringArgument(name string) string {
	return fmt.Sprintf(`{"type":"object","properties":{%[1]q:{"type":"string"}},"required":[%[1]q]}`, name)
}

// argument returns a string argument.
func argument(req *mcp.CallToolRequest, name string) (string, error) {
	var args map[string]any
	if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
		return "", err
	}
	s, ok := args[name].(string)
	if !ok {
		return "", fmt.Errorf("the argument %s is missing", name)
	}
	return s, nil
}

const (
	aName        = `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`
	aColour      = `{"type":"object","properties":{"color":{"type":"string"}},"required":["color"]}`
	aContext     = `{"type":"object","properties":{"context":{"type":"string"}},"required":["context"]}`
	confirmation = `{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`
	nameAndMail  = `{"type":"object","properties":{"username":{"type":"string"},"email":{"type":"string"}},"required":["username","email"]}`
	withDefaults = `{"type":"object","properties":{
		"name":{"type":"string","default":"John Doe"},
		"age":{"type":"integer","default":30},
		"score":{"type":"number","default":95.5},
		"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},
		"verified":{"type":"boolean","default":true}
	}}`
	choices = `{"type":"object","properties":{
		"untitledSingle":{"type":"string","enum":["option1","option2"]},
		"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"One"},{"const":"value2","title":"Two"}]},
		"legacyEnum":{"type":"string","enum":["opt1","opt2"],"enumNames":["One","Two"]},
		"untitledMulti":{"type":"array","items":{"type":"string","enum":["option1","option2"]}},
		"titledMulti":{"type":"array","items":{"anyOf":[{"const":"value1","title":"One"},{"const":"value2","title":"Two"}]}}
	}}`
)

func askModel(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	question, err := argument(req, "prompt")
	if err != nil {
		return nil, err
	}
	answer, err := c.sample("answer", question, 100)
	return text("the model said: %s", answer), err
}

func askUser(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	message, err := argument(req, "message")
	if err != nil {
		return nil, err
	}
	return told(c.elicit("user", message, nameAndMail))
}

func askForm(message, schema string) func(*call, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return func(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return told(c.elicit("form", message, schema))
	}
}

// told returns a result that repeats the user's answer.
func told(a *mcp.ElicitResult, err error) (*mcp.CallToolResult, error) {
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(a.Content)
	return text("action=%s, content=%s", a.Action, b), err
}

func needSampling(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if c.caps.Sampling == nil {
		return nil, c.missing(&mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}})
	}
	return text("the client can sample"), nil
}

func progressThenAsk(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if token := req.Params.GetProgressToken(); token != nil && !c.resumed {
		if err := c.session.NotifyProgress(c, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1, Total: 2}); err != nil {
			return nil, err
		}
	}
	return told(c.elicit("confirm", "Go on?", confirmation))
}

func askName(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := c.elicit("user_name", "What is your name?", aName)
	if err != nil {
		return nil, err
	}
	if a.Action != "accept" {
		return text("no name: %s", a.Action), nil
	}
	return text("Hello, %v!", a.Content["name"]), nil
}

func askCapital(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	answer, err := c.sample("capital_question", "What is the capital of France?", 100)
	return text("%s", answer), err
}

func askRoots(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	answers, err := c.ask(mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}})
	if err != nil {
		return nil, err
	}
	var uris []string
	for _, root := range answers["client_roots"].(*mcp.ListRootsResult).Roots {
		uris = append(uris, root.URI)
	}
	return text("%d roots: %v", len(uris), uris), nil
}

func askWithState(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if c.f.stateless && !c.resumed {
		clear(c.known) // answers without the state that belongs to them
	}
	a, err := c.elicit("confirm", "Please confirm.", confirmation)
	if err != nil {
		return nil, err
	}
	return text("state-ok, the user: %s", a.Action), nil
}

func askAll(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	answers, err := c.ask(mcp.InputRequestMap{
		"user_name":    form("What is your name?", aName),
		"greeting":     prompt("Greet somebody.", 50),
		"client_roots": &mcp.ListRootsParams{},
	})
	if err != nil {
		return nil, err
	}
	return text("%s, %v, %d roots", said(answers["greeting"]), answers["user_name"].(*mcp.ElicitResult).Content["name"],
		len(answers["client_roots"].(*mcp.ListRootsResult).Roots)), nil
}

func askTwice(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	name, err := c.elicit("step1", "What is your name?", aName)
	if err != nil {
		return nil, err
	}
	colour, err := c.elicit("step2", "What colour do you like?", aColour)
	if err != nil {
		return nil, err
	}
	return text("%v likes %v", name.Content["name"], colour.Content["color"]), nil
}

// askWhoCan asks whom the client's capabilities let it ask.
func askWhoCan(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	questions := mcp.InputRequestMap{}
	if c.caps.Elicitation != nil {
		questions["user"] = form("What is your name?", aName)
	}
	if c.caps.Sampling != nil {
		questions["model"] = prompt("Greet somebody.", 50)
	}
	if c.roots() {
		questions["roots"] = &mcp.ListRootsParams{}
	}
	if len(questions) == 0 {
		return nil, errors.New("there is no client to ask")
	}
	answers, err := c.ask(questions)
	return text("%d answers", len(answers)), err
}
