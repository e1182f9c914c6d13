package apply

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestFilesAreAppliedAllOrNone(t *testing.T) {
	db := database(t)
	target := &Target{DB: db}
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, plain, "keys: []"))))
	// Hashes cannot be compressed, so these keys are too large for one item.
	var keys strings.Builder
	keys.WriteString("keys:\n")
	for range 7500 {
		sum := make([]byte, 32)
		_, _ = rand.Read(sum)
		fmt.Fprintf(&keys, "  - {principal: %s, scopes: [], sha256: %s}\n", rand.Text(), hex.EncodeToString(sum))
	}
	next := files(t, chatter, keys.String())
	next.AllowBreaking = true
	_, err := target.Apply(t.Context(), next)
	t.Run("EVS-14 a configuration that is too large is refused", func(t *testing.T) {
		expect.Fault(t, "the text", err, fault.TooLarge)
	})
	t.Run("EVS-14 the catalog that came with it is not in use", func(t *testing.T) {
		got, err := catalog.Load(t.Context(), db, "default")
		if err != nil || string(got.Source()) != plain {
			t.Errorf("the catalog is\n%s\n%v, want\n%s", got.Source(), err, plain)
		}
	})
}
