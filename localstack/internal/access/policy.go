// Package access decides whether a function may send a request to AWS, based on the policies in the template. This
// way a missing permission shows up on this machine instead of after the deployment.
//
// It supports the parts of the policy language that the template uses, and refuses to parse the rest. [Requests]
// extracts the required permissions from the body of a request. The package does not depend on HTTP.
package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Request is a permission that a request requires. A batch may require several.
type Request struct {
	// Action is e.g. dynamodb:PutItem, and Resource an ARN.
	Action, Resource string
	// LeadingKeys are the partition keys of the items (dynamodb:LeadingKeys).
	LeadingKeys []string
	// EncryptionContext is the encryption context of a KMS request.
	EncryptionContext map[string]string
}

// Policy is the permissions of a function. The zero value allows nothing.
type Policy struct{ statements []statement }

type statement struct {
	Sid       string
	Effect    string
	Action    texts
	Resource  texts
	Condition map[string]map[string]texts
}

// texts is a string or a list of strings.
type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	if err := json.Unmarshal(b, &one); err == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// Parse parses the Policies property of a SAM function, which must be a list of policy documents. It does not support
// names of managed policies or policy templates.
func Parse(raw json.RawMessage) (Policy, error) {
	var p Policy
	if len(raw) == 0 {
		return p, nil
	}
	var documents []struct {
		Version   string
		Statement []statement
	}
	if err := strict(raw, &documents); err != nil {
		return p, fmt.Errorf("policies that are not a list of documents with statements are not supported: %w", err)
	}
	for _, d := range documents {
		for _, st := range d.Statement {
			if err := st.check(); err != nil {
				return p, fmt.Errorf("statement %q: %w", st.Sid, err)
			}
			p.statements = append(p.statements, st)
		}
	}
	return p, nil
}

// Supported conditions.
const (
	likeAll     = "ForAllValues:StringLike"
	equals      = "StringEquals"
	leadingKeys = "dynamodb:LeadingKeys"
	encryption  = "kms:EncryptionContext:"
)

func (st statement) check() error {
	if st.Effect != "Allow" {
		return fmt.Errorf("effect %q is not supported", st.Effect)
	}
	for operator, keys := range st.Condition {
		for key := range keys {
			if operator == likeAll && key == leadingKeys || operator == equals && strings.HasPrefix(key, encryption) {
				continue
			}
			return fmt.Errorf("condition %s of %s is not supported", operator, key)
		}
	}
	return nil
}

// Allows reports whether a statement allows the request.
func (p Policy) Allows(r Request) bool { return len(p.Allowing(r)) > 0 }

// Allowing returns the ids of the statements that allow the request.
func (p Policy) Allowing(r Request) (sids []string) {
	for _, st := range p.statements {
		if st.allows(r) {
			sids = append(sids, st.Sid)
		}
	}
	return sids
}

func (st statement) allows(r Request) bool {
	if !like(st.Action, r.Action) || !like(st.Resource, r.Resource) {
		return false
	}
	for operator, keys := range st.Condition {
		for key, wanted := range keys {
			if operator == likeAll {
				// As in IAM, a request without keys satisfies this condition.
				if slices.ContainsFunc(r.LeadingKeys, func(k string) bool { return !like(wanted, k) }) {
					return false
				}
			} else if v, ok := r.EncryptionContext[strings.TrimPrefix(key, encryption)]; !ok || !slices.Contains(wanted, v) {
				return false
			}
		}
	}
	return true
}

// like reports whether text matches one of the patterns, in which * and ? stand for any characters.
func like(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return wildcard(p, text) })
}

func wildcard(pattern, text string) bool {
	for {
		switch {
		case pattern == "":
			return text == ""
		case pattern[0] == '*':
			for i := range len(text) + 1 {
				if wildcard(pattern[1:], text[i:]) {
					return true
				}
			}
			return false
		case text == "" || pattern[0] != '?' && pattern[0] != text[0]:
			return false
		}
		pattern, text = pattern[1:], text[1:]
	}
}

func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
