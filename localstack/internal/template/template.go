// Package template reads the deployment template: CloudFormation YAML with the
// SAM transform, as far as this project's template.yaml uses it.
//
// It parses, merges the Globals section, and evaluates intrinsic functions in a
// [Scope] that the caller provides; it creates nothing and knows no service. What
// it does not understand is an error with the line, never a silent difference from
// the deployment. Go on in localstack/internal/resource (what the resources
// become) and localstack/runner.
package template

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the largest template in bytes that CloudFormation takes from a bucket.
const MaxSize = 1 << 20

// Template is a parsed template.
type Template struct {
	file       string
	parameters map[string]parameter
	conditions map[string]*yaml.Node
	resources  map[string]*Resource
	order      []string
	outputs    []Output
	globals    map[string]*yaml.Node // section name, such as Function, to its defaults
}

// Resource is one entry of the Resources section.
type Resource struct {
	// ID is the logical id.
	ID string
	// Type is the CloudFormation type, such as AWS::SQS::Queue.
	Type string
	// Line is where the resource begins.
	Line int
	// DeletionPolicy says what becomes of the resource when it leaves the stack; "" is Delete.
	DeletionPolicy string

	condition  string
	properties *yaml.Node
}

// RetainExceptOnCreate is the policy of a resource that is deleted only by the rollback of the operation that made it.
const RetainExceptOnCreate = "RetainExceptOnCreate"

// Output is one entry of the Outputs section.
type Output struct {
	Name        string
	Description string

	condition string
	value     *yaml.Node
}

type parameter struct {
	typ           string
	fallback      *yaml.Node
	allowedValues []string
}

// Error is a fault of the template at a line.
type Error struct {
	File    string
	Line    int
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

func (t *Template) errorf(n *yaml.Node, format string, args ...any) error {
	return &Error{File: t.file, Line: n.Line, Message: fmt.Sprintf(format, args...)}
}

// Parse reads a template. file names it in errors.
func Parse(file string, src []byte) (*Template, error) {
	if len(src) > MaxSize {
		return nil, &Error{File: file, Line: 1, Message: fmt.Sprintf("the template is larger than %d bytes", MaxSize)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &Error{File: file, Line: 1, Message: "the template is empty"}
		}
		return nil, &Error{File: file, Line: 1, Message: err.Error()}
	}
	t := &Template{
		file:       file,
		parameters: map[string]parameter{},
		conditions: map[string]*yaml.Node{},
		resources:  map[string]*Resource{},
		globals:    map[string]*yaml.Node{},
	}
	err := t.each(doc.Content[0], func(key string, k, v *yaml.Node) error {
		switch key {
		case "AWSTemplateFormatVersion", "Transform", "Description", "Metadata", "Rules":
			return nil
		case "Globals":
			return t.each(v, func(section string, k, v *yaml.Node) error {
				if section != "Function" {
					return t.errorf(k, "Globals of %q are not supported", section)
				}
				t.globals[section] = v
				return nil
			})
		case "Parameters":
			return t.each(v, t.parseParameter)
		case "Conditions":
			return t.each(v, func(name string, _, v *yaml.Node) error {
				t.conditions[name] = v
				return nil
			})
		case "Resources":
			return t.each(v, t.parseResource)
		case "Outputs":
			return t.each(v, t.parseOutput)
		default:
			return t.errorf(k, "section %q is not supported", key)
		}
	})
	if err != nil {
		return nil, err
	}
	if len(t.resources) == 0 {
		return nil, &Error{File: file, Line: 1, Message: "the template has no resources"}
	}
	return t, nil
}

// Resources lists the resources in the order of the file.
func (t *Template) Resources() []*Resource {
	list := make([]*Resource, 0, len(t.order))
	for _, id := range t.order {
		list = append(list, t.resources[id])
	}
	return list
}

// Resource returns the resource with a logical id, or nil.
func (t *Template) Resource(id string) *Resource { return t.resources[id] }

// Outputs lists the outputs in the order of the file.
func (t *Template) Outputs() []Output { return slices.Clone(t.outputs) }

// each calls f for every member of a mapping, in order.
func (t *Template) each(n *yaml.Node, f func(key string, k, v *yaml.Node) error) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return t.errorf(n, "a mapping is needed here")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if seen[k.Value] {
			return t.errorf(k, "member %q is there twice", k.Value)
		}
		seen[k.Value] = true
		if err := f(k.Value, k, v); err != nil {
			return err
		}
	}
	return nil
}

func (t *Template) parseParameter(name string, _, v *yaml.Node) error {
	var p parameter
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Type":
			p.typ = v.Value
			if !slices.Contains([]string{"String", "Number", "CommaDelimitedList"}, p.typ) {
				return t.errorf(v, "parameter type %q is not supported", p.typ)
			}
		case "Default":
			p.fallback = v
		case "AllowedValues":
			for _, item := range v.Content {
				p.allowedValues = append(p.allowedValues, item.Value)
			}
		case "Description", "AllowedPattern", "ConstraintDescription", "MinValue", "MaxValue", "MinLength", "MaxLength", "NoEcho":
		default:
			return t.errorf(k, "parameter member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.parameters[name] = p
	return nil
}

func (t *Template) parseResource(id string, k, v *yaml.Node) error {
	r := &Resource{ID: id, Line: k.Line}
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Type":
			r.Type = v.Value
		case "Properties":
			r.properties = v
		case "Condition":
			r.condition = v.Value
		case "DeletionPolicy":
			r.DeletionPolicy = v.Value
		case "UpdateReplacePolicy", "DependsOn", "Metadata":
			// Resources that the runner replaces hold no data. References tell the order.
		default:
			return t.errorf(k, "resource member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.Type == "" {
		return t.errorf(k, "resource %s has no Type", id)
	}
	t.resources[id] = r
	t.order = append(t.order, id)
	return nil
}

func (t *Template) parseOutput(name string, k, v *yaml.Node) error {
	o := Output{Name: name}
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Description":
			o.Description = v.Value
		case "Value":
			o.value = v
		case "Condition":
			o.condition = v.Value
		case "Export":
		default:
			return t.errorf(k, "output member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.value == nil {
		return t.errorf(k, "output %s has no Value", name)
	}
	t.outputs = append(t.outputs, o)
	return nil
}

// merge puts specific over general as SAM merges Globals into a resource: mappings member by member, lists appended to
// the general one, everything else replaced, intrinsic functions included.
func merge(general, specific *yaml.Node) *yaml.Node {
	switch {
	case specific == nil:
		return general
	case general.Kind != specific.Kind || isIntrinsic(general) || isIntrinsic(specific):
		return specific
	case specific.Kind == yaml.SequenceNode:
		out := *specific
		out.Content = slices.Concat(general.Content, specific.Content)
		return &out
	case specific.Kind != yaml.MappingNode:
		return specific
	}
	out := *specific
	out.Content = slices.Clone(specific.Content)
	for i := 0; i+1 < len(general.Content); i += 2 {
		k, v := general.Content[i], general.Content[i+1]
		n := slices.IndexFunc(out.Content, func(n *yaml.Node) bool { return n == member(specific, k.Value) })
		if n < 0 {
			out.Content = append(out.Content, k, v)
		} else {
			out.Content[n] = merge(v, out.Content[n])
		}
	}
	return &out
}

// member returns the value of a member of a mapping, or nil.
func member(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// isIntrinsic reports whether a value is an intrinsic function, in its short or long form.
func isIntrinsic(n *yaml.Node) bool {
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		return true
	}
	return n.Kind == yaml.MappingNode && len(n.Content) == 2 && (n.Content[0].Value == "Ref" || strings.HasPrefix(n.Content[0].Value, "Fn::"))
}
