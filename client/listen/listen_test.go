package listen

import (
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestArgumentsOfTheCommandLine(t *testing.T) {
	got, err := Arguments(map[string]string{"a": "5", "b:": "5", "c": "true", "d": `["x"]`, "e:": `"y"`})
	if want := `{"a":"5","b":5,"c":true,"d":["x"],"e":"y"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	for _, bad := range []map[string]string{{"a:": "x"}, {"a": "[1"}} {
		expect.Error(t, fmt.Sprint("the arguments ", bad), expect.ErrOf(Arguments(bad)))
	}
}
