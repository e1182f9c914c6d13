package client

import "time"

// SetSilence sets after how long a stream without a message is dead.
func SetSilence(c *Client, d time.Duration) { c.silence = d }
