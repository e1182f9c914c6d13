// Command permissions writes docs/permissions.md: which function may send which request to AWS and
// why, and which services may send to queues, as template.yaml says. With the calls that the tests recorded it says what no test used.
//
// A permission that is missing fails the test that needs it, so both directions are covered.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// permission is one action on one resource by one statement.
type permission struct{ function, statement, action, resource string }

// statement is one of a function's policies.
type statement struct {
	Sid       string
	Action    list
	Resource  list
	Condition map[string]map[string]list
}

// list is a value or a list of them. A reference is the text that it refers by; of an !If it is what
// holds for a deployment that makes its own resources.
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
	out := flag.String("out", "docs/permissions.md", "the page to write")
	check := flag.Bool("check", false, "write nothing, and fail if the page is not up to date")
	calls := flag.String("calls", "", "file with the calls that tests recorded; fail if one that is granted is not among them")
	flag.Parse()
	if err := run(*template, *out, *check, *calls); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(template, out string, check bool, calls string) error {
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
	} else if err := os.WriteFile(out, page, 0o644); err != nil {
		return err
	}
	if calls == "" {
		return nil
	}
	used, err := recorded(calls)
	if err != nil {
		return err
	}
	never := unused(functions, used)
	for _, p := range never {
		fmt.Printf("no test uses: %s %s: %s on %s\n", p.function, p.statement, p.action, p.resource)
	}
	if len(never) > 0 {
		return fmt.Errorf("%d permissions are granted and not used by any test", len(never))
	}
	return nil
}

// unused are the permissions that no recorded call needed.
func unused(functions map[string][]statement, used map[permission]bool) (never []permission) {
	for _, id := range sorted(functions) {
		for _, p := range permissions(id, functions[id]) {
			call := p
			if strings.HasPrefix(p.resource, "arn:") || p.resource == "SealingKey" {
				call.resource = "" // named otherwise when it is called
			}
			if !used[call] && !used[call.alike()] && !byPoller(p) && rare[p] == "" {
				never = append(never, p)
			}
		}
	}
	return never
}

// rare are the permissions that no test on local AWS need use, and why they are granted.
var rare = map[permission]string{
	{"DeregisterFunction", "RemoveSubscriptions", "dynamodb:PutItem", "SubscriptionsTable"}: "a counter that has expired begins anew",
	{"StreamFunction", "CountShapesInUse", "dynamodb:PutItem", "SubscriptionsTable"}:        "a counter that has expired begins anew",
	{"RegisterFunction", "WriteSubscriptions", "dynamodb:DeleteItem", "SubscriptionsTable"}: "a subscription that has ended makes room for a new one",
	{"DispatchFunction", "RecordInterestOfSuspended", "dynamodb:GetItem", "LogTable"}:       ofSuspended,
	{"DispatchFunction", "RecordInterestOfSuspended", "dynamodb:BatchGetItem", "LogTable"}:  ofSuspended,
	{"DispatchFunction", "RecordInterestOfSuspended", "dynamodb:PutItem", "LogTable"}:       ofSuspended,
	{"DispatchFunction", "SendPagesAndRetries", "sqs:SendMessage", "DeadQueue"}:             "a message that cannot be decoded is dead-lettered",
	{"RetryFunction", "SendRetriesAndDeadLetters", "sqs:SendMessage", "DeadQueue"}:          "an item that cannot be decoded is dead-lettered",
	{"RetryFunction", "MoveDueEntries", "dynamodb:DeleteItem", "DeliveriesTable"}:           "an item that cannot be decoded is dead-lettered",
	{"PublishFunction", "TakeFromInbox", "sqs:ChangeMessageVisibility", "InboxQueue"}:       "a message that fails comes again after seconds",
}

const ofSuspended = "a suspended subscription to many URIs keeps their log"

// byPoller are the requests that Lambda sends for a function's event source mapping.
func byPoller(p permission) bool {
	return slices.Contains([]string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}, p.action)
}

// alike is the permission that comes with this one: the store reads one key or several, and writes
// one item or several, by two actions.
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

// read returns the statements of each function.
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

func recorded(file string) (map[permission]bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	used := map[permission]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c struct{ Function, Statement, Action, Resource string }
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, err
		}
		used[permission{c.Function, c.Statement, c.Action, c.Resource}] = true
		used[permission{c.Function, c.Statement, c.Action, ""}] = true
	}
	return used, lines.Err()
}

func render(functions map[string][]statement) []byte {
	var b bytes.Buffer
	b.WriteString("# Permissions\n\nWhat each function may ask of AWS, and why. Written by `make permissions` from template.yaml; do not edit.\n" +
		"The tests on local AWS refuse what is not here, and `make permissions-check` lists what is here and no test uses.\n" +
		"Event source mappings receive and delete messages with the permissions of their function.\n")
	for _, id := range sorted(functions) {
		fmt.Fprintf(&b, "\n## %s\n\n| why | may | on | of that |\n|---|---|---|---|\n", id)
		for _, st := range functions[id] {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", words(st.Sid), strings.Join(st.Action, ", "), strings.Join(st.Resource, ", "), st.only())
		}
	}
	b.WriteString("\n## Rarely used\n\nWhat no test need use, and why it is granted.\n\n| function | why | may | on | when |\n|---|---|---|---|---|\n")
	for _, id := range sorted(functions) {
		for _, p := range permissions(id, functions[id]) {
			if reason := rare[p]; reason != "" {
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", id, words(p.statement), p.action, p.resource, reason)
			}
		}
	}
	return b.Bytes()
}

// only are the conditions of a statement.
func (st statement) only() string {
	var only []string
	for _, operator := range sorted(st.Condition) {
		for _, key := range sorted(st.Condition[operator]) {
			values := make([]string, len(st.Condition[operator][key]))
			for i, v := range st.Condition[operator][key] {
				values[i] = "`" + v + "`"
			}
			only = append(only, strings.TrimPrefix(key, "dynamodb:")+" "+strings.Join(values, ", "))
		}
	}
	return strings.Join(only, "; ")
}

// words are those of a name such as ReadCatalogAndConfig.
func words(name string) string {
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
