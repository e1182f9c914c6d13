// Command permissions writes docs/internals/permissions.md: which function may send which request to AWS and
// why, and which services may send to queues, as template.yaml says.
//
// Its tests compare the template with the operations in the code, and with calls.tsv, which lists the other calls.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

type permission struct{ function, statement, action, resource string }

type statement struct {
	Sid       string
	Action    list
	Resource  list
	Condition map[string]map[string]list
}

// list is a value or a list of values. Of an !If it has what holds for a deployment that makes its own resources.
type list []string

func (l *list) UnmarshalYAML(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.ScalarNode:
		*l = append(*l, strings.TrimSuffix(strings.TrimSuffix(n.Value, ".Arn"), ".Alias"))
	case n.Tag == "!If" && len(n.Content) == 3:
		return l.UnmarshalYAML(n.Content[1])
	default:
		for _, item := range n.Content {
			if err := l.UnmarshalYAML(item); err != nil {
				return err
			}
		}
	}
	return nil
}

func main() {
	template := flag.String("template", "template.yaml", "the deployment template")
	out := flag.String("out", "docs/internals/permissions.md", "the page to write")
	check := flag.Bool("check", false, "fail if the page is not up to date, instead of writing it")
	flag.Parse()
	if err := run(*template, *out, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(template, out string, check bool) error {
	functions, err := read(template)
	if err != nil {
		return err
	}
	services, err := readSenders(template)
	if err != nil {
		return err
	}
	page := append(render(functions), renderSenders(services)...)
	if check {
		have, err := os.ReadFile(out)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, page) {
			return fmt.Errorf("%s is not what %s says (make permissions)", out, template)
		}
		return nil
	}
	return os.WriteFile(out, page, 0o644)
}

// unused returns the permissions that no recorded call used and no code needs. A permission that the code needs may be
// used after hours or after a rare failure, so it does not count that no test uses it.
func unused(functions map[string][]statement, used map[permission]bool, needs map[string][]need) (never []permission) {
	for _, id := range sorted(functions) {
		for _, st := range functions[id] {
			for _, p := range permissions(id, []statement{st}) {
				if call := p.asCalled(); !used[call] && !used[call.alike()] && !byPoller(p) && !p.needed(st, needs[id]) {
					never = append(never, p)
				}
			}
		}
	}
	return never
}

// asCalled returns the permission with the resource that a recorded call has: a logical id, or "" if the call names an ARN.
func (p permission) asCalled() permission {
	if strings.HasPrefix(p.resource, "arn:") || p.resource == "SealingKey" || p.resource == "AWS::StackId" {
		p.resource = ""
	}
	return p
}

func (p permission) needed(st statement, needs []need) bool {
	return slices.ContainsFunc(needs, func(n need) bool {
		return n.resource == p.resource && (n.action == p.action || n.action == p.alike().action) && n.allowed([]statement{st})
	})
}

// byPoller reports whether Lambda sends the request for a function's event source mapping, or boot does for a message
// that failed.
func byPoller(p permission) bool {
	return slices.Contains([]string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"}, p.action)
}

// alike returns the permission for several keys or items that is granted together with the one for a single one, and vice versa.
func (p permission) alike() permission {
	for _, pair := range [][2]string{
		{"dynamodb:GetItem", "dynamodb:BatchGetItem"}, {"dynamodb:BatchGetItem", "dynamodb:GetItem"}, {"dynamodb:BatchWriteItem", "dynamodb:PutItem"},
	} {
		if p.action == pair[0] {
			p.action = pair[1]
			return p
		}
	}
	return p
}

func read(template string) (map[string][]statement, error) {
	src, err := os.ReadFile(template)
	if err != nil {
		return nil, err
	}
	var tpl struct {
		Resources map[string]struct {
			Type       string    `yaml:"Type"`
			Properties yaml.Node `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal(src, &tpl); err != nil {
		return nil, err
	}
	functions := map[string][]statement{}
	for id, r := range tpl.Resources {
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		var p struct {
			Policies []struct {
				Statement []struct {
					Sid       string                     `yaml:"Sid"`
					Action    list                       `yaml:"Action"`
					Resource  list                       `yaml:"Resource"`
					Condition map[string]map[string]list `yaml:"Condition"`
				} `yaml:"Statement"`
			} `yaml:"Policies"`
		}
		if err := r.Properties.Decode(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		for _, policy := range p.Policies {
			for _, st := range policy.Statement {
				functions[id] = append(functions[id], statement(st))
			}
		}
	}
	return functions, nil
}

func permissions(function string, statements []statement) (all []permission) {
	for _, st := range statements {
		for _, action := range st.Action {
			for _, resource := range st.Resource {
				all = append(all, permission{function, st.Sid, action, resource})
			}
		}
	}
	return all
}

func recorded(text string) (map[permission]bool, error) {
	used := map[permission]bool{}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("%q has %d fields, want function, statement, action and resource", line, len(fields))
		}
		used[permission{fields[0], fields[1], fields[2], fields[3]}] = true
	}
	return used, nil
}

func render(functions map[string][]statement) []byte {
	var b bytes.Buffer
	b.WriteString("# Permissions\n\nThis page lists what each Lambda function may do in AWS, and for which purpose. `make permissions` generates it from template.yaml, so do not edit it. *Local AWS* means the functions on your machine, with emulators of AWS services.\n\n" +
		"Each function has an IAM role of its own, with only these permissions. If a queue invokes a function, Lambda receives and deletes the queue's\n" +
		"messages with the function's permissions.\n\n" +
		"Two kinds of tests compare these permissions with the code. On local AWS, a request without a permission fails, and so does its test. A\n" +
		"test of tools/permissions fails if a request to DynamoDB or SQS is missing here, or if no code uses a permission. It reads the requests from\n" +
		"the code, and the requests that it cannot find there from tools/permissions/calls.tsv.\n")
	for _, id := range sorted(functions) {
		fmt.Fprintf(&b, "\n## %s\n\n| purpose | permissions | resource | condition |\n|---|---|---|---|\n", id)
		for _, st := range functions[id] {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", splitWords(st.Sid), joinActions(st.Action), strings.Join(st.Resource, ", "), st.conditions())
		}
	}
	return b.Bytes()
}

// joinActions names a service only once, for example "sqs:SendMessage, ReceiveMessage".
func joinActions(actions []string) string {
	var b strings.Builder
	last := ""
	for i, action := range actions {
		if i > 0 {
			b.WriteString(", ")
		}
		service, name, _ := strings.Cut(action, ":")
		if service != last {
			b.WriteString(service + ":")
		}
		b.WriteString(name)
		last = service
	}
	return b.String()
}

func (st statement) conditions() string {
	var all []string
	for _, operator := range sorted(st.Condition) {
		for _, key := range sorted(st.Condition[operator]) {
			values := make([]string, len(st.Condition[operator][key]))
			for i, v := range st.Condition[operator][key] {
				values[i] = "`" + v + "`"
			}
			all = append(all, strings.TrimPrefix(key, "dynamodb:")+" "+strings.Join(values, ", "))
		}
	}
	return strings.Join(all, "; ")
}

// splitWords turns ReadCatalogAndConfig into "read catalog and config".
func splitWords(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
