//go:build unix

// Package harness runs the system as its users run it and looks at it from
// outside: the server binary or the functions on local AWS as processes, HTTP
// clients that know the protocol but none of the server's code, webhook
// endpoints that keep what they were sent.
//
// Only tests under test/ import it, and it uses nothing of shared/ but counts of
// requests: what a test asserts must hold on the wire. A test binary that uses it ends with
// [Main], which takes away what was built.
package harness
