// Package admintest checks answers of the admin API against the OpenAPI document that the API serves (OPS-01).
package admintest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Contract describes the responses that an API may send, as its OpenAPI document declares them.
type Contract struct {
	// Paths holds the operations by path and method. Methods are in lower case.
	Paths   map[string]map[string]*Operation
	shared  map[string]response
	schemas *jsonschema.Compiler
}

// Operation describes a method of a path.
type Operation struct {
	Security  []map[string][]string
	Responses map[string]response // by status, or "default"
}

type response struct {
	Ref     string `json:"$ref"`
	Content map[string]struct{ Schema json.RawMessage }
}

// source is the name under which the schema compiler knows the document. The compiler resolves references between the document's schemas
// with this name.
const source = "openapi.json"

// Parse reads an OpenAPI document. It returns an error if the schema of a response is invalid.
func Parse(raw []byte) (*Contract, error) {
	var doc struct {
		Paths      map[string]map[string]*Operation
		Components struct{ Responses map[string]response }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := &Contract{Paths: doc.Paths, shared: doc.Components.Responses, schemas: jsonschema.NewCompiler()}
	c.schemas.AssertFormat()
	if err := c.schemas.AddResource(source, value); err != nil {
		return nil, err
	}
	for path, methods := range c.Paths {
		for method, o := range methods {
			for status := range o.Responses {
				for kind := range c.content(o, status) {
					if _, err := c.schema(path, method, status, kind); err != nil {
						return nil, fmt.Errorf("%s %s: %w", method, path, err)
					}
				}
			}
		}
	}
	return c, nil
}

func (c *Contract) content(o *Operation, status string) map[string]struct{ Schema json.RawMessage } {
	r := o.Responses[status]
	if name, refers := strings.CutPrefix(r.Ref, "#/components/responses/"); refers {
		r = c.shared[name]
	}
	return r.Content
}

func (c *Contract) schema(path, method, status, kind string) (*jsonschema.Schema, error) {
	at := []string{"paths", path, method, "responses", status}
	if name, refers := strings.CutPrefix(c.Paths[path][method].Responses[status].Ref, "#/components/"); refers {
		at = append([]string{"components"}, strings.Split(name, "/")...)
	}
	at = append(at, "content", kind, "schema")
	for i, name := range at {
		at[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return c.schemas.Compile(source + "#/" + strings.Join(at, "/"))
}

// Check returns an error if the response resp or its body does not match the description of the operation in the document. The
// parameter path is relative to the path of the API.
func (c *Contract) Check(method, path string, resp *http.Response, body []byte) error {
	method = strings.ToLower(method)
	template := c.template(path)
	o := c.Paths[template][method]
	if o == nil {
		return fmt.Errorf("the document has no operation %s %s", method, path)
	}
	status := strconv.Itoa(resp.StatusCode)
	if _, described := o.Responses[status]; !described {
		status = "default"
	}
	if _, described := o.Responses[status]; !described {
		return fmt.Errorf("the status %d is not declared (declared: %v)", resp.StatusCode, slices.Sorted(maps.Keys(o.Responses)))
	}
	kinds := c.content(o, status)
	if len(kinds) == 0 && len(body) == 0 {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if _, described := kinds[kind]; !described {
		return fmt.Errorf("the content type %q is not declared (declared: %v)", kind, slices.Sorted(maps.Keys(kinds)))
	}
	if !strings.HasSuffix(kind, "json") {
		return nil
	}
	schema, err := c.schema(template, method, status, kind)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// template returns the path in the document that matches a request's path. Names of switches and notes contain slashes, which a path
// parameter of OpenAPI cannot match.
func (c *Contract) template(path string) string {
	if strings.HasPrefix(path, "/switches/") {
		return "/switches/{name}"
	}
	if strings.HasPrefix(path, "/notes/") {
		return "/notes/{origin}"
	}
	if _, literal := c.Paths[path]; literal {
		return path
	}
	segments := strings.Split(path, "/")
	for template := range c.Paths {
		if slices.EqualFunc(strings.Split(template, "/"), segments, func(t, s string) bool { return t == s || strings.HasPrefix(t, "{") && s != "" }) {
			return template
		}
	}
	return ""
}
