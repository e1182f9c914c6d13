package stream

// LimitWaiting sets how many entries may wait for the reader of a feed.
func (ts *Tails) LimitWaiting(entries int) { ts.mostWaiting.entries = entries }
