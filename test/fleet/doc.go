// Package fleet tests the gateway as several instances of the endpoint behind one address that sends each
// request to a random instance. The instances share only the store.
//
// The instances run in the test's process, so that a test can count the goroutines and store entries that they
// leave behind. Each backend is a separate process.
package fleet
