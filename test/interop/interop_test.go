//go:build unix

// Package interop tests the embedded server, and the functions on local AWS, with clients
// that others made, unmodified.
package interop

import (
	"os"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
