package stdio

import (
	"os"
	"regexp"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMemory(t *testing.T) {
	t.Run("GWN-26 the data of a process is limited", func(t *testing.T) {
		f := newFixture(t, "modern", func(_ *Transport, c *api.Command) { c.MemoryMiB = 1 << 15 })
		limits, err := os.ReadFile("/proc/" + f.call("", "pid", "") + "/limits")
		expect.OK(t, err)
		expect.True(t, "the limit of the memory", regexp.MustCompile(`Max data size +34359738368 +34359738368 `).Match(limits))
	})
}
