package conversation

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestParse(t *testing.T) {
	m, err := Parse(UserMessage, json.RawMessage(`{"messageId":"m","content":"h\u00e9llo","recentHistory":[{"role":"user","content":"a"},{"role":"assistant","content":""}],"x":1,"_meta":{}}`))
	expect.OK(t, err)
	want := `{"messageId":"m","content":"héllo","recentHistory":[{"role":"user","content":"a"},{"role":"assistant","content":""}]}`
	expect.Equal(t, "the params", string(m.Params(nil)), want)
	expect.Equal(t, "the params with _meta", string(m.Params([]byte(`"k":"v"`))), strings.TrimSuffix(want, "}")+`,"_meta":{"k":"v"}}`)
	for _, params := range []string{`{"messageId":"m","content":""}`, `{"messageId":"m","content":"","recentHistory":null}`, `{"messageId":"m","content":"","recentHistory":[]}`} {
		if _, err := Parse(UserMessage, json.RawMessage(params)); err != nil {
			t.Errorf("%s: %v", params, err)
		}
	}
}

// CNV-08: malformed messages and messages over a limit have different errors, and the errors do not quote the
// message.
func TestParseRefuses(t *testing.T) {
	const secret = "marigold"
	long := func(n int) string { return secret + strings.Repeat("x", n) }
	turns := func(n int, content string) string {
		return strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"`+content+`"},`, n), ",")
	}
	message := func(more string) string { return `{"messageId":"m","content":"` + secret + `"` + more + `}` }
	for name, tc := range map[string]struct {
		params string
		kind   fault.Kind
		want   string
	}{
		"no params":                {``, fault.Invalid, "params must be an object"},
		"an array":                 {`["marigold"]`, fault.Invalid, "params must be an object"},
		"no id":                    {`{"content":"marigold"}`, fault.Invalid, "messageId must be a string"},
		"an empty id":              {`{"messageId":"","content":"marigold"}`, fault.Invalid, "messageId must not be empty"},
		"a number as id":           {`{"messageId":7,"content":"marigold"}`, fault.Invalid, "messageId must be a string"},
		"two ids":                  {message(`,"messageId":"marigold"`), fault.Invalid, "messageId appears twice"},
		"no content":               {`{"messageId":"marigold"}`, fault.Invalid, "content must be a string"},
		"content of parts":         {`{"messageId":"m","content":["marigold"]}`, fault.Invalid, "content must be a string"},
		"two contents":             {message(`,"content":"marigold"`), fault.Invalid, "content appears twice"},
		"history is an object":     {message(`,"recentHistory":{"role":"marigold"}`), fault.Invalid, "recentHistory must be an array"},
		"history of texts":         {message(`,"recentHistory":["marigold"]`), fault.Invalid, "recentHistory must hold objects"},
		"another role":             {message(`,"recentHistory":[{"role":"marigold","content":"x"}]`), fault.Invalid, "role must be user or assistant"},
		"a turn without content":   {message(`,"recentHistory":[{"role":"user"}]`), fault.Invalid, "content must be a string"},
		"a long id":                {`{"messageId":"` + long(maxMessageID) + `","content":"x"}`, fault.TooLarge, "messageId of 256"},
		"long content":             {`{"messageId":"m","content":"` + long(MaxContent) + `"}`, fault.TooLarge, "content of 65536"},
		"many turns":               {message(`,"recentHistory":[` + turns(maxTurns+1, secret) + `]`), fault.TooLarge, "recentHistory of 100"},
		"much history":             {message(`,"recentHistory":[` + turns(2, long(maxHistory/2)) + `]`), fault.TooLarge, "recentHistory of 98304"},
		"much once it is in JSON":  {`{"messageId":"m","content":"` + strings.Repeat(`\u0001`, MaxContent-1) + `"}`, fault.TooLarge, "message of 196608"},
		"a long turn of a history": {message(`,"recentHistory":[{"role":"user","content":"` + long(maxHistory) + `"}]`), fault.TooLarge, "of 98304"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(UserMessage, json.RawMessage(tc.params))
			if fault.KindOf(err) != tc.kind || !strings.Contains(fault.Public(err), tc.want) {
				t.Errorf("got %v, want %s: %s", err, tc.kind, tc.want)
			}
			if _, ok := fault.DataOf(err).(fault.Limit); ok != (tc.kind == fault.TooLarge) {
				t.Errorf("the data is %v", fault.DataOf(err))
			}
			if strings.Contains(fmt.Sprintf("%v %+v", err, fault.DataOf(err)), secret) {
				t.Errorf("CNV-08: the error quotes the message: %v", err)
			}
		})
	}
}

// FuzzParse: an accepted message is within the limits, and does not change when it is encoded and parsed again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"messageId":"m","content":"c"}`, `{"messageId":"m","content":"c","recentHistory":[{"role":"user","content":"\ud800"}]}`,
		`{"messageId":"\u0000","content":"\"\\"}`, `[]`, `{"messageId":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, params []byte) {
		if !json.Valid(params) {
			return
		}
		m, err := Parse(UserMessage, json.RawMessage(strings.TrimSpace(string(params))))
		if err != nil {
			if kind := fault.KindOf(err); kind != fault.Invalid && kind != fault.TooLarge {
				t.Fatalf("%q: %v", params, err)
			}
			return
		}
		one := m.Params(nil)
		again, err := Parse(UserMessage, one)
		if err != nil || !json.Valid(one) || len(one) > maxEncoded || string(again.Params(nil)) != string(one) {
			t.Fatalf("%q became %q, %v", params, one, err)
		}
	})
}
