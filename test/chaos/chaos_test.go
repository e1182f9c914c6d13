//go:build unix

// Package chaos kills processes while events flow, and counts.
package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// retry repeats f until it succeeds, as a client does while the server is away.
func retry(t *testing.T, f func(context.Context) error) {
	t.Helper()
	var err error
	if !harness.Within(t, 2*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err = f(ctx)
		return err == nil
	}) {
		t.Errorf("it does not succeed: %v", err)
	}
}

func call(ctx context.Context, c *harness.Client, method string, params map[string]any, result any) error {
	a, err := c.Try(ctx, method, params)
	switch {
	case err != nil:
		return err
	case a.Error != nil:
		return a.Error
	case a.Result == nil:
		return fmt.Errorf("%s: status %d: %.200s", method, a.Status, a.Body)
	case result == nil:
		return nil
	}
	return json.Unmarshal(a.Result, result)
}
