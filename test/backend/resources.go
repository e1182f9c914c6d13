package backend

import (
	"context"
	"encoding/json"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func (f *fixtures) addResources() {
	f.server.AddResource(&mcp.Resource{
		URI: "test://static-text", Name: "static-text", Description: "A text.", MIMEType: "text/plain",
	}, read(&mcp.ResourceContents{MIMEType: "text/plain", Text: "A text that does not change."}))
	f.server.AddResource(&mcp.Resource{
		URI: "test://static-binary", Name: "static-binary", Description: "An image.", MIMEType: "image/png",
	}, read(&mcp.ResourceContents{MIMEType: "image/png", Blob: onePixel()}))
	f.server.AddResource(&mcp.Resource{
		URI: "test://watched-resource", Name: "watched-resource", Description: "Can be subscribed to.", MIMEType: "text/plain",
	}, read(&mcp.ResourceContents{MIMEType: "text/plain", Text: "A text that may change."}))
	f.server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: "test://template/{id}/data", Name: "template", Description: "Data of an id.", MIMEType: "application/json",
	}, readTemplate)
}

func (f *fixtures) changeResources() {
	f.server.AddResource(&mcp.Resource{
		URI: "test://added", Name: "added", Description: "Was added while the server ran.", MIMEType: "text/plain",
	}, read(&mcp.ResourceContents{MIMEType: "text/plain", Text: "Added."}))
}

func read(contents *mcp.ResourceContents) mcp.ResourceHandler {
	return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		c := *contents
		c.URI = req.Params.URI
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&c}}, nil
	}
}

var dataURI = regexp.MustCompile(`^test://template/([^/]+)/data$`)

func readTemplate(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	m := dataURI.FindStringSubmatch(req.Params.URI)
	if m == nil {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	b, err := json.Marshal(map[string]any{"id": m[1], "templateTest": true, "data": "data of " + m[1]})
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{
		{URI: req.Params.URI, MIMEType: "application/json", Text: string(b)},
	}}, nil
}

// The SDK keeps who is subscribed; any URI may be.
func subscribe(context.Context, *mcp.SubscribeRequest) error     { return nil }
func unsubscribe(context.Context, *mcp.UnsubscribeRequest) error { return nil }
