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

// Names maps the names in requests to ARNs.
type Names interface {
	// Table returns the ARN of a table and the name of its partition key attribute.
	Table(name string) (arn, key string)
	// Queue returns the ARN of a queue with the given URL.
	Queue(url string) (arn string)
	// Key returns the ARN of a KMS key with the given id or ARN.
	Key(id string) (arn string)
	// Parameter returns the ARN of an SSM parameter with the given name.
	Parameter(name string) (arn string)
}

// Requests returns the permissions that a request in the JSON protocol requires. Target is its X-Amz-Target, e.g.
// DynamoDB_20120810.PutItem. The result has one element per action and resource, with all partition keys.
func Requests(target string, body []byte, names Names) ([]Request, error) {
	service, operation, _ := strings.Cut(target, ".")
	switch {
	case strings.HasPrefix(service, "DynamoDB_"):
		return tableRequests(operation, body, names)
	case service == "AmazonSQS":
		var in struct{ QueueUrl string }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("read a request to SQS: %w", err)
		}
		return []Request{{Action: "sqs:" + strings.TrimSuffix(operation, "Batch"), Resource: names.Queue(in.QueueUrl)}}, nil
	case service == "TrentService":
		var in struct {
			KeyId             string
			EncryptionContext map[string]string
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("read a request to KMS: %w", err)
		}
		return []Request{{Action: "kms:" + operation, Resource: names.Key(in.KeyId), EncryptionContext: in.EncryptionContext}}, nil
	}
	if service == "AmazonSSM" {
		var in struct{ Name string }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("read a request to SSM: %w", err)
		}
		return []Request{{Action: "ssm:" + operation, Resource: names.Parameter(in.Name)}}, nil
	}
	return nil, fmt.Errorf("requests to %q are not supported", target)
}

// value is an attribute value. Only strings are used as keys.
type value struct{ S *string }

type item map[string]value

// tableRequest has the relevant members of all DynamoDB operations.
type tableRequest struct {
	TableName string
	Key, Item item

	KeyConditionExpression    string
	ExpressionAttributeNames  map[string]string
	ExpressionAttributeValues map[string]value

	RequestItems  map[string]json.RawMessage
	TransactItems []map[string]tableRequest
}

// transactions maps the members of a transaction to the actions that they require.
var transactions = map[string]string{
	"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem", "Get": "GetItem",
}

func tableRequests(operation string, body []byte, names Names) ([]Request, error) {
	var in tableRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("read a request to DynamoDB: %w", err)
	}
	g := gathered{names: names, at: map[[2]string]int{}}
	switch {
	case in.TransactItems != nil:
		for _, part := range in.TransactItems {
			for kind, r := range part {
				action := transactions[kind]
				if action == "" {
					return nil, fmt.Errorf("transactions with %q are not supported", kind)
				}
				g.add(action, r.TableName, r.keys(g.keyOf(r.TableName)))
			}
		}
	case in.RequestItems != nil:
		for table, raw := range in.RequestItems {
			keys, err := batchKeys(raw, g.keyOf(table))
			if err != nil {
				return nil, err
			}
			g.add(operation, table, keys)
		}
	default:
		g.add(operation, in.TableName, in.keys(g.keyOf(in.TableName)))
	}
	return g.requests, nil
}

// gathered merges requests for the same action and table.
type gathered struct {
	names    Names
	requests []Request
	at       map[[2]string]int
}

func (g *gathered) keyOf(table string) string {
	_, key := g.names.Table(table)
	return key
}

func (g *gathered) add(action, table string, keys []string) {
	n, ok := g.at[[2]string{action, table}]
	if !ok {
		arn, _ := g.names.Table(table)
		n = len(g.requests)
		g.at[[2]string{action, table}] = n
		g.requests = append(g.requests, Request{Action: "dynamodb:" + action, Resource: arn})
	}
	g.requests[n].LeadingKeys = append(g.requests[n].LeadingKeys, keys...)
}

// keys returns the partition keys of an operation on one item or partition.
func (r tableRequest) keys(attribute string) []string {
	for _, it := range []item{r.Key, r.Item} {
		if v := it[attribute]; v.S != nil {
			return []string{*v.S}
		}
	}
	// A query names its partition as "pk = :v", possibly followed by AND.
	for part := range strings.SplitSeq(r.KeyConditionExpression, " AND ") {
		name, placeholder, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		name = strings.Trim(name, " ()")
		if n, ok := r.ExpressionAttributeNames[name]; ok {
			name = n
		}
		if v := r.ExpressionAttributeValues[strings.Trim(placeholder, " ()")]; name == attribute && v.S != nil {
			return []string{*v.S}
		}
	}
	return nil
}

// batchKeys returns the partition keys of one table in BatchGetItem or BatchWriteItem.
func batchKeys(raw json.RawMessage, attribute string) (keys []string, err error) {
	var get struct{ Keys []item }
	if json.Unmarshal(raw, &get) == nil {
		for _, k := range get.Keys {
			keys = append(keys, tableRequest{Key: k}.keys(attribute)...)
		}
		return keys, nil
	}
	var write []struct{ PutRequest, DeleteRequest *tableRequest }
	if err := json.Unmarshal(raw, &write); err != nil {
		return nil, fmt.Errorf("read a batch to DynamoDB: %w", err)
	}
	for _, w := range write {
		for _, r := range []*tableRequest{w.PutRequest, w.DeleteRequest} {
			if r != nil {
				keys = append(keys, r.keys(attribute)...)
			}
		}
	}
	return keys, nil
}
