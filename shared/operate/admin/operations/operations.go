// Package operations declares the operations of the admin API in one table. Package admin makes its routes from this table. The
// OpenAPI 3.1 document is generated from it and from the schemas in document.json.
package operations

import (
	_ "embed"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Operation is one method of a path.
type Operation struct {
	ID, Method, Path, Summary string
	// Owners is true if a caller with the scope events:subscribe may call it, for what belongs to them.
	Owners bool
	// Query lists the query parameters. Others are refused, unless Query is nil.
	Query []Param
	// Body is the schema of the request's body. It is empty for requests without a body.
	Body         string
	BodyRequired bool
	Answers      []Answer
}

// Param is a query parameter, a string unless Integer is set.
type Param struct {
	Name, Format, Default, Description string
	Enum                               []string
	// Integer is a number from 1 to the maximum.
	Integer int
}

// Answer is an answer without an error.
type Answer struct {
	Status      int
	Description string
	// Schema is the schema of a JSON answer, "object" for any object, and empty for an answer without content.
	Schema string
	// Stream is true for a stream of server-sent events.
	Stream bool
}

// query returns the parameters of an operation that refuses all others.
func query(params ...Param) []Param { return append([]Param{}, params...) }

// paged returns the parameters of a list that is returned in pages.
func paged(params ...Param) []Param {
	return append(params, Param{Name: "cursor"}, Param{Name: "limit", Integer: MaxLimit, Default: strconv.Itoa(DefaultLimit)})
}

// DefaultLimit and MaxLimit are the numbers of items of a page.
const (
	DefaultLimit = 50
	MaxLimit     = 100
)

// rest holds the parts of the document that are not in the table: its head, the schemas, and the form of errors.
//
//go:embed document.json
var rest []byte

// Document returns the document of the API. It is built at the first call, because most processes never need it.
var Document = sync.OnceValue(func() json.RawMessage {
	document := map[string]any{}
	if err := json.Unmarshal(rest, &document); err != nil {
		panic(err) // every test of this package fails first
	}
	paths := map[string]map[string]any{}
	for _, o := range All {
		path := "/" + o.Path
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(o.Method)] = o.describe()
	}
	document["paths"] = paths
	b, err := json.Marshal(document)
	if err != nil {
		panic(err) // maps and texts only
	}
	return b
})

type object = map[string]any

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// describe returns the operation as OpenAPI has it.
func (o Operation) describe() object {
	out := object{"operationId": o.ID, "summary": o.Summary}
	scopes := []object{{"bearer": []string{"events:operate"}}}
	if o.Owners {
		scopes = append(scopes, object{"bearer": []string{"events:subscribe"}})
	}
	out["security"] = scopes
	var params []object
	for _, name := range inPath.FindAllStringSubmatch(o.Path, -1) {
		params = append(params, object{"name": name[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range o.Query {
		params = append(params, object{"name": p.Name, "in": "query", "schema": p.schema()})
	}
	if params != nil {
		out["parameters"] = params
	}
	if o.Body != "" {
		out["requestBody"] = object{"required": o.BodyRequired, "content": content(o.Body)}
	}
	answers := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, a := range o.Answers {
		answer := object{"description": a.Description}
		switch {
		case a.Stream:
			answer["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
		case a.Schema != "":
			answer["content"] = content(a.Schema)
		}
		answers[strconv.Itoa(a.Status)] = answer
	}
	out["responses"] = answers
	return out
}

func (p Param) schema() object {
	s := object{"type": "string"}
	if p.Integer > 0 {
		n, _ := strconv.Atoi(p.Default) // of this package
		return object{"type": "integer", "minimum": 1, "maximum": p.Integer, "default": n}
	}
	for name, value := range map[string]string{"format": p.Format, "default": p.Default, "description": p.Description} {
		if value != "" {
			s[name] = value
		}
	}
	if p.Enum != nil {
		s["enum"] = p.Enum
	}
	return s
}

// content returns a JSON body with a schema.
func content(schema string) object {
	s := object{"$ref": "#/components/schemas/" + schema}
	if schema == "object" {
		s = object{"type": "object"}
	}
	return object{"application/json": object{"schema": s}}
}
