// Package secret defines [Value], a setting that is either plain text or a reference to a secret.
package secret

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/net/http/httpguts"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Value is the value of a setting. It is a plain text, or a reference to the text: the name of an environment variable ("env:NAME"), or
// the name of a parameter of SSM Parameter Store ("ssm:/NAME").
type Value struct {
	text, env, ssm string
}

// Plain returns a value that is the given text.
func Plain(text string) Value { return Value{text: text} }

// Env returns a value that refers to an environment variable.
func Env(name string) Value { return Value{env: name} }

// SSM returns a value that refers to a parameter of SSM Parameter Store.
func SSM(name string) Value { return Value{ssm: name} }

// String returns the reference, for example "env:NAME". For a plain value it returns a fixed text, so that values can be logged without
// their secrets.
func (v Value) String() string {
	if v.env != "" {
		return "env:" + v.env
	}
	if v.ssm != "" {
		return "ssm:" + v.ssm
	}
	return "(a plain value)"
}

// Fingerprint returns a text that is the same for equal values. It contains the text of a plain value, so callers must store only a hash
// of it.
func (v Value) Fingerprint() string { return fmt.Sprintf("%q %q %q", v.text, v.env, v.ssm) }

// IsReference reports whether the value is a reference and not plain text.
func (v Value) IsReference() bool { return v.env != "" || v.ssm != "" }

// Parameter returns the name of the parameter of SSM Parameter Store that the value refers to. The result ok is false if it does not
// refer to one.
func (v Value) Parameter() (name string, ok bool) { return v.ssm, v.ssm != "" }

// Resolve returns the text of a plain value, or the value of the environment variable that v refers to. It finds the variable with the
// function lookup, for example [os.LookupEnv]. It returns an error of kind [fault.Invalid] if the variable is missing or empty, or if v
// refers to SSM.
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

// FromEnvironment resolves a value with the environment variables of this process.
func FromEnvironment(_ context.Context, v Value) (string, error) { return v.Resolve(os.LookupEnv) }

// ForHeader resolves a value that is sent in an HTTP header. It rejects a text with a control character, because each request
// with it would fail. For example, a secret that was read from a file may end with a line break.
func ForHeader(ctx context.Context, v Value, resolve func(context.Context, Value) (string, error)) (string, error) {
	text, err := resolve(ctx, v)
	if err == nil && !httpguts.ValidHeaderFieldValue(text) {
		err = fault.New(fault.Invalid, "the value of %s has a line break or another control character, which a header must not have", v)
	}
	return text, err
}
