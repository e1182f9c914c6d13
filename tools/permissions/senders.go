package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// sender is a statement of a queue's policy that lets a service send messages, with the template's condition for it.
type sender struct {
	statement
	when, service string
}

// UnmarshalYAML reads a statement, which may be in an !If.
func (s *sender) UnmarshalYAML(n *yaml.Node) error {
	if n.Tag == "!If" && len(n.Content) == 3 {
		s.when, n = n.Content[0].Value, n.Content[1]
	}
	var st struct {
		Sid       string                     `yaml:"Sid"`
		Principal map[string]string          `yaml:"Principal"`
		Action    list                       `yaml:"Action"`
		Resource  list                       `yaml:"Resource"`
		Condition map[string]map[string]list `yaml:"Condition"`
	}
	if err := n.Decode(&st); err != nil {
		return err
	}
	if s.service = st.Principal["Service"]; s.service == "" {
		s.service = "principals of `" + st.Principal["AWS"] + "`"
	}
	s.statement = statement{Sid: st.Sid, Action: st.Action, Resource: st.Resource, Condition: st.Condition}
	return nil
}

func readSenders(template string) (all []sender, err error) {
	src, err := os.ReadFile(template)
	if err != nil {
		return nil, err
	}
	var tpl struct {
		Resources map[string]struct {
			Type       string `yaml:"Type"`
			Properties struct {
				PolicyDocument struct {
					Statement []sender `yaml:"Statement"`
				} `yaml:"PolicyDocument"`
			} `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal(src, &tpl); err != nil {
		return nil, err
	}
	for _, id := range sorted(tpl.Resources) {
		if r := tpl.Resources[id]; r.Type == "AWS::SQS::QueuePolicy" {
			all = append(all, r.Properties.PolicyDocument.Statement...)
		}
	}
	return all, nil
}

func renderSenders(senders []sender) []byte {
	var b bytes.Buffer
	b.WriteString("\n## AWS services and publishers\n\nThe parameters `Source…` and `PublisherArns` name AWS services and principals that may send to a queue. " +
		"The table lists what the queues' policies allow them. Without these parameters, no queue has a policy.\n\n| condition | sender | may | on | only from |\n|---|---|---|---|---|\n")
	for _, s := range senders {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", "`"+s.when+"`", s.service, strings.Join(s.Action, ", "), strings.Join(s.Resource, ", "), s.conditions())
	}
	return b.Bytes()
}
