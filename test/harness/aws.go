//go:build unix

package harness

// awsRun is the local AWS of this test process.
type awsRun struct{}

func (r *awsRun) close() {}

var localAWS awsRun
