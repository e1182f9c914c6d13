//go:build unix

package harness

import "testing"

// awsRun is the local AWS of this test process.
type awsRun struct{}

func (r *awsRun) close() {}

var localAWS awsRun

// LocalAWS is the functions of template.yaml on local AWS.
func LocalAWS(tb testing.TB) *Target {
	tb.Fatal("not yet")
	return nil
}

// Requests counts requests to AWS by who asked, service and operation.
type Requests map[string]map[string]map[string]int

// AWSRequests are those so far.
func AWSRequests(tb testing.TB) Requests { return nil }

type (
	AWSOptions struct{ Kills float64 }
	AWS        struct{ Target }
)

func (a *AWS) Killed() int { return 0 }
func StartAWS(tb testing.TB, o AWSOptions) *AWS {
	tb.Fatal("not yet")
	return nil
}
