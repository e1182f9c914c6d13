package config

import (
	"context"
	"os"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Value is a setting that may be a secret: a plain text, "env:NAME", the name of
// an environment variable that holds it, or "ssm:/NAME", that of a parameter of SSM Parameter Store.
// Secrets are always references.
type Value struct {
	text string
	env  string
	ssm  string
}

// String is for logs: the reference, or nothing of a plain value.
func (v Value) String() string {
	if v.env != "" {
		return "env:" + v.env
	}
	if v.ssm != "" {
		return "ssm:" + v.ssm
	}
	return "(a plain value)"
}

// Parameter is the name of the parameter of SSM Parameter Store that a value refers to.
func (v Value) Parameter() (name string, ok bool) { return v.ssm, v.ssm != "" }

// Resolve looks up a reference to the environment. A variable that is missing or empty
// is of kind fault.Invalid, and so is a reference to anything else.
func (v Value) Resolve(lookup func(string) (string, bool)) (string, error) {
	if v.ssm != "" {
		return "", fault.New(fault.Invalid, "%s can be looked up on AWS only; refer to an environment variable as env:NAME", v)
	}
	if v.env == "" {
		return v.text, nil
	}
	s, ok := lookup(v.env)
	if !ok || s == "" {
		return "", fault.New(fault.Invalid, "the environment variable %s, which the configuration refers to, is not set", v.env)
	}
	return s, nil
}

// Environment is [Value.Resolve] in the environment of this process.
func Environment(_ context.Context, v Value) (string, error) { return v.Resolve(os.LookupEnv) }
