package sealing

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestALongRunningSealerFollowsARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := open(t), &locked{}
		sealer := &Sealer{DB: db}
		if _, err := sealer.Seal(t.Context(), []byte("secret"), binding); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got error %v before there is a key, want one of kind unavailable", err)
		}
		expect.OK(t, Create(t.Context(), db, w))
		sealed := func() []byte {
			t.Helper()
			return expect.Value(sealer.Seal(t.Context(), []byte("secret"), binding))(t)
		}
		const prefix = 5 // a version byte and the key's id
		before := sealed()
		for _, step := range []Step{stepAdd, stepPromote} {
			expect.OK(t, Rotate(t.Context(), db, w, step))
		}
		time.Sleep(reloadAfter)
		after := sealed()
		if bytes.Equal(before[:prefix], after[:prefix]) {
			t.Errorf("it seals with the key %x %s after another one was promoted", after[:prefix], reloadAfter)
		}
		for _, text := range [][]byte{before, after} {
			expect.Equal(t, "the text", string(expect.Value((&Opener{DB: db, Wrapper: w}).Open(t.Context(), text, binding))(t)), "secret")
		}
	})
}
