//go:build unix

// Package harness runs the system as its users run it and observes it from outside. It starts the server binary, or the
// functions on local AWS, as processes. Its HTTP clients know the protocol but none of the server's code, and its webhook
// endpoints record every delivery.
//
// Only tests under test/ import the package. From shared/ it uses only the counts of requests, because a test's assertions
// must hold on the wire. A test binary that uses the package calls [Main], which removes the built files at the end.
package harness
