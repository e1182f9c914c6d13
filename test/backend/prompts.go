package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func (f *fixtures) addPrompts() {
	f.server.AddPrompt(&mcp.Prompt{Name: "test_simple_prompt", Description: "A sentence."},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return messages(sentence), nil
		})
	f.server.AddPrompt(&mcp.Prompt{
		Name: "test_prompt_with_arguments", Description: "Repeats its arguments.",
		Arguments: []*mcp.PromptArgument{{Name: "arg1", Required: true}, {Name: "arg2", Required: true}},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		args := req.Params.Arguments
		return messages(&mcp.TextContent{Text: fmt.Sprintf("arg1='%s', arg2='%s'", args["arg1"], args["arg2"])}), nil
	})
	f.server.AddPrompt(&mcp.Prompt{
		Name: "test_prompt_with_embedded_resource", Description: "Brings a resource along.",
		Arguments: []*mcp.PromptArgument{{Name: "resourceUri", Required: true}},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return messages(embedded(req.Params.Arguments["resourceUri"]), sentence), nil
	})
	f.server.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_image", Description: "Brings an image along."},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return messages(picture, sentence), nil
		})
	f.server.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks the user for a context."}, f.promptWithContext)
}

// promptWithContext asks a question as tools do.
func (f *fixtures) promptWithContext(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	c, err := f.begin(ctx, req.Session, req.Params.Name, req.ClientCapabilities(), req.Params.InputResponses, req.Params.RequestState)
	if err != nil {
		return nil, err
	}
	a, err := c.elicit("user_context", "In which context?", aContext)
	var p *pending
	switch {
	case errors.As(err, &p):
		return &mcp.GetPromptResult{InputRequests: p.questions, RequestState: p.state}, nil
	case err != nil:
		return nil, err
	}
	return messages(&mcp.TextContent{Text: fmt.Sprintf("In the context of %v.", a.Content["context"])}), nil
}

func (f *fixtures) changePrompts() {
	f.server.AddPrompt(&mcp.Prompt{Name: "test_added", Description: "Was added while the server ran."},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return messages(sentence), nil
		})
}

func messages(parts ...mcp.Content) *mcp.GetPromptResult {
	r := &mcp.GetPromptResult{}
	for _, part := range parts {
		r.Messages = append(r.Messages, &mcp.PromptMessage{Role: "user", Content: part})
	}
	return r
}

// complete offers the towns that begin with the typed text.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	towns := slices.DeleteFunc([]string{"paris", "parma", "perth", "test"}, func(town string) bool {
		return !strings.HasPrefix(town, req.Params.Argument.Value)
	})
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: towns, Total: len(towns)}}, nil
}
