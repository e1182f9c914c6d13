package process

import (
	"os/exec"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAServerThatEndsInsteadOfServing(t *testing.T) {
	t.Parallel()
	addrs := expect.Value(FreeAddresses(2))(t)
	expect.True(t, "the addresses differ", addrs[0] != addrs[1])
	_, err := Start(t.Context(), exec.Command("sh", "-c", "exit 3"), "http://"+addrs[0])
	expect.Error(t, "Start", err, "the server did not start: exit status 3")
}
