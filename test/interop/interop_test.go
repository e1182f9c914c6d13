//go:build unix

// Package interop tests the stand-alone server, and the functions on local AWS, with unmodified clients of other makers.
package interop

import (
	"os"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
