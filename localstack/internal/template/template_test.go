package template_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/localstack/internal/template"
	"github.com/mcp-events/mcpevents/test/expect"
)

// scope resolves a reference to its own name.
type scope map[string]string

func (s scope) Ref(id string) (string, error) {
	if strings.HasPrefix(id, "Missing") {
		return "", errors.New("there is no such resource")
	}
	return "ref-" + id, nil
}

func (s scope) Attr(id, attribute string) (string, error) {
	if strings.HasPrefix(id, "Missing") {
		return "", errors.New("there is no such resource")
	}
	return fmt.Sprintf("attr-%s-%s", id, attribute), nil
}

func (s scope) Parameter(name string) (string, bool) { v, ok := s[name]; return v, ok }

func (s scope) Pseudo(name string) (string, bool) {
	return "region", name == "AWS::Region"
}

const header = `
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Timeout: 10
    Environment: {Variables: {A: global, B: global}}
Parameters:
  Reserved: {Type: Number, Default: 0, Description: how many}
  Mode: {Type: String, Default: none, AllowedValues: [none, keys]}
  Hosts: {Type: CommaDelimitedList, Default: "a, b"}
Conditions:
  HasReserved: !Not [!Equals [!Ref Reserved, 0]]
  Both: !And [!Condition HasReserved, !Equals [!Ref Mode, keys]]
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
`

type function struct {
	Timeout     template.Int
	Enabled     template.Bool
	Reserved    *template.Int
	Environment struct{ Variables map[string]template.Text }
	List        []string
}

func TestProperties(t *testing.T) {
	variables := func(v map[string]template.Text) function {
		f := function{Timeout: 10}
		f.Environment.Variables = map[string]template.Text{"A": "global", "B": "global"}
		for k, text := range v {
			f.Environment.Variables[k] = text
		}
		return f
	}
	seven := template.Int(7)
	tests := map[string]struct {
		body  string
		given scope
		want  function
	}{
		"globals are merged member by member": {
			body: "Environment: {Variables: {B: own, C: 3, D: true}}",
			want: variables(map[string]template.Text{"B": "own", "C": "3", "D": "true"}),
		},
		"references, attributes and substitutions": {
			body: `
Environment:
  Variables:
    R: !Ref Queue
    G: !GetAtt Queue.Arn
    L: {"Fn::GetAtt": [Queue, Arn]}
    S: !Sub "x-${AWS::Region}-${Queue}-${Queue.Arn}-${Mode}-${!Literal}"
    V: !Sub ["${Own}/${Queue}", {Own: !Ref Mode}]
    J: !Join ["-", [a, !Ref Mode]]
    H: !Join ["+", !Ref Hosts]`,
			want: variables(map[string]template.Text{
				"R": "ref-Queue", "G": "attr-Queue-Arn", "L": "attr-Queue-Arn",
				"S": "x-region-ref-Queue-attr-Queue-Arn-none-${Literal}", "V": "none/ref-Queue", "J": "a-none", "H": "a+b",
			}),
		},
		"a condition that does not hold drops the property": {
			body: "Reserved: !If [HasReserved, !Ref Reserved, !Ref AWS::NoValue]",
			want: variables(nil),
		},
		"a true condition keeps it": {
			body:  "Reserved: !If [Both, !Ref Reserved, !Ref AWS::NoValue]",
			given: scope{"Reserved": "7", "Mode": "keys"},
			want:  func() function { f := variables(nil); f.Reserved = &seven; return f }(),
		},
		"numbers and booleans may be text": {
			body: `{Timeout: "30", Enabled: "true"}`,
			want: func() function { f := variables(nil); f.Timeout, f.Enabled = 30, true; return f }(),
		},
		"a list parameter is a list": {
			body: "List: !Ref Hosts",
			want: func() function { f := variables(nil); f.List = []string{"a", "b"}; return f }(),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tpl := expect.Value(template.Parse("template.yaml", []byte(header+indent(tc.body))))(t)
			var got function
			expect.OK(t, tpl.Properties(tpl.Resource("F"), tc.given, &got))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("properties differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFaultsNameTheirLine(t *testing.T) {
	at := strings.Count(header, "\n") + 1
	tests := map[string]struct {
		body string
		want string
	}{
		"an unknown property":        {"Tmeout: 3", fmt.Sprintf("template.yaml:%d: resource F (AWS::Serverless::Function): property \"Tmeout\" is not supported here", at-3)},
		"an unknown function":        {"List: !Cidr [a]", fmt.Sprintf("template.yaml:%d: function \"Cidr\" is not supported", at)},
		"a dangling reference":       {"List: [!Ref Missing]", fmt.Sprintf("template.yaml:%d: Ref Missing: there is no such resource", at)},
		"a dangling attribute":       {"List: [!GetAtt Missing.Arn]", "GetAtt Missing.Arn: there is no such resource"},
		"a dangling substitution":    {"List: [!Sub \"${Missing.Arn}\"]", "Sub ${Missing.Arn}: there is no such resource"},
		"a value instead of a list":  {"S: !Join [a, !Ref Mode]", fmt.Sprintf("template.yaml:%d: Join needs a delimiter and a list", at)},
		"a list of lists":            {"S: !Join [a, [[b]]]", fmt.Sprintf("template.yaml:%d: Join needs a list of texts", at)},
		"an attribute without a dot": {"List: [!GetAtt Queue]", "GetAtt needs a resource and an attribute"},
		"an unknown condition":       {"Timeout: !If [Nope, 1, 2]", "there is no condition \"Nope\""},
		"a member twice":             {"{Timeout: 1, Timeout: 2}", "\"Timeout\""},
		"a text for a number":        {"Timeout: soon", "\"soon\" is not an integer"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tpl, err := template.Parse("template.yaml", []byte(header+indent(tc.body)))
			if err == nil {
				err = tpl.Properties(tpl.Resource("F"), scope{}, &function{})
			}
			expect.Error(t, "the template", err, tc.want)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := map[string]struct{ src, want string }{
		"nothing":                    {"", "the template is empty"},
		"broken YAML":                {"Resources: [", "yaml"},
		"an unknown section":         {"Mappings: {}\nResources: {}", "template.yaml:1: section \"Mappings\" is not supported"},
		"no resources":               {"Description: x", "the template has no resources"},
		"a resource without a type":  {"Resources:\n  A: {Properties: {}}", "template.yaml:2: resource A has no Type"},
		"globals of another kind":    {"Globals: {Api: {}}\nResources: {A: {Type: X}}", "Globals of \"Api\" are not supported"},
		"a parameter of other types": {"Parameters: {A: {Type: \"AWS::EC2::VPC::Id\"}}", "parameter type"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template.Parse("template.yaml", []byte(tc.src))
			expect.Error(t, "the template", err, tc.want)
		})
	}
}

func TestCheckParameters(t *testing.T) {
	tpl := expect.Value(template.Parse("template.yaml", []byte(header+indent("Timeout: 1"))))(t)
	for name, tc := range map[string]struct {
		given map[string]string
		want  string
	}{
		"known":        {map[string]string{"Mode": "keys"}, ""},
		"unknown":      {map[string]string{"Mod": "keys"}, "there is no parameter \"Mod\""},
		"not a choice": {map[string]string{"Mode": "maybe"}, "\"maybe\" is not allowed (allowed: none, keys)"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tpl.CheckParameters(tc.given); tc.want == "" {
				expect.OK(t, err)
			} else {
				expect.Error(t, "the parameters", err, tc.want)
			}
		})
	}
}

func indent(body string) string {
	return "      " + strings.ReplaceAll(strings.TrimPrefix(body, "\n"), "\n", "\n      ") + "\n"
}

func FuzzParse(f *testing.F) {
	f.Add(header + indent("List: !Ref Hosts"))
	f.Add("Resources:\n  A: {Type: X, Properties: {B: !Sub [a, {}]}}")
	f.Fuzz(func(t *testing.T, src string) {
		tpl, err := template.Parse("f", []byte(src))
		if err != nil {
			return
		}
		for _, r := range tpl.Resources() {
			var v map[string]any
			_ = tpl.Properties(r, scope{}, &v)
		}
	})
}
