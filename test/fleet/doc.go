// Package fleet tests the gateway as several instances of the endpoint that share
// nothing but the store, behind one address that sends each request to any of them.
//
// The instances run in the test's process, so that what they leave behind can be counted:
// goroutines, and entries of the store. The backends are processes of their own.
package fleet
