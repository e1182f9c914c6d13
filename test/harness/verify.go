//go:build unix

package harness

import (
	"encoding/base64"
	"strings"
	"testing"
)

// VerifyJS checks signatures by the Standard Webhooks library for JavaScript, and
// returns how many were right. secrets[i] belongs to deliveries[i].
func (j *JS) VerifyJS(tb testing.TB, deliveries []*Delivery, secrets []string) int {
	tb.Helper()
	type input struct {
		Secret  string            `json:"secret"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	}
	inputs := make([]input, len(deliveries))
	for i, d := range deliveries {
		inputs[i] = input{secrets[i], map[string]string{}, base64.StdEncoding.EncodeToString(d.Body)}
		for name := range d.Header {
			inputs[i].Headers[strings.ToLower(name)] = d.Header.Get(name)
		}
	}
	var result struct {
		Verified int
		Failures []struct {
			Index int
			Error string
		}
	}
	j.Run(tb, "verify.js", inputs, &result)
	for _, f := range result.Failures {
		tb.Errorf("the JavaScript library does not verify delivery %s: %s", deliveries[f.Index].ID(), f.Error)
	}
	return result.Verified
}
