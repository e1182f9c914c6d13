//lint:file-ignore SA1019 logging is deprecated since 2026-07-28 and still has to be relayed

package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is a tool of the fixtures, with a name that the conformance suite calls.
type tool struct {
	name, description string
	schema            string // empty takes no arguments
	run               func(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)
}

const noArguments = `{"type":"object"}`

func tools() []tool {
	return append([]tool{
		{name: "test_simple_text", description: "Answers with a sentence.", run: content(sentence)},
		{name: "test_image_content", description: "Answers with an image.", run: content(picture)},
		{name: "test_audio_content", description: "Answers with a sound.", run: content(sound)},
		{name: "test_embedded_resource", description: "Answers with a resource.", run: content(embedded("test://embedded-resource"))},
		{name: "test_multiple_content_types", description: "Answers with text, an image and a resource.", run: content(sentence, picture, embedded("test://mixed-content-resource"))},
		{name: "test_error_handling", description: "Always fails.", run: fail},
		{name: "test_tool_with_progress", description: "Tells its progress in three steps.", run: tellProgress},
		{name: "test_tool_with_logging", description: "Logs three messages at level info.", run: logThrice},
		{name: "test_logging_tool", description: "Logs a message at level info.", run: logOnce},
		{name: "test_reconnection", description: "Ends its stream before it answers.", run: reconnect},
		{name: "test_trigger_tool_change", description: "Changes the list of tools.", run: changeTools},
		{name: "test_trigger_prompt_change", description: "Changes the list of prompts.", run: changePrompts},
		{name: "test_x_mcp_header", description: "Has an argument that is mirrored in a header.", schema: mirrored, run: echo},
		{name: "json_schema_2020_12_tool", description: "Has an input schema with many words of JSON Schema 2020-12.", schema: manyWords, run: echo},
		{name: "test_echo", description: "Answers with its arguments, byte for byte.", run: echo},
		{name: "test_wait", description: "Answers after some milliseconds, or never when there are none given.", schema: waitSchema, run: wait},
	}, asking()...)
}

// add registers a tool. An error of a tool is its result, unless it is one of the protocol.
func (f *fixtures) add(t tool) {
	schema := t.schema
	if schema == "" {
		schema = noArguments
	}
	f.server.AddTool(&mcp.Tool{Name: t.name, Description: t.description, InputSchema: json.RawMessage(schema)},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			c, err := f.begin(ctx, req.Session, t.name, req.ClientCapabilities(), req.Params.InputResponses, req.Params.RequestState)
			if err != nil {
				return nil, err
			}
			result, err := t.run(c, req)
			var p *pending
			var refused *jsonrpc.Error
			switch {
			case err == nil:
				return result, nil
			case errors.As(err, &p):
				return &mcp.CallToolResult{InputRequests: p.questions, RequestState: p.state}, nil
			case errors.As(err, &refused) && f.stateless:
				return nil, refused
			}
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}, nil
		})
}

// text returns a result with one text.
func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func content(parts ...mcp.Content) func(*call, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return func(*call, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: parts}, nil
	}
}

var (
	sentence = &mcp.TextContent{Text: "Some text."}
	picture  = &mcp.ImageContent{MIMEType: "image/png", Data: onePixel()}
	sound    = &mcp.AudioContent{MIMEType: "audio/wav", Data: silence()}
)

func embedded(uri string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "Embedded text."}}
}

// onePixel returns a PNG of one pixel.
func onePixel() []byte {
	m := image.NewRGBA(image.Rect(0, 0, 1, 1))
	m.Set(0, 0, color.RGBA{R: 255, A: 255})
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// silence returns a WAV file with one sample: PCM, mono, 8 kHz, 8 bits.
func silence() []byte {
	return []byte("RIFF\x26\x00\x00\x00WAVE" +
		"fmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00" +
		"data\x02\x00\x00\x00\x80\x80")
}

func fail(*call, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return nil, errors.New("this tool always fails")
}

// step is the time between two messages of a tool: long enough that a proxy that
// collects them is distinguished from one that passes them on.
const step = 50 * time.Millisecond

func tellProgress(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for _, done := range []float64{0, 50, 100} {
		if token != nil {
			if err := c.session.NotifyProgress(c, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: done, Total: 100, Message: fmt.Sprintf("%v of 100", done),
			}); err != nil {
				return nil, err
			}
		}
		if err := c.pause(step); err != nil {
			return nil, err
		}
	}
	return text("done"), nil
}

func logThrice(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for _, message := range []string{"begun", "at work", "done"} {
		if err := c.session.Log(c, &mcp.LoggingMessageParams{Level: "info", Logger: "fixtures", Data: message}); err != nil {
			return nil, err
		}
		if err := c.pause(step); err != nil {
			return nil, err
		}
	}
	return text("logged"), nil
}

func logOnce(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return text("logged"), c.session.Log(c, &mcp.LoggingMessageParams{Level: "info", Logger: "fixtures", Data: "a message"})
}

// reconnect ends the stream of the call as SEP-1699 lets a server do.
func reconnect(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if req.Extra != nil && req.Extra.CloseSSEStream != nil {
		req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 20 * time.Millisecond})
	}
	if err := c.pause(100 * time.Millisecond); err != nil {
		return nil, err
	}
	return text("after the stream"), nil
}

func changeTools(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	c.f.changeTools()
	return text("changed"), nil
}

func changePrompts(c *call, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	c.f.changePrompts()
	return text("changed"), nil
}

// changeTools adds a tool, or puts it in its own place: the SDK announces both.
func (f *fixtures) changeTools() {
	f.add(tool{name: "test_added", description: "Was added while the server ran.", run: content(sentence)})
}

func echo(_ *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return text("%s", req.Params.Arguments), nil
}

func wait(c *call, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var args struct{ Milliseconds *int }
	if err := json.Unmarshal(req.Params.Arguments, &args); err != nil && len(req.Params.Arguments) > 0 {
		return nil, err
	}
	if args.Milliseconds == nil {
		<-c.Done()
		return nil, c.Err()
	}
	return text("waited"), c.pause(time.Duration(*args.Milliseconds) * time.Millisecond)
}

func (c *call) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.Done():
		return c.Err()
	}
}

const waitSchema = `{"type":"object","properties":{"milliseconds":{"type":"integer","minimum":0}}}`

const mirrored = `{
	"type": "object",
	"properties": {
		"region": {"type": "string", "x-mcp-header": "Region"},
		"count": {"type": "integer"}
	}
}`

const manyWords = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {
		"address": {
			"$anchor": "address",
			"type": "object",
			"properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
			"required": ["city"]
		}
	},
	"properties": {
		"to": {"$ref": "#/$defs/address"},
		"by": {"enum": ["post", "courier"]},
		"stamp": {"type": "string"},
		"driver": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["stamp"]}, {"required": ["driver"]}]}],
	"if": {"properties": {"by": {"const": "post"}}},
	"then": {"required": ["stamp"]},
	"else": {"required": ["driver"]},
	"additionalProperties": false
}`
